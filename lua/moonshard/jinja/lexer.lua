-- A template's source as tokens: text, and what is between {{ and }}, or {% and %}. White space around tags goes as
-- chat templates ask for: a tag takes the blanks before it in its line and the line end after it, unless "+" keeps
-- them; "-" takes all white space. One line end at the end of the source is dropped.

local characters = require("moonshard.jinja.characters")
local faults = require("moonshard.jinja.faults")

local lexer = {}

---@class moonshard.jinja.Token
---@field type string "text", "{{", "}}", "{%", "%}", "name", "string", "integer", "float", "end", or an operator
---@field value string|number|nil
---@field line integer

-- Adds a token of what begins at a byte.
local function add(self, type_, value, at)
  while self.ends[self.line] and self.ends[self.line] < at do self.line = self.line + 1 end
  self.tokens[#self.tokens + 1] = { type = type_, value = value, line = self.line }
end

local function line_ends(source)
  local list, at = {}, 0
  while true do
    at = source:find("\n", at + 1, true)
    if not at then return list end
    list[#list + 1] = at
  end
end

local function line_of(self, at)
  local line = self.line
  while self.ends[line] and self.ends[line] < at do line = line + 1 end
  return line
end

local function fail(self, at, format, ...) faults.at(line_of(self, at), format, ...) end

-- ---- text between tags --------------------------------------------------------------------------------------------

-- The text before a tag without the white space that the tag takes.
local function before_tag(self, text, sign, is_variable)
  if sign == "-" then return characters.strip(text, nil, false, true) end
  if sign == "+" or is_variable then return text end
  local line_start = text:match(".*\n()") or 1
  if line_start == 1 and not self.line_starting then return text end
  local blanks = text:sub(line_start)
  return characters.strip(blanks, nil, true, true) == "" and text:sub(1, line_start - 1) or text
end

-- White space that "-%}" takes after a tag: the byte after it.
local function skip_space(source, at)
  while true do
    local character = source:match("^" .. characters.CHARACTER, at)
    if not character or not characters.is_space(character) then return at end
    at = at + #character
  end
end

local function end_of_tag(self, sign, at)
  if sign == "-" then return skip_space(self.source, at) end
  if sign ~= "+" and self.source:sub(at, at) == "\n" then return at + 1 end
  return at
end

local function note_line(self, last) self.line_starting = self.source:sub(last, last) == "\n" end

-- ---- expressions --------------------------------------------------------------------------------------------------

local SHORT = { n = "\n", t = "\t", r = "\r", a = "\a", b = "\b", f = "\f", v = "\v", ["\\"] = "\\", ["'"] = "'",
  ['"'] = '"', ["\n"] = "" }
local DIGITS = { x = 2, u = 4, U = 8 }

-- A text without its escapes, which are Python's.
local function unescaped(self, text, at)
  local parts, from = {}, 1
  while true do
    local stop = text:find("\\", from, true)
    if not stop then break end
    parts[#parts + 1] = text:sub(from, stop - 1)
    local kind = text:sub(stop + 1, stop + 1)
    local octal = text:match("^[0-7][0-7]?[0-7]?", stop + 1)
    if SHORT[kind] then
      parts[#parts + 1], from = SHORT[kind], stop + 2
    elseif octal then
      parts[#parts + 1], from = characters.of_code(tonumber(octal, 8)), stop + 1 + #octal
    elseif DIGITS[kind] then
      local digits = text:sub(stop + 2, stop + 1 + DIGITS[kind])
      local code = #digits == DIGITS[kind] and digits:find("^%x+$") and tonumber(digits, 16)
      if not code or code > 0x10ffff or code >= 0xd800 and code <= 0xdfff then
        fail(self, at, "\\%s%s is no character", kind, digits)
      end
      parts[#parts + 1], from = characters.of_code(code), stop + 2 + DIGITS[kind]
    elseif kind == "N" then
      fail(self, at, "characters by name, \\N{...}, are not supported")
    else
      parts[#parts + 1], from = "\\", stop + 1
    end
  end
  parts[#parts + 1] = text:sub(from)
  return table.concat(parts)
end

-- A text in quotes: the byte after it.
local function read_string(self, at)
  local source = self.source
  local quote, from = source:sub(at, at), at + 1
  while true do
    local stop = source:find("[\\" .. quote .. "]", from)
    if not stop then fail(self, at, "a text in quotes does not end") end
    if source:sub(stop, stop) == quote then
      add(self, "string", unescaped(self, source:sub(at + 1, stop - 1), at), at)
      return stop + 1
    end
    from = stop + 2
  end
end

local BASES = { b = { 2, "[01]" }, o = { 8, "[0-7]" }, x = { 16, "%x" } }

local function digits_at(source, at, class)
  local last = at - 1
  while true do
    local stop = source:match("^" .. class .. "+()", last + 1)
    if not stop then break end
    last = stop - 1
    if not source:find("^_" .. class, stop) then break end
    last = stop
  end
  return last
end

local function read_number(self, at)
  local source = self.source
  local base = BASES[source:match("^0([bBoOxX])", at) and source:sub(at + 1, at + 1):lower()]
  if base and source:find("^_?" .. base[2], at + 2) then
    local last = digits_at(source, source:sub(at + 2, at + 2) == "_" and at + 3 or at + 2, base[2])
    local value = tonumber((source:sub(at + 2, last):gsub("_", "")), base[1])
    if not value then fail(self, at, "an integer of more than 64 bits is not supported") end
    add(self, "integer", value, at)
    return last + 1
  end
  local last = digits_at(source, at, "%d")
  local is_float = false
  local follows_point = source:sub(at - 1, at - 1) == "." -- a.1.2 has two indices
  if not follows_point and source:find("^%.%d", last + 1) then
    is_float, last = true, digits_at(source, last + 2, "%d")
  end
  local exponent = not follows_point and source:match("^[eE][+-]?()%d", last + 1)
  if exponent then is_float, last = true, digits_at(source, exponent, "%d") end
  local number = tonumber((source:sub(at, last):gsub("_", "")))
  if not is_float and number > 2 ^ 53 then fail(self, at, "an integer beyond 2^53 is not supported") end
  add(self, is_float and "float" or "integer", number, at)
  return last + 1
end

local OPERATORS, CLOSES = {}, { ["("] = ")", ["["] = "]", ["{"] = "}" }
for sign in ("== != <= >= // ** + - / * % ~ ( ) [ ] { } > < = . : | , ;"):gmatch("%S+") do OPERATORS[sign] = true end

local function read_operator(self, at, open)
  local sign = self.source:sub(at, at + 1)
  if not OPERATORS[sign] then sign = self.source:sub(at, at) end
  if not OPERATORS[sign] then
    fail(self, at, "the character %s has no meaning here", self.source:match("^" .. characters.CHARACTER, at))
  end
  if CLOSES[sign] then
    open[#open + 1] = CLOSES[sign]
  elseif sign == ")" or sign == "]" or sign == "}" then
    local expected = table.remove(open)
    if expected ~= sign then fail(self, at, "%s where %s is expected", sign, expected or "no bracket") end
  end
  add(self, sign, nil, at)
  return at + #sign
end

-- What is between the marks of a tag, up to the one that ends it: the byte after it.
local function read_tag(self, at, close)
  local source, open, begun = self.source, {}, at
  local is_block = close == "%}"
  while true do
    at = skip_space(source, at)
    if at > #source then fail(self, begun, "a tag does not end: %s is missing", close) end
    if #open == 0 then
      local sign = source:match(is_block and "^([+-]?)%%}" or "^(%-?)}}", at)
      if sign then
        add(self, close, nil, at)
        at = at + #sign + 2
        if is_block then return end_of_tag(self, sign, at) end
        return sign == "-" and skip_space(source, at) or at
      end
    end
    local name = source:match("^[%a_\194-\244][%w_\128-\244]*", at)
    if name then
      add(self, "name", name, at)
      at = at + #name
    elseif source:find("^%d", at) then
      at = read_number(self, at)
    elseif source:find("^['\"]", at) then
      at = read_string(self, at)
    else
      at = read_operator(self, at, open)
    end
  end
end

-- ---- tags -----------------------------------------------------------------------------------------------------------

local function read_comment(self, at)
  local stop = self.source:find("#}", at, true)
  if not stop then fail(self, at, "a comment does not end: #} is missing") end
  local sign = stop > at and self.source:match("^[+-]", stop - 1) or ""
  return end_of_tag(self, sign, stop + 2)
end

-- What is between {% raw %} and {% endraw %}, as it is.
local function read_raw(self, at)
  local from = at
  while true do
    local tag = self.source:find("{%", from, true)
    if not tag then fail(self, at, "{%% endraw %%} is missing") end
    local sign, stop, last = self.source:match("^{%%([+-]?)%s*endraw%s*()([+-]?)%%}", tag)
    if sign then
      local text = before_tag(self, self.source:sub(at, tag - 1), sign, false)
      if text ~= "" then add(self, "text", text, at) end
      return end_of_tag(self, last, stop + #last + 2)
    end
    from = tag + 2
  end
end

local function read_text(self, at)
  local source = self.source
  local tag = source:find("{[{%%#]", at)
  if not tag then
    if at <= #source then add(self, "text", source:sub(at), at) end
    return #source + 1
  end
  local mark, sign = source:match("^(..)([+-]?)", tag)
  local text = before_tag(self, source:sub(at, tag - 1), sign, mark == "{{")
  if text ~= "" then add(self, "text", text, at) end
  local stop = tag + 2 + #sign
  local raw_sign, after_raw = source:match("^{%%[+-]?%s*raw%s*(%-?)%%}()", tag)
  if raw_sign then
    stop = raw_sign == "-" and skip_space(source, after_raw) or after_raw
    note_line(self, stop - 1)
    stop = read_raw(self, stop)
  elseif mark == "{#" then
    stop = read_comment(self, stop)
  else
    add(self, mark, nil, tag)
    stop = read_tag(self, stop, mark == "{{" and "}}" or "%}")
  end
  note_line(self, stop - 1)
  return stop
end

---The tokens of a template.
---@param source string UTF-8
---@return moonshard.jinja.Token[]
function lexer.tokens(source)
  source = source:gsub("\r\n?", "\n"):gsub("\n$", "")
  local self = { source = source, tokens = {}, line = 1, ends = line_ends(source), line_starting = true }
  local at = 1
  while at <= #source do at = read_text(self, at) end
  add(self, "end", nil, #source + 1)
  return self.tokens
end

return lexer
