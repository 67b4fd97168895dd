-- Draws curves as text (braille characters, two by four dots each) and as self-contained SVG.

local axis = require("moonshard.metrics.axis")
local text_lines = require("moonshard.base.text.text_lines")
local bit = require("bit")

local chart = {}

---@class moonshard.Curve
---@field name string? nil: it is not in the legend
---@field points number[][] { x, y } each
---@field marks boolean? draw separate marks instead of a line
---@field bars boolean? in the terminal: fill what is below the points, { x, y, end of the bar along x } each

local TEXT_ROWS = 14
local MARK = "●"
-- The bits of a braille character's dots, by column and row (Unicode, block U+2800).
local DOTS = { [0] = { [0] = 0x01, 0x02, 0x04, 0x40 }, { [0] = 0x08, 0x10, 0x20, 0x80 } }
local YELLOW, PLAIN = "\27[33m", "\27[0m"
local LINES = { "\27[34m", "\27[35m", "\27[32m", "\27[36m", "\27[31m" } -- colours of curves, in their order

local function braille(dots)
  return string.char(0xe2, 0xa0 + bit.rshift(dots, 6), 0x80 + bit.band(dots, 63))
end

-- ---- in the terminal ----

local function new_canvas(columns, rows)
  return { columns = columns, rows = rows, dots = {}, marks = {}, colours = {}, letters = {}, curve = 1 }
end

local function cell_at(canvas, x, y) return math.floor(y / 4) * canvas.columns + math.floor(x / 2) end

local function set_dot(canvas, x, y)
  if x < 0 or y < 0 or x >= 2 * canvas.columns or y >= 4 * canvas.rows then return end
  local cell = cell_at(canvas, x, y)
  canvas.colours[cell] = LINES[(canvas.curve - 1) % #LINES + 1]
  canvas.dots[cell] = bit.bor(canvas.dots[cell] or 0, DOTS[x % 2][y % 4])
end

local function draw_line(canvas, x0, y0, x1, y1)
  local steps = math.max(math.abs(x1 - x0), math.abs(y1 - y0), 1)
  for i = 0, steps do
    set_dot(canvas, math.floor(x0 + (x1 - x0) * i / steps + 0.5), math.floor(y0 + (y1 - y0) * i / steps + 0.5))
  end
end

-- The mean of the points in each column of dots, so that a long curve does not become a cloud.
local function column_means(points, to_x)
  local columns, order = {}, {}
  for _, point in ipairs(points) do
    if point[2] - point[2] == 0 then
      local x = to_x(point[1])
      if not columns[x] then
        columns[x] = { sum = 0, n = 0 }
        order[#order + 1] = x
      end
      columns[x].sum, columns[x].n = columns[x].sum + point[2], columns[x].n + 1
    end
  end
  table.sort(order)
  local means = {}
  for i, x in ipairs(order) do
    means[i] = { x, columns[x].sum / columns[x].n }
  end
  return means
end

local function draw_bars(canvas, curve, to_x, to_y)
  for _, bar in ipairs(curve.points) do
    local first, last = to_x(bar[1]), math.max(to_x(bar[1]), to_x(bar[3]) - 1)
    for y = bar[2] > 0 and to_y(bar[2]) or math.huge, to_y(0) do
      for x = first, last do set_dot(canvas, x, y) end
    end
  end
end

-- letter: at the end of the curve, where several are drawn; nil: none
local function draw_curve(canvas, curve, to_x, to_y, letter)
  local means, last = column_means(curve.points, to_x), nil
  for _, mean in ipairs(means) do
    local x, y = mean[1], to_y(mean[2])
    if curve.marks then
      canvas.marks[cell_at(canvas, x, y)] = true
    else
      draw_line(canvas, last and last[1] or x, last and last[2] or y, x, y)
      last = { x, y }
    end
  end
  if letter and last then canvas.letters[cell_at(canvas, last[1], last[2])] = letter end
end

local function canvas_row(canvas, row, colour)
  local cells = {}
  for column = 0, canvas.columns - 1 do
    local cell = row * canvas.columns + column
    if canvas.marks[cell] then
      cells[#cells + 1] = colour and YELLOW .. MARK .. PLAIN or MARK
    elseif canvas.dots[cell] then
      local sign = canvas.letters[cell] or braille(canvas.dots[cell])
      cells[#cells + 1] = colour and canvas.colours[cell] .. sign .. PLAIN or sign
    else
      cells[#cells + 1] = " "
    end
  end
  return text_lines.trim_end(table.concat(cells))
end

local function row_labels(range, rows)
  local labels, longest = {}, 0
  for _, tick in ipairs(axis.ticks(range.y_low, range.y_high, math.min(5, rows / 2))) do
    local row = math.floor((range.y_high - tick.value) / (range.y_high - range.y_low) * (rows - 1) + 0.5)
    labels[row] = tick.text
    longest = math.max(longest, #tick.text)
  end
  return labels, longest
end

local function x_axis(range, columns, name, whole)
  local line, labels = {}, {}
  for column = 1, columns do
    line[column], labels[column] = "─", " "
  end
  for _, tick in ipairs(axis.ticks(range.x_low, range.x_high, math.max(2, math.floor(columns / 12)), whole)) do
    local column = math.floor((tick.value - range.x_low) / (range.x_high - range.x_low) * (columns - 1) + 0.5) + 1
    local first = math.max(1, math.min(column - math.floor(#tick.text / 2), columns - #tick.text + 1))
    line[column] = "┴"
    for i = 1, #tick.text do
      labels[first + i - 1] = tick.text:sub(i, i)
    end
  end
  return table.concat(line), text_lines.trim_end(text_lines.trim_end(table.concat(labels)) .. "  " .. name)
end

-- Letters of lines, where there are several: "a", "b", ...
local function letters_of(curves)
  local letters, count = {}, 0
  for i, curve in ipairs(curves) do
    if not curve.marks then
      letters[i] = string.char(("a"):byte() + count % 26)
      count = count + 1
    end
  end
  return count > 1 and letters or {}
end

local function legend(curves, letters, colour)
  local parts = {}
  for i, curve in ipairs(curves) do
    local sign = curve.marks and MARK or letters[i] and "⠤" .. letters[i] or "⠤⠤"
    if colour then sign = (curve.marks and YELLOW or LINES[(i - 1) % #LINES + 1]) .. sign .. PLAIN end
    parts[i] = curve.name and sign .. " " .. curve.name
  end
  return table.concat(parts, "   ")
end

---The curves as lines of text.
---@param curves moonshard.Curve[]
---@param o { title: string, x: string, columns: integer?, rows: integer?, colour: boolean?, range: table?,
---  fractions: boolean? } range: as of axis.range, default that of the points; fractions: along x, too
---@return string
function chart.text(curves, o)
  local range, letters = o.range or axis.range(curves), letters_of(curves)
  if not range then return o.title .. ": no finite value to draw" end
  local rows = o.rows or TEXT_ROWS
  local labels, label_width = row_labels(range, rows)
  local columns = math.max(20, (o.columns or 78) - label_width - 3 - #o.x)
  local canvas = new_canvas(columns, rows)
  local function to_x(x)
    return math.floor((x - range.x_low) / (range.x_high - range.x_low) * (2 * columns - 1) + 0.5)
  end
  local function to_y(y)
    return math.floor((range.y_high - y) / (range.y_high - range.y_low) * (4 * rows - 1) + 0.5)
  end
  for i, curve in ipairs(curves) do
    canvas.curve = i
    if curve.bars then draw_bars(canvas, curve, to_x, to_y)
    else draw_curve(canvas, curve, to_x, to_y, letters[i]) end
  end
  local title = text_lines.trim_end(o.title .. "   " .. legend(curves, letters, o.colour))
  local lines = { title ~= "" and (" "):rep(label_width + 2) .. title or nil }
  for row = 0, rows - 1 do
    local label = labels[row] or ""
    lines[#lines + 1] = (" "):rep(label_width - #label) .. label .. (labels[row] and " ┤" or " │")
      .. canvas_row(canvas, row, o.colour)
  end
  local line, x_labels = x_axis(range, columns, o.x, not o.fractions)
  lines[#lines + 1] = (" "):rep(label_width) .. " └" .. line
  lines[#lines + 1] = (" "):rep(label_width + 2) .. x_labels
  return table.concat(lines, "\n")
end

-- ---- as SVG ----

local WIDTH, PLOT = 720, 316                    -- pixels; PLOT: height of what is between the axes
local LEFT, RIGHT, TOP, BOTTOM = 56, 16, 46, 44 -- TOP: above the first row of the legend
local ROW = 18                                  -- of the legend
local COLOURS = { "#2563eb", "#d97706", "#059669", "#7c3aed", "#dc2626", "#0891b2", "#db2777", "#65a30d" }

local function escape(text)
  return (text:gsub("[&<>\"]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }))
end

local function svg_points(points, to_x, to_y)
  local list = {}
  for _, point in ipairs(points) do
    if point[2] - point[2] == 0 then list[#list + 1] = ("%.1f,%.1f"):format(to_x(point[1]), to_y(point[2])) end
  end
  return table.concat(list, " ")
end

-- top, bottom: pixels between which the axis of y is
local function svg_axes(out, range, to_x, to_y, top, bottom)
  for _, tick in ipairs(axis.ticks(range.y_low, range.y_high, 6)) do
    local y = to_y(tick.value)
    out[#out + 1] = ('<path class="grid" d="M%d %.1fH%d"/><text x="%d" y="%.1f" text-anchor="end">%s</text>')
      :format(LEFT, y, WIDTH - RIGHT, LEFT - 8, y + 4, tick.text)
  end
  for _, tick in ipairs(axis.ticks(range.x_low, range.x_high, 8, true)) do
    local x = to_x(tick.value)
    out[#out + 1] = ('<path class="axis" d="M%.1f %dv5"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>')
      :format(x, bottom, x, bottom + 19, tick.text)
  end
  out[#out + 1] = ('<path class="axis" d="M%d %dV%dH%d"/>'):format(LEFT, top, bottom, WIDTH - RIGHT)
end

local function svg_curve(out, curve, colour, to_x, to_y)
  if curve.marks then
    for _, point in ipairs(curve.points) do
      if point[2] - point[2] == 0 then
        out[#out + 1] = ('<circle cx="%.1f" cy="%.1f" r="4" fill="%s"/>'):format(to_x(point[1]), to_y(point[2]), colour)
      end
    end
    return
  end
  -- The raw values, faint, and their mean over about a fiftieth of the curve to either side.
  out[#out + 1] = ('<polyline points="%s" stroke="%s" opacity="0.4"/>')
    :format(svg_points(curve.points, to_x, to_y), colour)
  local smoothed = axis.smooth(curve.points, math.max(1, #curve.points / 50))
  out[#out + 1] = ('<polyline points="%s" stroke="%s" stroke-width="2"/>')
    :format(svg_points(smoothed, to_x, to_y), colour)
end

-- What is drawn, as it is drawn: a dot for marks; for a line its values, faint, and their mean. Wraps below the title.
-- Returns how many rows it has.
local function svg_legend(out, curves)
  local x, row = LEFT, 0
  local function add(text, sign)
    local length = 24 + 7 * #text
    if x > LEFT and x + length > WIDTH - RIGHT then x, row = LEFT, row + 1 end
    local y = TOP + ROW * row
    out[#out + 1] = sign:format(x + 8, y - 4) .. ('<text x="%d" y="%d">%s</text>'):format(x + 20, y, escape(text))
    x = x + length + 12
  end
  for i, curve in ipairs(curves) do
    local colour = COLOURS[(i - 1) % #COLOURS + 1]
    if curve.marks then add(curve.name, '<circle cx="%d" cy="%d" r="4" fill="' .. colour .. '"/>')
    else
      local line = '<path d="M%d %dm-8 0h16" fill="none" stroke="' .. colour .. '" '
      add(curve.name, line .. 'opacity="0.4"/>')
      add(curve.name .. ", smoothed", line .. 'stroke-width="2"/>')
    end
  end
  return row + 1
end

local STYLE = "<style>text{font:12px sans-serif;fill:#374151}.title{font-size:15px;font-weight:600}"
  .. ".grid{stroke:#e5e7eb}.axis{stroke:#6b7280;fill:none}polyline{fill:none;stroke-linejoin:round}</style>"

---The curves as a self-contained SVG document.
---@param curves moonshard.Curve[] with names
---@param labels { title: string, x: string, y: string } x, y: titles of the axes
---@return string
function chart.svg(curves, labels)
  local range = axis.range(curves) or { x_low = 0, x_high = 1, y_low = 0, y_high = 1 }
  local legend_of = {}
  local top = TOP + ROW * svg_legend(legend_of, curves) + 10
  local bottom = top + PLOT
  local height = bottom + BOTTOM
  local function to_x(x)
    return LEFT + (x - range.x_low) / (range.x_high - range.x_low) * (WIDTH - LEFT - RIGHT)
  end
  local function to_y(y) return top + (range.y_high - y) / (range.y_high - range.y_low) * PLOT end
  local out = {
    ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">')
      :format(WIDTH, height, WIDTH, height),
    ("<title>%s</title>"):format(escape(labels.title)),
    STYLE,
    ('<rect width="%d" height="%d" fill="#fff"/>'):format(WIDTH, height),
    ('<text class="title" x="%d" y="25">%s</text>'):format(LEFT, escape(labels.title)),
    table.concat(legend_of, "\n"),
  }
  svg_axes(out, range, to_x, to_y, top, bottom)
  for i, curve in ipairs(curves) do
    svg_curve(out, curve, COLOURS[(i - 1) % #COLOURS + 1], to_x, to_y)
  end
  out[#out + 1] = ('<text x="8" y="%d">%s</text>'):format(top - 10, escape(labels.y))
  out[#out + 1] = ('<text x="%d" y="%d" text-anchor="middle">%s</text>')
    :format((LEFT + WIDTH - RIGHT) / 2, height - 8, escape(labels.x))
  out[#out + 1] = "</svg>\n"
  return table.concat(out, "\n")
end

return chart
