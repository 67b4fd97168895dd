-- Stacked areas over an axis of time as SVG for a page: what a total consists of, and where it is largest.
--
-- As in bars.lua, x positions are percentages of the width and text has a fixed size. Only the areas stretch: they are
-- an SVG of their own inside the chart, of SPAN units by pixels.

local axis = require("moonshard.metrics.axis")
local escape = require("moonshard.page.bars").escape
local lanes = require("moonshard.page.lanes")
local units = require("moonshard.page.units")

local areas = {}

---@class moonshard.AreaChart
---@field title string description for screen readers
---@field areas { name: string, class: string }[] the lowest first
---@field points { x: number, values: number[] }[] by x: the areas' values from there on, until the next point
---@field finish number at which the axis of x ends
---@field phases { name: string, begin: number, finish: number }[]
---@field unit moonshard.Unit of values
---@field axis string what a value is
---@field peak { x: number, value: number, text: string }

local TOP, HEIGHT, AXIS = 62, 240, 42 -- pixels: above the areas, of them, below them
local LEFT, RIGHT = 10, 97            -- per cent, as in lanes.lua: left of the areas are the ticks of values
local SPAN = 4000                     -- units of x in the stretched part
local NEAR = 1 / 1500                 -- part of the axis: points that are closer are one
local SIDE = 0.5                      -- part of the axis: labels of what is to the right of it end there

-- Of points that nearly touch, the one with the most.
local function thinned(points, near)
  local list, totals = {}, {}
  for _, point in ipairs(points) do
    local total, n = 0, #list
    for _, value in ipairs(point.values) do total = total + value end
    if n > 1 and point.x - list[n].x < near then
      if total > totals[n] then list[n], totals[n] = { x = list[n].x, values = point.values }, total end
    else
      list[n + 1], totals[n + 1] = point, total
    end
  end
  return list
end

-- The steps of an edge, whose heights are ys, as commands of a path: "V20H100V10H150". xs has one more than ys.
local function edge(ys, xs, first, last, by)
  local commands, i = {}, first
  while i ~= last + by do
    local y, j = ys[i], i
    while j ~= last and ys[j + by] == y do j = j + by end
    commands[#commands + 1] = ("V%.2fH%.1f"):format(y, xs[by > 0 and j + 1 or j])
    i = j + by
  end
  return table.concat(commands)
end

-- A path for each area: along its upper edge, and back along its lower one.
local function draw_areas(out, chart, highest)
  local points, xs, lower = thinned(chart.points, NEAR * chart.finish), {}, {}
  for i, point in ipairs(points) do xs[i], lower[i] = SPAN * point.x / chart.finish, HEIGHT end
  xs[#points + 1] = SPAN
  for k, area in ipairs(chart.areas) do
    local upper, some = {}, false
    for i, point in ipairs(points) do
      upper[i] = lower[i] - HEIGHT * point.values[k] / highest
      some = some or point.values[k] > 0
    end
    if some then
      out[#out + 1] = ('<path class="%s" d="M%.1f %.2f%s%sZ"><title>%s</title></path>'):format(area.class, xs[1],
        lower[1], edge(upper, xs, 1, #points, 1), edge(lower, xs, #points, 1, -1), escape(area.name))
    end
    lower = upper
  end
end

-- A label at a place of the axis, on the side where there is room.
local function label_at(out, class, part, x, y, text)
  local to_left = part > SIDE
  out[#out + 1] = ('<text class="%s" x="%.3f%%" y="%.1f" dx="%d" text-anchor="%s">%s</text>'):format(class, x, y,
    to_left and -7 or 7, to_left and "end" or "start", escape(text))
end

---@param chart moonshard.AreaChart has at least one point
---@return string
function areas.svg(chart)
  local function to_x(x) return LEFT + (RIGHT - LEFT) * x / chart.finish end
  local highest = 1.02 * chart.peak.value
  local function to_y(value) return TOP + HEIGHT * (1 - value / highest) end
  local bottom = TOP + HEIGHT
  local out = { ('<svg width="100%%" height="%d" role="img" aria-label="%s">'):format(bottom + AXIS,
    escape(chart.title)) }
  out[#out + 1] = ('<text class="axis-title" x="0" y="12">%s</text>'):format(escape(units.title(chart.axis,
    chart.unit)))
  out[#out + 1] = ('<svg x="%g%%" y="%d" width="%g%%" height="%d" viewBox="0 0 %d %d" preserveAspectRatio="none">')
    :format(LEFT, TOP, RIGHT - LEFT, HEIGHT, SPAN, HEIGHT)
  draw_areas(out, chart, highest)
  out[#out + 1] = "</svg>"
  for _, tick in ipairs(axis.ticks(0, highest / chart.unit.size, 5)) do
    local y = to_y(tick.value * chart.unit.size)
    out[#out + 1] = ('<line class="grid" x1="0" x2="100%%" y1="%.1f" y2="%.1f"/>'):format(y, y)
    out[#out + 1] = ('<text class="tick" x="0" y="%.1f">%s</text>'):format(y - 3, escape(units.tick(chart.unit, tick)))
  end
  lanes.time_axis(out, chart, to_x, bottom, bottom + 4)
  lanes.phases(out, chart, to_x, TOP - 8, TOP) -- lines below would cross the labels of values
  local x, part = to_x(chart.peak.x), chart.peak.x / chart.finish
  out[#out + 1] = ('<line class="zero peak" x1="%.3f%%" x2="%.3f%%" y1="22" y2="%d"/>'):format(x, x, bottom)
  label_at(out, "value", part, x, 32, chart.peak.text)
  out[#out + 1] = "</svg>"
  return table.concat(out, "\n")
end

return areas
