-- Reads the fields of a config.json: checks types, and collects unsupported values and unknown fields. A field that was
-- silently ignored could give a different model than the one requested.

local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")
local text_lines = require("moonshard.base.text.text_lines")
local without_effect = require("moonshard.huggingface.config.without_effect")

local LISTED = require("moonshard.huggingface.config.problems").LISTED
local SHOWN = 60 -- bytes of a list or an object in a message

local fields = {
  ---The activations of two-layer MLPs, by their names.
  ACTIVATIONS = {
    gelu_new = "gelu_tanh", gelu_pytorch_tanh = "gelu_tanh", gelu_fast = "gelu_tanh", gelu = "gelu", relu = "relu",
    silu = "silu", swish = "silu",
  },
  ---And their names, by ours.
  ACTIVATION_NAMES = { gelu_tanh = "gelu_new", gelu = "gelu", relu = "relu", silu = "silu" },
}

local KINDS = {
  size = { "a whole number of at least 1", function(v) return type(v) == "number" and v % 1 == 0 and v >= 1 end },
  positive = { "a number above 0", function(v) return type(v) == "number" and v > 0 end },
  boolean = { "true or false", function(v) return type(v) == "boolean" end },
  text = { "a text", function(v) return type(v) == "string" end },
  number = { "a number", function(v) return type(v) == "number" end },
  ["index|none"] = { "a whole number of at least 0, or null", function(v)
    return v == false or type(v) == "number" and v % 1 == 0 and v >= 0
  end },
  object = { "an object", function(v) return type(v) == "table" end },
  list = { "a list", function(v) return type(v) == "table" and (v[1] ~= nil or next(v) == nil) end },
  indices = { "a list of whole numbers from 0", function(v)
    if type(v) ~= "table" or v[1] == nil and next(v) ~= nil then return false end
    for _, i in ipairs(v) do
      if type(i) ~= "number" or i % 1 ~= 0 or i < 0 then return false end
    end
    return true
  end },
  factor = { "a number of at least 0", function(v) return type(v) == "number" and v >= 0 and v < math.huge end },
  ["number|none"] = { "a number, or null", function(v) return v == false or type(v) == "number" end },
  ["size|none"] = { "a whole number of at least 1, or null", function(v)
    return v == false or type(v) == "number" and v % 1 == 0 and v >= 1
  end },
  ["positive|none"] = { "a number above 0, or null", function(v)
    return v == false or type(v) == "number" and v > 0
  end },
}

-- A value in a message: objects and lists as JSON, if that is short.
local function shown(value)
  if type(value) ~= "table" or value == json.null then return options.describe(value) end
  local text = json.encode(value)
  return #text <= SHOWN and text or text:sub(1, 1) == "[" and "a list" or "an object"
end

local function add_unknown(problems, model_type, name, value, known)
  local names = {}
  for _, source in ipairs({ known, without_effect.names(model_type) }) do
    for key in pairs(source) do names[#names + 1] = key end
  end
  local near = #problems.unknown < LISTED and nearest.name(name, names)
  table.insert(problems.unknown, name)
  problems:add("MS_EUNSUPPORTED", name, "field %s, which is %s, is unknown, and so is its effect on the results%s",
    text_lines.escape(name), shown(value), near and (" (did you mean %s?)"):format(near) or "")
end

-- A field that the family does not read.
local function check_unread(problems, config, name, value, known)
  local row = without_effect.row(config.model_type, name)
  if not row then return add_unknown(problems, config.model_type, name, value, known) end
  if without_effect.fits(row, value, config) then return end
  problems:add("MS_EUNSUPPORTED", name, "%s is %s: %s", name, shown(value), row.why)
end

-- A field that it reads.
local function check_read(problems, name, value, field)
  local kind = KINDS[field[1]]
  local allows_null = field.null or field[1] and field[1]:find("|none", 1, true)
  if value == json.null and kind and not allows_null then
    problems:add("MS_EINVAL", name, "%s is null, and must be %s: leave the field out for its default%s", name, kind[1],
      field[2] ~= nil and ", " .. options.describe(field[2]) or "")
  elseif field.only ~= nil and value ~= field.only and not (value == json.null and (field.null or not field.only)) then
    problems:add("MS_EUNSUPPORTED", name, "%s is %s: %s", name, shown(value), field.why)
  elseif kind and value ~= json.null and not kind[2](value) then
    problems:add("MS_EINVAL", name, "%s must be %s, not %s", name, kind[1], shown(value))
  end
end

---Reads a config by a table of fields.
---@param problems moonshard.ConfigProblems takes what is wrong
---@param config table decoded JSON; a null is json.null
---@param known table<string, table> by name: { kind, default } returns a value, the default where the field is absent,
---  and false for a null, where `null` or a kind with "|none" allows one; { only = value, why } must have
---  that value if present, and can be null where that is false or `null` allows it
---@return table<string, any> values by name; those that are wrong cannot be read (ConfigProblems:guard)
function fields.read(problems, config, known)
  for name, value in pairs(config) do
    if known[name] then
      check_read(problems, name, value, known[name])
    else
      check_unread(problems, config, name, value, known)
    end
  end
  local values = {}
  for name, field in pairs(known) do
    local value = config[name]
    if value == json.null then value = false end
    if value == nil then value = field[2] end
    values[name] = value
  end
  return problems:guard(values)
end

---The value for a name; raises an error that lists the valid names.
---@param path string
---@param field string
---@param value string
---@param choices table<string, any>
---@return any
function fields.choose(path, field, value, choices)
  if choices[value] ~= nil then return choices[value] end
  local names = {}
  for name in pairs(choices) do names[#names + 1] = name end
  table.sort(names)
  errors.raise("MS_EUNSUPPORTED", "%s: %s %s is not supported; supported: %s", path, field,
    options.describe(value), table.concat(names, ", "))
end

return fields
