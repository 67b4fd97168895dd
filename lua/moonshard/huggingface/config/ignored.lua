-- Fields of a config.json that a user asks to load a folder without, because the fields are unknown here, or because
-- they ask for what is not built. What then differs from the folder's model is said, not done in silence.

local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")
local without_effect = require("moonshard.huggingface.config.without_effect")

local ignored = {}

local function check_names(who, config, path, names)
  local lacking = {}
  for i, name in ipairs(names) do
    if type(name) ~= "string" then
      errors.invalid("%s: ignore must be a list of names of fields, like { \"field\" }; item %d is %s", who, i,
        options.describe(name))
    end
    if rawget(config, name) == nil then
      local present = {}
      for field in pairs(config) do present[#present + 1] = field end
      local near = nearest.name(name, present)
      lacking[#lacking + 1] = name .. (near and (" (did you mean %s?)"):format(near) or "")
    end
  end
  if lacking[1] then
    errors.raise("MS_ENAME", "%s: it has no field %s, which ignore names: leave it out of ignore", path,
      table.concat(lacking, ", nor "))
  end
end

-- What a model without the field is, where it differs from the folder's.
local function effect_of(config, family, name)
  local value, field = config[name], family.fields[name]
  local row = without_effect.row(config.model_type, name)
  if field then
    local default = field[2] ~= nil and ("the class's default, %s,"):format(options.describe(field[2])) or "its absence"
    return ("is ignored and has an effect: %s holds instead"):format(default)
  elseif row and not without_effect.fits(row, value, config) then
    return ("is ignored and has an effect: %s"):format(row.why)
  end
  return nil
end

local function shown(value)
  local text = json.encode(value)
  return #text <= 60 and text or "(long)"
end

---Removes the fields from a config. Raises MS_ENAME for a name that is not there.
---@param who string for messages: "ms.huggingface.model"
---@param config table as returned by config.read; changed
---@param path string of the file
---@param family moonshard.HuggingFaceFamily? of the config's model_type
---@param names string[]
---@return string[] notes what of it has an effect: "rope_scaling {...} is ignored and has an effect: ..."
function ignored.remove(who, config, path, family, names)
  check_names(who, config, path, names)
  local notes = {}
  for _, name in ipairs(names) do
    local effect = family and config[name] ~= nil and effect_of(config, family, name)
    if effect then notes[#notes + 1] = ("%s %s %s"):format(name, shown(config[name]), effect) end
  end
  for _, name in ipairs(names) do config[name] = nil end
  return notes
end

return ignored
