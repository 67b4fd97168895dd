-- Checks tables of named options. Unknown names are refused with the nearest valid one, wrong types with the right one.

local errors = require("moonshard.base.error")
local lists = require("moonshard.base.checks.lists")
local nearest = require("moonshard.base.names.nearest")
local text_lines = require("moonshard.base.text.text_lines")

local options = {}

local CHECKS = {
  number = function(value) return type(value) == "number" and value == value end,
  integer = function(value) return type(value) == "number" and value % 1 == 0 end,
  positive = function(value) return type(value) == "number" and value % 1 == 0 and value >= 1 end,
  seed = function(value) return type(value) == "number" and value % 1 == 0 and value >= 0 and value < 2 ^ 53 end,
  any = function() return true end,
}

local TEXTS = { integer = "an integer", positive = "an integer of at least 1",
  seed = "an integer from 0 to 2^53 - 1", number = "a number", string = "a string",
  boolean = "true or false", table = "a table", ["function"] = "a function" }

local function matches(value, kind)
  local check = CHECKS[kind]
  if check then return check(value) end
  return type(value) == kind
end

-- "a mesh", for a table that is one of the layer's objects.
local function class_name(value)
  local meta = type(value) == "table" and getmetatable(value)
  return meta and rawget(meta, "__name")
end

---Whether a value is an array as batches have them: { data = memory, dtype =, shape = }.
---@param value any
---@return boolean
function options.is_array(value)
  return type(value) == "table" and getmetatable(value) == nil and type(value.data) == "cdata"
    and type(value.shape) == "table" and type(value.dtype) == "string"
end

local function describe(value)
  if type(value) == "string" then return text_lines.quoted(value) end
  if value ~= value then return "nan" end -- NaN can print with a sign, which is meaningless
  if class_name(value) then return class_name(value) end
  if options.is_array(value) then return "an array of a batch, of which ms.tensor makes a tensor" end
  if type(value) == "table" or type(value) == "function" then return "a " .. type(value) end
  return tostring(value)
end
options.describe = describe

---@class moonshard.OptionSpec
---@field [1] string kinds, joined by "|": integer, positive (an integer >= 1), seed, number (not NaN), any, or
---  what type() says
---@field most number? for a number, the largest allowed value
---@field example string? what to write, for a value of the wrong type
---@field default any? value if the option is absent
---@field holes boolean? a list in which nil means an item's default
---@field required boolean|string? an error if it is absent; for an unnamed argument: its meaning

local function name_of(key, spec)
  if type(key) == "string" then return key end
  return ("argument %d%s"):format(key, type(spec.required) == "string" and " (" .. spec.required .. ")" or "")
end

-- "string|number" as a list, read once: specs are constants, and a model's layers parse theirs again and again.
local lists_of_kinds = {}

local function list_of(kinds)
  local list = lists_of_kinds[kinds]
  if not list then
    list = {}
    for kind in kinds:gmatch("[^|]+") do list[#list + 1] = kind end
    lists_of_kinds[kinds] = list
  end
  return list
end

local function check_value(who, name, spec, value)
  local list = list_of(spec[1])
  for i = 1, #list do
    if matches(value, list[i]) then return end
  end
  local texts = {}
  for i, kind in ipairs(list) do texts[i] = TEXTS[kind] or kind end
  local advice = require("moonshard.base.names.other_names").of_function(value)
  errors.invalid("%s: %s must be %s, not %s%s", who, name_of(name, spec), table.concat(texts, " or "), describe(value),
    advice and ": " .. advice or spec.example and ", as in " .. spec.example or "")
end

---Refuses a path of a folder that is no text.
---@param who string the function, as the user wrote it
---@param folder any
function options.folder(who, folder)
  if type(folder) == "string" and folder ~= "" then return end
  errors.invalid("%s: give a folder, not %s", who, describe(folder))
end

---Refuses arguments after the last one, which Lua drops.
---@param who string the function, as the user wrote it
---@param ... any what follows
function options.no_more(who, ...)
  if select("#", ...) > 0 then
    errors.invalid("%s: its last argument is followed by %s, which has no place", who, describe((...)))
  end
end

---Checks a table of options and fills in the defaults.
---@param who string whose options they are, as the user wrote it: "ms.fully_shard"
---@param given table? the user's table; nil means an empty one
---@param specs table<string|integer, moonshard.OptionSpec>
---@return table parsed a new table
function options.parse(who, given, specs)
  given = given or {}
  if type(given) ~= "table" or class_name(given) then
    errors.invalid("%s takes a table of options, not %s", who, describe(given))
  end
  lists.check_fields(who, given)
  local parsed = {}
  for name, value in pairs(given) do
    local spec = specs[name]
    if not spec then
      local named = {}
      for key in pairs(specs) do
        if type(key) == "string" then named[key] = true end
      end
      if type(name) == "number" then
        errors.invalid("%s: %s has no name: write name = value; %s", who, describe(value), nearest.advice("", named))
      end
      local advice = nearest.called_here(name, named) or nearest.slip(name, named)
        or require("moonshard.base.names.other_names").of_option(name, named)
        or nearest.advice(name, named)
      errors.raise("MS_ENAME", "%s: unknown option %s: %s", who, tostring(name), advice)
    end
    check_value(who, name, spec, value)
    if spec.most and type(value) == "number" and value > spec.most then
      errors.invalid("%s: %s is %s, but the maximum is %s", who, name_of(name, spec), describe(value),
        describe(spec.most))
    end
    parsed[name] = value
  end
  local missing = {}
  for name, spec in pairs(specs) do
    if parsed[name] == nil then
      if spec.required then missing[#missing + 1] = name_of(name, spec) end
      parsed[name] = spec.default
    end
  end
  if missing[1] then
    table.sort(missing)
    local last = table.remove(missing)
    errors.invalid("%s: %s %s missing", who, missing[1] and table.concat(missing, ", ") .. " and " .. last or last,
      missing[1] and "are" or "is")
  end
  return parsed
end

return options
