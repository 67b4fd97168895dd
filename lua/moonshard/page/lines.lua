-- Several curves over a logarithmic x axis as SVG for a page, each with its range of error. The y axis begins at 0, or
-- is logarithmic, too.
--
-- As in points.lua, x positions are percentages of the width and text has a fixed size.

local axis = require("moonshard.metrics.axis")
local escape = require("moonshard.page.bars").escape
local labels = require("moonshard.page.labels")
local units = require("moonshard.page.units")

local lines = {}

---@class moonshard.LinePoint
---@field x number above 0
---@field y number above 0 if the axis is logarithmic
---@field low number? the range of the error
---@field high number?
---@field title string
---@field faint boolean? drawn faintly and not joined: it cannot be had
---@field text string? its label, drawn where there is room

---@class moonshard.LineChart
---@field title string description for screen readers
---@field curves { class: string, points: moonshard.LinePoint[] }[] class: "s1" to "s7" of the style sheet
---@field x_title string what the axis measures, with its unit if it has one
---@field y_title string without its unit
---@field y_unit moonshard.Unit
---@field ideal { x: number, y: number, flat: boolean?, text: string }? a dashed line from here on that grows as x does,
---  or stays as it is
---@field x_text fun(x: number): string labels of the x axis
---@field x_base integer? labels are at powers of it; default: at the points
---@field log_y boolean? default false
---@field y_text (fun(y: number): string)? labels of a logarithmic y axis; default: in the unit

local HEIGHT, TOP, BOTTOM = 350, 32, 50
local MARGIN = 1.1 -- factor above and below the points of a logarithmic y axis
local LEFT, RIGHT = 9, 96 -- per cent of the width; HEIGHT, TOP and BOTTOM are pixels

local function each_point(chart, visit)
  for _, curve in ipairs(chart.curves) do
    for _, point in ipairs(curve.points) do visit(point) end
  end
end

-- The part of a logarithmic axis below a value; an axis without extent has its value in the middle.
local function log_part(value, low, high)
  return high > low and math.log(value / low) / math.log(high / low) or 0.5
end

local function range_of(chart)
  local r, seen = { x_low = math.huge, x_high = -math.huge, y_low = math.huge, y_high = 0, xs = {} }, {}
  each_point(chart, function(point)
    r.x_low, r.x_high = math.min(r.x_low, point.x), math.max(r.x_high, point.x)
    local low = point.low and point.low > 0 and point.low or point.y
    r.y_low, r.y_high = math.min(r.y_low, low), math.max(r.y_high, point.high or point.y)
    if not seen[point.x] then r.xs[#r.xs + 1] = point.x end
    seen[point.x] = true
  end)
  table.sort(r.xs)
  local ideal = chart.ideal
  if ideal then r.y_high = math.max(r.y_high, ideal.flat and ideal.y or ideal.y * r.x_high / ideal.x) end
  if r.y_high <= 0 then r.y_high = 1 end
  return r
end

-- The values that are labelled, and the places of an x and of a y.
local function scale_of(chart)
  local r, scale, unit = range_of(chart), {}, chart.y_unit
  local x_ticks = chart.x_base and axis.log_ticks(r.x_low, r.x_high, chart.x_base) or {}
  scale.xs = #x_ticks > 0 and x_ticks or r.xs
  if chart.log_y then
    r.y_low, r.y_high = r.y_low / MARGIN, r.y_high * MARGIN
    scale.ys = {}
    for i, value in ipairs(axis.log_ticks(r.y_low, r.y_high, 10)) do
      scale.ys[i] = { value = value, text = chart.y_text and chart.y_text(value)
        or ("%g%s"):format(value / unit.size, unit.suffix) }
    end
  else
    scale.ys = axis.ticks(0, r.y_high / unit.size, 5)
    for _, tick in ipairs(scale.ys) do tick.text, tick.value = units.tick(unit, tick), tick.value * unit.size end
  end
  scale.last = r.x_high
  function scale.x(x) return LEFT + (RIGHT - LEFT) * log_part(x, r.x_low, r.x_high) end
  function scale.y(y)
    local part = chart.log_y and log_part(math.max(y, r.y_low), r.y_low, r.y_high) or y / r.y_high
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part
  end
  return scale
end

local function draw_axes(out, chart, scale)
  for _, tick in ipairs(scale.ys) do
    local y = scale.y(tick.value)
    out[#out + 1] = ('<line class="grid" x1="0" x2="100%%" y1="%.1f" y2="%.1f"/>'):format(y, y)
    out[#out + 1] = ('<text class="tick" x="0" y="%.1f">%s</text>'):format(y - 3, escape(tick.text))
  end
  for _, x in ipairs(scale.xs) do
    out[#out + 1] = ('<text class="tick" x="%.3f%%" y="%d" text-anchor="middle">%s</text>'):format(scale.x(x),
      HEIGHT - 26, escape(chart.x_text(x)))
  end
  out[#out + 1] = ('<text class="axis-title" x="0" y="12">%s</text>'):format(escape(units.title(chart.y_title,
    chart.y_unit)))
  out[#out + 1] = ('<text class="axis-title" x="100%%" y="%d" text-anchor="end">%s</text>'):format(HEIGHT - 8,
    escape(chart.x_title))
end

-- The ends of the ideal line, in the chart.
local function ideal_of(ideal, scale)
  local y = ideal.flat and ideal.y or ideal.y * scale.last / ideal.x
  return { x = scale.x(ideal.x), y = scale.y(ideal.y) }, { x = scale.x(scale.last), y = scale.y(y) }
end

local function draw_ideal(out, ideal, scale)
  local from, to = ideal_of(ideal, scale)
  out[#out + 1] = ('<line class="ideal" x1="%.3f%%" x2="%.3f%%" y1="%.1f" y2="%.1f"/>'):format(from.x, to.x, from.y,
    to.y)
end

local function draw_labels(out, chart, scale)
  local field, wanted = { top = 14, bottom = HEIGHT - BOTTOM + 6, points = {}, segments = {}, taken = {} }, {}
  for i, tick in ipairs(scale.ys) do
    field.taken[i] = { x = 0, dx = 0, y = scale.y(tick.value) - 3, anchor = "start", text = tick.text }
  end
  for _, curve in ipairs(chart.curves) do
    local before
    for _, point in ipairs(curve.points) do
      local place = { x = scale.x(point.x), y = scale.y(point.y), text = point.text, must = true }
      field.points[#field.points + 1] = place
      if before and not point.faint then table.insert(field.segments, { before, place }) end
      before = not point.faint and place or before
      if point.text then wanted[#wanted + 1] = place end
    end
  end
  if chart.ideal then
    local from, to = ideal_of(chart.ideal, scale)
    field.segments[#field.segments + 1] = { from, to }
    wanted[#wanted + 1] = { x = (from.x + to.x) / 2, y = (from.y + to.y) / 2, text = chart.ideal.text }
  end
  labels.draw(out, labels.place(wanted, field), escape)
end

local function draw_line(out, class, scale, from, to)
  out[#out + 1] = ('<line class="line %s" x1="%.3f%%" x2="%.3f%%" y1="%.1f" y2="%.1f"/>'):format(class,
    scale.x(from.x), scale.x(to.x), scale.y(from.y), scale.y(to.y))
end

local function draw_point(out, class, scale, point)
  local x, faint = scale.x(point.x), point.faint and " faint" or ""
  if point.low and point.high then
    out[#out + 1] = ('<line class="error %s%s" x1="%.3f%%" x2="%.3f%%" y1="%.1f" y2="%.1f"/>'):format(class, faint, x,
      x, scale.y(point.low), scale.y(point.high))
  end
  out[#out + 1] = ('<circle class="%s%s" cx="%.3f%%" cy="%.1f" r="4"><title>%s</title></circle>'):format(
    class:gsub("^s", "c"), faint, x, scale.y(point.y), escape(point.title))
end

local function draw_curve(out, curve, scale)
  local before
  for _, point in ipairs(curve.points) do
    if before and not point.faint then draw_line(out, curve.class, scale, before, point) end
    before = not point.faint and point or before
  end
  for _, point in ipairs(curve.points) do draw_point(out, curve.class, scale, point) end
end

---@param chart moonshard.LineChart has at least one point
---@return string
function lines.svg(chart)
  local scale = scale_of(chart)
  local out = { ('<svg width="100%%" height="%d" role="img" aria-label="%s">'):format(HEIGHT, escape(chart.title)) }
  draw_axes(out, chart, scale)
  if chart.ideal then draw_ideal(out, chart.ideal, scale) end
  for _, curve in ipairs(chart.curves) do draw_curve(out, curve, scale) end
  draw_labels(out, chart, scale)
  out[#out + 1] = "</svg>"
  return table.concat(out, "\n")
end

return lines
