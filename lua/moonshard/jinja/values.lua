-- Values of templates, as Python has them: what they are in Lua, and what Python asks of every value.
--
-- Texts are Lua strings in UTF-8, True and False Lua's, integers Lua numbers without a fraction. All other values are
-- tables with a `kind`:
--
--   none                                undefined  what: says why, for messages
--   float      value                    integer    text: one that a double does not have, for printing only
--   list, tuple, range                  [1 .. n] and n; a range also has start, stop, step; a tuple can have names
--   view       of a dict; as a list     generator  [1 .. n], n, and `at`, how many have been taken
--   dict       keys, values: lists in the order in which keys came; index: places by hash; n
--   namespace  values: by name          function, method, macro, loop: see evaluate/calls.lua

local characters = require("moonshard.jinja.characters")
local faults = require("moonshard.jinja.faults")
local limits = require("moonshard.jinja.limits")

local values = {}

---@alias moonshard.jinja.Value string|boolean|number|table

-- ---- making values ----------------------------------------------------------------------------------------------

---Python's None.
values.NONE = { kind = "none" }

---@param value number
---@return table
function values.float(value) return { kind = "float", value = value } end

---A value of a name, an item or an attribute that is not there. Printing it gives nothing; most else is an error.
---@param format string why: "'role' is undefined"
---@param ... any
---@return table
function values.undefined(format, ...) return { kind = "undefined", what = format:format(...) } end

---@param items moonshard.jinja.Value[] taken, not copied
---@param n integer
---@param kind string? "list" (default), "tuple", "view" or "generator"
---@return table
function values.list(items, n, kind)
  items.kind, items.n = kind or "list", n
  if kind == "generator" then items.at = 0 end
  return items
end

---@return table
function values.dict() return { kind = "dict", keys = {}, values = {}, index = {}, n = 0 } end

-- The largest integer up to which a double has all.
local EXACT = 2 ^ 53

---The result of a calculation with integers.
---@param number number
---@return number
function values.integer(number)
  if number > EXACT or number < -EXACT or number ~= number then
    faults.unsupported("an integer beyond 2^53 is calculated, which is not supported")
  end
  return number + 0 -- no negative zero
end

-- ---- kinds ------------------------------------------------------------------------------------------------------

local KINDS = { string = "str", boolean = "bool", number = "int" }

---The kind of a value: str, bool, int, or a table's.
---@param value moonshard.jinja.Value
---@return string
function values.kind(value) return KINDS[type(value)] or value.kind end

local NAMES = { none = "None", undefined = "an undefined value", float = "a float", integer = "an int", str = "a str",
  int = "an int", bool = "a bool", list = "a list", tuple = "a tuple", dict = "a dict", view = "a view of a dict",
  generator = "a generator", range = "a range", namespace = "a namespace", ["function"] = "a function",
  method = "a method", macro = "a macro", loop = "a loop", slice = "a slice" }

---What a value is, for messages.
---@param value moonshard.jinja.Value
---@return string
function values.describe(value) return NAMES[values.kind(value)] end

---Refuses a use of an undefined value; others pass.
---@param value moonshard.jinja.Value
function values.check_defined(value)
  if type(value) == "table" and value.kind == "undefined" then faults.raise("%s", value.what) end
end

---The number of an int, a bool or a float; nil for others, and whether it is a float.
---@param value moonshard.jinja.Value
---@return number?
---@return boolean? is_float
function values.number(value)
  if type(value) == "number" then return value, false end
  if type(value) == "boolean" then return value and 1 or 0, false end
  if type(value) == "table" and value.kind == "float" then return value.value, true end
  if type(value) == "table" and value.kind == "integer" then
    faults.unsupported("the integer %s is beyond 2^53, with which nothing is calculated", value.text)
  end
end

---An integer that is needed, as an index or a count.
---@param value moonshard.jinja.Value
---@param what string for messages
---@return integer
function values.whole(value, what)
  if type(value) == "number" then return value end
  if type(value) == "boolean" then return value and 1 or 0 end
  values.check_defined(value)
  faults.raise("%s must be an int, not %s", what, values.describe(value))
end

---A text that is needed.
---@param value moonshard.jinja.Value
---@param what string for messages
---@return string
function values.text(value, what)
  if type(value) == "string" then return value end
  values.check_defined(value)
  faults.raise("%s must be a str, not %s", what, values.describe(value))
end

-- ---- truth, length, items -----------------------------------------------------------------------------------------

local HAS_LENGTH = { list = true, tuple = true, range = true, view = true, dict = true }

---Whether a value counts as true.
---@param value moonshard.jinja.Value
---@return boolean
function values.truth(value)
  local kind = type(value)
  if kind == "boolean" then return value end
  if kind == "string" then return value ~= "" end
  if kind == "number" then return value ~= 0 end
  kind = value.kind
  if kind == "none" then return false end
  if kind == "undefined" then return false end
  if kind == "float" then return value.value ~= 0 end
  if HAS_LENGTH[kind] then return value.n > 0 end
  return true
end

---The number of a value's items or characters; nil for a value without a length.
---@param value moonshard.jinja.Value
---@return integer?
function values.length(value)
  if type(value) == "string" then return characters.length(value) end
  if type(value) ~= "table" then return nil end
  if value.kind == "undefined" then return 0 end
  return HAS_LENGTH[value.kind] and value.n or nil
end

local IS_ITERABLE = { list = true, tuple = true, range = true, view = true, dict = true, generator = true,
  undefined = true, loop = true, str = true }

---@param value moonshard.jinja.Value
---@return boolean
function values.is_iterable(value) return IS_ITERABLE[values.kind(value)] or false end

---The items that a loop over a value gets. A generator gives each of its items once.
---@param value moonshard.jinja.Value
---@return moonshard.jinja.Value[] items not to be changed
---@return integer n
function values.items(value)
  local kind = values.kind(value)
  if kind == "str" then return characters.list(value) end
  if kind == "dict" then
    limits.list(value.n)
    return value.keys, value.n
  end
  if kind == "undefined" then return {}, 0 end
  if kind == "generator" then
    local rest, n = {}, 0
    for i = value.at + 1, value.n do
      n = n + 1
      rest[n] = value[i]
    end
    value.at = value.n
    limits.list(n)
    return rest, n
  end
  if HAS_LENGTH[kind] then
    limits.list(value.n)
    return value, value.n
  end
  faults.raise("%s cannot be looped over", values.describe(value))
end

-- ---- dicts ------------------------------------------------------------------------------------------------------

---A value's place in a dict's index: equal values have the same. Nil: the value cannot be a key.
---@param value moonshard.jinja.Value
---@return any
function values.hash(value)
  local kind = type(value)
  if kind == "string" or kind == "number" then return value end
  if kind == "boolean" then return value and 1 or 0 end
  kind = value.kind
  if kind == "float" then return value.value == value.value and value.value or value end
  if kind == "integer" then return "\255integer " .. value.text end
  if kind == "undefined" then return "\255undefined" end -- no text begins with this byte
  if kind == "tuple" then
    local parts = {}
    for i = 1, value.n do
      local hash = values.hash(value[i])
      if hash == nil then return nil end
      if type(hash) == "table" then
        faults.unsupported("%s in a tuple is a key, which is not supported", values.describe(hash))
      end
      parts[i] = ("%s %d %s"):format(type(hash), #tostring(hash), tostring(hash))
    end
    return "\255tuple " .. table.concat(parts, ",")
  end
  if kind == "list" or kind == "dict" then return nil end
  return value
end

local function hash_of_key(key)
  local hash = values.hash(key)
  if hash == nil then faults.raise("%s cannot be a key", values.describe(key)) end
  return hash
end

---The value of a key; nil if the dict has none. A value that cannot be a key is a fault.
---@param dict table
---@param key moonshard.jinja.Value
---@return moonshard.jinja.Value?
function values.get(dict, key)
  if type(key) ~= "string" then key = hash_of_key(key) end
  local place = dict.index[key]
  if place then return dict.values[place] end
end

---Sets a key of a dict that is being made: templates change none.
---@param dict table
---@param key moonshard.jinja.Value
---@param value moonshard.jinja.Value
function values.set(dict, key, value)
  local hash = hash_of_key(key)
  local place = dict.index[hash]
  if not place then
    place = dict.n + 1
    dict.n, dict.index[hash], dict.keys[place] = place, place, key
  end
  dict.values[place] = value
end

---A dict's pairs of keys and values, in order.
---@param dict table
---@param kind string of the result: "view", "list" or "generator"
---@return table
function values.pairs_of(dict, kind)
  local pairs_, n = {}, dict.n
  limits.list(n)
  for i = 1, n do pairs_[i] = values.list({ dict.keys[i], dict.values[i] }, 2, "tuple") end
  return values.list(pairs_, n, kind)
end

return values
