-- The sensitivity of Adafactor's steps to rounding, per element: as root_sensitivity.lua, which describes the use.
--
-- An element's gradient is divided by the root of its variance v, or by eps1. In a matrix v is row_var col_var divided
-- by the mean of row_var, so rounding counts for much where the gradients of a whole row or column are zero up to
-- rounding. A step is relative to the root mean square of the weights, which is what its reach is multiplied by.

local certainty = require("moonshard.check.certainty")
local ffi = require("ffi")
local optimizers = require("moonshard.engine.optimizers")

---@class moonshard.FactorsSensitivity
---@field least table<string, ffi.cdata*> by trained parameter: float [numel], 0 before the first gradient
---@field scale table<string, number> by trained parameter: the largest root mean square of its weights
---@field never number? value for an element that never had a gradient
local Sensitivity = {}
Sensitivity.__index = Sensitivity

local factors_sensitivity = {}

---@return moonshard.FactorsSensitivity
function factors_sensitivity.new() return setmetatable({ least = {}, scale = {} }, Sensitivity) end

-- The variance of every element of a parameter.
local function variances_of(trainer, param)
  if #param.shape < 2 then return trainer:optimizer_state(param.fqn, "variance").data end
  local rows, columns = param.shape[#param.shape - 1], param.shape[#param.shape]
  local row_var = trainer:optimizer_state(param.fqn, "row_var").data
  local col_var = trainer:optimizer_state(param.fqn, "col_var").data
  local variances = ffi.new("double[?]", param.numel)
  for matrix = 0, param.numel / (rows * columns) - 1 do
    local sum = 0
    for r = matrix * rows, (matrix + 1) * rows - 1 do sum = sum + row_var[r] end
    for e = matrix * rows * columns, (matrix + 1) * rows * columns - 1 do
      local column = matrix * columns + e % columns
      variances[e] = sum > 0 and row_var[math.floor(e / columns)] * col_var[column] / (sum / rows) or 0
    end
  end
  return variances
end

local function rms_of(weights, numel)
  local sum = 0
  for e = 0, numel - 1 do sum = sum + weights[e] ^ 2 end
  return math.sqrt(sum / numel)
end

---Call after each step of a trainer on one rank.
---@param trainer moonshard.Trainer
function Sensitivity:note(trainer)
  local variances, largest = {}, 0
  for _, param in ipairs(trainer.session.sharding.params) do
    local part = trainer.optimizer:part_of(param.fqn)
    if not param.frozen and optimizers.of(part.kind).by_size == "factors" then
      local of = variances_of(trainer, param)
      for e = 0, param.numel - 1 do largest = math.max(largest, of[e]) end
      variances[param] = of
      local rms = math.max(part.eps[2], rms_of(trainer:parameter(param.fqn).data, param.numel))
      self.scale[param.fqn] = math.max(self.scale[param.fqn] or 0, rms)
    end
  end
  if largest == 0 then return end
  local root, eps1 = math.sqrt(largest), trainer.optimizer.eps[1]
  self.never = eps1 / root
  for param, of in pairs(variances) do
    certainty.lower(self.least, param, function(e)
      return of[e] > 0 and math.max(math.sqrt(of[e]), eps1) / root or nil
    end)
  end
end

---The sensitivity of every element of a parameter. An element without a gradient counts as one with a rounding error.
---@param param moonshard.Param
---@return string bytes f32 [numel]
function Sensitivity:of(param) return certainty.bytes(self.least, param, self.never or 1) end

---What a step with a learning rate of 1 moves an element by, at most a few times.
---@param fqn string
---@return number
function Sensitivity:scale_of(fqn) return self.scale[fqn] or 1 end

return factors_sensitivity
