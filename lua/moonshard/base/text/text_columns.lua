-- Rows of text as columns, each as wide as its widest cell.

local progress = require("moonshard.base.text.progress")
local text_lines = require("moonshard.base.text.text_lines")

local text_columns = {}

---@param rows string[][]
---@param left (integer|table<integer, boolean>)? this many first columns, or these, are aligned to the left, the others
---  to the right; nil: all to the left
---@return string text lines, indented by two blanks
function text_columns.of(rows, left)
  local function is_left(i)
    if type(left) == "table" then return left[i] or false end
    return i <= (left or i)
  end
  local widths, lines = {}, {}
  for _, row in ipairs(rows) do
    for i, cell in ipairs(row) do widths[i] = math.max(widths[i] or 0, progress.width(cell)) end
  end
  for _, row in ipairs(rows) do
    local cells = {}
    for i, cell in ipairs(row) do
      local pad = (" "):rep(widths[i] - progress.width(cell))
      cells[i] = is_left(i) and cell .. pad or pad .. cell
    end
    lines[#lines + 1] = "  " .. text_lines.trim_end(table.concat(cells, "  ")) .. "\n"
  end
  return table.concat(lines)
end

return text_columns
