-- Texts as Python's str has them: counted in characters (code points), while Lua counts bytes. Positions are Python's,
-- from 0. Texts are valid UTF-8.

local ffi = require("ffi")
local faults = require("moonshard.jinja.faults")
local limits = require("moonshard.jinja.limits")
local text_lines = require("moonshard.base.text.text_lines")

ffi.cdef [[
void *newlocale(int mask, const char *name, void *base);
unsigned towupper_l(unsigned character, void *locale);
unsigned towlower_l(unsigned character, void *locale);
int iswalpha_l(unsigned character, void *locale);
]]

local characters = {}

local CHARACTER = "[%z\1-\127\194-\244][\128-\191]*"
characters.is_space, characters.CHARACTER = text_lines.is_space, CHARACTER

local function is_ascii(text) return not text:find("[\128-\255]") end

---@param text string
---@return integer
function characters.length(text)
  if is_ascii(text) then return #text end
  local _, count = text:gsub("[^\128-\191]", "")
  return count
end

---The characters of a text, in a list.
---@param text string
---@return string[] list
---@return integer count
function characters.list(text)
  local list, n = {}, 0
  limits.list(#text)
  for character in text:gmatch(CHARACTER) do
    n = n + 1
    list[n] = character
  end
  return list, n
end

-- The byte, from 1, of a character's position, from 0; one past the end for the length.
local function byte_of(text, position)
  local at = 1
  for _ = 1, position do
    at = at + 1
    local byte = text:byte(at)
    while byte and byte >= 128 and byte < 192 do
      at = at + 1
      byte = text:byte(at)
    end
  end
  return at
end

---The characters from `first` up to, not including, `last`, both within the text.
---@param text string
---@param first integer
---@param last integer
---@return string
function characters.sub(text, first, last)
  if last <= first then return "" end
  if is_ascii(text) then return text:sub(first + 1, last) end
  limits.text(#text)
  local from = byte_of(text, first)
  local rest = text:sub(from)
  return rest:sub(1, byte_of(rest, last - first) - 1)
end

---The position of a byte, from 1, that begins a character.
---@param text string
---@param byte integer
---@return integer
function characters.position(text, byte) return characters.length(text:sub(1, byte - 1)) end

---The code point of one character.
---@param character string
---@return integer
function characters.code(character)
  local first = character:byte()
  if first < 0x80 then return first end
  local code = first < 0xe0 and first - 0xc0 or first < 0xf0 and first - 0xe0 or first - 0xf0
  for i = 2, #character do code = code * 64 + character:byte(i) - 128 end
  return code
end

---A code point as text.
---@param code integer
---@return string
function characters.of_code(code)
  if code < 0x80 then return string.char(code) end
  if code < 0x800 then return string.char(0xc0 + math.floor(code / 64), 0x80 + code % 64) end
  local last = 0x80 + code % 64
  local middle = 0x80 + math.floor(code / 64) % 64
  if code < 0x10000 then return string.char(0xe0 + math.floor(code / 4096), middle, last) end
  return string.char(0xf0 + math.floor(code / 262144), 0x80 + math.floor(code / 4096) % 64, middle, last)
end

-- ---- cases ------------------------------------------------------------------------------------------------------
--
-- Those of ASCII are Lua's. The C library has the others, one character for one.

local CTYPE = 1 -- LC_CTYPE_MASK
local locale

local function of_unicode()
  locale = locale or ffi.C.newlocale(CTYPE, "C.UTF-8", nil)
  if locale == nil then
    faults.unsupported("cases of letters beyond ASCII need the locale C.UTF-8, which this system lacks")
  end
  return locale
end

-- What becomes several characters, or depends on its place.
local LONGER_UPPER = { ["ß"] = "SS", ["ŉ"] = "ʼN", ["ﬀ"] = "FF", ["ﬁ"] = "FI", ["ﬂ"] = "FL", ["ﬃ"] = "FFI",
  ["ﬄ"] = "FFL", ["ﬅ"] = "ST", ["ﬆ"] = "ST" }
local LONGER_LOWER = { ["İ"] = "i̇" }

-- Pairs that are one character, at the beginning of a word.
local TITLE = { ["ŉ"] = "ʼN", ["Ǆ"] = "ǅ", ["ǅ"] = "ǅ", ["ǆ"] = "ǅ", ["Ǉ"] = "ǈ", ["ǈ"] = "ǈ", ["ǉ"] = "ǈ",
  ["Ǌ"] = "ǋ", ["ǋ"] = "ǋ", ["ǌ"] = "ǋ", ["Ǳ"] = "ǲ", ["ǲ"] = "ǲ", ["ǳ"] = "ǲ" }

local function map_case(text, of_ascii, of_all, longer)
  limits.text(#text)
  if is_ascii(text) then return of_ascii(text) end
  local in_unicode = of_unicode()
  return (of_ascii(text):gsub("[\194-\244][\128-\191]*", function(character)
    return longer[character]
      or characters.of_code(tonumber(ffi.C[of_all](characters.code(character), in_unicode)))
  end))
end

local function is_letter(character)
  if #character == 1 then return character:find("^%a") ~= nil end
  return ffi.C.iswalpha_l(characters.code(character), of_unicode()) ~= 0
end
characters.is_letter = is_letter

-- A capital sigma that ends a word is another letter in lower case.
local function end_sigmas(text)
  if not text:find("Σ", 1, true) then return text end
  local list, n = characters.list(text)
  for i = 1, n do
    local ends = list[i] == "Σ" and list[i - 1] and is_letter(list[i - 1])
      and not (list[i + 1] and is_letter(list[i + 1]))
    if ends then list[i] = "ς" end
  end
  return table.concat(list)
end

---@param text string
---@return string
function characters.upper(text) return map_case(text, string.upper, "towupper_l", LONGER_UPPER) end

---@param text string
---@return string
function characters.lower(text) return map_case(end_sigmas(text), string.lower, "towlower_l", LONGER_LOWER) end

-- At the beginning of a word. Of several letters the first alone is in upper case.
local function title_of(character)
  if TITLE[character] then return TITLE[character] end
  return (characters.upper(character):gsub("^(%u)(%u+)$", function(first, rest) return first .. rest:lower() end))
end

---The first character in upper case, the others in lower case.
---@param text string
---@return string
function characters.capitalize(text)
  local first = text:match("^" .. CHARACTER) or ""
  return title_of(first) .. characters.lower(text):sub(#characters.lower(first) + 1)
end

local function is_cased(character)
  return characters.upper(character) ~= character or characters.lower(character) ~= character
end

---Every letter after one that has no case in upper case, the others in lower case, as str.title.
---@param text string
---@return string
function characters.title(text)
  local list, n = characters.list(text)
  local inside = false
  for i = 1, n do
    local cased = is_cased(list[i])
    list[i] = inside and characters.lower(list[i]) or title_of(list[i])
    inside = cased
  end
  return table.concat(list)
end

---Whether a text has letters with a case, and all are in this one.
---@param text string
---@param change fun(text: string): string characters.upper or characters.lower
---@return boolean
function characters.is_in_case(text, change)
  return change(text) == text and characters.upper(text) ~= characters.lower(text)
end

-- ---- parts ------------------------------------------------------------------------------------------------------

local function set_of(text)
  local set = {}
  for character in text:gmatch(CHARACTER) do set[character] = true end
  return set
end

---A text without the characters of a set at its ends.
---@param text string
---@param set string? characters; nil: white space
---@param left boolean at its beginning
---@param right boolean at its end
---@return string
function characters.strip(text, set, left, right)
  if not set and left and right then return text_lines.strip(text) end
  local taken = set and set_of(set)
  local function goes(character)
    if taken then return taken[character] end
    return text_lines.is_space(character)
  end
  local first, last = 1, #text
  while left and first <= last do
    local character = text:match("^" .. CHARACTER, first)
    if not goes(character) then break end
    first = first + #character
  end
  while right and last >= first do
    local at = last
    while at > first and text:find("^[\128-\191]", at) do at = at - 1 end
    if not goes(text:sub(at, last)) then break end
    last = at - 1
  end
  return text:sub(first, last)
end

local LINE_ENDS = { ["\n"] = true, ["\v"] = true, ["\f"] = true, ["\r"] = true, ["\28"] = true, ["\29"] = true,
  ["\30"] = true, ["\194\133"] = true, ["\226\128\168"] = true, ["\226\128\169"] = true }

---The lines of a text, as str.splitlines.
---@param text string
---@param keep_ends boolean
---@return string[] list
---@return integer count
function characters.lines(text, keep_ends)
  local list, n, from, at = {}, 0, 1, 1
  limits.text(#text)
  while true do
    at = text:find("[\n\v\f\r\28-\30\194\226]", at)
    if not at then break end
    local ending = text:match("^\r\n", at) or text:match("^" .. CHARACTER, at)
    if LINE_ENDS[ending] or ending == "\r\n" then
      n = n + 1
      list[n] = text:sub(from, keep_ends and at + #ending - 1 or at - 1)
      from = at + #ending
    end
    at = at + #ending
  end
  if from <= #text then
    n = n + 1
    list[n] = text:sub(from)
  end
  return list, n
end

---The words between white space; after `most` splits the rest is one.
---@param text string
---@param most integer negative: all
---@return string[] list
---@return integer count
function characters.words(text, most)
  local list, n, at = {}, 0, 1
  limits.text(#text)
  text = characters.strip(text, nil, true, most < 0)
  while at <= #text do
    if n == most then
      n = n + 1
      list[n] = text:sub(at)
      break
    end
    local from = at
    local character = text:match("^" .. CHARACTER, at)
    while character and not text_lines.is_space(character) do
      at = at + #character
      character = text:match("^" .. CHARACTER, at)
    end
    n = n + 1
    list[n] = text:sub(from, at - 1)
    while character and text_lines.is_space(character) do
      at = at + #character
      character = text:match("^" .. CHARACTER, at)
    end
  end
  return list, n
end

---The same from the end; the rest is the first.
---@param text string
---@param most integer negative: all
---@return string[] list
---@return integer count
function characters.last_words(text, most)
  local all, n = characters.words(text, -1)
  if most < 0 or n <= most then return all, n end
  local rest = characters.strip(text, nil, false, true)
  for i = n, n - most + 1, -1 do
    rest = characters.strip(rest:sub(1, #rest - #all[i]), nil, false, true)
  end
  local list = { rest }
  for i = n - most + 1, n do list[#list + 1] = all[i] end
  return list, #list
end

---The parts between separators; after `most` splits the rest is one.
---@param text string
---@param separator string not empty
---@param most integer negative: all
---@return string[] list
---@return integer count
function characters.split(text, separator, most)
  local list, n, at = {}, 0, 1
  limits.text(#text)
  while n ~= most do
    local from, to = text:find(separator, at, true)
    if not from then break end
    n = n + 1
    list[n] = text:sub(at, from - 1)
    at = to + 1
  end
  list[n + 1] = text:sub(at)
  return list, n + 1
end

---The byte at which the last occurrence of a part begins.
---@param text string
---@param part string not empty
---@param before integer the part ends at or before this byte
---@return integer?
function characters.find_last(text, part, before)
  for at = before - #part + 1, 1, -1 do
    if text:sub(at, at + #part - 1) == part then return at end
  end
end

---The same as split, from the end.
---@param text string
---@param separator string not empty
---@param most integer negative: all
---@return string[] list
---@return integer count
function characters.split_last(text, separator, most)
  if most < 0 then return characters.split(text, separator, -1) end
  local backward, last = {}, #text
  limits.text(#text)
  while #backward < most do
    local at = characters.find_last(text, separator, last)
    if not at then break end
    backward[#backward + 1] = text:sub(at + #separator, last)
    last = at - 1
  end
  backward[#backward + 1] = text:sub(1, last)
  local list = {}
  for i = #backward, 1, -1 do list[#list + 1] = backward[i] end
  return list, #list
end

---A text with parts replaced.
---@param text string
---@param old string
---@param new string
---@param most integer negative: all
---@return string
function characters.replace(text, old, new, most)
  local parts, n, at = {}, 0, 1
  limits.text(#text)
  if old == "" then
    for _, character in ipairs((characters.list(text))) do
      if n == most then break end
      n = n + 1
      parts[n] = new .. character
      at = at + #character
    end
    parts[n + 1] = n == most and text:sub(at) or new
  else
    while n ~= most do
      local from, to = text:find(old, at, true)
      if not from then break end
      n = n + 1
      parts[n] = text:sub(at, from - 1) .. new
      at = to + 1
    end
    parts[n + 1] = text:sub(at)
  end
  limits.text(#text + n * #new)
  return table.concat(parts)
end

return characters
