-- A scatter plot or curve as SVG for a page; the x axis can be logarithmic.
--
-- As in bars.lua, x positions are percentages of the width and text has a fixed size, so the same drawing is readable
-- on a phone, a wide screen and paper.

local axis = require("moonshard.metrics.axis")
local escape = require("moonshard.sweep.page.bars").escape

local points = {}

---@class moonshard.PointChart
---@field title string description for screen readers
---@field points { x: number, y: number, title: string, text: string? }[]
---@field x_log boolean? draw x on a logarithmic scale
---@field joined boolean? connect the points by a line, in order
---@field mark { x: number, text: string }? a vertical line at x

local HEIGHT, TOP, BOTTOM = 280, 20, 28
local LEFT, RIGHT = 9, 91 -- per cent of the width; HEIGHT, TOP and BOTTOM are pixels

local function range_of(list, key, to_number)
  local low, high = math.huge, -math.huge
  for _, point in ipairs(list) do
    low, high = math.min(low, to_number(point[key])), math.max(high, to_number(point[key]))
  end
  if low == high then low, high = low - 1, high + 1 end
  return low, high
end

local function decades(low, high)
  local ticks = {}
  for power = math.ceil(low - 1e-9), math.floor(high + 1e-9) do
    ticks[#ticks + 1] = { value = power, text = ("1e%d"):format(power) }
  end
  return ticks
end

local function draw_axes(out, x_ticks, y_ticks, to_x, to_y)
  for _, tick in ipairs(y_ticks) do
    local y = to_y(tick.value)
    out[#out + 1] = ('<line class="grid" x1="0" x2="100%%" y1="%.1f" y2="%.1f"/>'):format(y, y)
    out[#out + 1] = ('<text class="tick" x="0" y="%.1f">%s</text>'):format(y - 3, tick.text)
  end
  for _, tick in ipairs(x_ticks) do
    out[#out + 1] = ('<text class="tick" x="%.3f%%" y="%d" text-anchor="middle">%s</text>'):format(to_x(tick.value),
      HEIGHT - 8, tick.text)
  end
end

local function draw_mark(out, mark, x)
  out[#out + 1] = ('<line class="limit" x1="%.3f%%" x2="%.3f%%" y1="%d" y2="%d"/>'):format(x, x, TOP, HEIGHT - BOTTOM)
  out[#out + 1] = ('<text class="limit-text" x="%.3f%%" dx="%d" y="%d" text-anchor="%s">%s</text>'):format(x,
    x > 50 and -5 or 5, TOP - 6, x > 50 and "end" or "start", escape(mark.text))
end

-- Whether a text would overlap an earlier one, taking the width of a name on a phone and the height of a line.
local function is_covered(texts, x, y)
  for _, text in ipairs(texts) do
    if math.abs(text.x - x) < 45 and math.abs(text.y - y) < 16 then return true end
  end
  return false
end

local function draw_points(out, chart, place)
  local before, texts = nil, {}
  for _, point in ipairs(chart.points) do
    local x, y = place(point)
    if chart.joined and before then
      out[#out + 1] = ('<line class="curve" x1="%.3f%%" x2="%.3f%%" y1="%.1f" y2="%.1f"/>'):format(before.x, x,
        before.y, y)
    end
    before = { x = x, y = y }
  end
  for _, point in ipairs(chart.points) do
    local x, y = place(point)
    out[#out + 1] = ('<circle class="c1" cx="%.3f%%" cy="%.1f" r="5"><title>%s</title></circle>'):format(x, y,
      escape(point.title))
    if point.text and not is_covered(texts, x, y) then
      texts[#texts + 1] = { x = x, y = y }
      out[#out + 1] = ('<text x="%.3f%%" y="%.1f" dx="%d" text-anchor="%s">%s</text>'):format(x, y - 8,
        x > 50 and 4 or -4, x > 50 and "end" or "start", escape(point.text))
    end
  end
end

---@param chart moonshard.PointChart has at least one point
---@return string
function points.svg(chart)
  local function as_x(value) return chart.x_log and math.log10(value) or value end
  local x_low, x_high = range_of(chart.points, "x", as_x)
  local y_low, y_high = range_of(chart.points, "y", function(value) return value end)
  local function to_x(value) return LEFT + (RIGHT - LEFT) * (value - x_low) / (x_high - x_low) end
  local function to_y(value)
    return HEIGHT - BOTTOM - 12 - (HEIGHT - TOP - BOTTOM - 24) * (value - y_low) / (y_high - y_low)
  end
  local out = { ('<svg width="100%%" height="%d" role="img" aria-label="%s">'):format(HEIGHT, escape(chart.title)) }
  draw_axes(out, chart.x_log and decades(x_low, x_high) or axis.ticks(x_low, x_high, 4), axis.ticks(y_low, y_high, 4),
    to_x, to_y)
  if chart.mark then draw_mark(out, chart.mark, to_x(as_x(chart.mark.x))) end
  draw_points(out, chart, function(point) return to_x(as_x(point.x)), to_y(point.y) end)
  out[#out + 1] = "</svg>"
  return table.concat(out, "\n")
end

return points
