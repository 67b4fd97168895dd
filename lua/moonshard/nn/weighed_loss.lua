-- Cross entropy with what its kernel does not have: smoothed labels, weights of classes, and the z-loss. Made of ops
-- that keep the log-probabilities of all classes, in f32.

local classes = require("moonshard.nn.classes")
local create = require("moonshard.tensor.create")
local mean_of_targets = require("moonshard.nn.mean_of_targets")
local ops = require("moonshard.tensor.ops")

-- What the target of each row counts, f32 [...]. It is looked up as a row of a table, so that a target that is neither
-- a class nor ignored fails the step.
local function weigh(o, targets, counted, n)
  local weight = o.weight or create.ones { n }
  local class = ops.where(ops.equal(targets, o.ignore_index), 0, targets)
  return classes.look_up(weight, class) * counted
end

-- What a part counts whose targets all have classes of weight 0: its smoothed labels still add to the sum over all
-- parts, which multiplies each part's mean by its weight again. A power of two, so that the sum comes back exactly, and
-- too small to change the sum of weights.
local SMALL = 2 ^ -40

-- The denominator of this part's mean, and its weight among the parts.
local function part_of(o, denominator, counted)
  if not (o.weight and o.label_smoothing > 0) then return denominator end
  local counts = ops.not_equal(counted:sum(), 0):cast("f32")
  return ops.where(ops.equal(denominator, 0), counts * SMALL, denominator)
end

---The mean over the targets that count, weighed by their classes, as PyTorch's cross_entropy has it, plus z_loss times
---the mean square of the logarithm of the softmax's denominator, weighed in the same way.
---@param o { ignore_index: integer, label_smoothing: number, weight: moonshard.Tensor?, z_loss: number }
---@param logits moonshard.Tensor [..., V]
---@param targets moonshard.Tensor i32 [...]
---@return moonshard.Tensor loss f32 []
---@return moonshard.Tensor denominator f32 []: the sum of the weights of the targets that count
---@return moonshard.Tensor weight f32 []: of this mean among those of ranks and micro-batches; not 0 if a target counts
local function weighed_loss(o, logits, targets)
  local x = logits:cast("f32")
  local log_p, n = ops.log_softmax(x), x.shape[#x.shape]
  local counted = ops.not_equal(targets, o.ignore_index):cast("f32")
  local is_target = classes.of(targets, n)
  local of_class, of_target = o.weight, weigh(o, targets, counted, n)
  local loss = ops.where(is_target, log_p, 0):sum(-1) * of_target * (o.label_smoothing - 1)
  if o.label_smoothing > 0 then
    local all = of_class and log_p * of_class or log_p
    loss = loss - all:sum(-1) * counted * (o.label_smoothing / n)
  end
  if o.z_loss > 0 then
    local log_sum = (x:slice(-1, 0, 1) - log_p:slice(-1, 0, 1)):squeeze(-1)
    loss = loss + log_sum * log_sum * of_target * o.z_loss
  end
  local denominator = of_target:sum()
  local weight = part_of(o, denominator, counted)
  return loss:sum() / ops.where(ops.equal(weight, 0), 1, weight), denominator, weight
end

---The loss, and in a trace its weight among those of ranks and micro-batches, by o.reduction.
---@param o table options of ms.loss.cross_entropy
---@param logits moonshard.Tensor
---@param targets moonshard.Tensor
---@return moonshard.Tensor
return function(o, logits, targets)
  local loss, denominator, weight = weighed_loss(o, logits, targets)
  return mean_of_targets.of(loss, denominator, targets, o.reduction, weight)
end
