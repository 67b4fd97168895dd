-- One step of a trainer: micro-batches, norm and update as phases of one plan, and their metrics.
--
-- A step is four calls into the engine. The counts and bytes that it reports are the engine's counters. Evaluation is
-- also here, because it shares the forward pass.

local agreement = require("moonshard.distributed.agreement")
local batch_of = require("moonshard.engine.batch")
local clipping = require("moonshard.engine.clipping")
local clock = require("moonshard.base.clock")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local loss_forward = require("moonshard.train.loss_forward")
local options = require("moonshard.base.options")
local plan_mode = require("moonshard.recipe.plan_mode")
local plans = require("moonshard.engine.plan")
local profile = require("moonshard.distributed.profile")
local replicate_sync = require("moonshard.shard.replicate_sync")
local router_loss = require("moonshard.nn.router_loss")
local same_data = require("moonshard.train.same_data")
local same_rows = require("moonshard.engine.same_rows")
local termination = require("moonshard.checkpoint.termination")
local teacher = require("moonshard.train.teacher")
local utilisation = require("moonshard.train.utilisation")
local world = require("moonshard.distributed.world")
local C, ffi = engine.C, engine.ffi

local step = {
  ---When gradients of micro-batches are summed over ranks, by the value of the option gradient_sync.
  SYNC = { every = C.MS_SYNC_EVERY, shard = C.MS_SYNC_SHARD, last = C.MS_SYNC_LAST },
}

-- ---- the plan ----------------------------------------------------------------------------------------------------

-- Routers balance their experts in training only: a validation loss is the model's alone.
local function traced(self, trains)
  local forward = self.forward or loss_forward.new(self.loss)
  return function(inputs)
    local loss = forward(self.model, inputs)
    return { loss = trains and router_loss.add(loss) or loss }
  end
end

-- outer: what the step does of an outer step of local SGD, or nil.
local function train_settings(self, outer)
  local accumulates = self.micro_batches > 1
  return {
    sync = accumulates and step.SYNC[self.gradient_sync] or nil,
    reshard_after_backward = self.reshard_after_backward or not accumulates,
    train = true, accumulate = accumulates, clip = self.clip, prefetch = self.prefetch,
    rematerialize = self.rematerialize ~= false, -- also while "auto" is undecided
    memory_limit = self.memory_limit, owner = self.owner, outer = outer,
  }
end

local function schedule_of(self) return self.session.sharding.local_sync end

local function check_trainable(self)
  local params = self.session.sharding.params
  for _, param in ipairs(params) do
    if not param.frozen then return end
  end
  errors.invalid("train:step: all %d parameters of the model are frozen, so there is nothing to train", #params)
end

---Compiles for the shapes of a batch, without running. With local SGD it is the plan of a step that synchronises.
---@param self moonshard.Trainer
---@param batch table<string, moonshard.Array>
---@return moonshard.Plan
function step.compile(self, batch)
  local specs = batch_of.specs(batch, self.micro_batches, false)
  check_trainable(self)
  local outer = schedule_of(self) and replicate_sync.all_parts() or nil
  return self.session:plan("train", specs, traced(self, true), train_settings(self, outer))
end

-- ---- the step ----------------------------------------------------------------------------------------------------

-- GPU memory in use outside the arenas, in bytes; measured once.
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

-- Bytes between nodes by mesh dimension; nil when all ranks are on one node.
local function wire_bytes(exec, before)
  if world.nodes() == 1 then return nil end
  local bytes = {}
  for name, moved in pairs(exec:traffic()) do
    bytes[name] = plans.wire_bytes({ sent = moved.sent - before[name].sent,
      received = moved.received - before[name].received })
  end
  return bytes
end

-- Milliseconds in which kernels waited for collectives, by mesh dimension; nil when kernels are not timed, as on a GPU.
local function waits_ms(exec, before)
  local now, ms = exec:counters(), {}
  if now.kernel_seconds <= before.kernel_seconds then return nil end
  local was = exec.plan.mesh:by_dimension(before.waited_for)
  for name, seconds in pairs(exec.plan.mesh:by_dimension(now.waited_for)) do ms[name] = 1e3 * (seconds - was[name]) end
  return ms
end

-- Milliseconds of the phases in which no kernel ran; nil when kernels are not timed, as on a GPU.
local function exposed_ms(exec, before)
  local now = exec:counters()
  local kernels = now.kernel_seconds - before.kernel_seconds
  if kernels <= 0 then return nil end
  return 1e3 * math.max(0, now.total_seconds - before.total_seconds - kernels)
end

-- Computes the norm, and updates when loss and norm are finite. All ranks must decide the same, or their parameters
-- would be inconsistent.
local function finish_step(self, exec, number, given)
  local status = exec:try("norm")
  if status ~= 0 then return status end
  status = exec:try("update")
  if status == 0 and exec.plan.config.outer_parts >= C.MS_OUTER_APPLY then
    exec.step_inputs.lr = schedule_of(self).outer.lr(number)
    status = exec:try("outer")
  end
  if status == 0 then
    self.steps_done, self.last_plan = number, exec.plan
    if given and given.is_compared then self.rows_compared = number end
    self.uncompared = given and not given.is_compared and given or nil
    -- Without any target the gradient is zero.
    local divisor, synced = exec.step_outputs.divisor, exec.step_outputs.divisor_of_synced
    self.session.gradient_scale = divisor > 0 and 1 / divisor or 0
    self.session.synced_gradient_scale = synced > 0 and 1 / synced or 0
  end
  return status
end

-- places: positions of each micro-batch's rows in the step's global batch.
local function run_phases(self, exec, specs, batch, places, number, given)
  for micro = 0, self.micro_batches - 1 do
    batch_of.feed(exec, specs, batch, micro)
    exec.step_inputs.seed = self.seed * 2 ^ 32 + number
    exec.step_inputs.rows = places[micro + 1]
    world.training = true
    local closes = micro > 0 and micro == self.micro_batches - 1 and exec.plan.config.sync ~= C.MS_SYNC_EVERY
    exec:run(closes and "last" or micro == 0 and "first" or "next")
  end
  local status = agreement.uninterrupted(finish_step, self, exec, number, given)
  if status == C.MS_ENONFINITE then
    local message = ffi.string(C.ms_error_message())
    C.ms_error_clear()
    errors.raise("MS_ENONFINITE", "%s; %s", message, exec:find_nonfinite())
  end
  engine.check(status)
end

-- Raises an error on all ranks unless all have the same number. Returns the ranks' votes on ending the run, and the
-- numbers of their rows (engine/same_rows.lua).
local function compare(self, number, what, format, given)
  return self.session:require_same(number, "of " .. what, function(rank, other)
    return ("%s on rank %d and %s on rank %d; it must be the same on all ranks"):format(format:format(number),
      world.rank, format:match("%%%a"):format(other), rank)
  end, termination.status(), given and given:number() or 0)
end

-- Adds a batch and the graph's eager tensors to what this rank was given, for a comparison with the ranks that compute
-- the same rows.
local function add_batch(given, exec, batch, specs, micro_batches)
  for _, spec in ipairs(specs) do
    given:add(spec.name, spec.dtype, batch[spec.name].data, micro_batches * spec.numel)
  end
  given:add_constants(exec.plan.graph)
end

local function check_rate(lr, number, which)
  if type(lr) == "number" and lr - lr == 0 and lr >= 0 then return end
  errors.invalid("the %slearning rate of step %d is %s; it must be a finite number of at least 0", which, number,
    options.describe(lr))
end

local function learning_rate(self, number, batch, given)
  local lr, sync = self.optimizer.lr(number), schedule_of(self)
  check_rate(lr, number, "")
  if sync then check_rate(sync.outer.lr(number), number, "outer ") end
  -- Between syncs no replica waits for another one, so ranks compare, and agree to end, at the next sync.
  if sync and number > 1 and not replicate_sync.meets(sync, number) then return lr end
  -- Replicas with different learning rates would silently drift apart, and ranks with different micro_batches
  -- would wait for each other.
  local statuses, rows = compare(self, lr, "the learning rate", ("the learning rate of step %d is %%g"):format(number),
    given)
  if self.policy and termination.any_wants(statuses) then self.policy:terminate() end
  if termination.wanted_without_save(statuses) then termination.exit_rank() end
  if number == 1 then compare(self, self.micro_batches, "the micro-batches", "ms.trainer: micro_batches is %d") end
  if not self.has_same_data then same_data.require(self.session, "of the training data", batch) end
  self.has_same_data = true
  if given then
    local from = self.rows_compared and self.rows_compared + 1 or number
    given:check(rows, "train:step", from < number and ("steps %d to %d"):format(from, number) or "step " .. number)
  end
  return lr
end

-- That of Muon. Ranks compare it if it is another one.
local function muon_rate(self, number)
  local muon = self.optimizer:muon()
  if not muon then return 0 end
  local lr = muon.lr(number)
  if not self.optimizer.rules then return lr end
  check_rate(lr, number, "Muon's ")
  compare(self, lr, "the learning rate of Muon", ("the learning rate of Muon in step %d is %%g"):format(number))
  return lr
end

-- The index of this rank among those that train on different rows, from 0.
local function place_of(self) return select(2, self.session:data_ranks()) end

---Runs one step.
---@param self moonshard.Trainer
---@param batch table<string, moonshard.Array> this rank's
---@param places { first: integer, step: integer }[]? positions of each micro-batch's rows in the step's global batch
---@return moonshard.StepMetrics
function step.run(self, batch, places)
  world.check_interrupt()
  check_trainable(self)
  local specs = batch_of.specs(batch, self.micro_batches)
  if not self.forward then loss_forward.check(self.model, batch) end
  places = places or batch_of.places(batch, self.micro_batches, place_of(self))
  if world.plan_only then plan_mode.report(self, batch) end
  local number, sync = self.steps_done + 1, schedule_of(self)
  local outer = sync and replicate_sync.parts(sync, number) or nil
  local exec = self.session:exec("train", specs, traced(self, true), train_settings(self, outer))
  profile.step_begins(number)
  local begin, before, moved_before = clock.now(), exec:counters(), exec:traffic()
  local given = same_rows.new(self.session, self.uncompared)
  if given then add_batch(given, exec, batch, specs, self.micro_batches) end
  local lr = learning_rate(self, number, batch, given)
  local muon_lr = muon_rate(self, number)
  local met_ms = 1e3 * (clock.now() - begin)
  exec.step_inputs.lr, exec.step_inputs.muon_lr, exec.step_inputs.step = lr, muon_lr, number
  exec.step_inputs.micro_batches = self.micro_batches
  run_phases(self, exec, specs, batch, places, number, given)
  local seconds = clock.now() - begin
  self.outside_bytes = self.outside_bytes or outside_bytes(self)
  local exposed = exposed_ms(exec, before)
  local tokens = batch_of.tokens(batch) * self.session:data_ranks()
  C.ms_world_set_progress(world.handle, number, tokens / seconds)
  profile.step_ends(number, begin)
  return {
    loss = exec.step_outputs.loss,
    grad_norm = exec.step_outputs.grad_norm,
    grad_norms = clipping.norms(self.clip, exec.step_outputs),
    lr = lr,
    muon_lr = self.optimizer.rules and self.optimizer:muon() and muon_lr or nil,
    tokens = tokens,
    tokens_per_s = tokens / seconds,
    step_ms = 1e3 * seconds,
    mfu = utilisation.of_step(self, exec.plan, batch, tokens, seconds),
    exposed_ms = exposed and met_ms + exposed,
    waits_ms = waits_ms(exec, before),
    data_ms = batch.data_ms or 0,
    peak_bytes = exec:arena_bytes(),
    outside_bytes = self.outside_bytes,
    comm_bytes = comm_bytes(exec, before),
    wire_bytes = wire_bytes(exec, moved_before),
  }
end

-- ---- evaluation --------------------------------------------------------------------------------------------------

-- SIGTERM can stop a long evaluation. Nothing is saved while the averages replace the weights.
local function evaluation_ends(self, within_averages)
  local policy, around = self.policy, self.session
  if within_averages or policy and policy.last then return false end
  -- If nothing of this trainer is saved, ranks outside it can still save.
  if not policy and (not termination.exit_rank or world.size == #around:ranks()) then return false end
  local statuses = around:gather_numbers(termination.status(), "of whether to evaluate on")
  return policy and termination.any_wants(statuses) or termination.wanted_without_save(statuses)
end

---Mean loss over batches.
---@param self moonshard.Trainer
---@param batches fun(): integer, table
---@param within_averages boolean? the averages already replace the weights
---@return number? loss nil when the run should end instead
function step.mean_loss(self, batches, within_averages)
  -- When only planning, evaluation does nothing and the recipe goes on to its first step.
  if world.plan_only then return 0 / 0 end
  local sum, total, n, given = 0, 0, 0, same_rows.new(self.session)
  local settings = { train = false, prefetch = self.prefetch, owner = self.owner }
  for _, batch in batches do
    world.check_interrupt()
    if evaluation_ends(self, within_averages) then return nil end
    batch = teacher.with_result(self, batch, 1)
    local specs = batch_of.specs(batch, 1)
    if not self.forward then loss_forward.check(self.model, batch) end
    local exec = self.session:exec("evaluate", specs, traced(self, false), settings)
    if not self.evaluates_same_data then same_data.require(self.session, "of the validation data", batch) end
    self.evaluates_same_data = true
    if given then add_batch(given, exec, batch, specs, 1) end
    batch_of.feed(exec, specs, batch, 0)
    exec:run("evaluate")
    local counts, outputs = exec.plan.graph.counts, exec.step_outputs
    local weight = counts and counts.terms * outputs.divisor or 1
    sum, total, n = sum + weight * outputs.loss, total + weight, n + 1
  end
  if n == 0 then errors.invalid("train:evaluate got no batches") end
  if given then given:compare("train:evaluate", n == 1 and "its batch" or ("one of its %d batches"):format(n)) end
  if total == 0 then
    errors.invalid("train:evaluate: every target of its %d batches is ignored: give it more batches or longer rows, or "
      .. "ms.data.masked a larger fraction", n)
  end
  return sum / total
end

return step
