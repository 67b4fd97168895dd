-- A plan bound to a state: writes its inputs, runs its phases, and reads its outputs and counters.

local classes = require("moonshard.nn.classes")
local device = require("moonshard.distributed.device")
local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local memory = require("moonshard.engine.memory")
local notes = require("moonshard.distributed.notes")
local plan = require("moonshard.engine.plan")
local profile = require("moonshard.distributed.profile")
local C, ffi, check = engine.C, engine.ffi, engine.check

---@class moonshard.Counters totals since the exec was created
---@field collectives table<string, integer> by phase
---@field comm_bytes table<string, number> by mesh dimension
---@field traffic table<string, moonshard.Traffic> by mesh dimension
---@field allocations integer memory allocations by the engine during phases: 0
---@field seconds { kernels: number, waits: number, collectives: number, total: number }
---@field issued { collectives: integer, seconds: number } given to a GPU's library, and the host's time for that
---@field launched { launches: integer, seconds: number } kernels and collectives on a GPU, and the host's time for them

local PHASE = {
  first = C.MS_PHASE_FIRST, next = C.MS_PHASE_NEXT, last = C.MS_PHASE_LAST, norm = C.MS_PHASE_NORM,
  update = C.MS_PHASE_UPDATE, evaluate = C.MS_PHASE_EVALUATE, outer = C.MS_PHASE_OUTER, gather = C.MS_PHASE_GATHER,
}

-- Phases that read inputs; the others only read and write the state.
local READS_INPUTS = { first = true, next = true, last = true, evaluate = true }

---@class moonshard.Exec
---@field handle ffi.cdata* ms_exec*
---@field plan moonshard.Plan
local Exec = {}
Exec.__index = Exec

local exec = {}

---Binds a plan to a state. Collective.
---@param state ffi.cdata* ms_state*
---@param compiled moonshard.Plan
---@return moonshard.Exec
function exec.bind(state, compiled)
  local out = ffi.new("ms_exec *[1]")
  check(C.ms_exec_new(state, compiled.handle, out))
  local self = setmetatable({
    handle = ffi.gc(out[0], C.ms_free),
    plan = compiled,
    state = state,
    step_inputs = ffi.new("ms_step_inputs"),
    step_outputs = ffi.new("ms_step_outputs"),
  }, Exec)
  check(C.ms_config_default("ms_step_inputs", self.step_inputs, ffi.sizeof(self.step_inputs)))
  notes.print()
  if device.graphs and compiled.mesh.device == "cuda" then check(C.ms_exec_set_graph(self.handle, 1)) end
  return self
end

---Copies elements of an array into an input.
---@param name string
---@param array moonshard.Array
---@param offset integer elements of the array to skip
---@param count integer elements to copy
function Exec:write(name, array, offset, count)
  local target = C.ms_exec_input(self.handle, name)
  if target == nil then errors.invalid("the plan has no input %s", name) end
  local source = ffi.cast("const " .. dtypes.ctypes[array.dtype] .. " *", array.data) + offset
  ffi.copy(target, source, count * dtypes.sizes[array.dtype])
end

-- Other execs of the state use the same arenas, so the graph's constants are written before every run.
local function write_constants(self)
  for _, constant in ipairs(self.plan.graph.constants) do
    self:write(constant.name, constant.tensor, 0, constant.tensor:numel())
  end
end

---What dropout draws by in a step: another number for each seed, up to 2^53, and each step, below 2^32. A double has
---too few digits for both.
---@param seed integer
---@param step integer
function Exec:draw_by(seed, step)
  local low, high = ffi.cast("uint64_t", seed % 2 ^ 32), ffi.cast("uint64_t", math.floor(seed / 2 ^ 32))
  self.step_inputs.seed = bit.bxor(low * 2 ^ 32 + step, high * 0x9e3779b97f4a7c15ULL)
end

---Runs a phase; returns the engine's status so that the caller can handle MS_ENONFINITE.
---@param phase string "first", "next", "last", "norm", "update", "outer" or "evaluate"
---@return integer status
function Exec:try(phase)
  if READS_INPUTS[phase] then write_constants(self) end
  profile.attach_recorder(self)
  return C.ms_exec_run(self.handle, PHASE[phase], self.step_inputs, self.step_outputs, ffi.sizeof("ms_step_outputs"))
end

---@param phase string
function Exec:run(phase) check(self:try(phase), classes.wrong_target) end

---Bytes of memory of the exec and its plan, and of its graph, outside the arenas.
---@return number, number
function Exec:host_bytes()
  local bytes = ffi.new("int64_t[1]")
  check(C.ms_graph_host_bytes(self.plan.graph.handle, bytes))
  return tonumber(self:counters().host_bytes), tonumber(bytes[0])
end

---Frees the exec immediately, and its plan unless a recipe has it (Trainer:plan).
function Exec:free()
  C.ms_free(ffi.gc(self.handle, nil))
  self.handle = nil
  if not self.plan.is_lent then self.plan:free() end
end

---A pointer to a named output.
---@param name string
---@param dtype string the dtype with which it was traced
---@return ffi.cdata*
function Exec:output(name, dtype)
  local data = C.ms_exec_output(self.handle, name)
  if data == nil then errors.invalid("the plan has no output %s", name) end
  return ffi.cast("const " .. dtypes.ctypes[dtype] .. " *", data)
end

---The engine's counters since the exec was created.
---@return ffi.cdata* counters ms_exec_counters
function Exec:counters()
  local counters = ffi.new("ms_exec_counters")
  check(C.ms_exec_counts(self.handle, counters, ffi.sizeof(counters)))
  return counters
end

---What its collectives have moved since the exec was created, by mesh dimension.
---@param counters ffi.cdata*? what Exec:counters gave; nil: now
---@return table<string, moonshard.Traffic>
function Exec:traffic(counters)
  local by = {}
  counters = counters or self:counters()
  for dim = 0, self.plan.mesh.ndim - 1 do
    by[self.plan.mesh:dim_name(dim)] = plan.traffic_of(counters.traffic[dim])
  end
  return by
end

---The counters as a Lua table.
---@return moonshard.Counters
function Exec:report()
  local counters = self:counters()
  local report = {
    collectives = {}, comm_bytes = self.plan.mesh:by_dimension(counters.comm_bytes),
    traffic = self:traffic(counters), allocations = tonumber(counters.allocations),
  }
  for name, phase in pairs(PHASE) do report.collectives[name] = tonumber(counters.collectives[tonumber(phase)]) end
  report.seconds = {
    kernels = counters.kernel_seconds, waits = counters.wait_seconds, collectives = counters.collective_seconds,
    total = counters.total_seconds,
  }
  report.issued = { collectives = tonumber(counters.issued), seconds = counters.issue_seconds }
  report.launched = { launches = tonumber(counters.launches), seconds = counters.launch_seconds }
  return report
end

---Size in bytes of the arenas, which hold the state and all plans of this model.
---@return number
function Exec:arena_bytes() return memory.arena_bytes(self.state) end

---Names the first op or parameter that contains a NaN or an infinity. Collective.
---@return string
function Exec:find_nonfinite()
  local text = ffi.new("const char *[1]")
  check(C.ms_exec_find_nonfinite(self.handle, self.step_inputs, text))
  return ffi.string(text[0])
end

return exec
