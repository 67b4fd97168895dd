-- A mesh of ranks as SVG for a page: its ranks in rows, a box for each group over the last dimension, and a line for
-- each group over another one. Which ranks talk to which, and which of them share a node, is what a mesh decides.

local escape = require("moonshard.page.bars").escape
local style = require("moonshard.page.style")

local ranks = {}

---@class moonshard.RankChart
---@field title string description for screen readers
---@field sizes integer[] of the dimensions, the outermost first
---@field names string[] of the dimensions
---@field ranks_per_node integer

local LEFT, TOP, COLUMN, ROW, RADIUS, BOX = 8, 8, 84, 58, 15, 40 -- pixels
local OFFSET = 9                                                 -- between lines of a column
local NODE = 80                                                  -- right of the ranks, for the name of their node
local MAX_COLUMNS, MAX_ROWS = 8, 16

local function rows_and_columns(chart)
  local rows = 1
  for i = 1, #chart.sizes - 1 do rows = rows * chart.sizes[i] end
  return rows, chart.sizes[#chart.sizes]
end

---Whether a mesh is small enough to be drawn.
---@param sizes integer[]
---@return boolean
function ranks.can_draw(sizes)
  local rows, columns = rows_and_columns({ sizes = sizes })
  return #sizes > 0 and columns <= MAX_COLUMNS and rows <= MAX_ROWS
end

local function centre(row, column) return LEFT + COLUMN * (column + 0.5), TOP + ROW * (row + 0.5) end

-- A line through the ranks of each group over dimension d, in each column; lines of different groups side by side.
local function draw_lines(out, chart, d, rows, columns)
  local inner = 1 -- rows from a rank of a group to the next one
  for i = d + 1, #chart.sizes - 1 do inner = inner * chart.sizes[i] end
  local span, class = inner * chart.sizes[d], style.of_dimension(chart.names[d])
  for first = 0, rows - 1 do
    if chart.sizes[d] > 1 and math.floor(first / inner) % chart.sizes[d] == 0 then
      for column = 0, columns - 1 do
        local x, from = centre(first, column)
        local _, to = centre(first + span - inner, column)
        x = x + RADIUS + OFFSET * (d - 1) + (inner > 1 and OFFSET * (first % inner) / inner or 0) + 4
        out[#out + 1] = ('<path class="group-line %s" d="M%g %gH%gV%gH%g"/>'):format(class, x - 6, from, x, to, x - 6)
      end
    end
  end
end

---@param chart moonshard.RankChart
---@return string
function ranks.svg(chart)
  local rows, columns = rows_and_columns(chart)
  local height = 2 * TOP + ROW * rows
  -- With a view box the drawing shrinks where a page is narrower.
  local out = { ('<svg width="100%%" height="%d" viewBox="0 0 %d %d" preserveAspectRatio="xMinYMin" role="img" '
    .. 'aria-label="%s">'):format(height, LEFT + COLUMN * columns + NODE, height, escape(chart.title)) }
  for row = 0, rows - 1 do
    local x, y = centre(row, 0)
    out[#out + 1] = ('<rect class="box %s" x="%g" y="%g" width="%g" height="%d" rx="12"/>'):format(
      style.of_dimension(chart.names[#chart.names]), x - COLUMN / 2 + 4, y - BOX / 2, COLUMN * columns - 8, BOX)
    local first, last = row * columns, row * columns + columns - 1
    local node = math.floor(first / chart.ranks_per_node)
    if node == math.floor(last / chart.ranks_per_node) then
      out[#out + 1] = ('<text class="tick" x="%g" y="%g">node %d</text>'):format(LEFT + COLUMN * columns + 6, y + 4,
        node)
    end
  end
  for d = 1, #chart.sizes - 1 do draw_lines(out, chart, d, rows, columns) end
  for row = 0, rows - 1 do
    for column = 0, columns - 1 do
      local x, y = centre(row, column)
      out[#out + 1] = ('<circle class="rank" cx="%g" cy="%g" r="%d"/>'):format(x, y, RADIUS)
        .. ('<text x="%g" y="%g" text-anchor="middle">%d</text>'):format(x, y + 4, row * columns + column)
    end
  end
  out[#out + 1] = "</svg>"
  return table.concat(out, "\n")
end

---What each dimension's groups are, for a legend.
---@param chart moonshard.RankChart
---@return { class: string, name: string }[]
function ranks.legend(chart)
  local entries = {}
  for i, name in ipairs(chart.names) do
    local count = 1
    for k, size in ipairs(chart.sizes) do count = k == i and count or count * size end
    entries[i] = { class = style.of_dimension(name), name = ("%s: %d group%s of %d (%s)"):format(name, count,
      count == 1 and "" or "s", chart.sizes[i], i == #chart.names and "boxes" or "lines") }
  end
  return entries
end

return ranks
