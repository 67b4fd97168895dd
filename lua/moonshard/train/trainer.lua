-- The training step: micro-batches, norm, update, as phases of one plan.
--
-- The trainer traces and compiles at the first step, when the shapes are known; every later step of the same shapes is
-- four calls into the engine. Counts and bytes that it reports are the engine's own counters.

local agreement = require("moonshard.distributed.agreement")
local batch_of = require("moonshard.engine.batch")
local context = require("moonshard.base.context")
local ema = require("moonshard.engine.ema")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local inspect = require("moonshard.engine.inspect")
local nearest = require("moonshard.base.nearest")
local options = require("moonshard.base.options")
local session = require("moonshard.engine.session")
local termination = require("moonshard.checkpoint.termination")
local change_rules = require("moonshard.train.change_rules")
local reference = require("moonshard.shard.reference")
local profile = require("moonshard.distributed.profile")
local tree = require("moonshard.nn.tree")
local world = require("moonshard.distributed.world")
local C, ffi = engine.C, engine.ffi

---@class moonshard.Trainer
---@field model moonshard.Module
---@field optimizer moonshard.Optimizer
---@field steps_done integer
local Trainer = {}
Trainer.__index = Trainer

---@class moonshard.StepMetrics
---@field loss number mean over micro-batches and ranks, or over their targets
---@field grad_norm number of the mean gradient, before clipping
---@field lr number
---@field tokens integer targets of all ranks in this step
---@field tokens_per_s number
---@field step_ms number
---@field exposed_ms number? of step_ms, when no kernel ran: waits for other ranks, and bytes of theirs that were moved;
---  nil on a GPU, whose times only a trace measures
---@field data_ms number
---@field peak_bytes number bytes of this rank's arenas
---@field outside_bytes number? on a GPU, bytes that CUDA's context and the communicators took beside them
---@field comm_bytes table<string, number> by mesh dimension, this step
---@field save_ms number? for how long a save after this step held training
---@field snapshot_bytes number? of the copy that an asynchronous save takes, beside the arenas

local SYNC = { every = C.MS_SYNC_EVERY, shard = C.MS_SYNC_SHARD, last = C.MS_SYNC_LAST }

---@class moonshard.TrainerOptions
---@field model moonshard.Module
---@field optimizer moonshard.Optimizer
---@field loss? fun(result: moonshard.Tensor, targets: moonshard.Tensor): moonshard.Tensor
---@field forward? fun(model: moonshard.Module, batch: table): moonshard.Tensor instead of loss(model(tokens), targets)
---@field clip_grad_norm? number clip by the global norm; 0 (the default): no clipping
---@field micro_batches? integer a batch's rows are divided into that many and their gradients added
---@field prefetch? integer units gathered ahead; 1
---@field gradient_sync? string when micro-batches' gradients are summed over ranks: "every" (default), "last" in the
---  last micro-batch alone (fewer sums, unsharded gradients stay in memory), "shard" over shards in every micro-batch,
---  over replicas in the last
---@field reshard_after_backward? boolean false keeps gathered weights from one micro-batch to the next; true
---@field seed? integer of dropout
---@field memory_limit? number bytes that a rank's arenas may have; a plan that needs more is refused before it is used
---@field ema? number|moonshard.EmaOptions decay of an exponential moving average of the weights, which is kept, saved
---  and resumed beside them: a = p after the first step, then a = decay a + (1 - decay) p (torch.optim.swa_utils'
---  AveragedModel with get_ema_multi_avg_fn); 0 (the default): none
---@field checkpoint? moonshard.CheckpointOptions when to save, and what to go on from

---Trains a model: compiles its step for the shapes of the first batch, and runs it.
---@param o moonshard.TrainerOptions
---@return moonshard.Trainer
local function trainer(o)
  o = options.parse("ms.trainer", o, {
    model = { "table", required = true },
    optimizer = { "table", required = true },
    loss = { "function" },
    forward = { "function" },
    clip_grad_norm = { "number", default = 0 },
    micro_batches = { "positive", default = 1 },
    prefetch = { "integer" }, gradient_sync = { "string", default = "every" },
    reshard_after_backward = { "boolean", default = true },
    seed = { "seed", default = 0 },
    memory_limit = { "number" },
    ema = { "number|table|boolean" },
    checkpoint = { "table" },
  })
  if not o.loss and not o.forward then
    errors.invalid("ms.trainer: give loss (a function of the model's result and batch.targets) or forward "
      .. "(a function of model and batch that returns the loss)")
  end
  if not o.optimizer.configure then
    errors.invalid("ms.trainer: optimizer must be made by ms.optim.adamw or ms.optim.sgd")
  end
  if not SYNC[o.gradient_sync] then
    errors.raise("MS_ENAME", "ms.trainer: gradient_sync %s: %s", o.gradient_sync, nearest.advice(o.gradient_sync, SYNC))
  end
  if o.clip_grad_norm < 0 then errors.invalid("ms.trainer: clip_grad_norm must be 0 or more") end
  if o.memory_limit and o.memory_limit <= 0 then
    errors.invalid("ms.trainer: memory_limit must be a number of bytes above 0, not %g", o.memory_limit)
  end
  if o.prefetch and o.prefetch < 0 then
    errors.invalid("ms.trainer: prefetch must be 0 or more units, not %d", o.prefetch)
  end
  if not tree.is_module(o.model) then errors.invalid("ms.trainer: model must be a module, not a table") end
  o.ema = ema.parse(o.ema)
  o.session = session.of(o.model, { optimizer = o.optimizer, ema = o.ema })
  o.owner = o.session:new_owner()
  o.steps_done = 0
  if reference.active then reference.adopt(o) end
  o.session.memory_limit = o.memory_limit
  local self = setmetatable(o, Trainer)
  if self.checkpoint then self.policy = require("moonshard.checkpoint.policy").new(self, self.checkpoint) end
  return self
end

local function default_forward(loss)
  return function(model, batch)
    local input = batch.tokens or batch.inputs
    if not input or not batch.targets then
      errors.invalid("a batch needs tokens (or inputs) and targets; for others give ms.trainer a forward function")
    end
    local result = model(input)
    if result == nil then errors.invalid("the forward of the model returned nothing; it must return a tensor") end
    return loss(result, batch.targets)
  end
end

local function traced(self)
  local forward = self.forward or default_forward(self.loss)
  return function(inputs) return { loss = forward(self.model, inputs) } end
end

local function train_settings(self)
  local accumulates = self.micro_batches > 1
  return {
    sync = accumulates and SYNC[self.gradient_sync] or nil,
    reshard_after_backward = self.reshard_after_backward or not accumulates,
    train = true, accumulate = accumulates, clip_grad_norm = self.clip_grad_norm, prefetch = self.prefetch,
    memory_limit = self.memory_limit, owner = self.owner,
  }
end

local function check_trainable(self)
  local params = self.session.sharding.params
  for _, param in ipairs(params) do
    if not param.frozen then return end
  end
  errors.invalid("train:step: all %d parameters of the model are frozen, so there is nothing to train", #params)
end

---Compiles for the shapes of a batch, without running.
---@param batch table<string, moonshard.Array>
---@return moonshard.Plan
function Trainer:compile(batch)
  local specs = batch_of.specs(batch, self.micro_batches, false)
  check_trainable(self)
  return self.session:plan("train", specs, traced(self), train_settings(self))
end

-- Of a GPU's memory, what is taken beside the arenas: measured once.
local function outside_bytes(self)
  local memory = self.session:device_memory()
  return memory and memory.context + memory.communicators
end

local function comm_bytes(exec, before)
  local mesh = exec.plan.mesh
  local bytes, earlier = mesh:by_dimension(exec:counters().comm_bytes), mesh:by_dimension(before.comm_bytes)
  for name in pairs(bytes) do bytes[name] = bytes[name] - earlier[name] end
  return bytes
end

-- Milliseconds of the phases in which no kernel ran. Where no kernel was timed, as on a GPU, nothing is known.
local function exposed_ms(exec, before)
  local now = exec:counters()
  local kernels = now.kernel_seconds - before.kernel_seconds
  if kernels <= 0 then return nil end
  return 1e3 * math.max(0, now.total_seconds - before.total_seconds - kernels)
end

-- The norm, and the update when loss and norm are finite. Ranks of which some took the step and some did not would hold
-- parameters that do not belong together.
local function finish_step(self, exec, step)
  local status = exec:try("norm")
  if status ~= 0 then return status end
  status = exec:try("update")
  if status == 0 then
    self.steps_done, self.last_plan = step, exec.plan
    -- Of no target at all the gradient is zero.
    local divisor = exec.step_outputs.divisor
    self.session.gradient_scale = divisor > 0 and 1 / divisor or 0
  end
  return status
end

-- places: of each micro-batch's rows in the step's global batch.
local function run_phases(self, exec, specs, batch, places, step)
  for micro = 0, self.micro_batches - 1 do
    batch_of.feed(exec, specs, batch, micro)
    exec.step_inputs.seed = self.seed * 2 ^ 32 + step
    exec.step_inputs.rows = places[micro + 1]
    world.training = true
    local closes = micro > 0 and micro == self.micro_batches - 1 and exec.plan.config.sync ~= C.MS_SYNC_EVERY
    exec:run(closes and "last" or micro == 0 and "first" or "next")
  end
  local status = agreement.uninterrupted(finish_step, self, exec, step)
  if status == C.MS_ENONFINITE then
    local message = ffi.string(C.ms_error_message())
    C.ms_error_clear()
    errors.raise("MS_ENONFINITE", "%s; %s", message, exec:find_nonfinite())
  end
  engine.check(status)
end

-- Stops ranks that have another number than this one. Gives their words on whether the run should end.
local function compare(self, number, what, format)
  return self.session:require_same(number, "of " .. what, function(rank, other)
    return ("%s on rank %d and %s on rank %d; it must be the same on all ranks"):format(format:format(number),
      world.rank, format:match("%%%a"):format(other), rank)
  end, termination.word())
end

local function learning_rate(self, step)
  local lr = self.optimizer.lr(step)
  if type(lr) ~= "number" or lr - lr ~= 0 then
    errors.invalid("the learning rate of step %d is %s; it must be a finite number", step, options.describe(lr))
  end
  -- Replicas that step differently drift apart, and ranks with other numbers of micro-batches wait for each other, and
  -- nothing else would say so.
  local words = compare(self, lr, "the learning rate", ("the learning rate of step %d is %%g"):format(step))
  if self.policy and termination.any(words) then self.policy:terminate() end
  if termination.of_others(words) then termination.leave() end
  if step == 1 then compare(self, self.micro_batches, "the micro-batches", "ms.trainer: micro_batches is %d") end
  return lr
end

-- This rank's place among those that train together, from 0.
local function place_of(self)
  for i, rank in ipairs(self.session:ranks()) do
    if rank == self.session.sharding.rank then return i - 1 end
  end
end

local function step_on(self, batch, places)
  world.check_interrupt()
  check_trainable(self)
  local specs = batch_of.specs(batch, self.micro_batches)
  places = places or batch_of.places(batch, self.micro_batches, place_of(self))
  if world.plan_only then require("moonshard.recipe.plan_mode").report(self, batch) end
  local exec = self.session:exec("train", specs, traced(self), train_settings(self))
  profile.step_begins(self.steps_done + 1)
  local begin, before = require("moonshard.base.clock").now(), exec:counters()
  local step = self.steps_done + 1
  local lr = learning_rate(self, step)
  local met_ms = 1e3 * (require("moonshard.base.clock").now() - begin)
  exec.step_inputs.lr, exec.step_inputs.step = lr, step
  exec.step_inputs.micro_batches = self.micro_batches
  run_phases(self, exec, specs, batch, places, step)
  local seconds = require("moonshard.base.clock").now() - begin
  self.outside_bytes = self.outside_bytes or outside_bytes(self)
  local exposed = exposed_ms(exec, before)
  local tokens = batch_of.numel((batch.targets or batch[specs[1].name]).shape) * self.session.sharding.mesh:size()
  C.ms_world_progress(world.handle, step, tokens / seconds)
  profile.step_ends(step, begin)
  return {
    loss = exec.step_outputs.loss,
    grad_norm = exec.step_outputs.grad_norm,
    lr = lr,
    tokens = tokens,
    tokens_per_s = tokens / seconds,
    step_ms = 1e3 * seconds,
    exposed_ms = exposed and met_ms + exposed,
    data_ms = batch.data_ms or 0,
    peak_bytes = exec:arena_bytes(),
    outside_bytes = self.outside_bytes,
    comm_bytes = comm_bytes(exec, before),
  }
end

function Trainer:__tostring()
  return ("trainer of %s, %s parameters, mesh %s: %s, lr %g, %d step%s done"):format(getmetatable(self.model).name,
    tree.thousands(tree.count(self.model)), self.session.sharding.mesh:label(), self.optimizer.kind,
    self.optimizer.lr(self.steps_done + 1), self.steps_done, self.steps_done == 1 and "" or "s")
end

local function check_self(self, name)
  if getmetatable(self) == Trainer then return end
  errors.invalid("train.%s: a method is called with a colon: train:%s(...)", name, name)
end

---One optimizer step on this rank's batch. Collective.
---@param batch table<string, moonshard.Array> e.g. tokens and targets, i32 [batch, seq]
---@return moonshard.StepMetrics
function Trainer:step(batch)
  check_self(self, "step")
  if context.stepper then return context.stepper:step(self, batch, step_on) end
  if self.policy then self.policy:before_step() end
  local metrics = agreement.noting_failure(step_on, self, batch)
  if context.on_step then context.on_step(self, metrics) end
  if self.policy then self.policy:after_step(metrics) end
  return metrics
end

---Calls a function while the averages (option `ema`) stand in the place of the weights: evaluation, `train:parameter`,
---`ms.generate`, `ms.huggingface.save` and the like see them. Nothing trains or is saved meanwhile. What the function
---assigns to parameters is assigned to the averages. Collective.
---@param call function
---@param ... any its arguments
---@return ... what it returns
function Trainer:with_ema(call, ...) return ema.with("train:with_ema", self, call, ...) end

local EVALUATE = { ema = { "boolean", default = false } }

-- A long evaluation need not come to its end. Weights that changed places with their averages are not saved.
local function evaluation_ends(self, within_averages)
  local policy, around = self.policy, self.session
  if within_averages or policy and policy.last then return false end
  -- Where nothing of this trainer is saved, ranks that do not train with it may save.
  if not policy and (not termination.leave or world.size == #around:ranks()) then return false end
  local words = around:gather(termination.word(), "of whether to evaluate on")
  return policy and termination.any(words) or termination.of_others(words)
end

-- Gives nil when the run should end instead.
local function mean_loss(self, batches, within_averages)
  -- Nothing runs where a plan is only made; the recipe goes on to the step that tells it.
  if world.plan_only then return 0 / 0 end
  local sum, total, n = 0, 0, 0
  local settings = { train = false, prefetch = self.prefetch, owner = self.owner }
  for _, batch in batches do
    world.check_interrupt()
    if evaluation_ends(self, within_averages) then return nil end
    local specs = batch_of.specs(batch, 1)
    local exec = self.session:exec("evaluate", specs, traced(self), settings)
    batch_of.feed(exec, specs, batch, 0)
    exec:run("evaluate")
    local counts, outputs = exec.plan.graph.counts, exec.step_outputs
    local weight = counts and counts.terms * outputs.divisor or 1
    sum, total, n = sum + weight * outputs.loss, total + weight, n + 1
  end
  if n == 0 then errors.invalid("train:evaluate got no batches") end
  if total == 0 then errors.invalid("train:evaluate: every target of its %d batches is ignored", n) end
  return sum / total
end

---Mean loss over batches, forward only; over their targets where the loss counts these (ms.loss.cross_entropy).
---`batches` is an iterator as data:batches gives it. Collective.
---@param batches fun(): integer, table
---@param o { ema: boolean? }? ema: with the averages of the weights
---@return number loss
function Trainer:evaluate(batches, o)
  check_self(self, "evaluate")
  if type(batches) ~= "function" then
    errors.invalid("train:evaluate takes an iterator over batches, as data:batches gives it, not %s",
      options.describe(batches))
  end
  local averages = options.parse("train:evaluate", o, EVALUATE).ema
  local within = self.session.averaged
  if self.policy and not within then self.policy:before_evaluation() end
  local loss = averages and agreement.noting_failure(ema.with, "train:evaluate", self, mean_loss, self, batches, within)
    or not averages and agreement.noting_failure(mean_loss, self, batches, within)
  if not loss and self.policy then self.policy:terminate_now() end
  if not loss then termination.leave() end
  return loss
end

---The plan of the next step of the same shapes; nil before the first step.
---@return moonshard.Plan?
function Trainer:plan() return self.last_plan and self.session.train_exec.plan end

-- ---- looking into the model, and changing it --------------------------------------------------------------------

---A parameter in full, f32. Collective.
---@param name string FQN
---@return moonshard.Tensor
function Trainer:parameter(name) return self.model:parameter(name) end

---The part of a parameter that this rank owns.
---@param name string FQN
---@return moonshard.Tensor
function Trainer:local_parameter(name) return self.model:local_parameter(name) end

---Overwrites a parameter. Collective: every rank gives the same values.
---@param name string FQN
---@param values moonshard.Tensor|table of its shape
function Trainer:set_parameter(name, values) self.model:set_parameter(name, values) end

---The gradient of the last step's mean loss in full, before clipping. Collective.
---@param name string FQN
---@return moonshard.Tensor
function Trainer:gradient(name) return inspect.gradient(self, name) end

---The part of that gradient that this rank owns.
---@param name string FQN
---@return moonshard.Tensor
function Trainer:local_gradient(name) return inspect.gradient(self, name, true) end

---What the optimizer keeps of a parameter, in full. Collective.
---@param name string FQN
---@param what string AdamW: "exp_avg", "exp_avg_sq"; SGD: "momentum"; with the option ema: "ema"; "step": a scalar, how
---  many updates it had: none in steps in which it had no gradient
---@return moonshard.Tensor
function Trainer:optimizer_state(name, what) return inspect.optimizer_state(self, name, what) end

---The part of that state that this rank owns.
---@param name string FQN
---@param what string AdamW: "exp_avg", "exp_avg_sq"; SGD: "momentum"; with the option ema: "ema"
---@return moonshard.Tensor
function Trainer:local_optimizer_state(name, what) return inspect.optimizer_state(self, name, what, true) end

---Changes rules from the next step on; see ms.set_rules. Collective.
---@param rules moonshard.NewRules
---@return moonshard.Plan? plan of the next step, nil before the first
function Trainer:set_rules(rules) return change_rules(self.model, rules) end

return trainer
