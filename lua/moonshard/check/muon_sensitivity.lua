-- How far rounding of gradients moves what Muon trains.
--
-- Muon steps as far along directions in which a gradient is almost zero as along all others, so there rounding
-- decides. How far depends on a matrix's singular values, and no simple bound is near: it is measured. The single
-- reference rank follows some further histories of each matrix, whose gradients are off by as much as a check allows:
-- an element by at most the tolerance times the largest of its matrix, or of its unit if it shares blocks of few bits,
-- at random. Momentum averages these errors as it averages gradients. Directions with and without them are
-- orthogonalised as the engine does, and learning rates add up how far the steps are apart.

local create = require("moonshard.tensor.create")

---@class moonshard.MuonHistory
---@field error moonshard.Tensor of the momentum, f32, of the parameter's shape
---@field distance moonshard.Tensor of the weights

---@class moonshard.MuonSensitivity
---@field tolerance number of an element of a gradient, as a share of the largest
---@field steps integer
---@field momentum table<string, moonshard.Tensor> by parameter, after the latest step
---@field histories table<string, moonshard.MuonHistory[]> by parameter
local Sensitivity = {}
Sensitivity.__index = Sensitivity

local muon_sensitivity = {}

local HISTORIES = 4
-- What is allowed, as a multiple of the largest in these histories. Sums round off less than half of the tolerances of
-- dtypes, but where the steps along a direction are nothing but rounding, less of it takes them as far. The norm of
-- many differences is nearly the same for every draw, the largest of them is not; that of n differences spreads by
-- 1 / sqrt(2 n) of it, and four times that is allowed.
local OF_NORM, OF_ELEMENTS = 1.2, 2

local function of_norm(elements) return OF_NORM * (1 + 4 / (2 * elements) ^ 0.5) end

---@param tolerance number
---@return moonshard.MuonSensitivity
function muon_sensitivity.new(tolerance)
  return setmetatable({ tolerance = tolerance, steps = 0, momentum = {}, histories = {} }, Sensitivity)
end

-- As kernels/products/orthogonalise.h: the coefficients, and what is rounded to bf16.
local A, B, C, MIN_NORM = 3.4445, -4.7750, 2.0315, 1e-7

---The nearest orthogonal matrix, roughly, of each that a parameter consists of.
---@param u moonshard.Tensor f32 [rows, columns], or [matrices, rows, columns]
---@param muon moonshard.Optimizer
---@param heads integer? matrices that the rows are cut into; 1 (default)
---@return moonshard.Tensor of u's shape
function muon_sensitivity.orthogonalised(u, muon, heads)
  local function rounded(x) return muon.dtype == "bf16" and x:cast("bf16"):cast("f32") or x end
  local rows, columns = u:size(-2) / (heads or 1), u:size(-1)
  local all = u:reshape(-1, rows, columns)
  local tall = rows > columns
  local x = (tall and all:transpose(1, 2) or all) / (all * all):sum({ 1, 2 }, true):sqrt():clamp(MIN_NORM)
  for _ = 1, muon.steps do
    x = rounded(x)
    local gram = rounded(x:matmul(x:transpose(1, 2)))
    x = A * x + rounded(B * gram + C * gram:matmul(gram)):matmul(x)
  end
  return (tall and x:transpose(1, 2) or x):reshape(unpack(u.shape))
end

local REACH = {
  original = function(rows, columns) return math.max(1, rows / columns) ^ 0.5 end,
  match_rms_adamw = function(rows, columns) return 0.2 * math.max(rows, columns) ^ 0.5 end,
  spectral = function(rows, columns) return math.max(rows, columns) ^ 0.5 end,
}

-- How far a step of learning rate 1 goes, as a multiple of those matrices.
local function reach(param, muon, heads)
  return REACH[muon.adjust](param.shape[#param.shape - 1] / heads, param.shape[#param.shape])
end

-- by: the factor of the momentum.
local function direction(muon, by, gradient, momentum)
  return muon.nesterov and gradient + by * (momentum - gradient) or momentum
end

local function zeros(param) return create.zeros { unpack(param.shape) } end

-- Elements of a sum in few bits that are rounded by the largest of them (kernels/formats/quantised_sum.h).
local PIECE_BLOCK = 256

-- A parameter can be smaller than such a block, which then reaches over others: the largest gradient of its unit, as a
-- multiple of its own.
local function excess_of_unit(trainer, param)
  if param.numel >= PIECE_BLOCK or not (param.unit.shard_dtype or param.unit.replicate_dtype) then return 1 end
  local own, most = trainer:gradient(param.fqn):abs():max():item(), 0
  if own == 0 then return 1 end
  for _, other in ipairs(trainer.session.sharding.params) do
    if other.unit == param.unit and not other.frozen then
      most = math.max(most, trainer:gradient(other.fqn):abs():max():item())
    end
  end
  return most / own
end

-- How far an element of a gradient may be off. What was clipped by value was rounded before that, when its largest
-- element was at most the norm; an element then moves by no more than from one end of the clipped range to the other.
local function off_by(self, gradient, clipped, excess)
  local largest = gradient:abs():max():item() * excess
  if not clipped then return self.tolerance * largest end
  return math.min(self.tolerance * math.max(largest, clipped.norm), 2 * clipped.value)
end

-- Takes all histories of a parameter a step further. group: its settings; excess: of excess_of_unit.
local function follow(self, param, place, muon, group, momentum, rate, clipped, excess)
  local by = group.momentum or muon.momentum
  local before, share = self.momentum[param.fqn] or zeros(param), 1 - by
  local change = momentum - before
  if change:abs():max():item() == 0 then return end -- this step had no gradient of it
  local gradient = before + change / share
  local most = off_by(self, gradient, clipped, excess)
  local u = direction(muon, by, gradient, momentum)
  local heads = group.heads or muon.heads
  local exact = muon_sensitivity.orthogonalised(u, muon, heads)
  self.histories[param.fqn] = self.histories[param.fqn] or {}
  for h = 1, HISTORIES do
    local history = self.histories[param.fqn][h] or { error = zeros(param), distance = zeros(param) }
    local drawn = create.rand { seed = (self.steps * HISTORIES + h) * 65536 + place, unpack(param.shape) }
    local error = most * (2 * drawn - 1)
    history.error = history.error + share * (error - history.error)
    local other = muon_sensitivity.orthogonalised(u + direction(muon, by, error, history.error), muon, heads)
    history.distance = history.distance + rate * group.lr_scale * reach(param, muon, heads) * (other - exact)
    self.histories[param.fqn][h] = history
  end
end

---Call after each step of a trainer on one rank.
---@param trainer moonshard.Trainer
---@param rate number the step's learning rate of Muon
---@param clipped { value: number, norm: number }? where gradients are clipped by value: that, and their norm before it
function Sensitivity:note(trainer, rate, clipped)
  local params, fqns = trainer.session.sharding.params, {}
  for i, param in ipairs(params) do fqns[i] = param.fqn end
  local groups = trainer.optimizer:param_groups(fqns)
  for place, param in ipairs(params) do
    local muon = trainer.optimizer:part_of(param.fqn)
    if not param.frozen and muon.kind == "muon" then
      local momentum = trainer:optimizer_state(param.fqn, "momentum")
      follow(self, param, place, muon, groups[param.fqn], momentum, rate, clipped, excess_of_unit(trainer, param))
      self.momentum[param.fqn] = momentum
    end
  end
  self.steps = self.steps + 1
end

---How far the weights of a parameter may be off.
---@param param moonshard.Param
---@return { element: number, norm: number }? of each element, and of all of them; nil: it does not take Muon, or never
---  had a gradient
function Sensitivity:of(param)
  local element, norm = 0, 0
  for _, history in ipairs(self.histories[param.fqn] or {}) do
    element = math.max(element, history.distance:abs():max():item())
    norm = math.max(norm, (history.distance * history.distance):sum():item() ^ 0.5)
  end
  if not self.histories[param.fqn] then return nil end
  local elements = 1
  for _, size in ipairs(param.shape) do elements = elements * size end
  return { element = OF_ELEMENTS * element, norm = of_norm(elements) * norm }
end

return muon_sensitivity
