-- The option `strategy` of ms.fully_shard: PyTorch FSDP's names for ways to shard, each of which requires a mesh.

local errors = require("moonshard.base.error")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")
local roles = require("moonshard.shard.roles")

-- PyTorch FSDP's names: the mesh that each requires, and its default of reshard_after_forward.
local STRATEGIES = {
  FULL_SHARD = { shards = true, reshard = "default" },
  SHARD_GRAD_OP = { shards = true, reshard = "never" },
  NO_SHARD = { reshard = "never" },
  HYBRID_SHARD = { shards = true, replicates = true, reshard = "default" },
  HYBRID_SHARD_ZERO2 = { shards = true, replicates = true, reshard = "never" },
}

-- What people call them.
local ALSO = {
  FSDP = "FULL_SHARD", ZERO3 = "FULL_SHARD", ZERO2 = "SHARD_GRAD_OP", DDP = "NO_SHARD", HSDP = "HYBRID_SHARD",
}

local function size_of(mesh, dim)
  return dim < 0 and 1 or mesh:size(dim)
end

---The mesh of a sharding, its dimension of each role, and the strategy's default of reshard_after_forward.
---@param config moonshard.ShardOptions
---@return moonshard.Mesh
---@return table<string, integer> dims
---@return string? reshard
return function(config)
  local name = config.strategy
  local mesh = roles.read_mesh(config.mesh)
  if not name then return mesh, roles.dims(mesh) end
  local strategy = STRATEGIES[name]
  if not strategy then
    local also = ALSO[tostring(name):upper()]
    errors.raise("MS_ENAME", "ms.fully_shard: unknown strategy %s: %s", options.describe(name),
      also and ("did you mean %s?"):format(also) or nearest.advice(name, STRATEGIES))
  end
  if config.reshard_after_forward ~= nil then
    errors.invalid("ms.fully_shard: leave out strategy %s or reshard_after_forward: both set when to reshard", name)
  end
  if not strategy.shards then
    if #roles.model_dims(mesh) > 0 then
      errors.invalid("ms.fully_shard: strategy %s replicates over all ranks, but mesh %s has dimensions that divide "
        .. "the work: leave the strategy out, and give the mesh a dimension replicate", name, mesh:label())
    end
    if mesh.ndim > 1 then mesh = mesh:as_one("replicate") end
    return mesh, { replicate = 0, shard = -1 }, strategy.reshard
  end
  local dims = roles.dims(mesh)
  if strategy.replicates and (dims.replicate < 0 or dims.shard < 0) then
    errors.invalid("ms.fully_shard: strategy %s needs a mesh (replicate, shard), as in mesh = { 2, 2 }; it has %s",
      name, mesh:label())
  end
  if not strategy.replicates and size_of(mesh, dims.replicate) > 1 then
    errors.invalid("ms.fully_shard: strategy %s shards over all ranks, but the mesh is %s: use HYBRID_SHARD", name,
      mesh:label())
  end
  return mesh, dims, strategy.reshard
end
