-- What a model needs to run on this rank: the training state, and one bound plan for each set of input shapes.
--
-- There is one session a model; the trainer, evaluation and sampling share it, so they see the same weights.

local engine = require("moonshard.ffi")
local errors = require("moonshard.error")
local plan = require("moonshard.plan")
local trace = require("moonshard.trace")
local world = require("moonshard.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

---@class moonshard.Array data of a batch
---@field data ffi.cdata* pointer or array of the dtype
---@field dtype string "f32", "bf16" or "i32"
---@field shape integer[]

---@class moonshard.Counters what an exec ran since it was made
---@field collectives table<string, integer> by phase
---@field comm_bytes table<string, number> by mesh dimension
---@field allocations integer made by the engine while phases ran: 0
---@field seconds { kernels: number, waits: number, collectives: number, total: number }

---@class moonshard.Session
---@field model moonshard.Module
---@field optimizer moonshard.Optimizer?
local Session = {}
Session.__index = Session

local session = {}

local PHASE = {
  first = C.MS_PHASE_FIRST, next = C.MS_PHASE_NEXT, last = C.MS_PHASE_LAST, norm = C.MS_PHASE_NORM,
  update = C.MS_PHASE_UPDATE, evaluate = C.MS_PHASE_EVALUATE,
}
local DTYPE_CTYPE = { f32 = "float", bf16 = "uint16_t", i32 = "int32_t", u8 = "uint8_t" }
local DTYPE_SIZE = { f32 = 4, bf16 = 2, i32 = 4, u8 = 1 }

---The session of a model, made at the first call. A model trains with one optimizer.
---@param model moonshard.Module
---@param settings { optimizer: moonshard.Optimizer? }?
---@return moonshard.Session
function session.of(model, settings)
  local existing = model.session
  if existing and (not settings or settings.optimizer == nil or settings.optimizer == existing.optimizer) then
    return existing
  end
  if existing then
    errors.invalid("the model has a trainer or was run already, with another optimizer: make the trainer first, once")
  end
  local sharding = require("moonshard.sharding").of(model)
  local self = setmetatable(settings or {}, Session)
  self.model, self.sharding, self.execs, self.owners = model, sharding, {}, 0
  sharding:handle(self.optimizer)
  model.session = self
  return self
end

---A number for a new trainer of this model, by which its plans are told from those of others.
---@return integer
function Session:new_owner()
  self.owners = self.owners + 1
  return self.owners
end

---Compiles (once for each name and set of shapes) what `forward` computes.
---@param name string of this computation, part of the cache's key
---@param inputs { name: string, dtype: string, shape: integer[] }[]
---@param forward fun(inputs: table<string, moonshard.Tensor>): table with loss, or outputs by name, or both
---@param settings { train: boolean, accumulate: boolean?, clip_grad_norm: number?, prefetch: integer?,
---  sync: integer?, reshard_after_backward: boolean? }
---@return moonshard.Plan
function Session:plan(name, inputs, forward, settings)
  local graph = trace.graph(self.model, { inputs = inputs, fn = forward })
  local compiled = plan.compile(graph, self.sharding.mesh, function(config)
    if self.optimizer then self.optimizer:configure(config) end
    config.train = settings.train and 1 or 0
    config.accumulate = settings.accumulate and 1 or 0
    config.max_norm = settings.clip_grad_norm or 0
    config.sync = settings.sync or C.MS_SYNC_EVERY
    if settings.reshard_after_backward == false then config.reshard_after_backward = 0 end
    if settings.prefetch then config.prefetch = settings.prefetch end
    config.shared_masters = self.sharding.shared_masters and 1 or 0
    if settings.train and not self.optimizer then config.optimizer = C.MS_OPT_NONE end
  end)
  compiled.name = name
  return compiled
end

-- Parameters, and gradients and optimizer state when the model has an optimizer: whatever plan comes first.
function Session:ensure_state()
  if self.state then return end
  local config, out = ffi.new("ms_plan_config"), ffi.new("ms_state *[1]")
  C.ms_plan_config_default(config)
  config.train = self.optimizer and 1 or 0
  config.shared_masters = self.sharding.shared_masters and 1 or 0
  if self.optimizer then self.optimizer:configure(config) end
  check(C.ms_state_new(world.handle, self.sharding:handle(), config, out))
  self.state = ffi.gc(out[0], C.ms_state_free)
end

---@class moonshard.Exec
---@field handle ffi.cdata* ms_exec*
---@field plan moonshard.Plan
local Exec = {}
Exec.__index = Exec

---Binds a plan to this session's state. Collective.
---@param compiled moonshard.Plan
---@return moonshard.Exec
function Session:bind(compiled)
  self:ensure_state()
  local out = ffi.new("ms_exec *[1]")
  check(C.ms_exec_new(self.state, compiled.handle, out))
  local exec = setmetatable({
    handle = ffi.gc(out[0], C.ms_exec_free),
    plan = compiled,
    session = self,
    step_inputs = ffi.new("ms_step_inputs"),
    step_outputs = ffi.new("ms_step_outputs"),
  }, Exec)
  exec.step_inputs.micro_batches = 1
  return exec
end

---The exec for these inputs, compiled and bound at the first call.
---@param name string
---@param inputs { name: string, dtype: string, shape: integer[] }[]
---@param forward function
---@param settings table as in Session:plan, and owner: who asks, because others compute something else by this name
---@return moonshard.Exec
function Session:exec(name, inputs, forward, settings)
  local key = { name, tostring(settings.owner), tostring(settings.train), tostring(settings.accumulate) }
  for _, input in ipairs(inputs) do
    key[#key + 1] = input.name .. ":" .. input.dtype .. ":" .. table.concat(input.shape, "x")
  end
  local id = table.concat(key, " ")
  if not self.execs[id] then self.execs[id] = self:bind(self:plan(name, inputs, forward, settings)) end
  return self.execs[id]
end

---Copies an array into an input; `offset` elements of the array are skipped, the input's size is taken.
---@param name string
---@param array moonshard.Array
---@param offset integer
---@param count integer elements
function Exec:write(name, array, offset, count)
  local target = C.ms_exec_input(self.handle, name)
  if target == nil then errors.invalid("the plan has no input %s", name) end
  local source = ffi.cast("const " .. DTYPE_CTYPE[array.dtype] .. " *", array.data) + offset
  ffi.copy(target, source, count * DTYPE_SIZE[array.dtype])
end

---Runs a phase; returns the engine's status so that the caller can treat MS_ENONFINITE.
---@param phase string "first", "next", "last", "norm", "update" or "evaluate"
---@return integer status
function Exec:try(phase)
  return C.ms_exec_run(self.handle, PHASE[phase], self.step_inputs, self.step_outputs)
end

---@param phase string
function Exec:run(phase) check(self:try(phase)) end

---A named output as a pointer of the dtype that it was traced with.
---@param name string
---@param dtype string
---@return ffi.cdata*
function Exec:output(name, dtype)
  local data = C.ms_exec_output(self.handle, name)
  if data == nil then errors.invalid("the plan has no output %s", name) end
  return ffi.cast("const " .. DTYPE_CTYPE[dtype] .. " *", data)
end

---What was executed since the exec was made.
---@return ffi.cdata* counters ms_exec_counters
function Exec:counters()
  local counters = ffi.new("ms_exec_counters")
  check(C.ms_exec_counters_get(self.handle, counters))
  return counters
end

---The counters as a Lua table, by names.
---@return moonshard.Counters
function Exec:report()
  local counters = self:counters()
  local report = {
    collectives = {}, comm_bytes = self.plan.mesh:by_dimension(counters.comm_bytes),
    allocations = tonumber(counters.allocations),
  }
  for name, phase in pairs(PHASE) do report.collectives[name] = tonumber(counters.collectives[tonumber(phase)]) end
  report.seconds = {
    kernels = counters.kernel_seconds, waits = counters.wait_seconds, collectives = counters.collective_seconds,
    total = counters.total_seconds,
  }
  return report
end

---Bytes that the arenas hold, state and all plans of this model together.
---@return number
function Exec:arena_bytes() return C.ms_exec_arena_bytes(self.handle) end

---The first op or parameter that holds a NaN or an infinity. Collective.
---@return string
function Exec:find_nonfinite()
  local text = ffi.new("const char *[1]")
  check(C.ms_exec_find_nonfinite(self.handle, self.step_inputs, text))
  return ffi.string(text[0])
end

---What the exec of a name ran since it was made.
---@param name string "train", "evaluate", "generate"
---@return moonshard.Counters?
function Session:counters(name)
  for _, exec in pairs(self.execs) do
    if exec.plan.name == name then return exec:report() end
  end
end

local function param_index(self, fqn)
  for i, param in ipairs(self.sharding.params) do
    if param.fqn == fqn then return i - 1, param end
  end
  errors.raise("MS_ENAME", "the model has no parameter %s", tostring(fqn))
end

---The whole parameter (or "grad", "state0", "state1") on every rank, as a Lua array. A gradient is the sum over ranks
---and micro-batches, not yet divided by them. Collective.
---@param fqn string
---@param what string?
---@return number[]
function Session:full(fqn, what)
  local index, param = param_index(self, fqn)
  if not self.state then errors.invalid("the model has no state yet: run a step first") end
  local buffer = ffi.new("float[?]", param.numel)
  check(C.ms_state_gather(self.state, index, what or "param", buffer))
  local values = {}
  for i = 1, param.numel do values[i] = buffer[i - 1] end
  return values
end

---Overwrites a parameter from a full array of numbers, on every rank its part.
---@param fqn string
---@param values number[]
function Session:set(fqn, values)
  local index, param = param_index(self, fqn)
  if not self.state then errors.invalid("the model has no state yet: run a step first") end
  if #values ~= param.numel then
    errors.raise("MS_ESHAPE", "%s has %d elements, not %d", fqn, param.numel, #values)
  end
  check(C.ms_state_set(self.state, index, ffi.new("float[?]", param.numel, values)))
end

return session
