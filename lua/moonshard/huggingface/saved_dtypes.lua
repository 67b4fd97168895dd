-- The element types in which weights and adapters are written for Hugging Face's library: the engine's, and f16, which
-- exists only in files.

local dtypes = require("moonshard.base.dtypes")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")

local saved_dtypes = {}

---@class moonshard.SavedDtype
---@field name string "bf16"
---@field stored string safetensors' name
---@field bytes integer of an element
---@field torch string PyTorch's name, for config.json

local BY_NAME = { f16 = { name = "f16", stored = "F16", bytes = 2, torch = "float16" } }
for _, name in ipairs(dtypes.with("saved")) do
  BY_NAME[name] = { name = name, stored = dtypes.in_files[name], bytes = dtypes.sizes[name],
    torch = dtypes.long_names[name] }
end

---Reads the option dtype of a call that saves.
---@param who string for messages: "ms.lora.save"
---@param value string? "f32" (the default), "bf16", "f16", or PyTorch's name of one
---@return moonshard.SavedDtype
function saved_dtypes.read(who, value)
  if value == nil then return BY_NAME.f32 end
  local name = dtypes.short_name(value) or dtypes.without_torch(value)
  if name == BY_NAME.f16.torch then name = "f16" end
  if BY_NAME[name] then return BY_NAME[name] end
  errors.raise("MS_ENAME", "%s: dtype must be \"f32\", \"bf16\" or \"f16\", not %s", who, options.describe(value))
end

return saved_dtypes
