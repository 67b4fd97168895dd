-- What each unit costs in time on a described cluster: its gathers and sums, how long kernels wait for them, and the
-- kernels of its modules. For `moonshard explain --cluster`, which shows bytes.

local engine = require("moonshard.base.ffi")
local price = require("moonshard.price.price")
local progress = require("moonshard.base.text.progress")
local text_columns = require("moonshard.base.text.text_columns")
local units = require("moonshard.shard.units")

local ffi = engine.ffi

local by_unit = {}

---@class moonshard.UnitTime seconds and bytes of a step
---@field name string
---@field gather_bytes number
---@field gather number seconds
---@field sum_bytes number
---@field sum number seconds
---@field exposed number seconds in which kernels wait for its collectives
---@field kernels number seconds of the kernels of its modules

local function new(name)
  return { name = name, gather_bytes = 0, gather = 0, sum_bytes = 0, sum = 0, exposed = 0, kernels = 0 }
end

-- The unit of a module's kernels: the innermost one whose modules contain it.
local function unit_of(sharding, rows, scope)
  local best, length = rows[units.ROOT], -1
  for _, unit in ipairs(sharding.units) do
    local name = unit.name
    local inside = scope == name or scope:sub(1, #name + 1) == name .. "."
    if inside and #name > length then best, length = rows[name], #name end
  end
  return best
end

local function add_event(rows, sharding, event, runs)
  local seconds = runs * (event["end"] - event.begin)
  if event.kind == 0 then
    local row = unit_of(sharding, rows, ffi.string(event.scope))
    if row then row.kernels = row.kernels + seconds end
  elseif event.unit >= 0 then
    local row = rows[sharding.units[event.unit + 1].name]
    local gathers = ffi.string(event.name) == "all_gather"
    local bytes, time = gathers and "gather_bytes" or "sum_bytes", gathers and "gather" or "sum"
    row[bytes], row[time] = row[bytes] + runs * event.bytes, row[time] + seconds
  end
end

---@param priced moonshard.Price
---@param sharding moonshard.Sharding
---@return moonshard.UnitTime[] in the order of units
function by_unit.of(priced, sharding)
  local rows, list = {}, {}
  for i, unit in ipairs(sharding.units) do
    list[i] = new(unit.name)
    rows[unit.name] = list[i]
  end
  for _, phase in ipairs(priced.phases) do
    local events, n = price.timeline(priced.plan, priced.cluster, phase.name)
    for i = 0, n - 1 do add_event(rows, sharding, events[i], phase.runs) end
  end
  for _, wait in ipairs(price.details(priced).exposed) do
    if rows[wait.unit] then rows[wait.unit].exposed = rows[wait.unit].exposed + wait.seconds end
  end
  return list
end

-- ---- text -------------------------------------------------------------------------------------------------------

local function ms(seconds) return seconds > 0 and ("%.3f"):format(1e3 * seconds) or "-" end

local function bytes(count) return count > 0 and progress.size(count) or "-" end

local function cells(row)
  return { bytes(row.gather_bytes), ms(row.gather), bytes(row.sum_bytes), ms(row.sum), ms(row.exposed),
    ms(row.kernels) }
end

local function same(a, b)
  for i, cell in ipairs(cells(a)) do
    if cell ~= cells(b)[i] then return false end
  end
  return true
end

---Neighbours with the same cells share a line.
---@param priced moonshard.Price
---@param list moonshard.UnitTime[]
---@return string
function by_unit.text(priced, list)
  local rows = { { "unit", "gathered", "ms", "summed", "ms", "exposed ms", "kernels ms" } }
  local i = 1
  while i <= #list do
    local last = i
    while list[last + 1] and same(list[i], list[last + 1]) do last = last + 1 end
    local count = last - i + 1
    local name = count == 1 and list[i].name or ("%s .. %s (%d)"):format(list[i].name, list[last].name, count)
    rows[#rows + 1] = { name, unpack(cells(list[i])) }
    i = last + 1
  end
  return ("\ntime on %s: %.2f ms a step; of each unit\n%s"):format(priced.cluster.name, 1e3 * priced.step,
    text_columns.of(rows, 1))
end

return by_unit
