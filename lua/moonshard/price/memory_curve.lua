-- The memory of a rank over the instructions of a step as text: a curve of what is in use, and where each phase uses
-- most. memory.lua draws the same by category, over the priced time.

local chart = require("moonshard.metrics.chart")
local plans = require("moonshard.engine.plan")
local progress = require("moonshard.base.text.progress")
local text_columns = require("moonshard.base.text.text_columns")
local units = require("moonshard.page.units")

local memory_curve = {}

local COLUMNS = 100
local NOT_IN_A_STEP = { evaluate = true, gather = true }

-- The points { instruction, bytes } of the curve, both ends of what each item holds; and of each phase, in their order,
-- the item with the most. Instructions of a phase are counted on from those of the phases before it.
local function read(plan)
  local points, fullest, before = {}, {}, 0
  for _, item in ipairs(plan:memory_in_use()) do
    local most, last = fullest[#fullest], points[#points]
    if not NOT_IN_A_STEP[item.phase] then
      if most and most.phase ~= item.phase then before = last[1] + 1 end
      local x = before + item.instruction
      if last then points[#points + 1] = { x, last[2] } end
      points[#points + 1] = { x, item.total }
      if not most or most.phase ~= item.phase then fullest[#fullest + 1] = item
      elseif item.total > most.total then fullest[#fullest] = item end
    end
  end
  return points, fullest
end

local function categories_of(bytes)
  local parts = {}
  for _, category in ipairs(plans.CATEGORIES) do
    if bytes[category] > 0 then parts[#parts + 1] = category .. " " .. progress.size(bytes[category]) end
  end
  return table.concat(parts, ", ")
end

---@param plan moonshard.Plan
---@return string
function memory_curve.text(plan)
  local points, fullest = read(plan)
  local peak = fullest[1]
  if not peak then return "the plan has no step: it only evaluates\n" end
  local rows = { { "phase", "most", "at", "what runs there" } }
  for _, item in ipairs(fullest) do
    if item.total > peak.total then peak = item end
    rows[#rows + 1] = { item.phase, progress.size(item.total), tostring(item.instruction), plans.place_of(item) }
  end
  local unit = units.bytes(peak.total)
  for _, point in ipairs(points) do point[2] = point[2] / unit.size end
  return table.concat({
    chart.text({ { points = points } }, { title = "memory in use, " .. unit.name, x = "instruction",
      columns = COLUMNS }), "", text_columns.of(rows, { true, false, false, true }),
    ("peak %s: %s"):format(progress.size(peak.total), categories_of(peak.bytes)), "",
  }, "\n")
end

return memory_curve
