-- Losses: functions of what the model gives and the targets, to a scalar f32 tensor.

local errors = require("moonshard.error")
local ops = require("moonshard.ops")
local tensor = require("moonshard.tensor")

local loss = {}

---Mean of -log softmax(logits)[target] over the targets that are not ignored (-100).
---@param logits moonshard.Tensor [..., V], f32 or bf16
---@param targets moonshard.Tensor i32 [...]
---@return moonshard.Tensor f32 []
function loss.cross_entropy(logits, targets)
  return (ops.cross_entropy(logits, targets))
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

return require("moonshard.unknown_name").strict("ms.loss", loss)
