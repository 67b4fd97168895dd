-- The sensitivity to rounding, per element, of steps that are signs: as root_sensitivity.lua, which describes the use.
--
-- Such a step is the sign of c = beta1 m + (1 - beta1) g. An element whose c is zero up to rounding moves by the whole
-- learning rate in a direction that only rounding decides. The certainty of an element is its smallest |c| so far, next
-- to the largest c of the model. The step before leaves m, and this one beta2 m + (1 - beta2) g, which gives g.

local certainty = require("moonshard.check.certainty")
local ffi = require("ffi")
local optimizers = require("moonshard.engine.optimizers")

---@class moonshard.SignSensitivity
---@field before table<string, ffi.cdata*> by trained parameter: the moment after the last step, float [numel]
---@field least table<string, ffi.cdata*> by trained parameter: float [numel], 0 while the element has not moved
local Sensitivity = {}
Sensitivity.__index = Sensitivity

local sign_sensitivity = {}

---@return moonshard.SignSensitivity
function sign_sensitivity.new() return setmetatable({ before = {}, least = {} }, Sensitivity) end

-- The magnitudes of c of each parameter in the last step, and the largest one.
local function directions_of(self, trainer)
  local optimizer, fqns, directions, largest = trainer.optimizer, {}, {}, 0
  for i, param in ipairs(trainer.session.sharding.params) do fqns[i] = param.fqn end
  local groups = optimizer:param_groups(fqns)
  for _, param in ipairs(trainer.session.sharding.params) do
    local part = optimizer:part_of(param.fqn)
    if not param.frozen and optimizers.of(part.kind).by_size == "sign" then
      local beta1, beta2 = unpack(groups[param.fqn].betas or part.betas)
      local moment, c = trainer:optimizer_state(param.fqn, "exp_avg").data, ffi.new("double[?]", param.numel)
      local before = self.before[param.fqn] or ffi.new("float[?]", param.numel)
      for e = 0, param.numel - 1 do
        local gradient = (moment[e] - beta2 * before[e]) / (1 - beta2)
        c[e] = math.abs(beta1 * before[e] + (1 - beta1) * gradient)
        largest = math.max(largest, c[e])
      end
      ffi.copy(before, moment, 4 * param.numel)
      self.before[param.fqn], directions[param] = before, c
    end
  end
  return directions, largest
end

---Call after each step of a trainer on one rank.
---@param trainer moonshard.Trainer
function Sensitivity:note(trainer)
  local directions, largest = directions_of(self, trainer)
  for param, c in pairs(directions) do
    certainty.lower(self.least, param, function(e) return c[e] > 0 and c[e] / largest or nil end)
  end
end

---The sensitivity of every element of a parameter. An element without a gradient counts as one with a rounding error.
---@param param moonshard.Param
---@return string bytes f32 [numel]
function Sensitivity:of(param) return certainty.bytes(self.least, param, 0) end

return sign_sensitivity
