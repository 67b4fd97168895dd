-- What a program gives to a template, as values of templates. Objects that were read from JSON keep the order of their
-- keys, their nulls and their floats; tables of a program have none of these, so their keys are sorted.

local faults = require("moonshard.jinja.faults")
local json = require("moonshard.base.text.json")
local values = require("moonshard.jinja.values")

local given = {}

local MAX_NESTED = 200 -- as JSON

-- A number with the text that JSON had for it, if that says more than the number.
local function number_value(number, text)
  if text and not text:find("[.eE]") then return { kind = "integer", text = text } end
  if text or number % 1 ~= 0 then return values.float(number) end
  return values.integer(number)
end

local convert

local function list_value(list, written, depth)
  local items = {}
  for i = 1, #list do items[i] = convert(list[i], written and written.numbers and written.numbers[i], depth) end
  return values.list(items, #list)
end

local function sorted_keys(object)
  local keys = {}
  for key in pairs(object) do
    if type(key) ~= "string" then
      faults.raise("a template was given a table with the key %s: give lists, and tables whose keys are texts",
        tostring(key))
    end
    keys[#keys + 1] = key
  end
  table.sort(keys)
  return keys
end

local function dict_value(object, written, depth)
  local dict = values.dict()
  for _, key in ipairs(written and written.keys or sorted_keys(object)) do
    local value = object[key]
    values.set(dict, key, value == nil and values.NONE
      or convert(value, written and written.numbers and written.numbers[key], depth))
  end
  return dict
end

function convert(value, text, depth)
  local kind = type(value)
  if kind == "string" or kind == "boolean" then return value end
  if kind == "number" then return number_value(value, text) end
  if value == json.null then return values.NONE end
  if kind ~= "table" then faults.raise("a template was given a %s", kind) end
  if depth > MAX_NESTED then faults.raise("a template was given tables that nest more than %d deep", MAX_NESTED) end
  local written = json.written(value)
  if json.is_list(value) then return list_value(value, written, depth + 1) end
  return dict_value(value, written, depth + 1)
end

---The variables of a rendering as values of templates.
---@param variables table<string, any> texts, numbers, booleans, json.null, and tables of these: lists, or objects
---@return table<string, moonshard.jinja.Value>
function given.variables(variables)
  local dict, taken = dict_value(variables, json.written(variables), 0), {}
  for i = 1, dict.n do taken[dict.keys[i]] = dict.values[i] end
  return taken
end

return given
