-- The sensitivity of AdamW's steps to rounding, per element.
--
-- AdamW divides the gradient by the root of its mean square v. An element whose gradient is zero up to rounding
-- therefore moves by a fraction of the learning rate that depends only on rounding, and later gradients do not undo it.
-- The single reference rank records this at every step: the certainty of an element is the smallest (sqrt(v) + eps)
-- that it was divided by, relative to sqrt(v) of the element with the largest gradients.

local certainty = require("moonshard.check.certainty")
local optimizers = require("moonshard.engine.optimizers")

---@class moonshard.RootSensitivity
---@field steps integer
---@field least table<string, ffi.cdata*> by trained parameter: float [numel], 0 before the first gradient
---@field never number? value for an element that never had a gradient
local Sensitivity = {}
Sensitivity.__index = Sensitivity

local root_sensitivity = {}

---@return moonshard.RootSensitivity
function root_sensitivity.new() return setmetatable({ steps = 0, least = {} }, Sensitivity) end

-- What the steps of each parameter divide by: mean squares, their bias correction, and eps; the largest root of one.
local function divisors_of(trainer, steps)
  local optimizer, fqns, divisors, largest = trainer.optimizer, {}, {}, 0
  for i, param in ipairs(trainer.session.sharding.params) do fqns[i] = param.fqn end
  local groups = optimizer:param_groups(fqns)
  for _, param in ipairs(trainer.session.sharding.params) do
    local part, group = optimizer:part_of(param.fqn), groups[param.fqn]
    if not param.frozen and optimizers.of(part.kind).by_size == "root" then
      local correction = 1 - (group.betas or part.betas)[2] ^ steps
      local squares = trainer:optimizer_state(param.fqn, "exp_avg_sq").data
      for e = 0, param.numel - 1 do largest = math.max(largest, squares[e] / correction) end
      divisors[param] = { squares = squares, correction = correction, eps = group.eps or part.eps }
    end
  end
  return divisors, math.sqrt(largest)
end

---Call after each step of a trainer on one rank. An element without a gradient so far has not moved.
---@param trainer moonshard.Trainer
function Sensitivity:note(trainer)
  self.steps = self.steps + 1
  local divisors, root = divisors_of(trainer, self.steps)
  if root == 0 then return end
  self.never = trainer.optimizer.eps / root
  for param, by in pairs(divisors) do
    certainty.lower(self.least, param, function(e)
      local square = by.squares[e]
      return square > 0 and (math.sqrt(square / by.correction) + by.eps) / root or nil
    end)
  end
end

---The sensitivity of every element of a parameter. An element without a gradient counts as one with a rounding error.
---@param param moonshard.Param
---@return string bytes f32 [numel]
function Sensitivity:of(param) return certainty.bytes(self.least, param, self.never or 1) end

return root_sensitivity
