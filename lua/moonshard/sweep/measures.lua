-- The numbers of a sweep's points, as the columns of its tables: of speed, of a price, of what the recipe logged. The
-- terminal and the page show the same list, so that neither lacks a column of the other; and by which of these numbers
-- the points are sorted, in words.

local columns = require("moonshard.sweep.columns")
local progress = require("moonshard.base.text.progress")

local measures = {}

---@class moonshard.SweepMeasure
---@field title string
---@field of "metrics"? it is one of the recipe's
---@field format string of string.format
---@field value_of fun(record: moonshard.SweepRecord): number? nil: the point has no such number

---Whether the sweep only planned its points.
---@param self moonshard.SweepReport
---@return boolean
function measures.is_planned(self) return self.header.plan == true end

---Tokens per second: measured, or else priced; nil for a point that has neither.
---@param record moonshard.SweepRecord
---@return number?
function measures.speed(record) return record.tokens_per_s or record.priced and record.priced.tokens_per_s end

---Peak bytes of rank 0: measured, or else planned.
---@param record moonshard.SweepRecord
---@return number?
function measures.peak(record) return record.peak_bytes or record.planned and record.planned.peak_bytes end

---Half of the range of a point's runs, in per cent of their median.
---@param record moonshard.SweepRecord
---@return number? nil: the point did not run
function measures.spread(record)
  return record.tokens_per_s_max and 50 * (record.tokens_per_s_max - record.tokens_per_s_min) / record.tokens_per_s
end

---By how much a price is above the measured step, in per cent; nil if one of the two is missing.
---@param record moonshard.SweepRecord
---@return number?
function measures.price_error(record)
  return record.priced and record.step_ms and 100 * (record.priced.step_ms / record.step_ms - 1)
end

local function field(name) return function(record) return record[name] end end

local function priced(name, factor)
  return function(record) return record.priced and record.priced[name] and factor * record.priced[name] end
end

local function add(list, title, format, value_of, of)
  list[#list + 1] = { title = title, format = format, value_of = value_of, of = of }
end

local function of_plans(self)
  local list = {}
  if self.header.price then
    add(list, "tokens/s", "%.0f", measures.speed)
    add(list, "priced ms", "%.2f", priced("step_ms", 1))
    add(list, "exposed ms", "%.2f", priced("exposed_ms", 1))
    add(list, "MFU %", "%.1f", priced("mfu", 100))
  end
  add(list, "nodes", "%d", function(r) return r.planned and math.ceil(r.ranks / r.planned.ranks_per_node) end)
  add(list, "sharing", "%d", function(r) return r.planned and r.planned.replicas_together end)
  return list
end

local function of_runs(self)
  local list = {}
  if self.header.sort == "loss" then add(list, "loss", "%.4f", field("loss")) end
  add(list, "tokens/s", "%.0f", field("tokens_per_s"))
  if self.header.repeats > 1 then add(list, "+-%", "%.1f", measures.spread) end
  add(list, "step ms", "%.2f", field("step_ms"))
  if self.header.price then
    add(list, "priced ms", "%.2f", priced("step_ms", 1))
    add(list, "off %", "%+.1f", measures.price_error)
  end
  for _, name in ipairs(self.metrics) do
    add(list, name, "%.5g", function(record) return record.metrics and record.metrics[name] end, "metrics")
  end
  return list
end

---@param self moonshard.SweepReport
---@return moonshard.SweepMeasure[]
function measures.of(self) return measures.is_planned(self) and of_plans(self) or of_runs(self) end

---The columns of the terminal. The cell of a metric that a point did not log is empty, of other numbers a dash.
---@param self moonshard.SweepReport
---@param records moonshard.SweepRecord[]
---@return moonshard.TextColumn[]
function measures.columns(self, records)
  local list = {}
  for i, measure in ipairs(measures.of(self)) do
    list[i] = columns.numbers(records, measure.title, measure.format, measure.value_of)
    list[i].of = measure.of
    for row = 1, measure.of and #records or 0 do list[i][row] = list[i][row] ~= "-" and list[i][row] or "" end
  end
  return list
end

-- ---- the order of points ----------------------------------------------------------------------------------------

---@class moonshard.SweepOrder
---@field name string "speed", "memory", "loss", or a metric of the recipe
---@field metric boolean? it is a metric of the recipe
---@field highest boolean whether the highest value comes first
---@field value_of fun(record: moonshard.SweepRecord): number?
---@field text_of fun(value: number): string

local ORDERS = {
  speed = { highest = true, value_of = measures.speed, text_of = progress.rate },
  memory = { highest = false, value_of = measures.peak,
    text_of = function(bytes) return progress.size(bytes) .. " per rank" end },
  loss = { highest = false, value_of = field("loss"), text_of = function(loss) return ("%.4f"):format(loss) end },
}

---By what the points of a sweep are sorted.
---@param sort string "speed", "memory", "loss", "error" (lowest first), "-accuracy" (highest first)
---@return moonshard.SweepOrder
function measures.order(sort)
  local known = ORDERS[sort]
  if known then
    return { name = sort, highest = known.highest, value_of = known.value_of, text_of = known.text_of }
  end
  local name = sort:match("^%-(.*)$") or sort
  return { name = name, metric = true, highest = name ~= sort,
    text_of = function(value) return ("%.5g"):format(value) end,
    value_of = function(record) return record.metrics and record.metrics[name] end }
end

return measures
