-- Which class of the reference library wrote a folder. Others than those built lack the head, or have another one, or
-- read the same tensors in another way, such as without a causal mask.

local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")

local architecture = {}

-- The class without the head: its folders have the same layers, and their tensors say whether a head is needed.
local function base_of(row) return row.base or row.architecture:gsub("For%u.*$", "Model") end

---Raises MS_EUNSUPPORTED for a config whose architectures are none of the family's.
---@param row { model_type: string, architecture: string, also: table<string, boolean>?, base: string|false|nil } a
---  family; also: other classes whose folders have its tensors; base: the class without the head, false for a family
---  whose folders need the head; default: by the name of the architecture
---@param path string
---@param config table
function architecture.check(row, path, config)
  local given = type(config.architectures) == "table" and config.architectures or {}
  local base = row.base ~= false and base_of(row)
  for _, name in ipairs(given) do
    local same = type(name) == "string" and name:lower() == row.architecture:lower()
    if same or name == base or row.also and row.also[name] then return end
  end
  if given[1] == nil then return end
  errors.raise("MS_EUNSUPPORTED", "%s: architectures is %s, but of model_type %s only %s is built: load the folder as "
    .. "that class with the reference library and save it, which adds a head; if the folder has its tensors, give "
    .. 'ignore = { "architectures" }', path, options.describe(given[1]), row.model_type, row.architecture)
end

return architecture
