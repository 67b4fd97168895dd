-- What value.name, value[key] and value[first:last:step] are: Jinja looks for an attribute first in one case, for an
-- item first in the other, and what is not there is undefined.

local characters = require("moonshard.jinja.characters")
local faults = require("moonshard.jinja.faults")
local limits = require("moonshard.jinja.limits")
local methods = require("moonshard.jinja.methods")
local values = require("moonshard.jinja.values")

local attributes = {}

local function check_defined(value, name)
  if type(value) == "table" and value.kind == "undefined" then
    faults.raise("%s, so it has no %s", value.what, type(name) == "string" and name or "items")
  end
end

-- What a macro says of itself.
local OF_MACRO = {
  name = function(macro) return macro.name end,
  arguments = function(macro)
    local names = {}
    for i, parameter in ipairs(macro.node.parameters) do names[i] = parameter.name end
    return values.list(names, #names, "tuple")
  end,
  catch_varargs = function(macro) return macro.node.uses.varargs or false end,
  catch_kwargs = function(macro) return macro.node.uses.kwargs or false end,
  caller = function(macro) return macro.node.uses.caller or false end,
}

-- An attribute that is no item: of the interpreter's own objects, a method, or a name of a tuple.
local function own_attribute(value, name)
  local kind = values.kind(value)
  if kind == "namespace" then return value.values[name] end
  if kind == "loop" then return value.attribute(name) end
  if kind == "macro" and OF_MACRO[name] then return OF_MACRO[name](value) end
  if kind == "tuple" and value.names and value.names[name] then return value[value.names[name]] end
  return methods.find(value, name)
end

local function missing(value, name)
  return values.undefined("%s has no attribute or item %s", values.describe(value), tostring(name))
end

local SEQUENCE = { list = true, tuple = true, range = true }

-- An item; nil if there is none.
local function item_of(value, key)
  local kind = values.kind(value)
  if kind == "dict" then
    if values.hash(key) == nil then return nil end
    return values.get(value, key)
  end
  local index = type(key) == "number" and key or type(key) == "boolean" and (key and 1 or 0) or nil
  if not index then return nil end
  if SEQUENCE[kind] then
    return value[index < 0 and index + value.n + 1 or index + 1]
  elseif kind == "str" then
    local length = characters.length(value)
    if index < 0 then index = index + length end
    if index >= 0 and index < length then return characters.sub(value, index, index + 1) end
  end
end

---value.name
---@param value moonshard.jinja.Value
---@param name string
---@return moonshard.jinja.Value undefined if there is neither an attribute nor an item
function attributes.attribute(value, name)
  check_defined(value, name)
  local found = own_attribute(value, name)
  if found == nil then found = item_of(value, name) end
  if found == nil then return missing(value, name) end
  return found
end

---An attribute that is no item, as the filter attr has it.
---@param value moonshard.jinja.Value
---@param name string
---@return moonshard.jinja.Value undefined if there is none
function attributes.no_item(value, name)
  check_defined(value, name)
  local found = own_attribute(value, name)
  if found == nil then return missing(value, name) end
  return found
end

---value[key]
---@param value moonshard.jinja.Value
---@param key moonshard.jinja.Value
---@return moonshard.jinja.Value undefined if there is neither an item nor an attribute
function attributes.item(value, key)
  check_defined(value, key)
  local found = item_of(value, key)
  if found == nil and type(key) == "string" then found = own_attribute(value, key) end
  if found == nil then return missing(value, type(key) == "table" and values.describe(key) or key) end
  return found
end

-- A bound of a slice as a position: negative ones count from the end, and those outside are the nearest within.
local function bound(given, default, length, least, most)
  if given == nil or given == values.NONE then return default end
  given = values.whole(given, "a bound of a slice")
  if given < 0 then given = given + length end
  return math.max(least, math.min(given, most))
end

-- The positions of a slice: the first, the one at which it stops, and the step.
local function positions(first, last, step, length)
  step = (step == nil or step == values.NONE) and 1 or values.whole(step, "the step of a slice")
  if step == 0 then faults.raise("the step of a slice is 0") end
  if step > 0 then return bound(first, 0, length, 0, length), bound(last, length, length, 0, length), step end
  return bound(first, length - 1, length, -1, length - 1), bound(last, -1, length, -1, length - 1), step
end

---value[first:last:step]
---@param value moonshard.jinja.Value
---@param first moonshard.jinja.Value?
---@param last moonshard.jinja.Value?
---@param step moonshard.jinja.Value?
---@return moonshard.jinja.Value
function attributes.slice(value, first, last, step)
  local kind = values.kind(value)
  if kind ~= "str" and not SEQUENCE[kind] then
    check_defined(value)
    faults.raise("%s has no slices", values.describe(value))
  end
  local from, to, by = positions(first, last, step, values.length(value))
  if kind == "str" and by == 1 then return characters.sub(value, from, to) end
  local source = kind == "str" and characters.list(value) or value
  local items, n = {}, 0
  for i = from, to - (by > 0 and 1 or -1), by do
    n = n + 1
    items[n] = source[i + 1]
  end
  limits.list(n)
  if kind == "str" then return table.concat(items) end
  local result = values.list(items, n, kind)
  if kind == "range" then
    result.start, result.step = value.start + from * value.step, value.step * by
    result.stop = value.start + to * value.step
  end
  return result
end

---A function that finds an attribute by its path, as filters take one: "user.name", "0.name", or an index.
---@param path moonshard.jinja.Value? a str or an int; nil or None: the value itself
---@param default moonshard.jinja.Value? in place of what is undefined
---@return fun(value: moonshard.jinja.Value): moonshard.jinja.Value
function attributes.getter(path, default)
  local parts = {}
  if type(path) == "string" then
    for _, part in ipairs((characters.split(path, ".", -1))) do
      parts[#parts + 1] = part:find("^%d+$") and tonumber(part) or part
    end
  elseif path ~= nil and path ~= values.NONE then
    parts[1] = path
  end
  return function(value)
    for _, part in ipairs(parts) do
      value = attributes.item(value, part)
      if default ~= nil and type(value) == "table" and value.kind == "undefined" then value = default end
    end
    return value
  end
end

return attributes
