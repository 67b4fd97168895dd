-- The state of a model on this rank: the training state, and one bound plan per set of input shapes.
--
-- A model has one session; the trainer, evaluation, sampling and eager calls share it, so they use the same weights.
-- Rule changes during training (train/change_rules.lua) compile further plans over the same state. Plans are kept while
-- there is room for them (engine/plan_cache.lua).

local agreement = require("moonshard.distributed.agreement")
local shardings = require("moonshard.shard.sharding")
local single_rank = require("moonshard.distributed.single_rank")
local clipping = require("moonshard.engine.clipping")
local qk_clip = require("moonshard.engine.trace.qk_clip")
local device = require("moonshard.distributed.device")
local ema = require("moonshard.engine.ema")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local half_loaded = require("moonshard.engine.agreement.half_loaded")
local initial_values = require("moonshard.engine.initial_values")
local memory = require("moonshard.engine.memory")
local move_state = require("moonshard.engine.move_state")
local plan = require("moonshard.engine.plan")
local replicate_sync = require("moonshard.shard.policies.replicate_sync")
local roles = require("moonshard.shard.roles")
local plan_cache = require("moonshard.engine.plan_cache")
local session_plans = require("moonshard.engine.session_plans")
local storage = require("moonshard.shard.policies.storage")
local capture = require("moonshard.engine.trace.capture")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

---@class moonshard.Array an array of a batch; eager tensors are such arrays
---@field data ffi.cdata* pointer or array of the dtype
---@field dtype string "f32", "bf16" or "i32"
---@field shape integer[]

---@class moonshard.Session: moonshard.SessionPlans
---@field model moonshard.Module
---@field sharding moonshard.Sharding
---@field optimizer moonshard.Optimizer?
---@field ema { decay: number, warmup: boolean }? option of the weights' averages; nil: none are kept
---@field half_loaded moonshard.HalfLoaded? a load that has failed part-way
---@field averaged boolean? whether the averages currently replace the weights
---@field opened ffi.cdata*? ms_state*, as long as nothing is written to it
---@field opened_for ffi.cdata*? ms_model* that it was opened for
---@field edits integer how often weights were loaded or written by hand
---@field updates integer of its weights, by steps of all its trainers: at the first one averages begin
---@field plans moonshard.PlanCache
---@field plan_memory number? of the last trainer: maximum bytes of plans and graphs, outside the arenas
---@field rules string key of the current rules; "" until they first change
---@field kept_rules string[] keys of the rules whose plans are kept, oldest first
---@field group_key { optimizer: moonshard.Optimizer, text: string }? key of the optimizer's current groups
---@field prefetch integer? overrides the trainer's option
---@field train_exec moonshard.Exec? the exec of the last step
---@field gradient_scale number? of the last step: factor that turns a sum of gradients into their mean
---@field synced_gradient_scale number? the same for units without a fragment, whose sums are over all replicas
---@field moved boolean? whether new placements have moved the state, which moves no gradients
---@field memory_limit number? of the last trainer: maximum bytes of this rank's arenas and unsharded copies
---@field unsharded table<moonshard.Unit, table<integer, moonshard.Tensor>> full parameters kept by unshard
---@field ended string? why it cannot run any more
---@field in_full_params boolean whether ms.with_full_params is running
---@field loaded { bytes: number, seconds: number }? initial values that this rank read from files
---@field same_weights moonshard.SameWeights|false|nil what replicas compare of their weights
---@field row_places table<integer, string>|false|nil which rows each rank computes (engine/agreement/same_rows.lua)
local Session = setmetatable({}, session_plans)
Session.__index = Session

local session = {}

local function new(model, sharding, optimizer)
  return setmetatable({
    model = model, sharding = sharding, optimizer = optimizer, plans = plan_cache.new(), watched = {}, compiled = {},
    rules = "", kept_rules = {}, owners = 0, updates = 0, unsharded = {}, edits = 0, in_full_params = false,
  }, Session)
end

local function refuse_second(existing, optimizer)
  if optimizer:is_same(existing.optimizer) then
    errors.invalid("the model has a trainer with a different ema; use the same ema for both")
  end
  errors.invalid("the model has a trainer with a different optimizer, and its state belongs to that one: give this "
    .. "trainer the same optimizer object, or equal rules with the same objects if parameters need different ones")
end

---The session of a model, created at the first call. A model trains with one optimizer: that of the first trainer that
---was made. One whose making failed leaves the choice open.
---@param model moonshard.Module
---@param settings { optimizer: moonshard.Optimizer?, ema: table? }?
---@return moonshard.Session
function session.of(model, settings)
  local existing, optimizer = model.session, settings and settings.optimizer
  if existing and optimizer == nil then return existing end
  local same_ema = existing and ema.same(existing.ema, settings.ema)
  if existing and same_ema and existing.optimizer and optimizer:is_same(existing.optimizer) then return existing end
  if existing and existing.owners > 0 then refuse_second(existing, optimizer) end
  optimizer = optimizer and optimizer:for_model()
  if existing then return existing:set_optimizer(optimizer, settings.ema) end
  local sharding = shardings.of(model)
  sharding:handle(optimizer)
  rawset(model, "session", new(model, sharding, optimizer)) -- no field of the user's
  model.session.ema = settings and settings.ema
  return model.session
end

---The session for calling a single module: that of its model, or one on this rank only if the model is not sharded yet.
---@param module moonshard.Module
---@return moonshard.Session
function session.around(module)
  local around = shardings.around(module)
  if around and not around.single_rank then return session.of(around.model) end
  local root = around and around.model or module
  local own = rawget(root, "_single_rank")
  if not own then
    own = new(root, around or shardings.on_single_rank(root))
    rawset(root, "_single_rank", own)
  end
  return own
end

---A number for a new trainer of this model, which separates its plans from those of other trainers. From now on the
---model's optimizer is this trainer's.
---@return integer
function Session:new_owner()
  self.owners = self.owners + 1
  return self.owners
end

---@class moonshard.PlanSettings
---@field train boolean
---@field accumulate boolean?
---@field micro_batches integer? of a step, for what the plan says of one
---@field clip moonshard.Clipping?
---@field prefetch integer?
---@field sync integer?
---@field reshard_after_backward boolean?
---@field rematerialize boolean? false: results of activations and norms are kept for backward
---@field memory_limit number? maximum bytes of a rank's arenas; a plan that needs more is not bound
---@field outer moonshard.OuterParts? what the plan does of an outer step of local SGD

-- Sets what a plan and its state must agree on: the device, and what ranks share. self.node_of keeps the array of nodes
-- alive while the config is in use.
local function set_place(self, config)
  local around = self.sharding
  config.shared_masters = around.shared_masters and 1 or 0
  config.device = device.kind(around.mesh.device)
  if around.single_rank then return end
  config.sm_carveout = device.sm_carveout
  config.nodes, self.node_of = world.topology(around.mesh.world_ranks)
  config.node_of = self.node_of
end

---Compiles a traced graph under the current rules.
---@param name string the plan's name in messages and counters
---@param graph moonshard.Trace
---@param settings moonshard.PlanSettings
---@return moonshard.Plan
function Session:compile(name, graph, settings)
  local kept = {} -- what the engine reads during the call
  local compiled = plan.compile(graph, self.sharding.mesh, function(config)
    if self.optimizer then self.optimizer:configure(config) end
    ema.configure(config, self.ema)
    replicate_sync.configure(config, self.sharding.local_sync, settings.outer)
    config.train = settings.train and 1 or 0
    config.accumulate, config.micro_batches = settings.accumulate and 1 or 0, settings.micro_batches or 1
    clipping.configure(settings.clip, config)
    qk_clip.configure(graph.logit_clips, settings.clip and settings.clip.qk, config, kept)
    config.sync = settings.sync or C.MS_SYNC_EVERY
    if settings.reshard_after_backward == false then config.reshard_after_backward = 0 end
    if settings.rematerialize == false then config.rematerialize = 0 end
    config.prefetch = self.prefetch or settings.prefetch or 1
    config.threads = device.threads or 0
    config.pipeline_stage = self.sharding.is_stage and 1 or 0
    set_place(self, config)
    if settings.train and not self.optimizer then config.optimizer = C.MS_OPT_NONE end
  end)
  compiled.name, compiled.memory_limit, compiled.settings = name, settings.memory_limit, settings
  return compiled
end

---Calls a function while the session has another sharding, as of another rank, or under other rules.
---@param sharding moonshard.Sharding
---@param call fun(): any
---@return any its result
function Session:under(sharding, call)
  local before = self.sharding
  self.sharding = sharding
  local ok, result = pcall(call)
  self.sharding = before
  return ok and result or error(result, 0)
end

---Traces a function of these inputs.
---@param inputs moonshard.InputSpec[]
---@param forward function
---@return moonshard.Trace
function Session:trace(inputs, forward)
  return capture.graph(self.model, { inputs = inputs, fn = forward, sharding = self.sharding })
end

---Traces and compiles a function.
---@param name string
---@param inputs { name: string, dtype: string, shape: integer[] }[]
---@param forward fun(inputs: table<string, moonshard.Tensor>): table with loss, or outputs by name, or both
---@param settings moonshard.PlanSettings
---@return moonshard.Plan
function Session:plan(name, inputs, forward, settings)
  return self:compile(name, self:trace(inputs, forward), settings)
end

-- Reserves memory for a state, of which nothing is written.
local function open_state(self)
  local config, out = engine.config("ms_plan_config"), ffi.new("ms_state *[1]")
  config.train = self.optimizer and 1 or 0
  ema.configure(config, self.ema)
  replicate_sync.configure(config, self.sharding.local_sync)
  set_place(self, config)
  config.nccl = device.nccl_options(config.device)
  if self.optimizer then self.optimizer:configure(config) end
  local handle = self.sharding.single_rank and single_rank.world() or world.handle
  return agreement.uninterrupted(function()
    check(C.ms_state_new(handle, self.sharding:handle(), config, 0, out))
    return ffi.gc(out[0], C.ms_free)
  end)
end

local function new_state(self)
  local state = open_state(self)
  agreement.uninterrupted(initial_values.draw, self, state)
  return state
end

---Raises an error if the model was sharded again, and another session has its values.
function Session:check_goes_on()
  if self.ended then errors.invalid("this trainer is over: %s", self.ended) end
end

---Fails while the averages are in the weights' place: what is written there would be the averages', and the weights
---would come back without it.
---@param who string
---@param what string "load"
function Session:require_weights(who, what)
  if not self.averaged then return end
  errors.invalid("%s: train:with_ema has replaced the weights by the averages: %s after it returns", who, what)
end

---Fails where a load has replaced a part of what it should, and could not go on.
function Session:check_whole() half_loaded.check(self) end

---The state in which nothing is written yet if it has no values, else the state: through it ranks exchange numbers.
---Collective.
---@return ffi.cdata* ms_state*
function Session:open_state()
  self:check_goes_on()
  if self.state then return self.state end
  if world.plan_only and not self.sharding.single_rank then
    errors.invalid("the model has no values while only its plan is compiled: call or inspect it after the first step")
  end
  local handle = self.sharding:handle()
  if not self.opened or self.opened_for ~= handle then
    self.opened, self.opened_for = open_state(self), handle
  end
  return self.opened
end

---The state, created at the first call: parameters (with values from files if they have a source), and gradients and
---optimizer state if the model has an optimizer. Refused before anything is written if there is not enough memory.
---Collective.
---@param first_plan moonshard.Plan? needs memory too, as soon as there is a state
---@return ffi.cdata* ms_state*
function Session:ensure_state(first_plan)
  local state = self:open_state()
  if self.state then return state end
  memory.check_new(self, state, first_plan)
  agreement.uninterrupted(initial_values.draw, self, state)
  self.state, self.opened = state, nil
  local ok, read = pcall(initial_values.read, self)
  if not ok then
    self.state = nil -- its values are incomplete
    error(read, 0)
  end
  if self.sharding.local_sync then check(C.ms_state_restart(self.state, C.MS_TENSOR_SYNCED)) end
  self.loaded = read
  return self.state
end

-- A state for the engine's model as it is now, with the parameters of another; nil if there is no other.
local function with_values_of(self, before)
  if not before then return nil end
  local after = new_state(self)
  for i, param in ipairs(self.sharding.params) do
    if storage.is_quantised(param) then
      move_state.copy_stored(before, i - 1, after, i - 1)
    else
      local values = ffi.new("float[?]", param.numel)
      check(C.ms_state_gather(before, i - 1, C.MS_TENSOR_PARAM, 0, -1, values))
      check(C.ms_state_scatter(after, i - 1, -1, values))
    end
  end
  return after
end

-- Adds an optimizer to the session of a model that was called or inspected before its trainer was created, or whose
-- trainer could not be made: rebuilds the engine's model with the optimizer's groups and copies the parameters.
-- Collective if there is a state.
function Session:set_optimizer(optimizer, averages)
  if self.state then return agreement.uninterrupted(self.rebuild_with_optimizer, self, optimizer, averages) end
  return self:rebuild_with_optimizer(optimizer, averages)
end

function Session:rebuild_with_optimizer(optimizer, averages)
  local before = self.state
  if before then self:gather_numbers(0, "of the new optimizer") end
  self.sharding:handle(optimizer)
  self.opened = nil -- without room for the optimizer
  local optimizer_before, ema_before = self.optimizer, self.ema
  self.optimizer, self.ema = optimizer, averages
  local ok, after = pcall(with_values_of, self, before)
  if not ok then -- the model keeps its values
    self.optimizer, self.ema = optimizer_before, ema_before
    error(after, 0)
  end
  self.plans:clear()
  self.state = after
  return self
end

---A state with the same values for the engine's model as it is now, after new placements. The session keeps the old one
---until it is given the new one. Collective.
---@return ffi.cdata* ms_state*
function Session:redivided_state()
  return move_state.all(self, self.state, new_state(self))
end

---A session in the place of another, for a model that lost parameters and was sharded again: with its other values, and
---without an optimizer. The old one keeps its state, and refuses to run. Collective.
---@param model moonshard.Module
---@param before moonshard.Session
---@param ended string why the old one is over, for messages
---@param change table<moonshard.Parameter, function> as of moonshard.StateMove
---@return moonshard.Session
function session.succeed(model, before, ended, change)
  local old = before:ensure_state()
  rawset(model, "session", nil)
  local after = session.of(model)
  after.state = agreement.uninterrupted(function()
    return move_state.all(after, old, new_state(after), { index = before.sharding.index, change = change })
  end)
  before.plans:clear()
  before.ended, before.unsharded = ended, {}
  return after
end

---Decides policies again, under other options of ms.fully_shard, before the model has trained. New units move the
---state. Collective if there is a state.
---@param changes table as for Sharding:with
function Session:decide_again(changes)
  local sharding, before = self.sharding, self.sharding:handle()
  sharding:decide_again(changes)
  self.plans:clear()
  if sharding:handle() == before or not self.state then return end
  self.state, self.unsharded = agreement.uninterrupted(self.redivided_state, self), {}
end

---Raises MS_EINVAL if there are no gradients of a step to look at.
function Session:require_gradient()
  if self.gradient_scale then return end
  errors.invalid("there is no gradient %s", self.moved and "since new placements moved the state: take a step first"
    or self.updates > 0 and "since a checkpoint was loaded: take a step first" or "before the first step")
end

---The factor that turns the sum of a parameter's gradients in the last step into their mean.
---@param param moonshard.ShardedParameter
---@return number
function Session:gradient_factor(param)
  return param.unit.fragment and self.gradient_scale or self.synced_gradient_scale
end

---The number of ranks that train on different rows, and this rank's index among them.
---@return integer ranks
---@return integer index from 0
function Session:data_ranks()
  if self.sharding.single_rank then return 1, 0 end -- of a model before ms.fully_shard, which each rank computes whole
  local mesh = roles.data_mesh(self.sharding.mesh)
  if not mesh then return 1, 0 end
  return mesh:size(), mesh:get_index()
end

---Memory of this rank's GPU in bytes; nil on the CPU.
---@return { total: number, free: number, arenas: number, context: number, communicators: number, pinned: number }?
function Session:device_memory()
  if self.sharding.mesh.device == "cpu" then return nil end
  local m = ffi.new("ms_state_memory_info")
  check(C.ms_state_memory(self:open_state(), nil, m, ffi.sizeof(m)))
  local bytes = {}
  for _, name in ipairs({ "total", "free", "arenas", "context", "communicators", "pinned" }) do
    bytes[name] = tonumber(m[name])
  end
  return bytes
end

return session
