-- A heat map as SVG for a page: a grid of cells, darker for larger values, each with lines of text.

local escape = require("moonshard.page.bars").escape

local heat = {}

---@class moonshard.HeatCell
---@field value number? 0 to 1; nil: the cell is empty
---@field lines string[]
---@field title string
---@field faint boolean?

---@class moonshard.HeatMap
---@field title string description for screen readers
---@field columns string[]
---@field rows { label: string, cells: moonshard.HeatCell[] }[] a cell for each column

local LABEL, HEAD, ROW, LINE = 10, 22, 62, 15 -- LABEL in per cent of the width, the others in pixels

local function draw_cell(out, cell, x, y, width)
  if cell.value then
    out[#out + 1] = ('<rect class="c1" x="%.3f%%" y="%d" width="%.3f%%" height="%d" fill-opacity="%.3f"><title>%s'
      .. "</title></rect>"):format(x + 0.2, y, width - 0.4, ROW - 4, 0.08 + 0.62 * cell.value, escape(cell.title))
  end
  for i, text in ipairs(cell.lines) do
    out[#out + 1] = ('<text class="cell %s%s" x="%.3f%%" y="%d" text-anchor="middle">%s</text>'):format(
      i == 1 and "value" or "tick", cell.faint and " faint" or "", x + width / 2, y + 4 + LINE * i, escape(text))
  end
end

---@param map moonshard.HeatMap
---@return string
function heat.svg(map)
  local width = (100 - LABEL) / #map.columns
  local out = { ('<svg width="100%%" height="%d" role="img" aria-label="%s">'):format(HEAD + ROW * #map.rows,
    escape(map.title)) }
  for i, column in ipairs(map.columns) do
    out[#out + 1] = ('<text class="tick" x="%.3f%%" y="14" text-anchor="middle">%s</text>'):format(
      LABEL + width * (i - 0.5), escape(column))
  end
  for r, row in ipairs(map.rows) do
    local y = HEAD + ROW * (r - 1)
    out[#out + 1] = ('<text class="group" x="0" y="%d">%s</text>'):format(y + ROW / 2, escape(row.label))
    for i, cell in ipairs(row.cells) do draw_cell(out, cell, LABEL + width * (i - 1), y, width) end
  end
  out[#out + 1] = "</svg>"
  return table.concat(out, "\n")
end

return heat
