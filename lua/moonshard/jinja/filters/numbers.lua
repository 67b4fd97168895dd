-- Filters of numbers.

local faults = require("moonshard.jinja.faults")
local limits = require("moonshard.jinja.limits")
local printing = require("moonshard.jinja.printing")
local text_lines = require("moonshard.base.text.text_lines")
local values = require("moonshard.jinja.values")

-- A text as a float, as Python reads one; nil if it is none.
local function float_of(text)
  text = text_lines.strip(text):lower():gsub("(%d)_(%d)", "%1%2"):gsub("(%d)_(%d)", "%1%2")
  local sign, word = text:match("^([+-]?)(%a+)$")
  if word == "inf" or word == "infinity" then return sign == "-" and -math.huge or math.huge end
  if word == "nan" then return 0 / 0 end
  return text:find("^[+-]?%d*%.?%d*e?[+-]?%d*$") and tonumber((text:gsub("^%+", ""))) or nil
end

local PREFIXES = { [2] = "^0b", [8] = "^0o", [16] = "^0x" }

-- A text as an integer, as Python's int reads one; nil if it is none.
local function integer_of(text, base)
  local sign, digits = text_lines.strip(text):lower():match("^([+-]?)(.+)$")
  if not digits then return nil end
  if PREFIXES[base] then digits = digits:gsub(PREFIXES[base], "") end
  if digits:find("^_") or digits:find("_$") or digits:find("__", 1, true) then return nil end
  digits = digits:gsub("_", "")
  if not digits:find("^%w+$") or base == 10 and not digits:find("^%d+$") then return nil end
  local number = tonumber(digits, base)
  return number and values.integer(sign == "-" and -number or number)
end

local function toward_zero(number)
  if number ~= number or number == math.huge or number == -math.huge then return nil end
  return values.integer(number < 0 and math.ceil(number) or math.floor(number))
end

local function int(_, value, default, base)
  if default == nil then default = 0 end
  base = base == nil and 10 or values.whole(base, "int: base")
  if base < 2 or base > 36 then faults.raise("int: base must be from 2 to 36, not %d", base) end
  if type(value) == "table" and value.kind == "integer" then return value end
  local result
  if type(value) == "string" then
    result = integer_of(value, base)
    if not result then
      local float = float_of(value)
      result = float and toward_zero(float)
    end
  else
    values.check_defined(value)
    local number = values.number(value)
    result = number and toward_zero(number)
  end
  if result == nil then return default end
  return result
end

local function float(_, value, default)
  if default == nil then default = values.float(0) end
  local result
  if type(value) == "string" then
    result = float_of(value)
  else
    values.check_defined(value)
    result = values.number(value)
  end
  if result == nil then return default end
  return values.float(result)
end

-- To the nearest; halves to the even one, as Python does.
local function rounded(number)
  local below = math.floor(number)
  local rest = number - below
  if rest > 0.5 or rest == 0.5 and below % 2 == 1 then return below + 1 end
  return below
end

local MAX_DIGITS = 98 -- that printing.fixed writes

local function round(_, value, precision, method)
  precision = precision == nil and 0 or values.whole(precision, "round: precision")
  method = method == nil and "common" or method
  values.check_defined(value)
  local number, is_float = values.number(value)
  if not number then faults.raise("round needs a number, not %s", values.describe(value)) end
  if precision > MAX_DIGITS then faults.unsupported("round: a precision of %d", precision) end
  local scale = 10 ^ precision
  if method == "ceil" or method == "floor" then return values.float(math[method](number * scale) / scale) end
  if method ~= "common" then faults.raise("round: the method is common, ceil or floor") end
  if not is_float then
    return precision >= 0 and number or values.integer(rounded(number * scale) / scale)
  elseif number ~= number or number == math.huge or number == -math.huge then
    return value
  elseif precision < 0 then
    return values.float(rounded(number * scale) / scale)
  end
  return values.float(tonumber(printing.fixed(number, precision)))
end

local function abs(_, value)
  values.check_defined(value)
  local number, is_float = values.number(value)
  if not number then faults.raise("abs needs a number, not %s", values.describe(value)) end
  limits.step(1)
  return is_float and values.float(math.abs(number)) or math.abs(number)
end

return {
  int = { "default= base=", int }, float = { "default=", float }, round = { "precision= method=", round },
  abs = { "", abs },
}
