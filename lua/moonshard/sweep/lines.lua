-- Several curves over a logarithmic x axis as SVG for a page, each with its range of error.
--
-- As in points.lua, x positions are percentages of the width and text has a fixed size.

local axis = require("moonshard.metrics.axis")
local escape = require("moonshard.sweep.bars").escape

local lines = {}

---@class moonshard.LinePoint
---@field x number above 0
---@field y number
---@field low number? the range of the error
---@field high number?
---@field title string
---@field faint boolean? drawn faintly and not joined: it cannot be had

---@class moonshard.LineChart
---@field title string description for screen readers
---@field curves { class: string, points: moonshard.LinePoint[] }[] class: "s1" to "s7" of the style sheet
---@field x_text fun(x: number): string labels of the x axis

local HEIGHT, TOP, BOTTOM = 320, 16, 28
local LEFT, RIGHT = 9, 96 -- per cent of the width; HEIGHT, TOP and BOTTOM are pixels

local function each_point(chart, visit)
  for _, curve in ipairs(chart.curves) do
    for _, point in ipairs(curve.points) do visit(point) end
  end
end

-- The places of an x and of a y, and the distinct x values.
local function scale_of(chart)
  local x_low, x_high, y_high, seen, xs = math.huge, -math.huge, 0, {}, {}
  each_point(chart, function(point)
    x_low, x_high = math.min(x_low, point.x), math.max(x_high, point.x)
    y_high = math.max(y_high, point.high or point.y)
    if not seen[point.x] then xs[#xs + 1] = point.x end
    seen[point.x] = true
  end)
  table.sort(xs)
  local span = math.log(x_high / x_low)
  return {
    xs = xs, y_high = y_high > 0 and y_high or 1,
    x = function(x) return LEFT + (RIGHT - LEFT) * (span > 0 and math.log(x / x_low) / span or 0.5) end,
    y = function(y) return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / (y_high > 0 and y_high or 1) end,
  }
end

local function draw_axes(out, chart, scale)
  for _, tick in ipairs(axis.ticks(0, scale.y_high, 5)) do
    local y = scale.y(tick.value)
    out[#out + 1] = ('<line class="grid" x1="0" x2="100%%" y1="%.1f" y2="%.1f"/>'):format(y, y)
    out[#out + 1] = ('<text class="tick" x="0" y="%.1f">%s</text>'):format(y - 3, tick.text)
  end
  for _, x in ipairs(scale.xs) do
    out[#out + 1] = ('<text class="tick" x="%.3f%%" y="%d" text-anchor="middle">%s</text>'):format(scale.x(x),
      HEIGHT - 8, escape(chart.x_text(x)))
  end
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
  for _, curve in ipairs(chart.curves) do draw_curve(out, curve, scale) end
  out[#out + 1] = "</svg>"
  return table.concat(out, "\n")
end

return lines
