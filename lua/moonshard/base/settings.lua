-- The settings of the engine's structs by name. The rows come from settings.def: the engine checks values, and what
-- excludes what; here recipes' words become its numbers, and its messages get recipes' names.

local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")
local recipe_names = require("moonshard.base.names.recipe_names")
local rows = require("moonshard.settings")
local C = engine.C

local settings = {}

---@class moonshard.Setting a row of settings.def
---@field name string of the field: "prefetch"; of an optimizer's: "adamw.beta1"
---@field type "int"|"double"
---@field default string a number, or the name of one in moonshard.h
---@field choices string[]? names of 0, 1, ...
---@field flag boolean?
---@field dtype boolean?
---@field doc string? of an optimizer's: what it is

local by_name = {}
for type, list in pairs(rows) do
  by_name[type] = {}
  for _, row in ipairs(list) do by_name[type][row.name] = row end
end

---The rows of a struct.
---@param type string "ms_plan_config"
---@param group string? only those of a struct in it: "adamw"
---@return moonshard.Setting[]
function settings.rows(type, group)
  local list = {}
  for _, row in ipairs(rows[type]) do
    if not group or row.name:match("^(.-)%.") == group then list[#list + 1] = row end
  end
  return list
end

---The name of a field without that of its group.
---@param row moonshard.Setting
---@return string
function settings.field(row) return row.name:match("[^.]+$") end

---The default as a recipe has it: true, "bf16", "rows", 0.9.
---@param row moonshard.Setting
---@return any
function settings.default(row)
  local number = tonumber(row.default) or tonumber(C[row.default])
  if row.flag then return number ~= 0 end
  if row.choices then return row.choices[number + 1] end
  return row.dtype and dtypes.names[number] or number
end

---The kind of value that a recipe gives (base/checks/options.lua).
---@param row moonshard.Setting
---@return string
function settings.kind(row)
  if row.flag then return "boolean" end
  if row.choices or row.dtype then return "string" end
  return row.type == "int" and "integer" or "number"
end

---The words that a recipe can give; nil where it gives a number or a boolean.
---@param type string of the struct
---@param row moonshard.Setting
---@return string[]?
function settings.words(type, row)
  if not row.dtype then return row.choices end
  local config, words = engine.ffi.new(type), {}
  for id = 0, #dtypes.names do
    engine.check(C.ms_config_default(type, config, engine.ffi.sizeof(type)))
    local group = row.name:match("^(.-)%.")
    settings.fill(config, type, { [settings.field(row)] = id }, group)
    if C.ms_config_check(type, config, engine.ffi.sizeof(type)) == 0 then words[#words + 1] = dtypes.names[id] end
  end
  return words
end

---The short name of a dtype, or a name that a setting has. Another dtype stays as it is, for the engine to refuse.
---@param who string
---@param row moonshard.Setting
---@param value any
---@return any
function settings.check_name(who, row, value)
  if row.dtype then return dtypes.short_name(value) or value end
  local known = {}
  for _, choice in ipairs(row.choices or {}) do known[choice] = true end
  if not row.choices or known[value] then return value end
  errors.raise("MS_ENAME", "%s: %s %s: %s", who, settings.field(row), tostring(value), nearest.advice(value, known))
end

local NO_DTYPE = -2 -- the engine refuses it, and says which dtypes there can be

local function number_of(row, value)
  if row.flag and type(value) == "boolean" then return value and 1 or 0 end
  if row.dtype and type(value) == "string" then return dtypes.short_name(value) and dtypes.id(value) or NO_DTYPE end
  for i, choice in ipairs(row.choices or {}) do
    if choice == value then return i - 1 end
  end
  return value
end

---The engine's number for a value.
---@param type string
---@param name string of a field
---@param value any a number, or a recipe's word
---@return number
function settings.number(type, name, value) return number_of(by_name[type][name], value) end

---Sets fields of a struct; what `values` does not have stays as it is.
---@param config ffi.cdata* filled with its defaults
---@param type string "ms_unit_config"
---@param values table<string, any> by field: numbers, or a recipe's words
---@param group string? sets those of a struct in it
function settings.fill(config, type, values, group)
  local to = group and config[group] or config
  for name, value in pairs(values) do
    local row = by_name[type][group and group .. "." .. name or name]
    to[name] = number_of(row, value)
  end
end

-- 'moments must be "f32" or "bf16", not "f16"': dtypes as recipes write them.
local function quote_dtypes(message, type, values)
  local name, list, value = message:match("^(%S+) must be (.-), not (%S+)$")
  local row = name and by_name[type][name]
  if not (row and row.dtype) then return message end
  list = list:gsub("%w+", function(word) return dtypes.short_name(word) and ("%q"):format(word) end)
  return ("%s must be %s, not %s%s"):format(name, list, options.describe(values[name] or value),
    dtypes.instead(values[name]))
end

---Checks a struct. Messages have what the recipe calls a field, and gave.
---@param who string
---@param type string
---@param config ffi.cdata*
---@param names table<string, string>? by the engine's name
---@param values table<string, any>? by the engine's name, of dtypes
function settings.check(who, type, config, names, values)
  engine.check(C.ms_config_check(type, config, engine.ffi.sizeof(type)), function(message)
    return who .. ": " .. recipe_names.rename(quote_dtypes(message, type, values or {}), names or {})
  end)
end

return settings
