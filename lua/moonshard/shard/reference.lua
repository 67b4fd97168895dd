-- The reference of `moonshard check`: one rank that computes what many ranks would. The recipe sees the ranks that it
-- was written for, as rank 0 of them, but its models are unsharded on this rank, which trains on the batches of all
-- ranks in turn.
--
-- Settings that do not affect the numbers are dropped: when weights are gathered and freed, layouts, prefetching,
-- recomputation (`on_reference` of their policies), copies of parameters, when gradients are summed, fused losses.
-- Precision, frozen parameters and the optimizer's settings stay.

local context = require("moonshard.base.context")
local policies = require("moonshard.shard.policies.policies")
local precision = require("moonshard.shard.policies.precision")
local roles = require("moonshard.shard.roles")
local single_rank = require("moonshard.distributed.single_rank")
local world = require("moonshard.distributed.world")

local reference = {
  ---Whether this process is the reference.
  active = false,
}

---Makes this process rank 0 of `size` ranks that do not exist. It must be the only rank of its world.
---@param size integer
function reference.begin(size)
  reference.active, context.fused_loss = true, false
  world.act_as_first_of(size)
end

---Replaces a sharding over many ranks, whose rules have been read and checked, by one over this rank.
---@param self moonshard.Sharding
function reference.replace_sharding(self)
  local data_mesh = roles.data_mesh(self.mesh)
  self.reference_ranks = data_mesh and data_mesh:ranks() or { self.rank }
  self.reference_mesh = self.mesh
  self.mesh = single_rank.mesh()
  roles.assign(self, { shard = 0 })
  self.rank = 0
  for _, row in ipairs(policies.dropped) do
    local by_name = {}
    for name, decision in pairs(self.decisions[row.name]) do
      by_name[name] = { value = row.on_reference.value, rule = decision.rule, pattern = decision.pattern,
        where = decision.where }
    end
    self.decisions[row.name] = by_name
    policies.store(self, row)
  end
  for _, unit in ipairs(self.units) do precision.simplify(unit) end
end

---Replaces settings of a trainer: its micro-batches are those of all ranks.
---@param trainer moonshard.Trainer
function reference.replace_settings(trainer)
  trainer.micro_batches = trainer.micro_batches * #trainer.session.sharding.reference_ranks
  trainer.gradient_sync, trainer.reshard_after_backward, trainer.memory_limit = "every", true, nil
  trainer.rematerialize = true
end

---Gives a step's metrics the mesh dimensions that the recipe expects; no bytes are sent along them here.
---@param trainer moonshard.Trainer
---@param metrics moonshard.StepMetrics
function reference.name_dimensions(trainer, metrics)
  if not reference.active then return end
  metrics.comm_bytes = {}
  local mesh = trainer.session.sharding.reference_mesh
  for dim = 0, mesh.ndim - 1 do metrics.comm_bytes[mesh:dim_name(dim)] = 0 end
end

---Rules that a recipe changes during training, without those that the reference drops.
---@param given moonshard.NewRules
---@return moonshard.NewRules
function reference.rules(given)
  local kept = {}
  for name, value in pairs(given) do kept[name] = value end
  for _, row in ipairs(policies.dropped) do kept[row.name] = nil end
  return kept
end

return reference
