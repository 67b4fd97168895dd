-- Lines of text: splitting, trimming, checking UTF-8, and turning untrusted text into one line that is safe to print.
--
-- Splitting takes linear time. Patterns like "%s+$" and "([^\n]*)\n" restart at every byte: on one long line without
-- a match they take minutes.

local text_lines = {}

---The lines that end with a newline, without it.
---@param text string
---@return fun(): string?
function text_lines.whole(text)
  local at = 1
  return function()
    local stop = text:find("\n", at, true)
    if not stop then return nil end
    local line = text:sub(at, stop - 1)
    at = stop + 1
    return line
  end
end

---All lines of a text; the last one may lack its newline. "a\n" has two, the second one empty.
---@param text string
---@return string[]
function text_lines.all(text)
  local list = {}
  for line in text_lines.whole(text .. "\n") do list[#list + 1] = line end
  return list
end

---A text in lines that are broken at blanks, as many words in each as fit. A word that is longer has its own line.
---@param text string
---@param columns integer
---@return string[]
function text_lines.wrapped(text, columns)
  local lines = {}
  for word in text:gmatch("%S+") do
    local last = lines[#lines]
    if last and #last + 1 + #word <= columns then lines[#lines] = last .. " " .. word
    else lines[#lines + 1] = word end
  end
  return lines
end

---The text without trailing blanks.
---@param text string
---@return string
function text_lines.trim_end(text)
  local last = #text
  while last > 0 and text:find("^%s", last) do last = last - 1 end
  return text:sub(1, last)
end

---The text without leading and trailing blanks.
---@param text string
---@return string
function text_lines.trim(text)
  return text_lines.trim_end(text:sub((text:match("^%s*()"))))
end

-- Unicode's white space beyond ASCII, as UTF-8, and the separators of ASCII.
local SPACES = { ["\194\133"] = true, ["\194\160"] = true, ["\225\154\128"] = true, ["\226\128\168"] = true,
  ["\226\128\169"] = true, ["\226\128\175"] = true, ["\226\129\159"] = true, ["\227\128\128"] = true }
for byte = 128, 138 do SPACES["\226\128" .. string.char(byte)] = true end
for byte = 9, 32 do SPACES[string.char(byte)] = (byte <= 13 or byte >= 28) or nil end

---Whether a character is white space, as Python's str.isspace.
---@param character string one, in UTF-8
---@return boolean
function text_lines.is_space(character) return SPACES[character] or false end

---Without white space at either end, as Python's str.strip and Jinja's trim.
---@param text string UTF-8
---@return string
function text_lines.strip(text)
  local first, last = 1, #text
  while true do
    local character = text:match("^[^\128-\191][\128-\191]*", first)
    if not SPACES[character or ""] then break end
    first = first + #character
  end
  while last >= first do
    local at = last
    while at > first and text:find("^[\128-\191]", at) do at = at - 1 end
    if not SPACES[text:sub(at, last)] then break end
    last = at - 1
  end
  return text:sub(first, last)
end

-- ---- text of strangers ------------------------------------------------------------------------------------------
--
-- A recipe's error() and names in files can contain anything: characters that would move the cursor, colour the
-- terminal or start a new line are escaped, and long text is cut.

local MAX = 1000 -- bytes of a message
local QUOTED = 300 -- and of a value in it
local ARGUMENTS = 1500 -- of all values in one
local ROOM = 40 -- for the number of bytes removed

local ESCAPES = { ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

local function escape(character)
  return ESCAPES[character] or character:gsub(".", function(byte) return ("\\x%02x"):format(byte:byte()) end)
end

---@param text string
---@return string without control characters of ASCII and the C1 controls of UTF-8
function text_lines.escape(text)
  return (text:gsub("%c", escape):gsub("\194[\128-\159]", escape))
end

---@param text string
---@param most integer
---@return string of at most so many bytes, plus the number of bytes removed
local function cut(text, most)
  if #text <= most then return text end
  local last = most
  while text:byte(last + 1) and text:byte(last + 1) >= 128 and text:byte(last + 1) < 192 do last = last - 1 end
  return ("%s... (%d bytes more)"):format(text:sub(1, last), #text - last)
end

---A message from a recipe: one line.
---@param text string
---@return string
function text_lines.message(text)
  return cut(text_lines.escape(text), MAX)
end

---A message of this layer, which continues in lines that begin with two blanks; other line ends came with a name or a
---value, and are escaped.
---@param text string
---@return string
function text_lines.indented(text)
  local parts = {}
  for i, line in ipairs(text_lines.all(text)) do
    if i > 1 then parts[#parts + 1] = line:sub(1, 2) == "  " and "\n" or "\\n" end
    parts[#parts + 1] = text_lines.escape(line)
  end
  return table.concat(parts)
end

---Cuts the longest texts of a list until all together leave room for a message around them.
---@param list any[] changed; what is no text stays
---@param count integer
function text_lines.shorten(list, count)
  while true do
    local sum, longest = 0, nil
    for i = 1, count do
      local length = type(list[i]) == "string" and #list[i] or 0
      sum = sum + length
      if length > QUOTED and (not longest or length > #list[longest]) then longest = i end
    end
    if sum <= ARGUMENTS or not longest then return end
    list[longest] = cut(list[longest], math.max(QUOTED - ROOM, #list[longest] - (sum - ARGUMENTS) - ROOM))
  end
end

---A text in quotes, as messages show values.
---@param text string
---@return string
function text_lines.quoted(text)
  return '"' .. text_lines.escape((cut(text, QUOTED):gsub('[\\"]', "\\%0"))) .. '"'
end

-- How many bytes follow the first one of a character, and the range of the first of these (RFC 3629); nil: no character
-- begins so.
local function following(byte)
  if byte < 0x80 then return 0, 0, 0 end
  if byte < 0xc2 or byte > 0xf4 then return nil end
  if byte < 0xe0 then return 1, 0x80, 0xbf end
  if byte < 0xf0 then return 2, byte == 0xe0 and 0xa0 or 0x80, byte == 0xed and 0x9f or 0xbf end
  return 3, byte == 0xf0 and 0x90 or 0x80, byte == 0xf4 and 0x8f or 0xbf
end

---Where a text is not UTF-8: the first byte, from 1, of what is no character; nil if all of it is.
---@param text string
---@return integer?
function text_lines.not_utf8(text)
  local at, length = text:find("[\128-\255]"), #text
  while at and at <= length do
    local count, low, high = following(text:byte(at))
    if not count then return at end
    for i = 1, count do
      local byte = text:byte(at + i)
      if not byte or byte < low or byte > high then return at end
      low, high = 0x80, 0xbf
    end
    at = at + count + 1
  end
end

return text_lines
