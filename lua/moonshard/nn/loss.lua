-- Losses: functions from the model's output and the targets to a scalar f32 tensor.

local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local ops = require("moonshard.tensor.ops")
local options = require("moonshard.base.options")
local tensor = require("moonshard.tensor")

---@class moonshard.loss
local loss = {}

local CROSS_ENTROPY = {
  reduction = { "string", default = "tokens" },
  ignore_index = { "integer", default = -100 },
  fused = { "boolean|string", default = false },
  chunk = { "positive" },
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
  if context.trace and o.reduction == "tokens" then
    local terms = 1
    for _, size in ipairs(targets.shape) do terms = terms * size end
    context.trace.weights[outputs[1].id] = { weight = outputs[3] / terms, terms = terms }
  end
  return outputs[1]
end

---@class moonshard.CrossEntropyOptions
---@field reduction? "tokens"|"mean" default "tokens"
---@field ignore_index? integer default -100
---@field fused? boolean|"auto" default false
---@field chunk? integer rows at a time, with `fused`; default: chosen by sizes

---Mean of -log softmax(logits)[target] over the targets that are not ignored. If returned to the trainer unchanged, the
---loss is the mean over the targets of all ranks and micro-batches ("tokens"), or with reduction "mean" the mean of
---their means. Within a larger expression it is always this rank's mean of one micro-batch.
---
---With `fused` the logits of a linear layer without a bias, which nothing else reads, are never whole in memory: loss
---and gradients are computed for some rows at a time (Liger Kernel, Hsu et al. 2024). "auto": where that saves memory
---without a further product, as with a large vocabulary that ranks do not divide.
---@param logits moonshard.Tensor|moonshard.CrossEntropyOptions [..., V]; or options
---@param targets moonshard.Tensor? i32 [...]; -100 is ignored
---@return moonshard.Tensor|fun(logits: moonshard.Tensor, targets: moonshard.Tensor): moonshard.Tensor loss f32 []; for
---  options the loss function
function loss.cross_entropy(logits, targets)
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
  return function(...) return cross_entropy(o, ...) end
end

---Mean of (prediction - target)^2.
---@param prediction moonshard.Tensor [...]
---@param target moonshard.Tensor of the same shape
---@return moonshard.Tensor f32 []
function loss.mse(prediction, target)
  local predicted, given = tensor.shape_text(prediction.shape), tensor.shape_text(target.shape)
  if predicted ~= given then
    errors.raise("MS_ESHAPE", "ms.loss.mse: the prediction is %s and the target %s; their shapes must be equal",
      predicted, given)
  end
  local difference = ops.sub(ops.cast(prediction, { out_dtype = "f32" }), target)
  return ops.mean(ops.mul(difference, difference), { all = true })
end

return require("moonshard.base.strict").fields("ms.loss", loss)
