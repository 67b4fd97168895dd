-- Lua values as JSON on one line (metrics, and what `--json` prints), and JSON as Lua values.
--
-- Keys are sorted, so that equal values give equal text. JSON has no NaN or infinity: they become null. Numbers have
-- the fewest digits that read back as the same double (at least 15 below 1e-307). Lists and objects nest at most 200
-- deep in both directions: deeper nesting is a mistake (a table that contains itself) or an attack on the stack.
--
-- What a table cannot tell: a null is absent, or json.null where the reader asks for it; an empty list that was read is
-- written as a list again, and json.list makes one.

local ffi = require("ffi")

local json = {}

local MAX_NESTED = 200

---A null, for readers that ask for it (json.decode, json.fields), and for writing.
json.null = setmetatable({}, { __name = "null", __tostring = function() return "null" end })

local LIST = {}

---Whether a table is written as a list: it has items, or was marked or read as one.
---@param value table
---@return boolean
function json.is_list(value) return #value > 0 or getmetatable(value) == LIST end

---Marks a table as a list, also an empty one.
---@param list any[]
---@return any[] list
function json.list(list) return setmetatable(list, LIST) end

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

local function string_text(text)
  return '"' .. text:gsub('[%c"\\\127]', function(char)
    return escapes[char] or ("\\u%04x"):format(char:byte())
  end) .. '"'
end

local function number_text(number)
  if number ~= number or number == math.huge or number == -math.huge then
    return "null"
  elseif number % 1 == 0 and math.abs(number) < 2 ^ 53 then
    return ("%d"):format(number)
  end
  -- Doubles keep 15 digits, and %g drops zeros at the end: this has the fewest digits of those that need at most 15.
  local text = ("%.15g"):format(number)
  if tonumber(text) == number then return text end
  text = ("%.16g"):format(number)
  return tonumber(text) == number and text or ("%.17g"):format(number)
end

local encode

local function array_text(array, depth)
  local parts = {}
  for i = 1, #array do
    parts[i] = encode(array[i], depth)
  end
  return "[" .. table.concat(parts, ",") .. "]"
end

local function object_text(object, depth)
  local keys = {}
  for key in pairs(object) do
    keys[#keys + 1] = key
  end
  table.sort(keys)
  local parts = {}
  for i, key in ipairs(keys) do
    parts[i] = string_text(key) .. ":" .. encode(object[key], depth)
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

function encode(value, depth)
  local kind = type(value)
  depth = (depth or 0) + 1
  if depth > MAX_NESTED then error(("JSON: tables nest more than %d deep"):format(MAX_NESTED), 0) end
  if kind == "number" then
    return number_text(value)
  elseif kind == "boolean" then
    return tostring(value)
  elseif kind == "string" then
    return string_text(value)
  elseif value == json.null then
    return "null"
  elseif kind == "table" and json.is_list(value) then
    return array_text(value, depth)
  elseif kind == "table" then
    return object_text(value, depth)
  end
  return "null"
end

--- The value as JSON. A table with value[1] is an array, any other an object with string keys.
---@param value table|string|number|boolean|nil
---@return string
function json.encode(value) return encode(value) end

--- An object with the given keys in the given order: {"step", 1, "loss", 2.5} gives {"step":1,"loss":2.5}. Keys with a
--- nil value are omitted.
---@param n integer length of the list, counting keys and values
---@param list any[]
---@return string
function json.ordered(n, list)
  local parts = {}
  for i = 1, n, 2 do
    if list[i + 1] ~= nil then
      parts[#parts + 1] = string_text(list[i]) .. ":" .. encode(list[i + 1])
    end
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

-- ---- reading ----
--
-- Works on bytes, without patterns and closures, which LuaJIT does not compile: the manifest of a checkpoint is long.
-- Positions are 0-based, and a zero byte follows the text.

local text, bytes, size, depth -- the text being read, and the current nesting depth
local null -- what a null becomes
local whole_lists -- whether one in a list, which would end it there, is an error
local noted -- whether json.written is to know the objects and lists that are read

---@class moonshard.JsonWritten
---@field keys string[]? of an object, in their order, those of nulls too
---@field numbers table<string|integer, string>? by key or place: texts of numbers that a double does not tell, "1.0"

-- How objects and lists were written, which their tables do not tell; for those that are still in use.
---@type table<table, moonshard.JsonWritten>
local written = setmetatable({}, { __mode = "k" })

local read_value

local UNESCAPED = { ['"'] = '"', ["\\"] = "\\", ["/"] = "/", b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }
local TAB, LINE, RETURN, SPACE, QUOTE, COMMA, MINUS, COLON = 9, 10, 13, 32, 34, 44, 45, 58
local LETTER_I, LETTER_N = 73, 110 -- of -Infinity, of null
local ZERO, NINE, BACKSLASH, OPEN_LIST, CLOSE_LIST, OPEN, CLOSE = 48, 57, 92, 91, 93, 123, 125

local function utf8(code)
  if code < 0x80 then return string.char(code) end
  local list, first = {}, code < 0x800 and 0xc0 or code < 0x10000 and 0xe0 or 0xf0
  local least = first == 0xc0 and 0x20 or first == 0xe0 and 0x10 or 0x08
  while code >= least do
    table.insert(list, 1, string.char(0x80 + code % 64))
    code = math.floor(code / 64)
  end
  return string.char(first + code) .. table.concat(list)
end

local function fail(at, what)
  error({ at = at + 1, what = what }, 0)
end

local function skip_space(at)
  local byte = bytes[at]
  while byte == SPACE or byte == LINE or byte == RETURN or byte == TAB do
    at = at + 1
    byte = bytes[at]
  end
  return at
end

-- "\u00e9", or a surrogate pair of two escapes (UTF-16).
local function read_code(at)
  local code = tonumber(text:match("^\\u(%x%x%x%x)", at + 1) or fail(at, "an invalid escape"), 16)
  if code < 0xd800 or code > 0xdfff then return utf8(code), at + 6 end
  local low = tonumber(text:match("^\\u(%x%x%x%x)", at + 7) or "0", 16)
  if code > 0xdbff or low < 0xdc00 or low > 0xdfff then fail(at, "half of a surrogate pair") end
  return utf8(0x10000 + (code - 0xd800) * 0x400 + low - 0xdc00), at + 12
end

-- The first byte at or after `at` that ends a string or a run of plain characters.
local function find_end(at)
  local byte = bytes[at]
  while byte ~= QUOTE and byte ~= BACKSLASH and byte >= SPACE do
    at = at + 1
    byte = bytes[at]
  end
  return at, byte
end

-- A control character or the end, where a string goes on.
local function fail_in_string(at, byte)
  if at >= size or byte == LINE or byte == RETURN then fail(at, "an unterminated string") end
  local escaped = escapes[string.char(byte)] or ("\\u%04x"):format(byte)
  fail(at, ("a control character in a string: write %s"):format(escaped))
end

local function read_string(at)
  local from = at + 1
  local stop, byte = find_end(from)
  if byte == QUOTE then return ffi.string(bytes + from, stop - from), stop + 1 end
  local parts = {}
  while byte ~= QUOTE do
    if byte ~= BACKSLASH then fail_in_string(stop, byte) end
    parts[#parts + 1] = ffi.string(bytes + from, stop - from)
    local short = UNESCAPED[text:sub(stop + 2, stop + 2)]
    if short then
      parts[#parts + 1], from = short, stop + 2
    else
      parts[#parts + 1], from = read_code(stop)
    end
    stop, byte = find_end(from)
  end
  parts[#parts + 1] = ffi.string(bytes + from, stop - from)
  return table.concat(parts), stop + 1
end

local MAX_DIGITS = 15 -- of an integer that stays exact in a double while its digits are summed

local function read_number(at)
  local whole, after = 0, at
  while bytes[after] >= ZERO and bytes[after] <= NINE and after - at <= MAX_DIGITS do
    whole = 10 * whole + (bytes[after] - ZERO)
    after = after + 1
  end
  local ends = bytes[after] == COMMA or bytes[after] == CLOSE or bytes[after] == CLOSE_LIST
  if ends and after > at and after - at <= MAX_DIGITS and (bytes[at] ~= ZERO or after == at + 1) then
    return whole, after
  end
  local digits = text:match("^%-?%d+%.?%d*[eE]?[+-]?%d*", at + 1)
  local number = digits and not digits:match("^%-?0%d") and not digits:match("%.$") and not digits:match("%.[eE]")
    and tonumber(digits)
  if not number then fail(at, "this is not a JSON value") end
  return number, at + #digits
end

local EXACT = 2 ^ 53 -- the largest integer up to which a double has all

-- Keeps the text of a number that is a float, or too large for a double.
local function note_number(of, key, number, from, to)
  if type(number) ~= "number" or number % 1 ~= 0 then return end
  local digits = text:sub(from + 1, to)
  if not digits:find("[.eE]") and number < EXACT and number > -EXACT then return end
  local note = written[of] or {}
  written[of], note.numbers = note, note.numbers or {}
  note.numbers[key] = digits
end

-- Whether a list continues after an item, and the next position.
local function goes_on(at, close)
  at = skip_space(at)
  if bytes[at] == COMMA then return true, skip_space(at + 1) end
  if bytes[at] ~= close then fail(at, ("expected a comma or %s"):format(string.char(close))) end
  return false, at + 1
end

local function enter(at)
  depth = depth + 1
  if depth > MAX_NESTED then fail(at, ("lists and objects nest more than %d deep"):format(MAX_NESTED)) end
end

local function read_array(at)
  local array, n, more = {}, 0, true
  enter(at)
  at = skip_space(at + 1)
  if bytes[at] == CLOSE_LIST then more, at, array = false, at + 1, setmetatable(array, LIST) end
  while more do
    n = n + 1
    local from = at
    array[n], at = read_value(at)
    if array[n] == nil and whole_lists then fail(from, ("item %d of a list is null: leave it out"):format(n)) end
    if noted then note_number(array, n, array[n], from, at) end
    more, at = goes_on(at, CLOSE_LIST)
  end
  depth = depth - 1
  return array, at
end

-- Keeps a member: its value's text, and the text between that and the member before, whose comma is apart.
local function keep(kept, name, value, last, from, at)
  local before, comma = text:sub(last + 1, from), nil
  if kept[1] then comma, before = before:match("^(%s*,)(.*)$") end
  kept[#kept + 1] = { name = name, value = value, text = text:sub(from + 1, at), before = before, comma = comma }
end

-- kept: takes the members in their order.
local function read_object(at, kept)
  local object, more = {}, true
  local keys = noted and {}
  if keys then written[object] = { keys = keys } end
  enter(at)
  local last = at + 1
  at = skip_space(last)
  if bytes[at] == CLOSE then more, at = false, at + 1 end
  while more do
    if bytes[at] ~= QUOTE then fail(at, "expected a key in quotes") end
    local key, after = read_string(at)
    if object[key] ~= nil then fail(at, ("key %s is there twice"):format(string_text(key))) end
    at = skip_space(after)
    if bytes[at] ~= COLON then fail(at, "expected a colon after a key") end
    local from = skip_space(at + 1)
    object[key], at = read_value(from)
    if keys then
      keys[#keys + 1] = key
      note_number(object, key, object[key], from, at)
    end
    if kept then keep(kept, key, object[key], last, from, at) end
    last = at
    more, at = goes_on(at, CLOSE)
  end
  depth = depth - 1
  return object, at
end

-- NaN and infinity are no JSON, but Python writes them.
local function fail_on_value(at)
  local word = text:match("^%-?Infinity", at + 1) or text:match("^NaN", at + 1)
  if not word then fail(at, "this is not a JSON value") end
  local before = text:sub(1, at)
  local _, lines = before:gsub("\n", "")
  local line = text:find("\n%s*%S") and (" in line %d"):format(lines + 1) or ""
  fail(at, ("%s%s is %s, which Python writes, but JSON does not have: write a number, or null"):format(
    before:match('"([^"]*)"%s*:%s*$') or "a value", line, word))
end

local WORDS = { t = { "true", true }, f = { "false", false }, n = { "null" } }

function read_value(at)
  local byte = bytes[at]
  if byte == QUOTE then return read_string(at) end
  if byte == OPEN then return read_object(at) end
  if byte == OPEN_LIST then return read_array(at) end
  if byte >= ZERO and byte <= NINE or byte == MINUS and bytes[at + 1] ~= LETTER_I then return read_number(at) end
  local word = WORDS[string.char(byte)]
  if not word or text:sub(at + 1, at + #word[1]) ~= word[1] then fail_on_value(at) end
  if byte == LETTER_N then return null, at + #word[1] end
  return word[2], at + #word[1]
end

local function read_whole()
  local value, after = read_value(skip_space(0))
  if skip_space(after) < size then fail(after, "text after the end") end
  return value
end

local function read_fields()
  local at, list = skip_space(0), {}
  if bytes[at] ~= OPEN then fail(at, "it must be an object") end
  local _, after = read_object(at, list)
  if skip_space(after) < size then fail(after, "text after the end") end
  list.head = text:sub(1, at + 1)
  local inside = 0
  for _, member in ipairs(list) do inside = inside + #(member.comma or "") + #member.before + #member.text end
  list.tail = text:sub(#list.head + inside + 1)
  return list
end

local function parse(given, read, null_value, whole, with_notes)
  text, bytes, size, depth, null = given, ffi.cast("const uint8_t *", given), #given, 0, null_value
  whole_lists, noted = whole, with_notes
  local ok, value = pcall(read)
  text, bytes = nil, nil
  if ok then return value end
  if type(value) ~= "table" then error(value, 0) end
  return nil, ("byte %d: %s"):format(value.at, value.what)
end

---Parses JSON text.
---@param given string
---@param with_null boolean? null becomes json.null; without it nil: its key is absent
---@return any value nil if the text is not JSON
---@return string? why "byte 12: expected a comma or }"
function json.decode(given, with_null)
  return parse(given, read_whole, with_null and json.null or nil, false, with_null)
end

---Parses JSON text of others, where a null in a list is an error: it would end the list in silence.
---@param given string
---@return any value nil if the text is not JSON
---@return string? why "byte 12: item 3 of a list is null: leave it out"
function json.decode_strictly(given) return parse(given, read_whole, nil, true, true) end

---How a table was written that decode_strictly, or decode with nulls, has read; nil for others, and for lists without
---anything to tell.
---@param value table
---@return moonshard.JsonWritten?
function json.written(value) return written[value] end

---@class moonshard.JsonMember
---@field name string
---@field value any
---@field text string of the value
---@field comma string? what ends the member before, with the blanks before it; nil for the first member
---@field before string blanks, the name as it is written, and the colon: all up to the value

---@class moonshard.JsonMembers
---@field [integer] moonshard.JsonMember
---@field head string the text before them, up to the brace
---@field tail string the text after them, with the brace

---The members of a JSON object in their order, and the text around them: head, then comma, before and text of each, and
---tail are the whole text again. A null is json.null.
---@param given string
---@return moonshard.JsonMembers? members nil if the text is no JSON object
---@return string? why "byte 12: expected a comma or }"
function json.fields(given) return parse(given, read_fields, json.null) end

return json
