-- A scatter plot or curve as SVG for a page; the x axis can be logarithmic.
--
-- As in bars.lua, x positions are percentages of the width and text has a fixed size, so the same drawing is readable
-- on a phone, a wide screen and paper.

local axis = require("moonshard.metrics.axis")
local escape = require("moonshard.page.bars").escape
local labels = require("moonshard.page.labels")
local units = require("moonshard.page.units")

local points = {}

---@class moonshard.PointChart
---@field title string description for screen readers
---@field points moonshard.ChartPoint[]
---@field x_title string what the axis measures, without its unit
---@field y_title string
---@field x_unit moonshard.Unit
---@field y_unit moonshard.Unit
---@field x_log boolean? draw x on a logarithmic scale
---@field joined boolean? connect the points by a line, in order
---@field mark { x: number, text: string }? a vertical line at x

---@class moonshard.ChartPoint
---@field x number
---@field y number
---@field low number? the range of the point's runs
---@field high number?
---@field title string
---@field text string? its label, drawn where there is room; that of the highest point always
---@field class string? default "c1"

local HEIGHT, TOP, BOTTOM = 330, 44, 50
local LEFT, RIGHT = 9, 91 -- per cent of the width; HEIGHT, TOP and BOTTOM are pixels

local function range_of(chart, as_x)
  local r = { x_low = math.huge, x_high = -math.huge, y_low = math.huge, y_high = -math.huge }
  for _, point in ipairs(chart.points) do
    r.x_low, r.x_high = math.min(r.x_low, as_x(point.x)), math.max(r.x_high, as_x(point.x))
    r.y_low, r.y_high = math.min(r.y_low, point.low or point.y), math.max(r.y_high, point.high or point.y)
  end
  for _, name in ipairs({ "x", "y" }) do
    local low, high = name .. "_low", name .. "_high"
    if r[low] == r[high] then r[low], r[high] = r[low] - 1, r[high] + 1 end
  end
  return r
end

local function decades(low, high)
  local ticks = {}
  for power = math.ceil(low - 1e-9), math.floor(high + 1e-9) do
    ticks[#ticks + 1] = { value = power, text = power == 0 and "1" or ("1e%d"):format(power) }
  end
  return ticks
end

-- Round values in a unit, at their places in the chart's values.
local function ticks_of(unit, low, high)
  local ticks = axis.ticks(low / unit.size, high / unit.size, 4)
  for _, tick in ipairs(ticks) do tick.text, tick.value = units.tick(unit, tick), tick.value * unit.size end
  return ticks
end

-- Returns the labels that no other may cover.
local function draw_axes(out, chart, x_ticks, y_ticks, to_x, to_y)
  local taken = {}
  for _, tick in ipairs(y_ticks) do
    local y = to_y(tick.value)
    out[#out + 1] = ('<line class="grid" x1="0" x2="100%%" y1="%.1f" y2="%.1f"/>'):format(y, y)
    out[#out + 1] = ('<text class="tick" x="0" y="%.1f">%s</text>'):format(y - 3, escape(tick.text))
    taken[#taken + 1] = { x = 0, dx = 0, y = y - 3, anchor = "start", text = tick.text }
  end
  for _, tick in ipairs(x_ticks) do
    out[#out + 1] = ('<text class="tick" x="%.3f%%" y="%d" text-anchor="middle">%s</text>'):format(to_x(tick.value),
      HEIGHT - 26, escape(tick.text))
  end
  out[#out + 1] = ('<text class="axis-title" x="0" y="12">%s</text>'):format(
    escape(units.title(chart.y_title, chart.y_unit)))
  out[#out + 1] = ('<text class="axis-title" x="100%%" y="%d" text-anchor="end">%s</text>'):format(HEIGHT - 8,
    escape(units.title(chart.x_title, chart.x_unit)))
  return taken
end

-- Returns the label, which no other may cover.
local function draw_mark(out, mark, x)
  out[#out + 1] = ('<line class="limit" x1="%.3f%%" x2="%.3f%%" y1="%d" y2="%d"/>'):format(x, x, TOP, HEIGHT - BOTTOM)
  local label = { x = x, dx = x > 50 and -5 or 5, y = TOP - 16, anchor = x > 50 and "end" or "start", text = mark.text }
  out[#out + 1] = ('<text class="limit-text" x="%.3f%%" dx="%d" y="%d" text-anchor="%s">%s</text>'):format(x, label.dx,
    label.y, label.anchor, escape(mark.text))
  return label
end

local function draw_range(out, point, x, to_y)
  if not point.low or point.high <= point.low then return end
  local low, high = to_y(point.low), to_y(point.high)
  out[#out + 1] = ('<g class="range"><line x1="%.3f%%" x2="%.3f%%" y1="%.1f" y2="%.1f"/></g>'):format(x, x, low, high)
end

-- The highest point first, then the others as they are.
local function by_importance(list)
  local first
  for _, point in ipairs(list) do
    if point.text and (not first or point.value > first.value) then first = point end
  end
  local sorted = { first }
  for _, point in ipairs(list) do
    if point.text and point ~= first then sorted[#sorted + 1] = point end
  end
  if first then first.must = true end
  return sorted
end

local function draw_points(out, chart, place, mark_x, to_y, taken)
  local places, segments = {}, {}
  for i, point in ipairs(chart.points) do
    local x, y = place(point)
    places[i] = { x = x, y = y, text = point.text, value = point.y }
    if chart.joined and i > 1 then segments[#segments + 1] = { places[i - 1], places[i] } end
    if point.low then segments[#segments + 1] = { { x = x, y = to_y(point.low) }, { x = x, y = to_y(point.high) } } end
  end
  for i = 2, chart.joined and #places or 0 do
    out[#out + 1] = ('<line class="curve" x1="%.3f%%" x2="%.3f%%" y1="%.1f" y2="%.1f"/>'):format(places[i - 1].x,
      places[i].x, places[i - 1].y, places[i].y)
  end
  for i, point in ipairs(chart.points) do
    draw_range(out, point, places[i].x, to_y)
    out[#out + 1] = ('<circle class="%s" cx="%.3f%%" cy="%.1f" r="5"><title>%s</title></circle>'):format(
      point.class or "c1", places[i].x, places[i].y, escape(point.title))
  end
  if mark_x then segments[#segments + 1] = { { x = mark_x, y = TOP }, { x = mark_x, y = HEIGHT - BOTTOM } } end
  labels.draw(out, labels.place(by_importance(places), { top = 16, bottom = HEIGHT - BOTTOM + 6, points = places,
    segments = segments, taken = taken }), escape)
end

---The points that no other beats in both, with the lowest x and the highest y, by x.
---@generic T
---@param list T[] with x and y; sorted in place
---@return T[]
function points.frontier(list)
  local best, highest = {}, -math.huge
  table.sort(list, function(a, b)
    if a.x ~= b.x then return a.x < b.x end
    return a.y > b.y
  end)
  for _, point in ipairs(list) do
    if point.y > highest then best[#best + 1] = point end
    highest = math.max(highest, point.y)
  end
  return best
end

---@param chart moonshard.PointChart has at least one point
---@return string
function points.svg(chart)
  local function as_x(value) return chart.x_log and math.log10(value) or value end
  local r = range_of(chart, as_x)
  local function to_x(value) return LEFT + (RIGHT - LEFT) * (value - r.x_low) / (r.x_high - r.x_low) end
  local function to_y(value)
    return HEIGHT - BOTTOM - 12 - (HEIGHT - TOP - BOTTOM - 24) * (value - r.y_low) / (r.y_high - r.y_low)
  end
  local out = { ('<svg width="100%%" height="%d" role="img" aria-label="%s">'):format(HEIGHT, escape(chart.title)) }
  local x_ticks = chart.x_log and decades(r.x_low, r.x_high) or ticks_of(chart.x_unit, r.x_low, r.x_high)
  local taken = draw_axes(out, chart, x_ticks, ticks_of(chart.y_unit, r.y_low, r.y_high), to_x, to_y)
  local mark_x = chart.mark and to_x(as_x(chart.mark.x))
  if chart.mark then taken[#taken + 1] = draw_mark(out, chart.mark, mark_x) end
  local function place(point) return to_x(as_x(point.x)), to_y(point.y) end
  draw_points(out, chart, place, mark_x, to_y, taken)
  out[#out + 1] = "</svg>"
  return table.concat(out, "\n")
end

return points
