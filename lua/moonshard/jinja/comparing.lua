-- Which values are equal, which come first, what is in what, and sorting, as in Python.

local characters = require("moonshard.jinja.characters")
local faults = require("moonshard.jinja.faults")
local limits = require("moonshard.jinja.limits")
local values = require("moonshard.jinja.values")

local comparing = {}

local IS_NUMBER = { int = true, bool = true, float = true }

local function equal_items(a, b)
  if a.n ~= b.n then return false end
  limits.step(a.n)
  for i = 1, a.n do
    if not comparing.equal(a[i], b[i]) then return false end
  end
  return true
end

local function equal_dicts(a, b)
  if a.n ~= b.n then return false end
  limits.step(a.n)
  for i = 1, a.n do
    local other = values.get(b, a.keys[i])
    if other == nil or not comparing.equal(a.values[i], other) then return false end
  end
  return true
end

---@param a moonshard.jinja.Value
---@param b moonshard.jinja.Value
---@return boolean
function comparing.equal(a, b)
  if rawequal(a, b) then return not (type(a) == "table" and a.kind == "float" and a.value ~= a.value) end
  local kind, other = values.kind(a), values.kind(b)
  if IS_NUMBER[kind] and IS_NUMBER[other] then return values.number(a) == values.number(b) end
  if kind ~= other then return false end
  if kind == "list" or kind == "tuple" or kind == "range" then
    limits.enter()
    local equal = equal_items(a, b)
    limits.leave()
    return equal
  end
  if kind == "dict" then
    limits.enter()
    local equal = equal_dicts(a, b)
    limits.leave()
    return equal
  end
  if kind == "integer" then return a.text == b.text end
  return kind == "undefined"
end

---Whether a value comes before another. Values that have no order are a fault.
---@param a moonshard.jinja.Value
---@param b moonshard.jinja.Value
---@return boolean
function comparing.less(a, b)
  values.check_defined(a)
  values.check_defined(b)
  local kind, other = values.kind(a), values.kind(b)
  if kind == "str" and other == "str" then return a < b end -- bytes of UTF-8 have the order of characters
  local x, y = values.number(a), values.number(b)
  if x and y then return x < y end
  if kind == other and (kind == "list" or kind == "tuple") then
    for i = 1, math.min(a.n, b.n) do
      if not comparing.equal(a[i], b[i]) then return comparing.less(a[i], b[i]) end
    end
    return a.n < b.n
  end
  faults.raise("%s and %s have no order", values.describe(a), values.describe(b))
end

-- Whether a comes before b or is equal to it: NaN is neither.
local function at_most(a, b)
  local x, y = values.number(a), values.number(b)
  if x and y then return x <= y end
  return not comparing.less(b, a)
end

---Whether a value is among what another has: a part of a text, an item, a key.
---@param value moonshard.jinja.Value
---@param container moonshard.jinja.Value
---@return boolean
function comparing.is_in(value, container)
  local kind = values.kind(container)
  if kind == "str" then
    return container:find(values.text(value, "what is looked for in a str"), 1, true) ~= nil
  elseif kind == "dict" then
    return values.get(container, value) ~= nil
  elseif not values.is_iterable(container) then
    faults.raise("nothing is in %s", values.describe(container))
  end
  local items, n = values.items(container)
  for i = 1, n do
    if comparing.equal(items[i], value) then return true end
  end
  return false
end

---The comparisons of Jinja, by their signs.
---@type table<string, fun(a: moonshard.jinja.Value, b: moonshard.jinja.Value): boolean>
comparing.OPERATORS = {
  ["=="] = comparing.equal,
  ["!="] = function(a, b) return not comparing.equal(a, b) end,
  ["<"] = comparing.less,
  [">"] = function(a, b) return comparing.less(b, a) end,
  ["<="] = at_most,
  [">="] = function(a, b) return at_most(b, a) end,
  ["in"] = comparing.is_in,
  ["not in"] = function(a, b) return not comparing.is_in(a, b) end,
}

---A text in lower case, as filters compare it; another value as it is.
---@param value moonshard.jinja.Value
---@return moonshard.jinja.Value
function comparing.without_case(value) return type(value) == "string" and characters.lower(value) or value end

local function merge(from, to, first, middle, last, before)
  local left, right = first, middle + 1
  for at = first, last do
    local takes_left = right > last or left <= middle and not before(from[right], from[left])
    if takes_left then
      to[at], left = from[left], left + 1
    else
      to[at], right = from[right], right + 1
    end
  end
end

---Items in order; equal ones stay as they were.
---@param items moonshard.jinja.Value[]
---@param n integer
---@param key fun(item: moonshard.jinja.Value): moonshard.jinja.Value
---@param reverse boolean descending
---@return moonshard.jinja.Value[]
function comparing.sorted(items, n, key, reverse)
  local from, to, width = {}, {}, 1
  for i = 1, n do from[i] = { item = items[i], key = key(items[i]) } end
  local function before(a, b)
    limits.step(1)
    if reverse then return comparing.less(b.key, a.key) end
    return comparing.less(a.key, b.key)
  end
  while width < n do
    for first = 1, n, 2 * width do
      merge(from, to, first, math.min(first + width - 1, n), math.min(first + 2 * width - 1, n), before)
    end
    from, to, width = to, from, 2 * width
  end
  local result = {}
  for i = 1, n do result[i] = from[i].item end
  return result
end

return comparing
