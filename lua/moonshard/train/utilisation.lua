-- MFU: the part of the peak rate of the devices that a model's own operations are.
--
-- Counted are 6 N + 12 L d s operations per token: N parameters, L layers of width d, sequences of s tokens, full
-- attention, nothing recomputed (Chowdhery et al. 2022, PaLM, appendix B). In a mixture of experts, N are those that a
-- token uses; a frozen parameter, which needs no gradient, counts 4. A model whose layers and width are unknown
-- (model.config) counts what the ops of its plan compute instead, forward and backward.

local batch_of = require("moonshard.engine.batch")
local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local C, ffi = engine.C, engine.ffi

local utilisation = {
  ---The cluster that this run is on, whose peak rates count; nil: none is described. `moonshard run --cluster` sets it.
  ---@type moonshard.Cluster?
  cluster = nil,
}

---Refuses a model on devices that the described cluster does not have.
---@param device string of its mesh
function utilisation.check(device)
  local cluster = utilisation.cluster
  if not cluster or cluster.device == device then return end
  errors.invalid("--cluster %s describes devices of the kind %s, and the mesh is on %s: describe these devices "
    .. "(moonshard calibrate), or leave out --cluster", cluster.name, cluster.device, device)
end

---The element type of the first matrix product of a step.
---@param plan moonshard.Plan
---@return string
function utilisation.dtype(plan)
  local work = ffi.new("ms_kernel_work")
  for instruction = 0, plan:summary().instructions - 1 do
    local status = C.ms_plan_kernel_work(plan.handle, C.MS_PHASE_FIRST, instruction, work, ffi.sizeof(work))
    if status == 0 and work.shape == C.MS_SHAPE_PRODUCT then return dtypes.names[work.dtype] end
  end
  C.ms_error_clear()
  return "f32"
end

-- Operations per token of the parameters, and how they are counted.
local function of_parameters(params)
  local trained, frozen, sparse = 0, 0, false
  for _, param in ipairs(params) do
    local used = param.parameter.used
    if param.frozen then frozen = frozen + used * param.numel else trained = trained + used * param.numel end
    sparse = sparse or used < 1
  end
  return 6 * trained + 4 * frozen, ("6 N%s + 12 L d s per token%s"):format(frozen > 0 and " + 4 N frozen" or "",
    sparse and ", N that a token uses" or "")
end

-- Operations per token by the formula, and how they are counted; nil if the model does not say its layers and width.
local function per_token(trainer, batch)
  local config, tokens = trainer.model.config, batch.tokens
  local known = type(config) == "table" and type(config.layers) == "number" and type(config.dim) == "number"
  if not known or not tokens or #tokens.shape ~= 2 then return nil end
  local parameters, counts = of_parameters(trainer.session.sharding.params)
  return parameters + 12 * config.layers * config.dim * tokens.shape[2], counts
end

---The operations of a step that MFU counts, of one rank.
---@param trainer moonshard.Trainer
---@param plan moonshard.Plan
---@param batch table
---@param tokens integer of a step of all ranks
---@return number
---@return string counts what they are
function utilisation.flops(trainer, plan, batch, tokens)
  local formula, counts = per_token(trainer, batch)
  if formula then
    -- The formula is of the tokens that the model reads, of which targets can be fewer, or have more axes.
    local read = tokens * batch_of.numel(batch.tokens.shape) / batch_of.tokens(batch)
    return formula * read / trainer.session.sharding.mesh:size(), counts
  end
  return plan:summary().flops * trainer.micro_batches, "operations of the plan's forward and backward"
end

---MFU of a step; nil if no peak rate is known.
---@param trainer moonshard.Trainer
---@param plan moonshard.Plan
---@param batch table
---@param tokens integer of all ranks
---@param seconds number
---@return number? 0 to 1
function utilisation.of_step(trainer, plan, batch, tokens, seconds)
  if not utilisation.cluster then return nil end
  if plan.mfu_peak == nil then -- the same in every step of a plan
    plan.mfu_peak = utilisation.cluster:rank_peak(utilisation.dtype(plan)) or false
    plan.mfu_flops = utilisation.flops(trainer, plan, batch, tokens)
  end
  return plan.mfu_peak and plan.mfu_flops / seconds / plan.mfu_peak
end

return utilisation
