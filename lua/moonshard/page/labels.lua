-- Places the labels of points in a chart so that none is cut by its edge, covers a point or another label, or is struck
-- through by a line.
--
-- The width of a chart is the reader's, and widths of texts are estimates. So a label must be free at a narrow width
-- and at a wide one: x positions are per cent of the width, everything else is pixels.

local labels = {}

---@class moonshard.PlacedLabel
---@field x number per cent
---@field dx number pixels
---@field y number baseline, in pixels
---@field of_y number? of its point
---@field anchor "start"|"end"
---@field text string

---@class moonshard.LabelField
---@field top number pixels between which labels may be
---@field bottom number
---@field points { x: number, y: number }[] that no label covers; x in per cent, y in pixels
---@field taken moonshard.PlacedLabel[]? texts that are there already, of 11 pixels
---@field segments { [1]: { x: number, y: number }, [2]: { x: number, y: number } }[] that no label crosses

local WIDTHS = { 580, 1120 } -- of charts on a page of 700 pixels and on its widest
local CHARACTER, ASCENT, DESCENT = 6.7, 11, 3 -- pixels of a text of 12
local RADIUS, SAMPLES = 6, 48
-- Where a label can be, seen from its point: pixels to the side, baseline below the point, and the end that is there.
local PLACES = {
  { 9, 4, "start" }, { -9, 4, "end" }, { 0, -10, "start" }, { 0, -10, "end" }, { 0, 20, "start" }, { 0, 20, "end" },
  { 8, -24, "start" }, { -8, -24, "end" }, { 8, 34, "start" }, { -8, 34, "end" },
}

local function box_of(label, width)
  local x, length = width * label.x / 100 + label.dx, CHARACTER * #label.text
  local left = label.anchor == "end" and x - length or x
  return { left = left, right = left + length, top = label.y - ASCENT, bottom = label.y + DESCENT }
end

local function holds(box, x, y, margin)
  return x > box.left - margin and x < box.right + margin and y > box.top - margin and y < box.bottom + margin
end

local function meet(a, b)
  return a.left < b.right and b.left < a.right and a.top < b.bottom and b.top < a.bottom
end

local function distance(box, x, y)
  local across, down = math.max(box.left - x, 0, x - box.right), math.max(box.top - y, 0, y - box.bottom)
  return math.sqrt(across * across + down * down)
end

-- How much a label is in the way, at one width; 0: it is free.
local function conflicts(label, field, placed, width)
  local box, count = box_of(label, width), 0
  for _, other in ipairs(field.taken or {}) do
    if meet(box, box_of(other, width)) then count = count + 10 end
  end
  if box.left < 0 or box.right > width or box.top < field.top or box.bottom > field.bottom then count = count + 100 end
  for _, other in ipairs(placed) do
    if meet(box, box_of(other, width)) then count = count + 10 end
  end
  local own = distance(box, width * label.x / 100, label.of_y)
  for _, point in ipairs(field.points) do
    local x = width * point.x / 100
    if holds(box, x, point.y, RADIUS) then count = count + 1 end
    -- A label is read as that of the point that is next to it.
    if distance(box, x, point.y) < own - 1 then count = count + 1 end
  end
  for _, segment in ipairs(field.segments) do
    for i = 0, SAMPLES do
      local x = segment[1].x + (segment[2].x - segment[1].x) * i / SAMPLES
      local y = segment[1].y + (segment[2].y - segment[1].y) * i / SAMPLES
      if holds(box, width * x / 100, y, 1) then
        count = count + 1
        break
      end
    end
  end
  return count
end

---Labels that are free, the first ones first; a label that must be there is where it is least in the way.
---@param wanted { x: number, y: number, text: string, must: boolean? }[] points by importance
---@param field moonshard.LabelField
---@return moonshard.PlacedLabel[]
function labels.place(wanted, field)
  local placed = {}
  for _, point in ipairs(wanted) do
    local best, least
    for _, place in ipairs(PLACES) do
      local label = { x = point.x, dx = place[1], y = point.y + place[2], of_y = point.y, anchor = place[3],
        text = point.text }
      local count = 0
      for _, width in ipairs(WIDTHS) do count = count + conflicts(label, field, placed, width) end
      if not best or count < least then best, least = label, count end
    end
    if least == 0 or point.must then placed[#placed + 1] = best end
  end
  return placed
end

---@param out string[]
---@param placed moonshard.PlacedLabel[]
---@param escape fun(text: string): string
function labels.draw(out, placed, escape)
  for _, label in ipairs(placed) do
    out[#out + 1] = ('<text class="point-label" x="%.3f%%" y="%.1f" dx="%d" text-anchor="%s">%s</text>'):format(label.x,
      label.y, label.dx, label.anchor, escape(label.text))
  end
end

return labels
