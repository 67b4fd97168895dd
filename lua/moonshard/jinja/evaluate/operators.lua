-- Operators between two values, as in Python: what "+" does depends on the values on both sides.

local faults = require("moonshard.jinja.faults")
local formats = require("moonshard.jinja.formats")
local limits = require("moonshard.jinja.limits")
local values = require("moonshard.jinja.values")

local operators = {}

local function divided(a, b)
  if b == 0 then faults.raise("division by zero") end
  return a / b
end

local function remainder(a, b)
  if b == 0 then faults.raise("modulo by zero") end
  local rest = math.fmod(a, b)
  return rest ~= 0 and (rest < 0) ~= (b < 0) and rest + b or rest
end

-- By way of the remainder: 1 / 0.1 rounds to 10, and 0.1 goes into 1 only nine times.
local function floor_divided(a, b)
  if b == 0 then faults.raise("division by zero") end
  local count = (a - remainder(a, b)) / b
  local whole = math.floor(count)
  return count - whole > 0.5 and whole + 1 or whole
end

local function power(a, b)
  if a == 0 and b < 0 then faults.raise("zero to a negative power") end
  local result = a ^ b
  if result ~= result and a == a and b == b then faults.unsupported("a root of a negative number") end
  return result
end

-- By sign: the result for two numbers, and whether that is a float though neither number is one.
local ARITHMETIC = {
  ["+"] = { function(a, b) return a + b end },
  ["-"] = { function(a, b) return a - b end },
  ["*"] = { function(a, b) return a * b end },
  ["/"] = { divided, gives_float = function() return true end },
  ["//"] = { floor_divided },
  ["%"] = { remainder },
  ["**"] = { power, gives_float = function(_, b) return b < 0 end },
}

local JOINED = { list = true, tuple = true }

local function joined(a, b)
  local items, n = {}, a.n + b.n
  limits.list(n)
  for i = 1, a.n do items[i] = a[i] end
  for i = 1, b.n do items[a.n + i] = b[i] end
  return values.list(items, n, a.kind)
end

local function repeated(value, count)
  count = math.max(0, count)
  if type(value) == "string" then
    limits.text(#value * count)
    return value:rep(count)
  end
  local items, n = {}, value.n * count
  limits.list(n)
  for i = 0, n - 1 do items[i + 1] = value[i % value.n + 1] end
  return values.list(items, n, value.kind)
end

local function is_whole(value) return type(value) == "number" or type(value) == "boolean" end
local function is_repeated(value) return type(value) == "string" or JOINED[values.kind(value)] or false end

---The result of an operator.
---@param sign string "+", "-", "*", "/", "//", "%" or "**"
---@param a moonshard.jinja.Value
---@param b moonshard.jinja.Value
---@return moonshard.jinja.Value
function operators.binary(sign, a, b)
  values.check_defined(a)
  if sign == "%" and type(a) == "string" then return formats.percent(a, b) end
  values.check_defined(b)
  if sign == "+" and type(a) == "string" and type(b) == "string" then
    limits.text(#a + #b)
    return a .. b
  end
  local x, x_is_float = values.number(a)
  local y, y_is_float = values.number(b)
  if x and y then
    local row = ARITHMETIC[sign]
    local is_float = x_is_float or y_is_float or row.gives_float ~= nil and row.gives_float(x, y)
    local result = row[1](x, y)
    return is_float and values.float(result) or values.integer(result)
  end
  local kind = values.kind(a)
  if sign == "+" and JOINED[kind] and kind == values.kind(b) then return joined(a, b) end
  if sign == "*" and is_repeated(a) and is_whole(b) then return repeated(a, values.whole(b, "a count")) end
  if sign == "*" and is_whole(a) and is_repeated(b) then return repeated(b, values.whole(a, "a count")) end
  faults.raise("%s has no meaning between %s and %s", sign, values.describe(a), values.describe(b))
end

---A number with a sign before it.
---@param sign integer 1 or -1
---@param value moonshard.jinja.Value
---@return moonshard.jinja.Value
function operators.signed(sign, value)
  values.check_defined(value)
  local number, is_float = values.number(value)
  if not number then faults.raise("a sign comes before a number, not %s", values.describe(value)) end
  return is_float and values.float(sign * number) or values.integer(sign * number)
end

return operators
