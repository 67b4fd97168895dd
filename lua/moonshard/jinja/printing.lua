-- Values as text, as Python's str and repr write them: True, None, 1.0, ['a', 1].

local characters = require("moonshard.jinja.characters")
local faults = require("moonshard.jinja.faults")
local limits = require("moonshard.jinja.limits")
local values = require("moonshard.jinja.values")

local printing = {}

-- Whether what follows the first digits of a decimal fraction is half of the last one's place. Python then takes the
-- even digit, and Lua the larger.
local function is_even_tie(digits, kept)
  return digits:find("^50*$", kept + 1) ~= nil and digits:find("^[02468]", kept) ~= nil
end

local EXACT = "%.98e" -- has all digits of a double that is halfway between two shorter ones

-- The digits of a positive double, the fewest that read back as it, and the place of its point after the first.
local function digits_of(number)
  local first, rest, place = EXACT:format(number):match("^(%d)%.(%d+)e([+-]%d+)$")
  for precision = 0, 16 do
    local text = ("%." .. precision .. "e"):format(number)
    if is_even_tie(first .. rest, precision + 1) then
      text = ("%s.%se%s"):format(first, rest:sub(1, precision), place)
    end
    if tonumber(text) == number then
      local head, tail, exponent = text:match("^(%d)%.?(%d*)e([+-]%d+)$")
      return (head .. tail:gsub("0+$", "")), tonumber(exponent)
    end
  end
end

-- Python writes exponents from 1e16 on, and below 1e-4.
local MAX_PLAIN, MIN_PLAIN = 15, -4

---A float as Python's repr writes it.
---@param number number
---@return string
function printing.float(number)
  if number ~= number then return "nan" end
  local sign = (number < 0 or 1 / number < 0) and "-" or ""
  number = math.abs(number)
  if number == math.huge then return sign .. "inf" end
  if number == 0 then return sign .. "0.0" end
  local digits, exponent = digits_of(number)
  if exponent > MAX_PLAIN or exponent < MIN_PLAIN then
    local point = #digits > 1 and digits:sub(1, 1) .. "." .. digits:sub(2) or digits
    return ("%s%se%s%02d"):format(sign, point, exponent < 0 and "-" or "+", math.abs(exponent))
  elseif exponent < 0 then
    return sign .. "0." .. ("0"):rep(-exponent - 1) .. digits
  end
  digits = digits .. ("0"):rep(exponent + 1 - #digits)
  local fraction = digits:sub(exponent + 2)
  return sign .. digits:sub(1, exponent + 1) .. "." .. (fraction == "" and "0" or fraction)
end

---A number with so many digits after the point, rounded as Python does.
---@param number number finite
---@param precision integer at most 98
---@return string
function printing.fixed(number, precision)
  local whole, digits = ("%.99f"):format(number):match("^(.-)%.(%d+)$")
  if is_even_tie(whole .. digits, #whole + precision) then
    return precision > 0 and whole .. "." .. digits:sub(1, precision) or whole
  end
  return ("%." .. precision .. "f"):format(number)
end

---@param number number without a fraction
---@return string
function printing.integer(number) return ("%.0f"):format(number) end

-- ---- texts in quotes ----------------------------------------------------------------------------------------------

local ESCAPES = { ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\\"] = "\\\\" }

-- Ranges of code points beyond ASCII that repr escapes: controls, formats, separators, surrogates, private use, and
-- what is no character.
local UNPRINTABLE = {
  { 0x80, 0xa0 }, { 0xad, 0xad }, { 0x600, 0x605 }, { 0x61c, 0x61c }, { 0x6dd, 0x6dd }, { 0x70f, 0x70f },
  { 0x1680, 0x1680 }, { 0x180e, 0x180e }, { 0x2000, 0x200f }, { 0x2028, 0x202f }, { 0x205f, 0x206f },
  { 0x3000, 0x3000 }, { 0xd800, 0xf8ff }, { 0xfeff, 0xfeff }, { 0xfff0, 0xfffb }, { 0xfffe, 0xffff },
  { 0xe0000, 0xe00ff }, { 0xe01f0, 0x10ffff },
}

local function escaped(character)
  local code = characters.code(character)
  for _, range in ipairs(UNPRINTABLE) do
    if code >= range[1] and code <= range[2] then
      if code <= 0xff then return ("\\x%02x"):format(code) end
      return (code <= 0xffff and "\\u%04x" or "\\U%08x"):format(code)
    end
  end
  return character
end

local function quoted(text)
  local quote = text:find("'", 1, true) and not text:find('"', 1, true) and '"' or "'"
  limits.text(#text)
  text = text:gsub("[%c\\]", function(character)
    return ESCAPES[character] or ("\\x%02x"):format(character:byte())
  end)
  if quote == "'" then text = text:gsub("'", "\\'") end
  return quote .. text:gsub("[\194-\244][\128-\191]*", escaped) .. quote
end

-- ---- all kinds ------------------------------------------------------------------------------------------------------

local write

local function items_of(value)
  local parts = {}
  limits.enter()
  for i = 1, value.n do parts[i] = write(value[i]) end
  limits.leave()
  return table.concat(parts, ", ")
end

-- A dict's items as "'a': 1, 'b': 2".
local function members_of(keys, values_of, n)
  local parts = {}
  limits.enter()
  for i = 1, n do parts[i] = write(keys[i]) .. ": " .. write(values_of[i]) end
  limits.leave()
  return table.concat(parts, ", ")
end

local REPR = {
  str = quoted,
  int = printing.integer,
  bool = function(value) return value and "True" or "False" end,
  none = function() return "None" end,
  undefined = function() return "Undefined" end,
  float = function(value) return printing.float(value.value) end,
  integer = function(value) return value.text end,
  list = function(value) return "[" .. items_of(value) .. "]" end,
  tuple = function(value) return "(" .. items_of(value) .. (value.n == 1 and ",)" or ")") end,
  dict = function(value) return "{" .. members_of(value.keys, value.values, value.n) .. "}" end,
  view = function(value) return value.name .. "([" .. items_of(value) .. "])" end,
  range = function(value)
    local step = value.step ~= 1 and (", %d"):format(value.step) or ""
    return ("range(%d, %d%s)"):format(value.start, value.stop, step)
  end,
  namespace = function(value)
    return "<Namespace {" .. members_of(value.names, value.in_order(), #value.names) .. "}>"
  end,
  macro = function(value) return ("<Macro '%s'>"):format(value.name) end,
}

function write(value)
  local repr = REPR[values.kind(value)]
  limits.step(1)
  if not repr then
    faults.raise("%s has no text%s", values.describe(value),
      values.kind(value) == "generator" and ": make it a list with the filter list" or "")
  end
  return repr(value)
end

---A value as repr writes it, as within lists.
---@param value moonshard.jinja.Value
---@return string
function printing.repr(value) return write(value) end

---A value as a template writes it.
---@param value moonshard.jinja.Value
---@return string
function printing.text(value)
  if type(value) == "string" then return value end
  if type(value) == "table" and value.kind == "undefined" then return "" end
  local text = write(value)
  limits.text(#text)
  return text
end

return printing
