-- Lines and blanks of text, in time that grows with its length. Patterns like "%s+$" and "([^\n]*)\n" begin a search at
-- every byte, so that one long line without what they look for takes minutes.

local text_lines = {}

---The lines of a text that end with a newline, without it.
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

---The text without blanks at its end.
---@param text string
---@return string
function text_lines.trim_end(text)
  local last = #text
  while last > 0 and text:find("^%s", last) do last = last - 1 end
  return text:sub(1, last)
end

---The text without blanks at either end.
---@param text string
---@return string
function text_lines.trim(text)
  return text_lines.trim_end(text:sub((text:match("^%s*()"))))
end

return text_lines
