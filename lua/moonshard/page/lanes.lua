-- A timeline as SVG for a page: lanes of slices over one axis of time, below the names of its phases.
--
-- As in bars.lua, x positions are percentages of the width and text has a fixed size. A step can have thousands of
-- kernels, so slices of one lane and one colour that nearly touch are drawn as one.

local axis = require("moonshard.metrics.axis")
local escape = require("moonshard.page.bars").escape
local units = require("moonshard.page.units")

local lanes = {}

---@class moonshard.Slice
---@field begin number milliseconds
---@field finish number
---@field class string
---@field title string

---@class moonshard.LaneChart
---@field title string description for screen readers
---@field lanes { name: string, slices: moonshard.Slice[] }[] slices by begin
---@field phases { name: string, begin: number, finish: number }[]
---@field finish number milliseconds, at which the axis ends

local LANE, BAR, TOP, AXIS, LEFT, RIGHT = 44, 20, 26, 42, 10, 97 -- LEFT, RIGHT in per cent, the others in pixels
local NEAR = 1 / 1500 -- part of the axis: slices that are closer are one
local NAMED = 0.06    -- part of the axis: a shorter phase has no room for its name

-- A slice for each run of slices that touch or nearly do, and have one colour.
local function merged(slices, near)
  local list = {}
  for _, slice in ipairs(slices) do
    local last = list[#list]
    if last and last.class == slice.class and slice.begin - last.finish < near then
      last.finish, last.count, last.to = math.max(last.finish, slice.finish), last.count + 1, slice.title
    else
      list[#list + 1] = { begin = slice.begin, finish = slice.finish, class = slice.class, count = 1,
        title = slice.title, to = slice.title }
    end
  end
  return list
end

local function title_of(slice)
  local time = ("%.3f to %.3f ms"):format(slice.begin, slice.finish)
  if slice.count == 1 then return slice.title .. ", " .. time end
  return ("%d from %s to %s, %s"):format(slice.count, slice.title, slice.to, time)
end

local function draw_lane(out, lane, y, to_x, near)
  out[#out + 1] = ('<text class="label" x="0" y="%d">%s</text>'):format(y + 11, escape(lane.name))
  for _, slice in ipairs(merged(lane.slices, near)) do
    local x = to_x(slice.begin)
    out[#out + 1] = ('<rect class="%s" x="%.3f%%" y="%d" width="%.3f%%" height="%d"><title>%s</title></rect>'):format(
      slice.class, x, y + 16, math.max(to_x(slice.finish) - x, 0.02), BAR, escape(title_of(slice)))
  end
end

---Draws the axis of time, and lines upwards from it.
---@param out string[]
---@param chart { finish: number } milliseconds
---@param to_x fun(ms: number): number per cent
---@param top number pixels, of the lines
---@param bottom number pixels
function lanes.time_axis(out, chart, to_x, top, bottom)
  local unit = units.plain("ms")
  for _, tick in ipairs(axis.ticks(0, chart.finish, 6)) do
    local x = to_x(tick.value)
    out[#out + 1] = ('<line class="grid" x1="%.3f%%" x2="%.3f%%" y1="%d" y2="%d"/>'):format(x, x, top, bottom)
    out[#out + 1] = ('<text class="tick" x="%.3f%%" y="%d" text-anchor="middle">%s</text>'):format(x, bottom + 16,
      escape(units.tick(unit, tick)))
  end
  out[#out + 1] = ('<text class="axis-title" x="0" y="%d">time in a step, ms</text>'):format(bottom + 34)
end

---Draws where phases begin, and the names of those that have room for one.
---@param out string[]
---@param chart { finish: number, phases: { name: string, begin: number, finish: number }[] }
---@param to_x fun(ms: number): number per cent
---@param y number pixels: the names' base line
---@param bottom number pixels
function lanes.phases(out, chart, to_x, y, bottom)
  for _, phase in ipairs(chart.phases) do
    local x = to_x(phase.begin)
    out[#out + 1] = ('<line class="phase" x1="%.3f%%" x2="%.3f%%" y1="%d" y2="%d"/>'):format(x, x, y - 8, bottom)
    if phase.finish - phase.begin > NAMED * chart.finish then
      out[#out + 1] = ('<text class="tick" x="%.3f%%" dx="4" y="%d">%s</text>'):format(x, y, escape(phase.name))
    end
  end
end

---@param chart moonshard.LaneChart
---@return string
function lanes.svg(chart)
  local function to_x(ms) return LEFT + (RIGHT - LEFT) * ms / chart.finish end
  local bottom = TOP + LANE * #chart.lanes
  local out = { ('<svg width="100%%" height="%d" role="img" aria-label="%s">'):format(bottom + AXIS,
    escape(chart.title)) }
  lanes.time_axis(out, chart, to_x, TOP, bottom)
  lanes.phases(out, chart, to_x, 16, bottom)
  for i, lane in ipairs(chart.lanes) do draw_lane(out, lane, TOP + LANE * (i - 1), to_x, NEAR * chart.finish) end
  out[#out + 1] = "</svg>"
  return table.concat(out, "\n")
end

return lanes
