-- Compares two traces, such as a predicted one (`moonshard price --trace`) and one of a run: the time of a step and its
-- phases, and per op, collective and unit, the largest difference first. All times are means per rank and step, so the
-- traces can have different numbers of both.

local progress = require("moonshard.base.text.progress")
local text_columns = require("moonshard.base.text.text_columns")
local trace_file = require("moonshard.cli.trace.trace_file")

local trace_compare = {}

---@class moonshard.TraceDifference milliseconds of a rank and step
---@field name string
---@field predicted number
---@field real number
---@field difference number real - predicted
---@field calls number[] of a rank and step: predicted, real; nil where it is not counted

-- By how many a sum over ranks and steps is divided. A trace without step slices counts as one step.
local function runs_of(sum) return math.max(1, #sum.ranks) * math.max(1, #sum.steps) end

local function means(list, key, runs)
  local by = {}
  for _, entry in ipairs(list) do
    by[entry.name] = { ms = entry[key] / runs, calls = entry.calls and entry.calls / runs,
      bytes = entry.bytes and entry.bytes / runs }
  end
  return by
end

local NOTHING = { ms = 0 }

-- Rows of all names that either trace has, the largest difference first.
local function differences(predicted, real, key, runs)
  local before, after, list, seen = means(predicted, key, runs[1]), means(real, key, runs[2]), {}, {}
  for _, by in ipairs({ before, after }) do
    for name in pairs(by) do
      if not seen[name] then
        local a, b = before[name] or NOTHING, after[name] or NOTHING
        list[#list + 1] = { name = name, predicted = a.ms, real = b.ms, difference = b.ms - a.ms,
          calls = (a.calls or b.calls) and { a.calls or 0, b.calls or 0 },
          bytes = (a.bytes or b.bytes) and { a.bytes or 0, b.bytes or 0 } }
      end
      seen[name] = true
    end
  end
  table.sort(list, function(a, b)
    local x, y = math.abs(a.difference), math.abs(b.difference)
    if x ~= y then return x > y end
    return a.name < b.name
  end)
  return list
end

local function totals(sum, runs)
  local waiting, kernels, outside = 0, 0, 0
  for _, rank in ipairs(sum.ranks) do
    waiting, kernels, outside = waiting + rank.waiting_ms, kernels + rank.kernel_ms, outside + rank.outside_ms
  end
  return {
    { name = "step", ms = sum.step_ms * runs }, { name = "kernels", ms = kernels },
    { name = "waiting", ms = waiting },
    { name = "outside", ms = outside },
  }
end

---@class moonshard.TraceComparison
---@field step moonshard.TraceDifference[] in order: step, kernels, waiting (phases without a kernel), outside (of
---  phases)
---@field phases moonshard.TraceDifference[]
---@field ops moonshard.TraceDifference[]
---@field collectives moonshard.TraceDifference[]
---@field units moonshard.TraceDifference[] kernels and collectives of a unit or module
---@field runs integer[] ranks times steps of each trace

local function sums_of_units(units)
  local list = {}
  for i, unit in ipairs(units) do
    list[i] = { name = unit.name == "" and "(no module)" or unit.name, ms = unit.kernel_ms + unit.collective_ms }
  end
  return list
end

---Compares two traces that passed trace_file.check.
---@param predicted moonshard.TraceEvent[]
---@param real moonshard.TraceEvent[]
---@return moonshard.TraceComparison
function trace_compare.of(predicted, real)
  local a, b = trace_file.summarize(predicted), trace_file.summarize(real)
  local runs = { runs_of(a), runs_of(b) }
  local function compare(of, key) return differences(of(a), of(b), key or "ms", runs) end
  local step = differences(totals(a, runs[1]), totals(b, runs[2]), "ms", runs)
  local order = { step = 1, kernels = 2, waiting = 3, outside = 4 }
  table.sort(step, function(x, y) return order[x.name] < order[y.name] end)
  return {
    step = step, runs = runs,
    phases = compare(function(sum) return sum.phases end),
    ops = compare(function(sum) return sum.ops end),
    collectives = compare(function(sum) return sum.by_collective end),
    units = compare(function(sum) return sums_of_units(sum.units) end),
  }
end

-- ---- text -------------------------------------------------------------------------------------------------------

local function ms(value) return ("%.3f"):format(value) end

-- A prediction that is next to nothing is off by more than this, and by how much says nothing.
local MAX_FACTOR = 1000

local function ratio(row)
  if row.predicted <= 0 then return row.real > 0 and "only in the second" or "-" end
  if row.real <= 0 then return "only in the first" end
  local factor = row.real / row.predicted
  return factor < MAX_FACTOR and ("%.2f x"):format(factor) or ("over %d x"):format(MAX_FACTOR)
end

local function calls_of(row)
  if not row.calls then return "" end
  local first, second = ("%g"):format(row.calls[1]), ("%g"):format(row.calls[2])
  return first == second and first or first .. " / " .. second
end

local function bytes_of(row)
  if not row.bytes then return "" end
  local first, second = progress.size(row.bytes[1]), progress.size(row.bytes[2])
  return first == second and first or first .. " / " .. second
end

local function rows_of(title, list, top, more)
  local rows = { { title, "first ms", "second ms", "difference", "second / first", more and more.title } }
  for i, row in ipairs(list) do
    if i > top then
      rows[#rows + 1] = { ("and %d more"):format(#list - top) }
      break
    end
    rows[#rows + 1] = { row.name, ms(row.predicted), ms(row.real), ("%+.3f"):format(row.difference), ratio(row),
      more and more.cell(row) }
  end
  return text_columns.of(rows, 1) .. "\n"
end

---@param comparison moonshard.TraceComparison
---@param paths string[] of the two traces
---@param top integer rows per table
---@return string
function trace_compare.text(comparison, paths, top)
  local calls = { title = "calls", cell = calls_of }
  local parts = { ("first: %s\nsecond: %s\nmeans of a rank and step: of %d in the first, of %d in the second; waiting: "
    .. "phases without a kernel; outside: of phases\n\n"):format(paths[1], paths[2], comparison.runs[1],
    comparison.runs[2]) }
  parts[#parts + 1] = rows_of("total", comparison.step, top)
  parts[#parts + 1] = rows_of("phase", comparison.phases, top, calls)
  parts[#parts + 1] = rows_of("op", comparison.ops, top, calls)
  if #comparison.collectives > 0 then
    parts[#parts + 1] = rows_of("collective", comparison.collectives, top, { title = "bytes", cell = bytes_of })
  end
  parts[#parts + 1] = rows_of("unit or module", comparison.units, top)
  return table.concat(parts)
end

return trace_compare
