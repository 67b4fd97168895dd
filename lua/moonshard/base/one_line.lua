-- Text of strangers - a recipe's error(), names out of files - as it may be shown: what would move the cursor, colour
-- the terminal or begin a line of its own is written as an escape, and a long text is cut.

local one_line = {}

local MOST = 1000 -- bytes of a message

local ESCAPES = { ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

local function escape(character)
  return ESCAPES[character] or character:gsub(".", function(byte) return ("\\x%02x"):format(byte:byte()) end)
end

---@param text string
---@return string without control characters: those of ASCII, and the C1 ones of UTF-8
function one_line.escape(text)
  return (text:gsub("%c", escape):gsub("\194[\128-\159]", escape))
end

---@param text string
---@return string of at most MOST bytes and what was cut
local function cut(text)
  if #text <= MOST then return text end
  local last = MOST
  while text:byte(last + 1) and text:byte(last + 1) >= 128 and text:byte(last + 1) < 192 do last = last - 1 end
  return ("%s... (%d bytes more)"):format(text:sub(1, last), #text - last)
end

---A message of a recipe: one line.
---@param text string
---@return string
function one_line.message(text)
  return cut(one_line.escape(text))
end

---A message of this layer, which may go on in lines that are indented; what a recipe put into it may not.
---@param text string
---@return string
function one_line.own(text)
  local lines = {}
  text = text:gsub("\n(%S)", "\\n%1")
  for line in (text .. "\n"):gmatch("([^\n]*)\n") do lines[#lines + 1] = one_line.escape(line) end
  return table.concat(lines, "\n")
end

return one_line
