-- Losses over the likelihood of whole texts: log-likelihoods by row, and direct preference optimisation (DPO, Rafailov
-- et al. 2023), which makes a policy prefer one answer to another more than a frozen reference does.

local classes = require("moonshard.nn.classes")
local create = require("moonshard.tensor.create")
local errors = require("moonshard.base.error")
local ops = require("moonshard.tensor.ops")
local options = require("moonshard.base.checks.options")
local tensor = require("moonshard.tensor")

local preference_loss = {}

local function check_logits(who, what, logits, targets)
  if not (tensor.is(logits) and tensor.is(targets)) then
    errors.invalid("%s takes %s [rows, length, vocab] and targets [rows, length], tensors", who, what)
  end
  local of_logits, of_targets = logits.shape, targets.shape
  if #of_logits == 3 and #of_targets == 2 and of_logits[1] == of_targets[1] and of_logits[2] == of_targets[2] then
    return
  end
  errors.raise("MS_ESHAPE", "%s: %s are %s and the targets %s; they must be [rows, length, vocab] and [rows, length]",
    who, what, tensor.shape_text(of_logits), tensor.shape_text(of_targets))
end

local IGNORED = -100

-- Whether a target counts is looked up as a row of a table, so that one that is neither a class nor ignored fails the
-- step.
local function log_likelihood(logits, targets)
  local x = logits:cast("f32")
  local log_p, n = ops.log_softmax(x), x.shape[3]
  local counts = classes.look_up(create.ones { n }, ops.where(ops.equal(targets, IGNORED), 0, targets))
  return (ops.where(classes.of(targets, n), log_p, 0):sum(2) * counts):sum(1)
end

---The sum of log softmax(logits)[target] of each row. Targets of -100 count nothing; others that are no class fail.
---@param logits moonshard.Tensor [rows, length, vocab]
---@param targets moonshard.Tensor i32 [rows, length]
---@return moonshard.Tensor f32 [rows]
function preference_loss.log_likelihood(logits, targets)
  check_logits("ms.loss.log_likelihood", "logits", logits, targets)
  return log_likelihood(logits, targets)
end

---@class moonshard.DpoOptions
---@field beta? number how far the policy may go from the reference: a larger one keeps it nearer; default 0.1
---@field label_smoothing? number probability that a pair is the wrong way round (conservative DPO); default 0

---@alias moonshard.DpoLoss fun(policy: moonshard.Tensor, reference: moonshard.Tensor, targets: moonshard.Tensor):
---  moonshard.Tensor

---A loss over pairs: with r = log-likelihood of policy minus that of reference, and margin = beta (r of chosen - r of
---rejected), the mean over pairs of -(1 - s) log sigmoid(margin) - s log sigmoid(-margin), s = label_smoothing. It
---takes the logits of both models, [2 pairs, length, vocab], and targets, i32 [2 pairs, length], rows chosen and
---rejected in turn, as ms.data.preferences has them. The reference's logits are constants.
---@param o moonshard.DpoOptions?
---@return moonshard.DpoLoss
function preference_loss.dpo(o)
  local who = "ms.loss.dpo"
  if tensor.is(o) then errors.invalid("%s takes options first: ms.loss.dpo { beta = 0.1 }(policy, ...)", who) end
  o = options.parse(who, o, { beta = { "number", default = 0.1 }, label_smoothing = { "number", default = 0 } })
  if o.beta <= 0 then errors.invalid("%s: beta must be above 0, not %s", who, options.describe(o.beta)) end
  if not (o.label_smoothing >= 0 and o.label_smoothing < 0.5) then
    errors.invalid("%s: label_smoothing must be at least 0 and below 0.5, not %s", who,
      options.describe(o.label_smoothing))
  end
  return function(policy, reference, targets)
    check_logits(who, "the policy's logits", policy, targets)
    check_logits(who, "the reference's logits", reference, targets)
    if targets.shape[1] % 2 ~= 0 then
      errors.raise("MS_ESHAPE", "%s: %d rows are no pairs: rows are chosen and rejected in turn", who, targets.shape[1])
    end
    local ratio = log_likelihood(policy, targets) - ops.detach(log_likelihood(reference, targets))
    local by_pair = ratio:reshape(-1, 2)
    local margin = (by_pair:slice(1, 0, 1) - by_pair:slice(1, 1, 2)) * o.beta
    local each = ops.softplus(-margin) * (1 - o.label_smoothing)
    if o.label_smoothing > 0 then each = each + ops.softplus(margin) * o.label_smoothing end
    return ops.mean(each, { all = true })
  end
end

return preference_loss
