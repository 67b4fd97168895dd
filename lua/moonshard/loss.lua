-- Losses: functions of what the model gives and the targets, to a scalar f32 tensor.

local ops = require("moonshard.ops")

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
  local difference = ops.sub(ops.cast(prediction, { out_dtype = "f32" }), target)
  return ops.mean(ops.mul(difference, difference), { all = true })
end

return loss
