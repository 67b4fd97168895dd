-- A bar chart as SVG for a page: groups of rows, each with a label and, below it, a bar of one or more segments. Bars
-- begin at 0 and can go to both sides of it, as changes do.
--
-- Lengths are percentages of the width and text has a fixed size, so the same drawing is readable on a phone, a wide
-- screen and paper. Colours are classes (c1, c2, ...) that the page's style sheet defines, for light and dark.

local axis = require("moonshard.metrics.axis")
local units = require("moonshard.page.units")

local bars = {}

---@class moonshard.BarRow
---@field label string
---@field number integer? the point's number in the table, for the script
---@field segments { value: number, class: string, title: string }[] from left to right; one if a value is negative
---@field text string to the right of the bar
---@field low number? start of a range that is marked on the bar
---@field high number? its end
---@field faint boolean? draw the row faintly, because it was not measured
---@field mark string? what is special about the row, after its label: "fastest"

---@class moonshard.BarChart
---@field title string description for screen readers
---@field groups { title: string?, rows: moonshard.BarRow[] }[]
---@field limit { value: number, text: string }? a line across all rows
---@field unit moonshard.Unit of values, ticks and texts
---@field axis string what the axis measures, without its unit
---@field least number? the axis reaches at least to here, so that nothing looks large that is not

local LONGEST = 68 -- length of the range of values in per cent of the width; the rest is for the text after the bar
local BEFORE = 2 -- per cent to the left of the lowest value, if that is below 0
local LABEL, BAR, ROW, GROUP, AXIS, TOP = 14, 14, 42, 30, 42, 6 -- heights in pixels

---Heights in pixels of a row, a group's title and the axis, for the script that moves rows.
bars.LAYOUT = { row = ROW, group = GROUP, axis = AXIS }

---@param text any
---@return string
function bars.escape(text)
  return (tostring(text):gsub("[&<>\"]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }))
end
local escape = bars.escape

local function total(row)
  local sum = 0
  for _, segment in ipairs(row.segments) do sum = sum + segment.value end
  return sum
end

local function range_of(chart)
  local low, high = 0, math.max(chart.limit and chart.limit.value or 0, chart.least or 0)
  for _, group in ipairs(chart.groups) do
    for _, row in ipairs(group.rows) do
      low, high = math.min(low, total(row), row.low or 0), math.max(high, total(row), row.high or 0)
    end
  end
  return low, high > low and high or low + chart.unit.size
end

-- What is drawn of a mark after a label; the script does the same.
local function marked(row) return row.mark and ("  \226\151\130 " .. row.mark) or "" end

-- Each row is drawn at 0 and translated to its position, so that the script can move it.
local function draw_row(out, row, y, to_x)
  out[#out + 1] = ('<g class="row%s" data-point="%d" data-mark="%s" transform="translate(0 %d)"><text class="label" '
    .. 'x="0" y="%d">%s</text>'):format(row.faint and " faint" or "", row.number or 0, escape(marked(row)), y,
    LABEL - 3, escape(row.label .. marked(row)))
  local from, top = 0, LABEL + 3
  for _, segment in ipairs(row.segments) do
    if segment.value ~= 0 then
      local left, right = to_x(math.min(from, from + segment.value)), to_x(math.max(from, from + segment.value))
      out[#out + 1] = ('<rect class="%s" x="%.3f%%" y="%d" width="%.3f%%" height="%d"><title>%s</title></rect>')
        :format(segment.class, left, top, right - left, BAR, escape(segment.title))
      from = from + segment.value
    end
  end
  if row.low then
    local middle = top + BAR / 2
    out[#out + 1] = ('<g class="range"><line x1="%.3f%%" x2="%.3f%%" y1="%g" y2="%g"/>'):format(to_x(row.low),
      to_x(row.high), middle, middle)
    for _, value in ipairs({ row.low, row.high }) do
      out[#out + 1] = ('<line x1="%.3f%%" x2="%.3f%%" y1="%g" y2="%g"/>'):format(to_x(value), to_x(value),
        middle - 4, middle + 4)
    end
    out[#out + 1] = "</g>"
  end
  out[#out + 1] = ('<text class="value" x="%.3f%%" dx="6" y="%d">%s</text></g>'):format(
    to_x(math.max(from, row.high or 0, 0)), top + BAR - 3, escape(row.text))
end

local function draw_axis(out, chart, low, high, bottom, to_x)
  local unit = chart.unit
  for _, tick in ipairs(axis.ticks(low / unit.size, high / unit.size, 5)) do
    local x = to_x(tick.value * unit.size)
    out[#out + 1] = ('<line class="grid%s" x1="%.3f%%" x2="%.3f%%" y1="%d" y2="%d"/>'):format(
      tick.value == 0 and low < 0 and " zero" or "", x, x, TOP, bottom)
    out[#out + 1] = ('<text class="tick" x="%.3f%%" y="%d" text-anchor="%s">%s</text>'):format(x, bottom + 16,
      x < 4 and "start" or "middle", escape(units.tick(unit, tick)))
  end
  out[#out + 1] = ('<text class="axis-title" x="0" y="%d">%s</text>'):format(bottom + 34,
    escape(units.title(chart.axis, unit)))
end

local function draw_limit(out, limit, bottom, to_x)
  local x = to_x(limit.value)
  local left = x > 50 -- the side with more room for the text
  out[#out + 1] = ('<line class="limit" x1="%.3f%%" x2="%.3f%%" y1="%d" y2="%d"/>'):format(x, x, TOP, bottom)
  out[#out + 1] = ('<text class="limit-text" x="%.3f%%" dx="%d" y="%d" text-anchor="%s">%s</text>'):format(x,
    left and -5 or 5, TOP + 11, left and "end" or "start", escape(limit.text))
end

---@param chart moonshard.BarChart
---@return string
function bars.svg(chart)
  local low, high = range_of(chart)
  local before = low < 0 and BEFORE or 0
  local function to_x(value) return before + (LONGEST - before) * (value - low) / (high - low) end
  local top = TOP + (chart.limit and 16 or 0)
  local rows, y = {}, top
  for _, group in ipairs(chart.groups) do
    if group.title then
      rows[#rows + 1] = ('<text class="group" x="0" y="%d">%s</text>'):format(y + GROUP - 10, escape(group.title))
      y = y + GROUP
    end
    for _, row in ipairs(group.rows) do
      draw_row(rows, row, y, to_x)
      y = y + ROW
    end
  end
  local out = { ('<svg width="100%%" height="%d" data-top="%d" role="img" aria-label="%s">'):format(y + AXIS, top,
    escape(chart.title)) }
  draw_axis(out, chart, low, high, y, to_x)
  if chart.limit then draw_limit(out, chart.limit, y, to_x) end
  out[#out + 1] = table.concat(rows, "\n")
  out[#out + 1] = "</svg>"
  return table.concat(out, "\n")
end

return bars
