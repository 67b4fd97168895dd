-- One step of a trainer: micro-batches, norm and update as phases of one plan, and their metrics.
--
-- A step is four calls into the engine. The counts and bytes that it reports are the engine's counters. Evaluation is
-- also here, because it shares the forward pass.

local agreement = require("moonshard.distributed.agreement")
local attention_logits = require("moonshard.tensor.attention_logits")
local batch_of = require("moonshard.engine.batch")
local clipping = require("moonshard.engine.clipping")
local clock = require("moonshard.base.clock")
local context = require("moonshard.base.context")
local counted_rows = require("moonshard.train.counted_rows")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local loss_forward = require("moonshard.train.loss_forward")
local mean_of_targets = require("moonshard.nn.mean_of_targets")
local meeting = require("moonshard.train.meeting")
local options = require("moonshard.base.checks.options")
local padding = require("moonshard.train.padding")
local plan_mode = require("moonshard.recipe.plan_mode")
local plans = require("moonshard.engine.plan")
local profile = require("moonshard.distributed.profile")
local qk_clip = require("moonshard.engine.trace.qk_clip")
local replicate_sync = require("moonshard.shard.policies.replicate_sync")
local router_loss = require("moonshard.nn.router_loss")
local run_summary = require("moonshard.metrics.run_summary")
local same_options = require("moonshard.train.same_options")
local same_rows = require("moonshard.engine.agreement.same_rows")
local termination = require("moonshard.checkpoint.termination")
local teacher = require("moonshard.train.teacher")
local tensor = require("moonshard.tensor.class")
local utilisation = require("moonshard.train.utilisation")
local world = require("moonshard.distributed.world")
local C, ffi = engine.C, engine.ffi

local step = {
  ---When gradients of micro-batches are summed over ranks, by the value of the option gradient_sync.
  SYNC = { every = C.MS_SYNC_EVERY, shard = C.MS_SYNC_SHARD, last = C.MS_SYNC_LAST },
}

-- ---- the plan ----------------------------------------------------------------------------------------------------

local FORWARD = "forward must return the loss, a tensor, not %s: forward = function(net, b) return loss(net(b.tokens), "
  .. "b.targets) end"
local LOSS = "the loss must return a tensor, not %s: loss = function(y, targets) return ms.loss.mse(y, targets) end"

-- A recipe's own function, which it may have written with the batch alone, or without a return.
local function checked(call, format)
  return function(...)
    local loss, more = call(...)
    if not tensor.is(loss) then errors.invalid("train:step: " .. format, options.describe(loss)) end
    if more ~= nil then
      errors.invalid("train:step: what forward returns after the loss is not computed: return the loss alone, and "
        .. "call the model for its other results")
    end
    return loss
  end
end

-- Routers balance their experts in training only: a validation loss is the model's alone.
local function traced(self, trains)
  local forward = self.forward and checked(self.forward, FORWARD) or checked(loss_forward.new(self.loss), LOSS)
  return function(inputs)
    if trains and self.untrained then context.trace:leave_untrained(self.untrained) end
    if trains and self.clip.qk then attention_logits.begin(context.trace) end
    local loss = forward(self.model, inputs)
    if trains then
      return { loss = router_loss.add(loss), outputs = self.clip.qk and qk_clip.outputs(context.trace) or nil }
    end
    return { loss = loss, outputs = mean_of_targets.outputs(loss) }
  end
end

-- outer: what the step does of an outer step of local SGD, or nil.
local function train_settings(self, outer)
  local accumulates = self.micro_batches > 1
  return {
    sync = accumulates and step.SYNC[self.gradient_sync] or nil,
    reshard_after_backward = self.reshard_after_backward or not accumulates,
    train = true, accumulate = accumulates, micro_batches = self.micro_batches, clip = self.clip,
    prefetch = self.prefetch,
    rematerialize = self.rematerialize ~= false, -- also while "auto" is undecided
    memory_limit = self.memory_limit, owner = self.owner, outer = outer,
  }
end

-- Raises that what a trainer traced has changed since.
local function refuse_change(self, who)
  return function(difference, places)
    errors.invalid("%s: the forward was traced once for these shapes, and would compute something else now: %s%s. What "
      .. "it reads outside its batch is a constant: put a number that changes into the batch, batch.alpha = 0.5, and "
      .. "read b.alpha; for another computation make another ms.trainer of the same model and optimizer", who,
      places and places .. ": " or "", difference)
  end
end

-- What Session:exec needs, too, to notice that the recipe's function has changed.
local function watched(self, who, settings)
  settings.who, settings.reads, settings.changed = who, self.forward or self.loss, refuse_change(self, who)
  return settings
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

-- Whether the step ends with the outer SGD.
local function applies(exec) return exec.plan.config.outer_parts >= C.MS_OUTER_APPLY end

-- Computes the norm, and updates when loss and norm are finite. All ranks must decide the same, or their parameters
-- would be inconsistent.
local function finish_step(self, exec, number, given)
  local status = exec:try("norm")
  if status ~= 0 then return status end
  status = exec:try("update")
  if status == 0 and applies(exec) then
    exec.step_inputs.lr = meeting.outer_rate(self, self.session.updates + 1)
    status = exec:try("outer")
  end
  if status == 0 then
    self.steps_done, self.last_plan = number, exec.plan
    self.session.updates = self.session.updates + 1
    if not self.policy then self.session.unsaved_updates = (self.session.unsaved_updates or 0) + 1 end
    if given and given.is_compared then self.rows_compared = number end
    self.uncompared = given and not given.is_compared and given or nil
    -- Without any target the gradient is zero.
    local divisor, synced = exec.step_outputs.divisor, exec.step_outputs.divisor_of_synced
    self.session.gradient_scale = divisor > 0 and 1 / divisor or 0
    self.session.synced_gradient_scale = synced > 0 and 1 / synced or 0
  end
  return status
end

local WITHOUT_TARGETS = "all targets of %s are ignored on %s, so the mean of ms.loss.cross_entropy is NaN there, as in "
  .. "PyTorch, and so is the loss that is made of it: return ms.loss.cross_entropy(logits, targets) itself, which "
  .. "counts targets; or give every micro-batch of each rank a target, or your own loss a divisor that is never 0"

-- Raises where a value that is not finite comes from: each micro-batch runs again, on all ranks alike.
local function report_nonfinite(self, exec, specs, batch, places, message)
  local found
  for micro = 0, self.micro_batches - 1 do
    batch_of.feed(exec, specs, batch, micro)
    batch_of.place(exec.step_inputs, places[micro + 1])
    found = exec:find_nonfinite()
    local is_last, nothing = micro == self.micro_batches - 1, found:find("^every ")
    if not nothing and found:find(mean_of_targets.SCOPE, 1, true) then
      found = WITHOUT_TARGETS:format(self.micro_batches > 1 and ("micro-batch %d of %d"):format(micro + 1,
        self.micro_batches) or "the batch", world.rank_name(tonumber(found:match("%(rank (%d+)%)"))))
    end
    if is_last or not nothing then errors.raise("MS_ENONFINITE", "%s; %s", message, found) end
  end
end

-- places: positions of each micro-batch's rows in the step's global batch.
local function run_phases(self, exec, specs, batch, places, number, given)
  for micro = 0, self.micro_batches - 1 do
    batch_of.feed(exec, specs, batch, micro)
    exec:draw_by(self.seed, number)
    batch_of.place(exec.step_inputs, places[micro + 1])
    world.training = true
    local closes = micro > 0 and micro == self.micro_batches - 1 and exec.plan.config.sync ~= C.MS_SYNC_EVERY
    exec:run(closes and "last" or micro == 0 and "first" or "next")
  end
  local status = agreement.uninterrupted(finish_step, self, exec, number, given)
  if status == C.MS_ENONFINITE then
    local message = ffi.string(C.ms_error_message())
    C.ms_error_clear()
    report_nonfinite(self, exec, specs, batch, places, message)
  end
  engine.check(status)
end

-- Adds a batch to what this rank was given, for a comparison with the ranks that compute the same rows.
local function add_batch(given, batch, specs, micro_batches)
  for _, spec in ipairs(specs) do
    given:add(spec.name, spec.dtype, batch_of.data(batch, spec), (spec.is_whole and 1 or micro_batches) * spec.numel)
  end
end

-- Adds which rows of the global batch a rank has: dropout's masks depend on them.
local function add_places(given, places)
  local list = {}
  for i, place in ipairs(places) do list[i] = ("%.0f %.0f"):format(place.first, place.step) end
  local text = table.concat(list, " ")
  given:add("first_row or row_step", "u8", text, #text)
end

-- Adds how many rows of a batch an evaluation counts.
local function add_counted(given, batch)
  local text = tostring(batch.counted_rows)
  given:add("counted_rows", "u8", text, #text)
end

-- The exec of a step, its learning rates, and the seconds for which ranks met. Collective.
local function begin(self, number, batch, specs, given)
  local sync, micro_batches = schedule_of(self), self.micro_batches
  local update = self.session.updates + 1 -- of the model, by any of its trainers: syncs are the model's
  local settings = train_settings(self, sync and replicate_sync.parts(sync, update) or nil)
  local known = self.session:bound_exec("train", specs, settings)
  if given then add_batch(given, batch, specs, micro_batches) end
  local rates, began = meeting.rates(self, number), clock.now()
  -- Between syncs no replica waits for another one, so ranks compare, and agree to end, at the next sync; or where they
  -- compile, which needs all of them.
  local meets = not sync or number == 1 or replicate_sync.meets(sync, update) or not known
  if meets then
    local facts = same_options.facts(self) -- before the step, which follows from them
    if sync then
      local shapes = not known and self.session:new_shapes("train", specs, settings) or ""
      table.insert(facts, 1, { "the shape of the batch", shapes == "" and "as before" or "new: " .. shapes,
        "between syncs of replicate_sync replicas do not wait for each other, so all of them must have a new shape in "
          .. "the same step: pad batches to a few lengths" })
    end
    facts[#facts + 1] = { "the step", number }
    local run = meeting.described(self, "train:step", facts, batch, specs, micro_batches)
    meeting.before_step(self, number, batch, run, rates, given, known)
  end
  local seconds = clock.now() - began
  settings.agreed = true
  local exec = self.session:exec("train", specs, traced(self, true), watched(self, "train:step", settings))
  -- Compiling takes long enough for a signal to come meanwhile.
  if not known and meets then
    meeting.end_if_wanted(self, self.session:gather_numbers(termination.status(), "of the learning rate"))
  end
  return exec, rates, seconds
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
  local number, given = self.steps_done + 1, same_rows.new(self.session, self.uncompared)
  if given then add_places(given, places) end
  local exec, rates, met = begin(self, number, batch, specs, given)
  if applies(exec) then meeting.outer_rate(self, self.session.updates + 1) end -- checks it before anything runs
  counted_rows.check_trains(batch, exec.plan.graph.counts, self.micro_batches)
  if not self.introduced then run_summary.before(self, exec.plan) end
  self.introduced = true
  profile.step_begins(number)
  local began, before, moved_before = clock.now(), exec:counters(), exec:traffic()
  exec.step_inputs.lr, exec.step_inputs.muon_lr, exec.step_inputs.step = rates.lr, rates.muon, self.session.updates + 1
  exec.step_inputs.micro_batches = self.micro_batches
  run_phases(self, exec, specs, batch, places, number, given)
  self.last_lr = rates.lr
  local seconds = met + clock.now() - began
  self.outside_bytes = self.outside_bytes or outside_bytes(self)
  local exposed = exposed_ms(exec, before)
  local computed = batch_of.tokens(batch) * self.session:data_ranks()
  local tokens = self.given_tokens or computed
  C.ms_world_set_progress(world.handle, number, tokens / seconds)
  profile.step_ends(number, began)
  return {
    loss = exec.step_outputs.loss,
    grad_norm = exec.step_outputs.grad_norm,
    grad_norms = clipping.norms(self.clip, exec.step_outputs),
    max_logit = self.clip.qk and exec.step_outputs.max_logit or nil,
    lr = rates.lr,
    muon_lr = self.optimizer.rules and self.optimizer:chosen_part() and rates.muon or nil,
    tokens = tokens,
    tokens_per_s = tokens / seconds,
    samples_per_s = batch_of.samples(batch, self.session:data_ranks() / seconds),
    step_ms = 1e3 * seconds,
    mfu = utilisation.of_step(self, exec.plan, batch, computed, seconds),
    exposed_ms = exposed and 1e3 * met + exposed,
    waits_ms = waits_ms(exec, before),
    data_ms = batch.data_ms or 0,
    padding = self.padding,
    peak_bytes = exec:arena_bytes(),
    plan_bytes = self.session:plan_bytes(),
    outside_bytes = self.outside_bytes,
    comm_bytes = comm_bytes(exec, before),
    wire_bytes = wire_bytes(exec, moved_before),
  }
end

-- ---- evaluation --------------------------------------------------------------------------------------------------

-- SIGTERM can stop a long evaluation: not where nothing of this trainer is saved, because ranks outside it can still
-- save, nor while the averages replace the weights.
local function evaluation_ends(self, statuses, within_averages)
  local policy, around = self.policy, self.session
  if within_averages or policy and policy.last then return false end
  if not policy and (not termination.exit_rank or world.size == #around:ranks()) then return false end
  return policy and termination.any_wants(statuses) or termination.wanted_without_save(statuses)
end

-- Refuses a loss that is NaN because it is made of a mean without a target. All ranks have the same loss. Collective if
-- it is NaN.
local function check_targets(self, exec)
  local loss, name = exec.step_outputs.loss, mean_of_targets.SCOPE
  if loss == loss or not exec.plan.graph.outputs[name] then return end
  for place, without in ipairs(self.session:gather_numbers(exec:output(name, "f32")[0], "of means without targets")) do
    if without ~= 0 then
      errors.raise("MS_ENONFINITE", "train:evaluate: " .. WITHOUT_TARGETS, "a batch, or of a row where rows that are "
        .. "padding run alone,", world.rank_name(self.session:ranks()[place]))
    end
  end
end

-- Adds what an exec found to a mean over targets or, of a loss that does not count them, over `samples` of each rank.
-- The divisor sums over all ranks that divide rows or positions, so a sample weighs the same alone and in a batch.
local function add_to(mean, exec, samples)
  local counts, outputs = exec.plan.graph.counts, exec.step_outputs
  local terms = counts and counts.terms or 1
  local weight = terms * outputs.divisor * ((not counts or counts.by_rank) and samples or 1)
  mean.sum, mean.total = mean.sum + weight * outputs.loss, mean.total + weight
end

local function evaluate_batch(self, batch, specs, settings, given, mean)
  local traced_here = traced(self, false)
  local exec = self.session:exec("evaluate", specs, traced_here, settings)
  if given then
    add_batch(given, batch, specs, 1)
    add_counted(given, batch)
  end
  if counted_rows.runs_by_sample(batch, exec.plan.graph.counts) then
    counted_rows.run(batch, traced_here, function(of_sample, weighed)
      return self.session:exec("evaluate sample", of_sample, weighed, settings)
    end, function(of_sample)
      check_targets(self, of_sample)
      add_to(mean, of_sample, 1)
    end)
    return
  end
  batch_of.feed(exec, specs, batch, 0)
  exec:run("evaluate")
  check_targets(self, exec)
  add_to(mean, exec, counted_rows.samples(batch))
end

---Mean loss over batches: over their targets, or over their samples if the loss does not count targets.
---@param self moonshard.Trainer
---@param batches fun(): integer, table
---@param within_averages boolean? the averages already replace the weights
---@return number? loss nil when the run should end instead
function step.mean_loss(self, batches, within_averages)
  -- When only planning, evaluation does nothing and the recipe goes on to its first step.
  if world.plan_only then return 0 / 0 end
  local mean, n, given = { sum = 0, total = 0 }, 0, same_rows.new(self.session)
  local settings = watched(self, "train:evaluate", {
    train = false, prefetch = self.prefetch, owner = self.owner, agreed = true,
  })
  for _, batch in batches do
    world.check_interrupt()
    batch, n = teacher.with_result(self, padding.of_all(self, batch), 1), n + 1
    local specs = batch_of.specs(batch, 1)
    if not self.forward then loss_forward.check(self.model, batch) end
    local known = self.session:bound_exec("evaluate", specs, settings)
    local statuses = meeting.before_evaluation(self, n, specs, batch, known)
    if evaluation_ends(self, statuses, within_averages) then return nil end
    evaluate_batch(self, batch, specs, settings, given, mean)
  end
  meeting.before_evaluation(self, ("none after the %d before"):format(n), {}, {})
  if n == 0 then errors.invalid("train:evaluate got no batches") end
  if given then given:compare("train:evaluate", n == 1 and "its batch" or ("one of its %d batches"):format(n)) end
  if mean.total == 0 then
    errors.invalid("train:evaluate: every target of its %d batches is ignored: give it more batches or longer rows, or "
      .. "ms.data.masked a larger fraction", n)
  end
  return mean.sum / mean.total
end

return step
