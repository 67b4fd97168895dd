-- The memory of a rank over a priced step, by category: what is in use from each instruction on, and where most is.

local areas = require("moonshard.page.areas")
local frame = require("moonshard.page.frame")
local plans = require("moonshard.engine.plan")
local price = require("moonshard.price.price")
local progress = require("moonshard.base.text.progress")
local units = require("moonshard.page.units")

local memory = {}

-- Seconds into a phase at which each instruction begins; or what is before it in the program, if that begins later:
-- lifetimes follow the program, and streams run ahead of each other.
local function begins_of(self, phase)
  local list, n = price.timeline(self.plan, self.cluster, phase)
  local begins, latest = {}, 0
  for i = 0, n - 1 do
    latest = math.max(latest, list[i].begin)
    begins[list[i].instruction] = latest
  end
  return begins
end

local function by_phase(plan)
  local by = {}
  for _, item in ipairs(plan:memory_in_use()) do
    by[item.phase] = by[item.phase] or {}
    table.insert(by[item.phase], item)
  end
  return by
end

local function values_of(bytes)
  local values = {}
  for i, category in ipairs(plans.CATEGORIES) do values[i] = bytes[category] end
  return values
end

-- "peak 7.5 GiB: linear of blocks.3.mlp (backward)"
local function text_of(item)
  return ("peak %s: %s"):format(progress.size(item.total), plans.place_of(item))
end

---@class moonshard.MemoryOverStep
---@field points { x: number, values: number[] }[] x: milliseconds; values: bytes by plans.CATEGORIES
---@field peak { x: number, value: number, values: number[], text: string } where most is in use first

---The bytes in use over the phases of a step.
---@param self moonshard.Price
---@param phases { name: string, begin: number, finish: number }[] milliseconds
---@return moonshard.MemoryOverStep
function memory.over(self, phases)
  local by, points, peak = by_phase(self.plan), {}, { value = -1 }
  for _, phase in ipairs(phases) do
    local begins = begins_of(self, phase.name)
    for _, item in ipairs(by[phase.name]) do
      local point = { x = phase.begin + 1e3 * begins[item.instruction], values = values_of(item.bytes) }
      points[#points + 1] = point
      if item.total > peak.value then
        peak = { x = point.x, value = item.total, values = point.values, text = text_of(item) }
      end
    end
  end
  points[1].x = 0 -- the state is there before the first phase begins
  return { points = points, peak = peak }
end

---The chart as a figure of a page.
---@param self moonshard.Price
---@param timeline moonshard.LaneChart
---@return string
function memory.figure(self, timeline)
  local over, list, entries = memory.over(self, timeline.phases), {}, {}
  for i, name in ipairs(plans.CATEGORIES) do
    list[i] = { name = name, class = "c" .. i }
    entries[i] = { class = "c" .. i, name = ("%s %s"):format(name, progress.size(over.peak.values[i])) }
  end
  local title = "Memory over a step"
  local svg = areas.svg({ title = title, areas = list, points = over.points, finish = timeline.finish,
    phases = timeline.phases, unit = units.bytes(over.peak.value), axis = "memory in use on rank 0", peak = over.peak })
  return frame.framed(title, ("What holds data, by category; the legend has each at the peak. With the gaps between "
    .. "buffers a rank reserves %s, and may have %s."):format(progress.size(self.bytes), progress.size(self.room)), svg,
    entries)
end

return memory
