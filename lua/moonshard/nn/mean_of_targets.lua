-- The mean over the targets that count, and what it is where none does. Returned to the trainer unchanged, such a mean
-- has the weight 0 among those of ranks and micro-batches, so the loss and its gradients are as without it. Within
-- another expression nothing can leave it out: it is NaN, as in PyTorch, and the step or evaluation ends with an error,
-- instead of a mean that is too low.

local context = require("moonshard.base.context")
local create = require("moonshard.tensor.create")
local ops = require("moonshard.tensor.ops")
local tensor = require("moonshard.tensor")

local mean_of_targets = {
  ---The scope of the ops that make the NaN, by which a search for it is recognised.
  SCOPE = "ms.loss.cross_entropy without targets",
}

-- 1, or 0 where no target counts.
local function indicator_of(count) return ops.not_equal(count, 0):cast("f32") end

-- 0, or NaN where no target counts: 0 / 0. It has no gradient.
local function nan_without(trace, count)
  local path = context.path
  trace:enter(mean_of_targets.SCOPE)
  local indicator = indicator_of(count)
  local result = ops.div(0, indicator)
  trace.means[#trace.means + 1] = indicator
  trace:enter(path)
  return result
end

---@param mean moonshard.Tensor f32 [], 0 where no target counts
---@param count moonshard.Tensor f32 []: of the targets that count, or the sum of their weights
---@param targets moonshard.Tensor
---@param reduction "tokens"|"mean"
---@param weight moonshard.Tensor? f32 []: what the mean counts among those of ranks and micro-batches; default: count
---@return moonshard.Tensor
function mean_of_targets.of(mean, count, targets, reduction, weight)
  local trace = context.trace
  if not trace then return count:item() == 0 and create.tensor(0 / 0) or mean end
  local terms = 1
  for _, size in ipairs(targets.shape) do terms = terms * size end
  local entry = reduction == "tokens" and { weight = (weight or count) / terms, terms = terms }
    or { weight = indicator_of(count), terms = 1, by_rank = true }
  local checked = mean + nan_without(trace, count)
  entry.mean, trace.weights[checked.id] = mean, entry
  return checked
end

---In an evaluation, an output of a loss that other ops make of such means: how many of them have no target.
---@param loss moonshard.Tensor
---@return table<string, moonshard.Tensor>? outputs nil: there are none
function mean_of_targets.outputs(loss)
  local trace = context.trace
  if not tensor.is(loss) or trace.weights[loss.id] or #trace.means == 0 then return nil end
  local without = 0
  for _, indicator in ipairs(trace.means) do without = (indicator - 1) * -1 + without end
  return { [mean_of_targets.SCOPE] = without }
end

return mean_of_targets
