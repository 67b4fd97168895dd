-- Reads a trace file: checks that it is consistent and that Perfetto shows all of it, and sums it up by op, unit and
-- rank.

local json = require("moonshard.base.text.json")

local trace_file = {}

-- Microseconds. Times are written to the nanosecond, so closer times are equal.
local ROUNDING = 0.002
-- Rank r is process (r + 1) * 100, and its thread ids count up from there: Perfetto treats tid 0 as an idle processor,
-- and treats equal tids as one thread even in different processes.
local PROCESS_STEP = 100

---@class moonshard.TraceEvent as in Chrome's trace format; ts and dur in microseconds
---@field ph string "X" a slice, "s" and "f" the ends of an arrow, "M" a name
---@field pid integer (rank + 1) * 100
---@field tid integer pid + lane
---@field ts number
---@field dur number?
---@field name string
---@field cat string?
---@field id integer? of arrows only
---@field args table?

---@param text string
---@return moonshard.TraceEvent[]? events nil when the text is not a trace
---@return string? why
function trace_file.read(text)
  local document, why = json.decode(text)
  if why then return nil, "not valid JSON: " .. why end
  local events = type(document) == "table" and document.traceEvents
  if type(events) ~= "table" then return nil, "it has no traceEvents list" end
  return events
end

local function is_number(value) return type(value) == "number" and value == value end

local function is_natural(value) return is_number(value) and value >= 1 and value < 2 ^ 53 and value % 1 == 0 end

local function rank_of(event) return event.pid / PROCESS_STEP - 1 end

local function check_event(event, index)
  if type(event) ~= "table" or type(event.ph) ~= "string" then return ("event %d has no ph"):format(index) end
  for _, key in ipairs({ "pid", "tid", "ts" }) do
    if not is_number(event[key]) then return ("event %d (%s) has no number %s"):format(index, event.ph, key) end
  end
  if type(event.name) ~= "string" then return ("event %d (%s) has no name"):format(index, event.ph) end
  if not (is_natural(event.pid) and event.pid % PROCESS_STEP == 0) then
    return ("event %d (%s) has the pid %s, which is not a multiple of %d"):format(index, event.name, event.pid,
      PROCESS_STEP)
  end
  if event.tid % 1 ~= 0 or event.tid < event.pid or event.tid >= event.pid + PROCESS_STEP then
    return ("event %d (%s) has the tid %s, which is not a thread of pid %d"):format(index, event.name, event.tid,
      event.pid)
  end
  if event.ph == "X" and not (is_number(event.dur) and event.dur >= 0) then
    return ("event %d (%s) has no duration of at least 0"):format(index, event.name)
  end
end

-- The arguments of a slice that the sums read, by category.
local DETAILS = {
  kernel = { flops = "number", bytes = "number", module = "string" },
  collective = { waiting_us = "number", bytes = "number", unit = "string" },
  step = { step = "number" },
}

local function has_category(event, category)
  return event.cat and (event.cat == category or event.cat:sub(1, #category + 1) == category .. ",") or false
end

local function check_details(event, index)
  if event.cat ~= nil and type(event.cat) ~= "string" then
    return ("event %d (%s) has a cat that is not a string"):format(index, event.name)
  end
  for category, details in pairs(event.ph == "X" and DETAILS or {}) do
    for key, kind in pairs(has_category(event, category) and details or {}) do
      if type(event.args) ~= "table" or type(event.args[key]) ~= kind then
        return ("event %d (%s) has no %s %s in its args"):format(index, event.name, kind, key)
      end
    end
  end
  if event.ph == "X" and has_category(event, "collective") and not event.cat:find(",", 1, true) then
    return ("event %d (%s) does not name its collective"):format(index, event.name)
  end
end

-- Slices of every lane, by tid.
local function lanes_of(events)
  local lanes = {}
  for _, event in ipairs(events) do
    if event.ph == "X" then
      lanes[event.tid] = lanes[event.tid] or {}
      table.insert(lanes[event.tid], event)
    end
  end
  return lanes
end

-- Slices of a lane are written in the order of their starts, the outer one first: for equal times the order in the file
-- decides which slice contains the other.
local function check_order(lane)
  for i = 2, #lane do
    local before, slice = lane[i - 1], lane[i]
    if before.ts > slice.ts or (before.ts == slice.ts and before.dur < slice.dur) then
      return ("rank %d: %s at %.3f is written after %s, which begins later or is nested in it"):format(rank_of(slice),
        slice.name, slice.ts, before.name)
    end
  end
end

-- Slices of a lane nest or are disjoint.
local function check_nesting(lane)
  local open = {}
  for _, slice in ipairs(lane) do
    while open[1] and open[#open].ts + open[#open].dur <= slice.ts + ROUNDING do open[#open] = nil end
    local outer = open[#open]
    if outer and slice.ts + slice.dur > outer.ts + outer.dur + ROUNDING then
      return ("rank %d: %s at %.3f ends after %s, in which it begins"):format(rank_of(slice), slice.name, slice.ts,
        outer.name)
    end
    open[#open + 1] = slice
  end
end

-- Every kernel and collective must be inside a phase of its rank.
local function check_phases(events)
  local phases = {}
  for _, event in ipairs(events) do
    if event.ph == "X" and event.cat == "phase" then
      phases[event.pid] = phases[event.pid] or {}
      table.insert(phases[event.pid], event)
    end
  end
  for _, list in pairs(phases) do
    table.sort(list, function(a, b) return a.ts < b.ts end)
  end
  local function phase_at(rank, ts)
    local list = phases[rank] or {}
    local low, high = 1, #list
    while low < high do
      local middle = math.ceil((low + high) / 2)
      if list[middle].ts <= ts + ROUNDING then low = middle else high = middle - 1 end
    end
    return list[low]
  end
  for _, event in ipairs(events) do
    if event.ph == "X" and (has_category(event, "kernel") or has_category(event, "collective")) then
      local phase = phase_at(event.pid, event.ts)
      if not phase or event.ts < phase.ts - ROUNDING
        or event.ts + event.dur > phase.ts + phase.dur + ROUNDING then
        return ("rank %d: %s at %.3f is outside every phase"):format(rank_of(event), event.name, event.ts)
      end
    end
  end
end

-- Every process and thread with slices must be named exactly once.
local function check_names(events, lanes)
  local named = { process_name = {}, thread_name = {} }
  for _, event in ipairs(events) do
    local of_kind = event.ph == "M" and named[event.name]
    if of_kind then
      local key = event.name == "process_name" and event.pid or event.tid
      if of_kind[key] then return ("%d has more than one %s"):format(key, event.name) end
      of_kind[key] = true
    end
  end
  for tid, lane in pairs(lanes) do
    if not named.process_name[lane[1].pid] then return ("process %d has no name"):format(lane[1].pid) end
    if not named.thread_name[tid] then return ("thread %d has no name"):format(tid) end
  end
end

-- Whether a slice of the lane covers an instant; the lane is sorted by start.
local function under_way(lane, ts)
  for i = #(lane or {}), 1, -1 do
    local slice = lane[i]
    if slice.ts <= ts then return ts <= slice.ts + slice.dur + ROUNDING end
  end
  return false
end

-- An arrow must lead from a slice to a slice and have a unique id: Perfetto drops any other.
local function check_arrows(events, lanes)
  local begun, ended, n = {}, {}, { s = 0, f = 0 }
  for _, event in ipairs(events) do
    local seen = event.ph == "s" and begun or event.ph == "f" and ended
    if seen then
      local id = tostring(event.id)
      if not is_natural(event.id) then return ("the id %s of an arrow is not a positive integer"):format(id) end
      if seen[event.id] then return ("two arrows have the id %s"):format(id) end
      if not under_way(lanes[event.tid], event.ts) then
        return ("arrow %s has an end at %.3f, outside every slice of rank %d"):format(id, event.ts, rank_of(event))
      end
      seen[event.id], n[event.ph] = event, n[event.ph] + 1
    end
  end
  for id, to in pairs(ended) do
    local from = begun[id]
    if not from then return ("arrow %d ends but never began"):format(id) end
    if from.cat ~= to.cat or from.name ~= to.name then return ("the ends of arrow %d differ in name"):format(id) end
    if from.ts > to.ts + ROUNDING then return ("arrow %d goes back in time"):format(id) end
  end
  if n.s ~= n.f then return ("%d arrows began, %d ended"):format(n.s, n.f) end
end

---Checks that the events are consistent and that Perfetto shows all of them.
---@param events moonshard.TraceEvent[]
---@return string? wrong the first problem; nil when there is none
function trace_file.check(events)
  for index, event in ipairs(events) do
    local wrong = check_event(event, index) or check_details(event, index)
    if wrong then return wrong end
  end
  local lanes = lanes_of(events)
  for _, lane in pairs(lanes) do
    local wrong = check_order(lane) or check_nesting(lane)
    if wrong then return wrong end
  end
  return check_phases(events) or check_names(events, lanes) or check_arrows(events, lanes)
end

---Whether a trace has any slice.
---@param events moonshard.TraceEvent[]
---@return boolean
function trace_file.has_slices(events)
  for _, event in ipairs(events) do
    if event.ph == "X" then return true end
  end
  return false
end

-- ---- sums ---------------------------------------------------------------------------------------------------------

local function entry_of(map, name, fields)
  if not map[name] then
    local entry = { name = name }
    for _, field in ipairs(fields) do entry[field] = 0 end
    map[name] = entry
  end
  return map[name]
end

local function sorted(map, key)
  local list = {}
  for _, entry in pairs(map) do list[#list + 1] = entry end
  table.sort(list, function(a, b)
    if a[key] ~= b[key] then return a[key] > b[key] end
    return tostring(a.name) < tostring(b.name)
  end)
  return list
end

local UNIT_FIELDS = { "kernel_ms", "collective_ms", "until_met_ms" }
local RANK_FIELDS = { "step_ms", "phase_ms", "kernel_ms", "waiting_ms", "outside_ms" }

---@class moonshard.TraceSummary milliseconds and bytes are totals over all ranks and steps
---@field ops table[] name, calls, ms, flops, bytes; the longest first
---@field by_collective table[] name, calls, ms, until_met_ms (of ms, until all its ranks had begun it), bytes
---@field units table[] name, kernel_ms, collective_ms, until_met_ms
---@field ranks table[] sorted by rank: rank, step_ms, phase_ms, kernel_ms, waiting_ms (phases without a kernel),
---  outside_ms (of phases)
---@field phases table[] name, calls, ms
---@field steps integer[] numbers
---@field step_ms number average per step
---@field kernels integer
---@field collectives integer
---@field kernel_ms number

---@param events moonshard.TraceEvent[]
---@return moonshard.TraceSummary
function trace_file.summarize(events)
  local ops, collectives, units, ranks, phases, steps = {}, {}, {}, {}, {}, {}
  local sum = { kernels = 0, collectives = 0, kernel_ms = 0, steps = {} }
  local step_slices, step_total = 0, 0
  for _, event in ipairs(events) do
    local ms = event.ph == "X" and event.dur / 1e3
    local rank = ms and entry_of(ranks, rank_of(event), RANK_FIELDS)
    if ms and has_category(event, "kernel") then
      local op = entry_of(ops, event.name, { "calls", "ms", "flops", "bytes" })
      op.calls, op.ms = op.calls + 1, op.ms + ms
      op.flops, op.bytes = op.flops + event.args.flops, op.bytes + event.args.bytes
      local unit = entry_of(units, event.args.module, UNIT_FIELDS)
      unit.kernel_ms = unit.kernel_ms + ms
      rank.kernel_ms = rank.kernel_ms + ms
      sum.kernels, sum.kernel_ms = sum.kernels + 1, sum.kernel_ms + ms
    elseif ms and has_category(event, "collective") then
      local until_met = event.args.waiting_us / 1e3
      local kind = entry_of(collectives, event.cat:match(",(.*)$"), { "calls", "ms", "until_met_ms", "bytes" })
      kind.calls, kind.ms = kind.calls + 1, kind.ms + ms
      kind.until_met_ms, kind.bytes = kind.until_met_ms + until_met, kind.bytes + event.args.bytes
      local unit = entry_of(units, event.args.unit, UNIT_FIELDS)
      unit.collective_ms, unit.until_met_ms = unit.collective_ms + ms, unit.until_met_ms + until_met
      sum.collectives = sum.collectives + 1
    elseif ms and event.cat == "phase" then
      rank.phase_ms = rank.phase_ms + ms
      local phase = entry_of(phases, event.name, { "calls", "ms" })
      phase.calls, phase.ms = phase.calls + 1, phase.ms + ms
    elseif ms and event.cat == "step" then
      rank.step_ms, step_slices, step_total = rank.step_ms + ms, step_slices + 1, step_total + ms
      if not steps[event.args.step] then
        steps[event.args.step] = true
        table.insert(sum.steps, event.args.step)
      end
    end
  end
  table.sort(sum.steps)
  sum.step_ms = step_slices > 0 and step_total / step_slices or 0
  sum.ops, sum.by_collective = sorted(ops, "ms"), sorted(collectives, "ms")
  sum.units, sum.phases = sorted(units, "kernel_ms"), sorted(phases, "ms")
  sum.ranks = {}
  for rank, entry in pairs(ranks) do
    entry.name, entry.rank = nil, rank
    entry.waiting_ms = math.max(0, entry.phase_ms - entry.kernel_ms)
    entry.outside_ms = math.max(0, entry.step_ms - entry.phase_ms)
    table.insert(sum.ranks, entry)
  end
  table.sort(sum.ranks, function(a, b) return a.rank < b.rank end)
  return sum
end

return trace_file
