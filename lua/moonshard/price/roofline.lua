-- The roofline of a plan on a described cluster: what its kernels would take if each ran at the device's described
-- rates, arithmetic at the peak of its dtype or bytes at the rate of memory, whichever takes longer. No step that runs
-- these kernels is faster, so the ratio to a price or a measurement says how much better kernels could be; a lower
-- roofline takes other kernels.
--
-- It is the price on a copy of the cluster whose kernels start at once and lose nothing to tiles, short sums,
-- collectives or small sizes. For `moonshard plan --cluster C --roofline`.

local price = require("moonshard.price.price")
local progress = require("moonshard.base.text.progress")
local text_columns = require("moonshard.base.text.text_columns")
local engine = require("moonshard.base.ffi")

local ffi = engine.ffi

local roofline = {}

---@class moonshard.RooflineOp of a step
---@field op string
---@field calls integer
---@field flops number
---@field bytes number
---@field seconds number at the described rates
---@field arithmetic number the part of `seconds` in kernels that arithmetic limits; memory limits the others
---@field priced number seconds that the price says

---@class moonshard.Roofline
---@field price moonshard.Price
---@field ops moonshard.RooflineOp[] the longest first
---@field total moonshard.RooflineOp

---A cluster whose kernels reach the described rates, whatever their size.
---@param cluster moonshard.Cluster
---@return { struct: fun(self: table): ffi.cdata* } the part of a moonshard.Cluster that timelines need
function roofline.cluster(cluster)
  local to = ffi.new("ms_cluster", cluster:struct())
  to.product.efficiency, to.product.k_half = 1, 0
  to.product.tile_m, to.product.tile_n = 0, 0
  to.attention.forward, to.attention.backward, to.attention.keys_half = 1, 1, 0
  to.memory_half, to.kernel_start, to.overlap = 0, 0, 0
  to.point, to.points = nil, 0
  engine.check(engine.C.ms_config_check("ms_cluster", to, ffi.sizeof(to)))
  return { struct = function() return to end }
end

local function new(op) return { op = op, calls = 0, flops = 0, bytes = 0, seconds = 0, arithmetic = 0, priced = 0 } end

-- A kernel that takes longer than its bytes is limited by arithmetic.
local function add_kernel(row, event, memory_rate, runs)
  local seconds = event["end"] - event.begin
  row.calls, row.flops, row.bytes = row.calls + runs, row.flops + runs * event.flops, row.bytes + runs * event.bytes
  row.seconds = row.seconds + runs * seconds
  if seconds > event.bytes / memory_rate * (1 + 1e-6) then row.arithmetic = row.arithmetic + runs * seconds end
end

local function row_of(rows, list, op)
  if not rows[op] then
    rows[op] = new(op)
    list[#list + 1] = rows[op]
  end
  return rows[op]
end

local function total_of(list)
  local total = new("all kernels")
  for _, row in ipairs(list) do
    for key, value in pairs(row) do
      if key ~= "op" then total[key] = total[key] + value end
    end
  end
  return total
end

---@param priced moonshard.Price
---@return moonshard.Roofline
function roofline.of(priced)
  local ideal, rows, list = roofline.cluster(priced.cluster), {}, {}
  local memory_rate = ideal:struct().memory_rate
  for _, phase in ipairs(priced.phases) do
    local events, n = price.timeline(priced.plan, ideal, phase.name)
    for i = 0, n - 1 do
      local event = events[i]
      if event.kind == 0 then add_kernel(row_of(rows, list, ffi.string(event.name)), event, memory_rate, phase.runs) end
    end
  end
  for _, op in ipairs(price.details(priced).ops) do rows[op.name].priced = op.seconds end
  table.sort(list, function(a, b)
    if a.seconds ~= b.seconds then return a.seconds > b.seconds end
    return a.op < b.op
  end)
  return { price = priced, ops = list, total = total_of(list) }
end

-- ---- printing ---------------------------------------------------------------------------------------------------

local function limit_of(row)
  if row.seconds == 0 then return "" end
  local part = row.arithmetic / row.seconds
  if part > 0.995 then return "arithmetic" end
  return part < 0.005 and "memory" or ("arithmetic %.0f %%, memory %.0f %%"):format(100 * part, 100 - 100 * part)
end

local function cells(row)
  return { row.op, ("%.4g"):format(row.calls), ("%.3f"):format(row.flops / 1e12), progress.size(row.bytes),
    ("%.3f"):format(1e3 * row.seconds), ("%.3f"):format(1e3 * row.priced),
    row.priced > 0 and ("%.0f %%"):format(100 * row.seconds / row.priced) or "", limit_of(row) }
end

---@param self moonshard.Roofline
---@return string
function roofline.text(self)
  local priced, rows = self.price, { { "op of a step", "calls", "TFLOP", "bytes", "roofline ms", "priced ms", "reached",
    "limited by" } }
  for _, row in ipairs(self.ops) do rows[#rows + 1] = cells(row) end
  rows[#rows + 1] = cells(self.total)
  return ("roofline: mesh %s on %s: kernels take at least %.2f ms of a step, which is priced at %.2f ms\n"):format(
    priced.plan.mesh:label(), priced.cluster.name, 1e3 * self.total.seconds, 1e3 * priced.step)
    .. text_columns.of(rows, 1)
end

local function record_of(row)
  return { op = row.op, calls = row.calls, flops = row.flops, bytes = row.bytes, roofline_ms = 1e3 * row.seconds,
    arithmetic_ms = 1e3 * row.arithmetic, priced_ms = 1e3 * row.priced }
end

---@param self moonshard.Roofline
---@return table for JSON
function roofline.record(self)
  local record = { cluster = self.price.cluster.name, mesh = self.price.plan.mesh:label(),
    step_ms = 1e3 * self.price.step, total = record_of(self.total), ops = {} }
  for i, row in ipairs(self.ops) do record.ops[i] = record_of(row) end
  return record
end

return roofline
