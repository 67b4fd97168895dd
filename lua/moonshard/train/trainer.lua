-- ms.trainer: trains a model. Checks the options; the methods of a trainer step, evaluate and inspect the model.
--
-- The trainer traces and compiles at the first step, when the shapes are known (step.lua).

local arguments = require("moonshard.base.checks.arguments")
local agreement = require("moonshard.distributed.agreement")
local args = require("moonshard.recipe.args")
local automatic = require("moonshard.shard.policies.automatic")
local byte_size = require("moonshard.base.text.byte_size")
local change_rules = require("moonshard.train.change_rules")
local clipping = require("moonshard.engine.clipping")
local context = require("moonshard.base.context")
local ema = require("moonshard.engine.ema")
local errors = require("moonshard.base.error")
local frozen = require("moonshard.train.frozen")
local inspect = require("moonshard.engine.inspect")
local keep_results = require("moonshard.train.keep_results")
local log = require("moonshard.metrics.log")
local model_config = require("moonshard.models.config")
local nearest = require("moonshard.base.names.nearest")
local optimizer_rules = require("moonshard.train.optimizer_rules")
local optimizers = require("moonshard.engine.optimizers")
local options = require("moonshard.base.checks.options")
local padded_vocabulary = require("moonshard.train.padded_vocabulary")
local padding = require("moonshard.train.padding")
local reference = require("moonshard.shard.reference")
local reused_memory = require("moonshard.engine.reused_memory")
local rule_lists = require("moonshard.shard.rules")
local same_options = require("moonshard.train.same_options")
local sealed = require("moonshard.base.checks.sealed")
local session = require("moonshard.engine.session")
local step = require("moonshard.train.step")
local taken = require("moonshard.data.taken")
local teacher = require("moonshard.train.teacher")
local termination = require("moonshard.checkpoint.termination")
local tree = require("moonshard.nn.tree")
local utilisation = require("moonshard.train.utilisation")
local world = require("moonshard.distributed.world")

---@class moonshard.Trainer
---@field model moonshard.Module
---@field optimizer moonshard.Optimizer|moonshard.OptimizerRules
---@field steps_done integer can be assigned, by all ranks, to go on with the schedule of another trainer
---@field sources table<string, true> of the data that steps took batches of
---@field warned table<string, true> warnings that were given, of what checkpoints do not keep
---@field resumed_after integer? step after which it resumed without a position of data, until its next step
local Trainer = { __name = "a trainer" }
Trainer.__index = Trainer

local RULES = "train:set_rules { %s = ... } changes it between steps"
local ANOTHER = "make another ms.trainer of the same model and optimizer with it, which goes on with their state, and "
  .. "give it the number of steps: other.steps_done = train.steps_done"

local function check_steps(value)
  if type(value) == "number" and value % 1 == 0 and value >= 0 and value < 2 ^ 32 then return nil end
  return "must be a whole number of at least 0 and below 2^32, not " .. options.describe(value)
end

sealed.class(Trainer, {
  what = Trainer.__name,
  answers = {
    lr = RULES:format("lr"), groups = RULES:format("groups"), weight_decay = RULES:format("weight_decay"),
    prefetch = RULES:format("prefetch"), reshard_after_forward = RULES:format("reshard_after_forward"),
    optimizer = "train:set_rules { lr = ..., groups = ..., weight_decay = ... } changes its settings between steps",
    model = "a trainer keeps its model: make another ms.trainer for another one",
    clip_grad_norm = ANOTHER, clip_grad_value = ANOTHER, qk_clip = ANOTHER, micro_batches = ANOTHER, loss = ANOTHER,
    forward = ANOTHER, teacher = ANOTHER, gradient_sync = ANOTHER, reshard_after_backward = ANOTHER, pad = ANOTHER,
    freeze = ANOTHER, rematerialize = ANOTHER, memory_limit = ANOTHER, plan_memory = ANOTHER, seed = ANOTHER,
    ema = "all trainers of a model have the averages with which the first was made: give ema to ms.trainer",
    checkpoint = "give it to ms.trainer; ms.checkpoint.save(train, folder) saves by hand",
  },
  open = { steps_done = check_steps },
  otherwise = "its settings are read when ms.trainer makes it; keep values of your own in variables",
  tables = { qk_clip = 1, clip_grad_norm = 2, pad = 1, freeze = 2, ema = 1, checkpoint = 1 },
})

---@class moonshard.StepMetrics
---@field loss number mean over micro-batches and ranks, or over their targets; with replicate_sync over the ranks of
---  this replica
---@field grad_norm number norm of the mean gradient, before clipping; with replicate_sync of this replica's
---@field grad_norms number[]? of each rule of clip_grad_norm, in their order, if it is a list of rules
---@field max_logit number? with the option qk_clip: the largest attention score, of all heads, ranks and micro-batches
---@field lr number
---@field muon_lr number? that of the parameters with Muon, if others have another optimizer
---@field tokens integer targets of all ranks in this step, ignored ones too, without those that `pad` added
---@field tokens_per_s number
---@field samples_per_s number? rows of all ranks per second, where a target is no token: a class, numbers
---@field step_ms number
---@field mfu number? 0 to 1; nil unless `--cluster` of the command line describes the devices' peak rate
---@field exposed_ms number? of the step without a running kernel: waiting for others, copying; nil on a GPU: see traces
---@field waits_ms table<string, number>? part of exposed_ms: kernels waited for collectives, by mesh dimension; nil
---  on a GPU
---@field data_ms number
---@field padding number? with the option pad: share of the padded fields' elements, on all ranks, that it added
---@field peak_bytes number bytes of this rank's arenas
---@field plan_bytes number bytes of the plans and graphs that are kept, outside the arenas; the largest rank's
---@field outside_bytes number? on a GPU, bytes outside the arenas: CUDA's context and the communicators
---@field comm_bytes table<string, number> by mesh dimension, this step
---@field wire_bytes table<string, number>? the larger of those sent to and received from other nodes; nil on one node
---@field save_ms number? time that a save after this step blocked training
---@field snapshot_bytes number? size of the copy for an asynchronous save, outside the arenas

---@class moonshard.TrainerOptions
---@field model moonshard.Module
---@field optimizer moonshard.Optimizer|table of ms.optim; or rules over parameters, at most one Muon and one other:
---  { { re[[\.fc\d\.weight$]], ms.optim.muon { ... } }, { re".", ms.optim.adamw { ... } } }
---@field loss? fun(result: moonshard.Tensor, targets: moonshard.Tensor): moonshard.Tensor
---@field forward? fun(model: moonshard.Module, batch: table): moonshard.Tensor instead of loss(model(tokens), targets)
---@field teacher? fun(model: moonshard.Module, batch: table): moonshard.Tensor with ema and forward: computed before
---  each step with the averages as the weights; batch.teacher is its result, a constant for forward
---@field clip_grad_norm? number|table clip by the global norm, as torch.nn.utils.clip_grad_norm_; 0 (the default): no
---  clipping (PyTorch's function would make gradients 0). Or rules over parameters, { { pattern, limit }, ... }: the
---  parameters of each rule are clipped by their own norm, and those that no rule matches are not. Norms are those of
---  the whole mesh, in one all-reduce; the order of their sums follows the mesh, the units and their layout
---@field clip_grad_value? number clip each element of the mean gradient to -value to value, after the norms, as
---  torch.nn.utils.clip_grad_value_; 0 (the default): no clipping
---@field qk_clip? number|table QK-clip (Kimi K2): the attention score above which a head's queries and keys are scaled
---  after a step; or { threshold =, alpha = 0.5 }: queries by (threshold / score)^alpha, keys by the rest
---@field micro_batches? integer divide the rows of a batch into this many and add their gradients; default 1
---@field prefetch? integer units gathered ahead; default 1
---@field gradient_sync? string when to sum gradients over ranks: "every" micro-batch (default); "last": only in the
---  last one (fewer reductions, but unsharded gradients stay in memory); "shard": over shards in every micro-batch,
---  over replicas in the last
---@field reshard_after_backward? boolean false keeps gathered weights from one micro-batch to the next; default true
---@field pad? table<string, number> fields of batches whose sizes after the rows can differ between ranks, and the
---  number with which each is filled up to the largest of all ranks: { tokens = 0, targets = -100 }
---@field freeze? table rules over parameters, as of fully_shard: gradients pass through them, but this trainer's steps
---  leave them and their optimizer's state as they are; another trainer of the model trains them
---@field seed? integer seed of dropout
---@field rematerialize? boolean|"auto" true (default): backward computes results of activations and norms again, within
---  the kernels of their gradients; false: they are kept; "auto": kept if the plan of the first batch then fits
---  memory_limit
---@field memory_limit? number limit for the arenas of one rank, bytes; a plan that needs more is refused before use. On
---  the CPU it includes plans that are kept
---@field plan_memory? number|string limit for the plans and graphs that are kept, one of each for every set of shapes,
---  bytes; those that were used longest ago make room for new ones; default 256 MiB
---@field ema? number|moonshard.EmaOptions decay of an exponential moving average of the weights, which is kept, saved
---  and resumed with them: a = p after the first step, then a = decay a + (1 - decay) p (torch.optim.swa_utils'
---  AveragedModel with get_ema_multi_avg_fn); 0 (default): none
---@field checkpoint? moonshard.CheckpointOptions when to save, and what to resume from

---Trains a model: compiles its step for the shapes of the first batch, and runs it.
---@param o moonshard.TrainerOptions
---@return moonshard.Trainer
local function trainer(o)
  local given -- the recipe's own table
  given, o = o, options.parse("ms.trainer", o, {
    model = { "table", required = true },
    optimizer = { "table", required = true, example = "optimizer = ms.optim.adamw { lr = 1e-3 }" },
    loss = { "function", example = "loss = ms.loss.mse" },
    forward = { "function" }, teacher = { "function" },
    clip_grad_norm = { "number|table", default = 0 }, clip_grad_value = { "number", default = 0 },
    qk_clip = { "number|table" }, micro_batches = { "positive", default = 1 },
    prefetch = { "integer" }, gradient_sync = { "string", default = "every" },
    reshard_after_backward = { "boolean", default = true }, pad = { "table" }, freeze = { "table" },
    seed = { "seed", default = 0 }, ema = { "number|table|boolean" }, memory_limit = { "number|string" },
    checkpoint = { "table", example = 'checkpoint = { dir = "runs/a" }' },
    plan_memory = { "number|string" }, rematerialize = { "boolean|string", default = true },
  })
  if not o.loss and not o.forward then
    errors.invalid("ms.trainer: give loss (a function of the model's result and batch.targets) or forward "
      .. "(a function of model and batch that returns the loss)")
  end
  if o.loss and o.forward then
    errors.invalid("ms.trainer: give loss or forward, not both: forward returns the loss itself")
  end
  if rule_lists.is_list(o.optimizer) then o.optimizer = optimizer_rules.new(o.optimizer) end
  if not o.optimizer.configure then
    errors.invalid("ms.trainer: optimizer must be made by ms.optim.%s, or be rules with them",
      table.concat(optimizers.kinds, " or ms.optim."))
  end
  if not step.SYNC[o.gradient_sync] then
    errors.raise("MS_ENAME", "ms.trainer: gradient_sync %s: %s", o.gradient_sync,
      nearest.advice(o.gradient_sync, step.SYNC))
  end
  o.padded_fields = padding.read(o.pad)
  o.clip = clipping.read(o.clip_grad_norm, o.clip_grad_value, o.qk_clip)
  for _, name in ipairs({ "memory_limit", "plan_memory" }) do
    if o[name] then
      o[name] = byte_size.read(o[name]) or errors.invalid("ms.trainer: %s must be a size like \"2GiB\" or a number of "
        .. "bytes above 0, not %s", name, options.describe(o[name]))
    end
  end
  o.freeze = frozen.read(o.freeze)
  keep_results.check(o)
  if o.prefetch and o.prefetch < 0 then
    errors.invalid("ms.trainer: prefetch must be at least 0 units, not %d", o.prefetch)
  end
  if not tree.is_module(o.model) then
    errors.invalid("ms.trainer: model must be a module, not %s", options.describe(o.model))
  end
  o.ema = ema.parse(o.ema)
  teacher.check(o)
  args.check_taken()
  o.session = session.of(o.model, { optimizer = o.optimizer, ema = o.ema })
  o.optimizer = o.session.optimizer -- of equal rules, those of the model's first trainer
  o.session.sharding:report_warnings(clipping.decide(o.clip, o.session.sharding))
  local untrained, warnings = frozen.decide(o.freeze, o.session.sharding)
  o.untrained = untrained
  o.session.sharding:report_warnings(warnings)
  o.session.sharding:report_warnings(padded_vocabulary.warnings(o.optimizer, o.session.sharding))
  utilisation.check(o.session.sharding.mesh.device)
  o.steps_done, o.buffers, o.sources, o.warned = 0, reused_memory.new(), {}, {}
  if reference.active then reference.replace_settings(o) end
  o.session.memory_limit, o.session.plan_memory = o.memory_limit, o.plan_memory
  local self = setmetatable(o, Trainer)
  log.number(self)
  if self.checkpoint then
    self.policy = require("moonshard.checkpoint.policy").new(self, self.checkpoint, same_options.require)
  end
  self.owner = self.session:new_owner() -- last: what failed until here leaves the model without a trainer
  return sealed.seal(self, given)
end

-- Decides what is "auto", once shapes are known. The reference of `moonshard check` keeps the defaults.
local function decide_auto(self, batch)
  local waiting = self.session.sharding.auto and not automatic.off and not reference.active
  if waiting then context.decide_auto(self, batch) end
end

local function decide_both(self, batch)
  decide_auto(self, batch)
  if self.rematerialize ~= "auto" or automatic.off then return end
  keep_results.decide(self, function() return step.compile(self, batch) end)
end

-- The search that decides compiles steps, too.
local function decide(self, batch)
  if self.deciding then return end
  self.deciding = true
  local ok, raised = pcall(decide_both, self, batch)
  self.deciding = nil
  if not ok then error(raised, 0) end
end

---Compiles for the shapes of a batch, without running.
---@param batch table<string, moonshard.Array>
---@return moonshard.Plan
function Trainer:compile(batch)
  if self.teacher and not batch.teacher then batch = teacher.with_result(self, batch, self.micro_batches) end
  decide(self, batch)
  return step.compile(self, batch)
end

function Trainer:__tostring()
  local planned = self.optimizer:planned_lr(self.steps_done + 1)
  return ("trainer of %s, %s parameters, mesh %s: %s, lr %s, %d step%s done"):format(getmetatable(self.model).name,
    tree.thousands(tree.count(self.model)), self.session.sharding.mesh:label(),
    self.optimizer.title or self.optimizer.kind, planned and ("%g"):format(planned) or "by the recipe's function",
    self.steps_done, self.steps_done == 1 and "" or "s")
end

local function check_self(self, name)
  if getmetatable(self) == Trainer then return end
  errors.invalid("train.%s: call methods with a colon: train:%s(...)", name, name)
end

-- Settings are read once, also those that are tables of the recipe's.
local function check_settings(self, who)
  self.session.refuse_within_data()
  sealed.check(who, self)
  sealed.check(who, self.session.sharding.mesh)
  model_config.check_all(who)
  for _, part in ipairs({ self.optimizer, unpack(self.optimizer.parts or {}) }) do sealed.check(who, part) end
end

-- In the first step after a resume without a position of data: of a loader that begins again.
local function warn_of_data(self, batch)
  local after, number = self.resumed_after, type(batch) == "table" and rawget(batch, "batch_number")
  self.resumed_after = nil
  if not after or type(number) ~= "number" or number > after or world.rank ~= 0 then return end
  io.stderr:write(("moonshard: warning: the run goes on after step %d, but its data begins with batch %.0f again: give "
    .. "checkpoint = { data = data }, or ms.checkpoint.save and load { data = data }, to keep its position\n"):format(
    after, number))
end

-- Once for a model: in its first step or evaluation, unless a trainer with checkpoints has done so.
local function compare_options(self)
  if self.session.options_compared or world.plan_only or reference.active then return end
  same_options.require(self, require("moonshard.checkpoint.policy_options").facts())
end

---One optimizer step on this rank's batch. Collective.
---@param batch table<string, moonshard.Array> e.g. tokens and targets, i32 [batch, seq]
---@return moonshard.StepMetrics
function Trainer:step(batch)
  check_self(self, "step")
  agreement.noting_failure(check_settings, self, "train:step")
  agreement.noting_failure(compare_options, self)
  local given = batch
  batch = agreement.noting_failure(padding.of_all, self, batch)
  batch = agreement.noting_failure(teacher.with_result, self, batch, self.micro_batches)
  if not world.plan_only then agreement.noting_failure(decide, self, batch) end -- else Trainer:compile decides
  if context.stepper then return context.stepper:step(self, batch, step.run) end
  if self.policy then self.policy:before_step() end
  agreement.noting_failure(taken.by_step, given)
  warn_of_data(self, batch)
  local source = type(batch) == "table" and rawget(batch, "source")
  if type(source) == "string" then self.sources[source] = true end
  local metrics = agreement.noting_failure(step.run, self, batch)
  log.note(metrics, self)
  if context.on_step then context.on_step(self, metrics) end
  if self.policy then self.policy:after_step(metrics) end
  return metrics
end

---Calls a function while the averages (option `ema`) replace the weights: evaluation, `train:parameter`, `ms.generate`,
---`ms.huggingface.save` and the like use the averages. Training and saving are not possible during the call.
---Assignments to parameters change the averages. Collective.
---@param call function
---@param ... any its arguments
---@return ... its results
function Trainer:with_ema(call, ...) return ema.with_averages("train:with_ema", self, call, ...) end

local EVALUATE = { ema = { "boolean", default = false } }

---Mean loss over batches, forward only; the mean over their targets if the loss counts targets (ms.loss.cross_entropy),
---else over their rows.
---`batches` is an iterator such as data:batches returns. Collective.
---@param batches fun(): integer, table
---@param o { ema: boolean? }? ema: use the averages of the weights
---@return number loss
function Trainer:evaluate(batches, o)
  check_self(self, "evaluate")
  if type(batches) ~= "function" then
    errors.invalid("train:evaluate takes an iterator over batches, such as data:batches returns, not %s",
      options.describe(batches))
  end
  agreement.noting_failure(check_settings, self, "train:evaluate")
  agreement.noting_failure(compare_options, self)
  local averages = options.parse("train:evaluate", o, EVALUATE).ema
  local within = self.session.averaged
  if self.policy and not within then self.policy:before_evaluation() end
  local loss = agreement.noting_failure(function()
    if not averages then return taken.beside_training(step.mean_loss, self, batches, within) end
    return ema.with_averages("train:evaluate", self, taken.beside_training, step.mean_loss, self, batches, within)
  end)
  if not loss and self.policy then self.policy:terminate_now() end
  return loss or termination.exit_rank()
end

---The plan of the next step with the same shapes; nil before the first step.
---@return moonshard.Plan?
function Trainer:plan()
  if not self.last_plan then return nil end
  local plan = self.session.train_exec.plan
  plan.is_lent = true
  return plan
end

-- ---- looking into the model, and changing it --------------------------------------------------------------------

---A parameter in full, f32. Collective.
---@param name string FQN
---@return moonshard.Tensor
function Trainer:parameter(name) return self.model:parameter(name) end

---The shard of a parameter that this rank owns.
---@param name string FQN
---@return moonshard.Tensor
function Trainer:local_parameter(name) return self.model:local_parameter(name) end

---Overwrites a parameter. Collective: every rank must give the same values.
---@param name string FQN
---@param values moonshard.Tensor|table of its shape
function Trainer:set_parameter(name, values) self.model:set_parameter(name, values) end

---The full gradient of the last step's mean loss, before clipping. Collective.
---@param name string FQN
---@return moonshard.Tensor
function Trainer:gradient(name) return inspect.gradient(self, name) end

---The shard of that gradient that this rank owns.
---@param name string FQN
---@return moonshard.Tensor
function Trainer:local_gradient(name) return inspect.gradient(self, name, true) end

---The optimizer's state of a parameter, in full. Collective.
---@param name string FQN
---@param what string AdamW: "exp_avg", "exp_avg_sq"; SGD: "momentum"; with the option ema: "ema"; "step": a scalar, the
---  number of updates of the parameter: a step without a gradient for it does not count
---@return moonshard.Tensor
function Trainer:optimizer_state(name, what) return inspect.optimizer_state(self, name, what) end

---The shard of that state that this rank owns.
---@param name string FQN
---@param what string AdamW: "exp_avg", "exp_avg_sq"; SGD: "momentum"; with the option ema: "ema"
---@return moonshard.Tensor
function Trainer:local_optimizer_state(name, what) return inspect.optimizer_state(self, name, what, true) end

---Changes the rules from the next step on; see ms.set_rules. Collective.
---@param rules moonshard.NewRules
---@return moonshard.Plan? plan of the next step; nil before the first step
function Trainer:set_rules(rules) return change_rules(self.model, rules) end

arguments.exact_all("train", Trainer)
agreement.collective(Trainer,
  "step evaluate with_ema parameter set_parameter gradient optimizer_state set_rules", "train:%s")

return trainer
