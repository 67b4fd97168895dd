-- Formats of texts: "%s of %d" % (a, b), which the filter format applies too, and "{} of {name}".format(...).

local characters = require("moonshard.jinja.characters")
local faults = require("moonshard.jinja.faults")
local limits = require("moonshard.jinja.limits")
local printing = require("moonshard.jinja.printing")
local values = require("moonshard.jinja.values")

local formats = {}

-- ---- numbers and texts in a field ---------------------------------------------------------------------------------

-- What is to be formatted as a number.
local function number_of(value, sign)
  values.check_defined(value)
  local number, is_float = values.number(value)
  if not number then faults.raise("the format %s needs a number, not %s", sign, values.describe(value)) end
  return number, is_float
end

local function whole_of(value, sign)
  local number = number_of(value, sign)
  return number < 0 and math.ceil(number) or math.floor(number)
end

-- A whole number with at least so many digits.
local function widened(text, precision)
  local sign, digits = text:match("^(-?)(.*)$")
  limits.text(precision or 0)
  return sign .. ("0"):rep((precision or 0) - #digits) .. digits
end

local function based(format)
  return function(value, precision, sign)
    local whole = whole_of(value, sign)
    return widened((whole < 0 and "-" or "") .. format:format(math.abs(whole)), precision)
  end
end

-- The first characters of a text.
local function cut(text, precision)
  return precision and characters.sub(text, 0, math.min(precision, characters.length(text))) or text
end

local MAX_DIGITS = 98 -- that printing.fixed writes

local function fixed(letter)
  return function(value, precision, sign)
    if precision and precision > MAX_DIGITS then faults.unsupported("a format with %d digits", precision) end
    local number = number_of(value, sign)
    local is_finite = number == number and math.abs(number) ~= math.huge
    if letter == "f" and is_finite then return printing.fixed(number, precision or 6) end
    return (("%%.%d%s"):format(precision or 6, letter)):format(number)
  end
end

-- By the letter that ends a field: the text of a value.
local WRITE = {
  s = function(value, precision) return cut(printing.text(value), precision) end,
  r = function(value, precision) return cut(printing.repr(value), precision) end,
  d = function(value, precision, sign) return widened(printing.integer(whole_of(value, sign)), precision) end,
  x = based("%x"), X = based("%X"), o = based("%o"),
  e = fixed("e"), E = fixed("E"), f = fixed("f"), F = fixed("f"), g = fixed("g"), G = fixed("G"),
  c = function(value)
    if type(value) == "string" and characters.length(value) == 1 then return value end
    return characters.of_code(values.whole(value, "the format %c"))
  end,
}
WRITE.i, WRITE.u = WRITE.d, WRITE.d
local IS_NUMBER = { d = true, i = true, u = true, x = true, X = true, o = true, e = true, E = true, f = true, F = true,
  g = true, G = true }

-- Fills a text up to a width. align: "<", ">", "^", or "=", which fills between the sign and the digits.
local function padded(text, width, align, filler)
  local missing = width - characters.length(text)
  if missing <= 0 then return text end
  limits.text(width)
  if align == "<" then return text .. filler:rep(missing) end
  if align == "^" then
    local left = math.floor(missing / 2)
    return filler:rep(left) .. text .. filler:rep(missing - left)
  end
  if align == "=" then
    local sign, digits = text:match("^([ +-]?)(.*)$")
    return sign .. filler:rep(missing) .. digits
  end
  return filler:rep(missing) .. text
end

-- ---- the operator % -----------------------------------------------------------------------------------------------

-- The next of the values on the right side.
local function taker(right)
  local is_tuple = values.kind(right) == "tuple"
  local taken, count = 0, is_tuple and right.n or 1
  local function take()
    taken = taken + 1
    if taken > count then faults.raise("the format has more fields than there are values") end
    if is_tuple then return right[taken] end
    return right
  end
  return take, function() return taken < count and (is_tuple or values.kind(right) ~= "dict") end
end

local function member(right, name)
  if values.kind(right) ~= "dict" then faults.raise("the format names %s, so it needs a dict", name) end
  local value = values.get(right, name)
  if value == nil then faults.raise("the format names %s, which the dict does not have", name) end
  return value
end

local function field_of(flags, width, precision, letter, value)
  local sign = "%" .. letter
  local text = WRITE[letter](value, precision, sign)
  if IS_NUMBER[letter] and not text:find("^-") then
    if flags:find("+", 1, true) then text = "+" .. text elseif flags:find(" ", 1, true) then text = " " .. text end
  end
  local align, filler = ">", " "
  if flags:find("-", 1, true) then
    align = "<"
  elseif flags:find("0", 1, true) and IS_NUMBER[letter] then
    align, filler = "=", "0"
  end
  return padded(text, width or 0, align, filler)
end

---A text with fields filled in, as Python's operator % does.
---@param text string
---@param right moonshard.jinja.Value a tuple, a dict, or one value
---@return string
function formats.percent(text, right)
  local take, has_more = taker(right)
  local parts, at, named = {}, 1, false
  while true do
    local from = text:find("%", at, true)
    if not from then break end
    parts[#parts + 1] = text:sub(at, from - 1)
    local name, after = text:match("^%%%(([^)]*)%)()", from)
    local flags, width, dot, precision, letter, stop = text:match("^([-+ 0#]*)(%d*)(%.?)(%d*)[hlL]?(.?)()",
      after or from + 1)
    if letter == "%" then
      parts[#parts + 1] = "%"
    elseif WRITE[letter] and not flags:find("#", 1, true) then
      local value
      named = named or name ~= nil
      if name then value = member(right, name) else value = take() end
      parts[#parts + 1] = field_of(flags, tonumber(width), dot == "." and (tonumber(precision) or 0) or nil, letter,
        value)
    else
      faults.raise("%s is no field of a format that is supported", text:sub(from, stop - 1))
    end
    at = stop
  end
  if not named and has_more() then faults.raise("the format has fewer fields than there are values") end
  parts[#parts + 1] = text:sub(at)
  return table.concat(parts)
end

-- ---- str.format ---------------------------------------------------------------------------------------------------

-- Separates the thousands of a number, which zeros before it widen to a width.
local function separated(text, width)
  local sign, digits, rest = text:match("^([ +-]?)(%d+)(.*)$")
  if not digits then faults.raise("{:,} separates the digits of a number, and %s is none", text) end
  limits.text(width)
  while true do
    local groups = digits:reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^,", "")
    if #sign + #groups + #rest >= width then return sign .. groups .. rest end
    digits = "0" .. digits
  end
end

local IS_WHOLE = { d = true, x = true, X = true, o = true }
local ONLY_PERCENT = { i = true, u = true, r = true } -- letters that the operator % alone knows

-- A value by the part of a field after the colon.
local function specified(value, spec)
  if spec == "" then return printing.text(value) end
  local filler, align, rest = spec:match("^(" .. characters.CHARACTER .. ")([<>=^])(.*)$")
  local says_filler = align ~= nil
  if not align then
    filler, align, rest = " ", spec:match("^([<>=^]?)(.*)$")
  end
  local sign, zero, width, comma, dot, precision, letter = rest:match("^([+ -]?)(0?)(%d*)(,?)(%.?)(%d*)(%%?%a?)$")
  local number, is_float = values.number(value)
  if letter == "" then letter = number and (is_float and (dot == "." and "g" or "r") or "d") or "s" end
  local percent, is_text = letter == "%", type(value) == "string"
  local is_whole = IS_WHOLE[letter]
  if not sign or not (WRITE[letter] or percent) or (number == nil) ~= (letter == "s") or not number and not is_text
    or is_text and align == "=" or is_whole and (is_float or dot == ".") or ONLY_PERCENT[rest:match("%a$") or ""] then
    faults.raise("{:%s} is no field of a format that is supported for %s", spec, values.describe(value))
  end
  local text
  if percent then
    text = WRITE.f(values.float(number * 100), tonumber(precision), "%") .. "%"
  else
    text = WRITE[letter](value, dot == "." and tonumber(precision) or nil, letter)
  end
  if number and sign ~= "-" and sign ~= "" and not text:find("^-") then text = sign .. text end
  if zero ~= "" and not says_filler then filler = "0" end
  if align == "" then align = not number and "<" or zero ~= "" and "=" or ">" end
  width = tonumber(width) or 0
  if comma ~= "" then text = separated(text, filler == "0" and align == "=" and width or 0) end
  return padded(text, width, align, filler)
end

---A text with fields filled in, as str.format does. Fields are {}, {0} and {name}, with a conversion !r or !s, and a
---format after a colon.
---@param text string
---@param given moonshard.jinja.Arguments
---@return string
function formats.braces(text, given)
  local parts, at, automatic = {}, 1, 0
  while true do
    local from = text:find("[{}]", at)
    if not from then break end
    parts[#parts + 1] = text:sub(at, from - 1)
    local name, conversion, spec, stop = text:match("^{([%w_]*)(!?[rs]?):?([^{}]*)}()", from)
    if text:sub(from, from + 1) == "{{" or text:sub(from, from + 1) == "}}" then
      parts[#parts + 1], at = text:sub(from, from), from + 2
    elseif not stop or conversion == "!" then
      faults.raise("the format has a field at byte %d that is not supported: write {}, {0} or {name}", from)
    else
      local value
      if name == "" then
        automatic = automatic + 1
        value = given[automatic]
      elseif tonumber(name) then
        value = given[tonumber(name) + 1]
      else
        value = given.named[name]
      end
      if value == nil then faults.raise("the format has the field {%s}, for which no value is given", name) end
      if conversion == "!r" then value = printing.repr(value) end
      if conversion == "!s" then value = printing.text(value) end
      parts[#parts + 1], at = specified(value, spec), stop
    end
  end
  parts[#parts + 1] = text:sub(at)
  return table.concat(parts)
end

return formats
