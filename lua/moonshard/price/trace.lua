-- A price as a trace: a step in simulated time, in the format and with the names of the traces of runs
-- (runtime/exec/profile/profile_write.c), so that Perfetto shows both alike and `moonshard trace` compares them.

local ffi = require("ffi")
local json = require("moonshard.base.text.json")
local price = require("moonshard.price.price")

local trace = {}

-- Rank r is process (r + 1) * 100; thread 0 of a process is the program, further ones are its streams.
local PROCESS_STEP, FIRST_STREAM_LANE = 100, 1
local STEP = 1 -- number of the step
local PASSES = { update = "optimizer", outer = "optimizer" }

local writer = {}
writer.__index = writer

-- ---- pieces -----------------------------------------------------------------------------------------------------

function writer:add(kind, lane, at, fields)
  local event = { "ph", kind, "pid", self.process, "tid", self.process + lane, "ts", self.round(at) }
  for _, value in ipairs(fields) do event[#event + 1] = value end
  self.lines[#self.lines + 1] = json.ordered(#event, event)
end

-- Microseconds, to the nanosecond. Ends are rounded, not durations, so that slices that touch still do.
function writer.round(seconds) return math.floor(1e9 * seconds + 0.5) / 1e3 end

function writer:slice(lane, from, to, fields)
  local duration = math.max(0, math.floor(1e9 * to + 0.5) - math.floor(1e9 * from + 0.5)) / 1e3
  self:add("X", lane, from, { "dur", duration, unpack(fields) })
end

function writer:name_lane(lane, name)
  self:add("M", lane, 0, { "name", "thread_name", "args", { name = name } })
  self:add("M", lane, 0, { "name", "thread_sort_index", "args", { sort_index = lane } })
end

-- ---- what a phase runs ------------------------------------------------------------------------------------------

local function kernel_fields(event, phase)
  local pass = PASSES[phase] or (event.backward ~= 0 and "backward" or "forward")
  local seconds = event["end"] - event.begin
  return { "cat", "kernel," .. pass, "name", ffi.string(event.name), "args", {
    module = ffi.string(event.scope), phase = phase, step = STEP, bytes = event.bytes, flops = event.flops,
    tflop_per_s = seconds > 0 and 1e-12 * event.flops / seconds or nil,
    gb_per_s = seconds > 0 and 1e-9 * event.bytes / seconds or nil,
  } }
end

local function collective_fields(event, phase)
  local op, unit = ffi.string(event.name), ffi.string(event.scope)
  return { "cat", "collective," .. op, "name", op .. " " .. unit, "args", {
    unit = unit, phase = phase, step = STEP, bytes = event.bytes, waiting_us = 0,
  } }
end

-- An arrow from what an instruction waited for to it, if that is on another stream.
function writer:arrow(from, to, to_begin, start)
  self.arrows = self.arrows + 1
  local names = { "cat", "order", "name", "waited for", "id", self.process / PROCESS_STEP * 2 ^ 32 + self.arrows }
  local at = from["end"] > from.begin and from["end"] - 1e-9 or from["end"]
  self:add("s", FIRST_STREAM_LANE + from.stream, start + at, names)
  self:add("f", FIRST_STREAM_LANE + to.stream, start + to_begin, { "bp", "e", unpack(names) })
end

local function by_begin(a, b)
  if a.begin ~= b.begin then return a.begin < b.begin end
  if a["end"] ~= b["end"] then return a["end"] > b["end"] end
  return a.instruction < b.instruction
end

-- Whether an event is a slice of this phase: a collective that the phase only starts is one of the phase that joins it.
local function is_slice(instruction) return not instruction.in_flight or instruction.kind == "join" end

---@param instructions table[] of the phase, of the plan's JSON
function writer:phase(name, instructions, start)
  local list, n = price.timeline(self.price.plan, self.price.cluster, name)
  local events, by_instruction = {}, {}
  for i = 0, n - 1 do
    local event = list[i]
    by_instruction[event.instruction] = event
    if is_slice(instructions[event.instruction + 1]) then events[#events + 1] = event end
  end
  table.sort(events, by_begin)
  local busy = {} -- by lane: the end of its latest slice
  for _, event in ipairs(events) do
    local fields = event.kind == 0 and kernel_fields(event, name) or collective_fields(event, name)
    local lane, cause = FIRST_STREAM_LANE + event.stream, by_instruction[event.cause]
    -- Between hosts a collective can begin while the one before it on its stream is moving.
    local begin = math.min(math.max(event.begin, busy[lane] or 0), event["end"])
    busy[lane] = math.max(event["end"], busy[lane] or 0)
    self.streams[lane] = instructions[event.instruction + 1].stream
    self:slice(lane, start + begin, start + event["end"], fields)
    if cause and cause.stream ~= event.stream and is_slice(instructions[cause.instruction + 1]) then
      self:arrow(cause, event, begin, start)
    end
  end
end

function writer:program_slices(phases, gap, first)
  local step = first
  for _, phase in ipairs(phases) do step = step + gap + phase.seconds end
  self:slice(0, 0, step, { "cat", "step", "name", ("step %d"):format(STEP), "args", { step = STEP } })
  local at = first
  for _, phase in ipairs(phases) do
    at = at + gap
    self:slice(0, at, at + phase.seconds, { "cat", "phase", "name", "phase " .. phase.name, "args", { step = STEP } })
    at = at + phase.seconds
  end
end

-- Which step of local SGD is traced; nothing where all steps are alike.
local function which_step(self)
  if not self.sync then return "" end
  return (": a step that synchronises, as one in %d does"):format(self.sync.every)
end

---The trace of one step of the rank that was priced.
---@param self moonshard.Price
---@return string JSON in Chrome's trace format
function trace.of(self)
  local document = json.decode(self.plan:json())
  local instructions = {}
  for _, phase in ipairs(document.phases) do instructions[phase.name] = phase.instructions end
  local w = setmetatable({ price = self, lines = {}, arrows = 0, streams = {},
    process = (document.rank + 1) * PROCESS_STEP }, writer)
  local phases = price.in_order(self)
  local gap, first = self.cluster:struct().phase_gap, self.cluster:struct().step_gap
  w:add("M", 0, 0, { "name", "process_name", "args",
    { name = ("rank %d, predicted on %s%s"):format(document.rank, self.cluster.name, which_step(self)) } })
  w:add("M", 0, 0, { "name", "process_sort_index", "args", { sort_index = document.rank } })
  w:name_lane(0, "program")
  w:program_slices(phases, gap, first)
  local at = first
  for _, phase in ipairs(phases) do
    at = at + gap
    w:phase(phase.name, instructions[phase.name], at)
    at = at + phase.seconds
  end
  for lane, name in pairs(w.streams) do w:name_lane(lane, name) end
  return '{"displayTimeUnit":"ms","traceEvents":[\n' .. table.concat(w.lines, ",\n") .. "\n]}\n"
end

return trace
