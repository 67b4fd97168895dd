-- Losses: functions from the model's output and the targets to a scalar f32 tensor.

local context = require("moonshard.base.context")
local create = require("moonshard.tensor.create")
local errors = require("moonshard.base.error")
local mean_of_targets = require("moonshard.nn.mean_of_targets")
local named = require("moonshard.tensor.named")
local ops = require("moonshard.tensor.ops")
local options = require("moonshard.base.checks.options")
local preference_loss = require("moonshard.nn.preference_loss")
local tensor = require("moonshard.tensor")
local weighed_loss = require("moonshard.nn.weighed_loss")

---@class moonshard.loss
---@field log_likelihood fun(logits: moonshard.Tensor, targets: moonshard.Tensor): moonshard.Tensor
---@field dpo fun(o: moonshard.DpoOptions?): moonshard.DpoLoss
local loss = {}

local CROSS_ENTROPY = {
  reduction = { "string", default = "tokens" },
  ignore_index = { "integer", default = -100 },
  fused = { "boolean|string", default = false },
  chunk = { "positive" },
  label_smoothing = { "number", default = 0 },
  weight = { "table" },
  z_loss = { "number", default = 0 },
}
local REDUCTIONS = { tokens = true, mean = true }
-- enum ms_fused_loss: the op's attribute `fused`.
local FUSED = { [false] = 0, [true] = 1, auto = 2 }

-- The mean over this rank's targets of one micro-batch; with "tokens" the step weights it by their count.
local function cross_entropy(o, logits, targets)
  local fused = o.fused
  if context.fused_loss ~= nil then fused = context.fused_loss end
  local outputs = ops.apply("cross_entropy", { logits, targets }, {
    ignore_index = o.ignore_index, fused = FUSED[fused], chunk = o.chunk or 0,
  })
  return mean_of_targets.of(outputs[1], outputs[3], targets, o.reduction)
end

---@class moonshard.CrossEntropyOptions
---@field reduction? "tokens"|"mean" default "tokens"
---@field ignore_index? integer default -100
---@field fused? boolean|"auto" default false
---@field chunk? integer rows at a time, with `fused`; default: chosen by sizes
---@field label_smoothing? number share of the probability that all classes divide; default 0
---@field weight? number[] of each class: the mean is weighed by those of the targets
---@field z_loss? number factor of the mean square of the log of the softmax's denominator (PaLM has 1e-4), which
---  `weight` weighs, too; default 0

local function is_plain(o) return o.label_smoothing == 0 and not o.weight and o.z_loss == 0 end

local function check_weighed(o)
  local who = "ms.loss.cross_entropy"
  if o.fused then
    errors.raise("MS_EUNSUPPORTED", "%s: fused is not built with label_smoothing, weight or z_loss: leave it out", who)
  end
  if not (o.label_smoothing >= 0 and o.label_smoothing <= 1) then
    errors.invalid("%s: label_smoothing must be from 0 to 1, not %s", who,
      options.describe(o.label_smoothing))
  end
  if o.z_loss < 0 then errors.invalid("%s: z_loss must be at least 0, not %s", who, options.describe(o.z_loss)) end
  for i, value in ipairs(o.weight or {}) do
    if type(value) ~= "number" or value < 0 or value ~= value then
      errors.invalid("%s: weight of class %d must be a number of at least 0, not %s", who, i - 1,
        options.describe(value))
    end
  end
end

---Mean of -log softmax(logits)[target] over the targets that are not ignored. If returned to the trainer unchanged, the
---loss is the mean over the targets of all ranks and micro-batches ("tokens"), or with reduction "mean" the mean of
---their means, without those that have no target. Within a larger expression it is always this rank's mean of one
---micro-batch, which is NaN without a target, as in PyTorch: a step or an evaluation then ends with an error that says
---where.
---
---With `fused` the logits of a linear layer, which nothing else reads, are never whole in memory: loss and gradients,
---those of its bias too, are computed for some rows at a time (Liger Kernel, Hsu et al. 2024). "auto": where that saves
---memory without a further product, as with a large vocabulary that ranks do not divide.
---@param logits moonshard.Tensor|moonshard.CrossEntropyOptions [..., V]; or options
---@param targets moonshard.Tensor? i32 [...]; -100 is ignored
---@return moonshard.Tensor|fun(logits: moonshard.Tensor, targets: moonshard.Tensor): moonshard.Tensor loss f32 []; for
---  options the loss function
function loss.cross_entropy(logits, targets, ...)
  if select("#", ...) > 0 then
    errors.invalid("ms.loss.cross_entropy takes logits and targets, or options alone, which give a loss: "
      .. "local cross_entropy = ms.loss.cross_entropy { fused = true }, then cross_entropy(logits, targets)")
  end
  if targets ~= nil or tensor.is(logits) then
    return cross_entropy({ reduction = "tokens", ignore_index = -100, fused = false }, logits, targets)
  end
  local o = options.parse("ms.loss.cross_entropy", logits, CROSS_ENTROPY)
  if not REDUCTIONS[o.reduction] then
    errors.invalid('ms.loss.cross_entropy: reduction must be "tokens" or "mean", not %s', options.describe(o.reduction))
  end
  if not FUSED[o.fused] then
    errors.invalid('ms.loss.cross_entropy: fused must be true, false or "auto", not %s', options.describe(o.fused))
  end
  if o.chunk and not o.fused then
    errors.invalid("ms.loss.cross_entropy: chunk is the number of rows at a time with fused = true or \"auto\"")
  end
  if is_plain(o) then return function(...) return cross_entropy(o, ...) end end
  check_weighed(o)
  o.weight = o.weight and create.tensor(o.weight, { dtype = "f32" })
  return function(x, y)
    if o.weight and o.weight.shape[1] ~= x.shape[#x.shape] then
      errors.raise("MS_ESHAPE", "ms.loss.cross_entropy: weight has %d numbers for %d classes", o.weight.shape[1],
        x.shape[#x.shape])
    end
    return named("ms.loss.cross_entropy", weighed_loss, o, x, y)
  end
end

-- ---- of predictions and targets of one shape --------------------------------------------------------------------

local function check_shapes(name, prediction, target)
  if not (tensor.is(prediction) and tensor.is(target)) then
    if type(prediction) == "table" and (tensor.is(prediction[1]) or tensor.is(target)) then
      errors.invalid("ms.loss.%s: the prediction is a table: return the tensor alone from forward, or give a loss that "
        .. "takes its fields, loss = function(out, target) return ms.loss.%s(out[1], target) end", name, name)
    end
    errors.invalid("ms.loss.%s takes a prediction and a target, two tensors, and no options: give the function itself, "
      .. "loss = ms.loss.%s", name, name)
  end
  local predicted, given = tensor.shape_text(prediction.shape), tensor.shape_text(target.shape)
  if predicted == given then return end
  errors.raise("MS_ESHAPE", "ms.loss.%s: the prediction is %s and the target %s; their shapes must be equal", name,
    predicted, given)
end

local function check_numbers(name, what, given)
  if given.dtype == "f32" or given.dtype == "bf16" then return end
  errors.raise("MS_EDTYPE", "ms.loss.%s: the %s is %s: give numbers, as in { ..., dtype = \"f32\" }, or write "
    .. "loss = function(prediction, target) return ms.loss.%s(prediction, target:cast(\"f32\")) end; classes are for "
    .. "ms.loss.cross_entropy", name, what, given.dtype, name)
end

local function difference_of(name, prediction, target)
  check_shapes(name, prediction, target)
  check_numbers(name, "prediction", prediction)
  check_numbers(name, "target", target)
  return ops.sub(ops.cast(prediction, { out_dtype = "f32" }), target)
end

---Mean of (prediction - target)^2.
---@param prediction moonshard.Tensor [...]
---@param target moonshard.Tensor of the same shape
---@return moonshard.Tensor f32 []
function loss.mse(prediction, target)
  local difference = difference_of("mse", prediction, target)
  return ops.mean(ops.mul(difference, difference), { all = true })
end

---Mean of |prediction - target|.
---@param prediction moonshard.Tensor [...]
---@param target moonshard.Tensor of the same shape
---@return moonshard.Tensor f32 []
function loss.l1(prediction, target)
  return ops.mean(ops.abs(difference_of("l1", prediction, target)), { all = true })
end

local function huber(delta, prediction, target)
  local distance = ops.abs(difference_of("huber", prediction, target))
  local near = ops.clamp(distance, { max = delta }) -- |d| up to delta: d^2 / 2, beyond: delta (|d| - delta / 2)
  return ops.mean(near * (distance - near * 0.5), { all = true })
end

---Mean of d^2 / 2 where |d| is at most delta, and of delta (|d| - delta / 2) elsewhere, d = prediction - target.
---@param prediction moonshard.Tensor|{ delta: number } [...]; or options, default delta 1
---@param target moonshard.Tensor? of the same shape
---@return moonshard.Tensor|fun(prediction: moonshard.Tensor, target: moonshard.Tensor): moonshard.Tensor loss f32 []
function loss.huber(prediction, target)
  if target ~= nil or tensor.is(prediction) then return huber(1, prediction, target) end
  local o = options.parse("ms.loss.huber", prediction, { delta = { "number", default = 1 } })
  if o.delta <= 0 then errors.invalid("ms.loss.huber: delta must be above 0, not %s", options.describe(o.delta)) end
  return function(...) return huber(o.delta, ...) end
end

---Mean of -t log p - (1 - t) log(1 - p) with p = sigmoid(logits), computed without p.
---@param logits moonshard.Tensor [...]
---@param targets moonshard.Tensor of the same shape: probabilities, or 0 and 1
---@return moonshard.Tensor f32 []
function loss.binary_cross_entropy(logits, targets)
  check_shapes("binary_cross_entropy", logits, targets)
  local x = ops.cast(logits, { out_dtype = "f32" })
  return ops.mean(ops.softplus(x) - x * targets, { all = true })
end

-- ---- of two models ----------------------------------------------------------------------------------------------

local function distillation(temperature, student, teacher)
  check_shapes("distillation", student, teacher)
  local log_p = ops.log_softmax(student:cast("f32") * (1 / temperature))
  local log_q = ops.log_softmax(ops.detach(teacher):cast("f32") * (1 / temperature))
  local divergence = (log_q:exp() * (log_q - log_p)):sum(-1)
  return ops.mean(divergence, { all = true }) * temperature ^ 2
end

---Mean over rows of T^2 KL(softmax(teacher / T), softmax(student / T)) (Hinton et al. 2015). The teacher's logits are
---constants: no gradient goes through them.
---@param student moonshard.Tensor|{ temperature: number } logits [..., V]; or options, default temperature 1
---@param teacher moonshard.Tensor? logits of the same shape
---@return moonshard.Tensor|fun(student: moonshard.Tensor, teacher: moonshard.Tensor): moonshard.Tensor loss f32 []
function loss.distillation(student, teacher)
  if teacher ~= nil or tensor.is(student) then return distillation(1, student, teacher) end
  local o = options.parse("ms.loss.distillation", student, { temperature = { "number", default = 1 } })
  if o.temperature <= 0 then
    errors.invalid("ms.loss.distillation: temperature must be above 0, not %s", options.describe(o.temperature))
  end
  return function(...) return distillation(o.temperature, ...) end
end

loss.log_likelihood, loss.dpo = preference_loss.log_likelihood, preference_loss.dpo

return require("moonshard.base.checks.strict").fields("ms.loss", loss)
