-- Collectives in a forward, and the manual way of parallelism: x:to_local{...} begins a part of a module in which each
-- rank of `tensor` computes with what it has, y:from_local{...} ends it (runtime/graph/partition/partition_by_hand.c).
-- Along the data dimensions, `shard` and `replicate`, ranks compute with their own rows anyway, and no border is
-- needed.
--
-- A dimension that the mesh lacks, or of one rank, makes each of these the identity, so a recipe fits every mesh.

local axes = require("moonshard.tensor.axes")
local context = require("moonshard.base.context")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local nearest = require("moonshard.base.names.nearest")
local ops = require("moonshard.tensor.ops")
local options = require("moonshard.base.checks.options")
local C = engine.C

local collectives, methods = {}, {}
collectives.methods = methods

-- The dimensions by name; data: ranks have rows of their own.
local DIMENSIONS = {
  replicate = { id = tonumber(C.MS_DIM_REPLICATE), data = true },
  shard = { id = tonumber(C.MS_DIM_SHARD), data = true },
  tensor = { id = tonumber(C.MS_DIM_TENSOR) },
}
local KINDS = { replicate = tonumber(C.MS_LOCAL_REPLICATE), partial = tonumber(C.MS_LOCAL_PARTIAL) }
local SHARD = tonumber(C.MS_LOCAL_SHARD)

local function find_dimension(what, dimension)
  if dimension == "context" then
    errors.raise("MS_EUNSUPPORTED", "%s: there are no collectives along context: the engine divides positions itself, "
      .. "and exchanges what the ranks need; remove the call", what)
  end
  local found = DIMENSIONS[dimension]
  if found then return found end
  errors.raise("MS_ENAME", "%s: the dimension must be \"tensor\", \"shard\" or \"replicate\", not %s%s", what,
    options.describe(dimension), type(dimension) == "string" and ": " .. nearest.advice(dimension, DIMENSIONS) or "")
end

-- What collectives along a data dimension cannot be combined with.
local function check_data(what, dimension, sharding, ranks)
  local checked = sharding.reference_mesh
  if checked and checked:has(dimension) and checked:size(dimension) > 1 then
    errors.raise("MS_EUNSUPPORTED", "%s over %s: moonshard check compares a run with one rank that trains on the rows "
      .. "of each rank in turn, and has nothing to exchange: compare runs on other meshes by hand", what, dimension)
  end
  if dimension == "shard" and sharding.context_dim >= 0 and sharding.mesh:size(sharding.context_dim) > 1 then
    errors.raise("MS_EUNSUPPORTED", "%s over shard: the mesh has a dimension context, too, whose ranks have parts of "
      .. "the same rows: use a mesh without it", what)
  end
  if dimension == "replicate" and ranks > 1 and sharding.local_sync then
    errors.raise("MS_EUNSUPPORTED", "%s over replicate: with replicate_sync, replicas train apart between their syncs",
      what)
  end
end

-- The dimension and how many ranks the model's mesh has along it, 1 without it.
local function ranks_of(what, dimension)
  local found, trace = find_dimension(what, dimension), context.trace
  if not trace then
    errors.invalid("%s: outside a forward, ops run on this rank alone; call it in the forward of a model", what)
  end
  local sharding = trace.sharding
  local dim = sharding[dimension .. "_dim"] or -1
  local ranks = dim < 0 and 1 or sharding.mesh:size(dim)
  if found.data then check_data(what, dimension, sharding, ranks) end
  return found, ranks
end

-- Applies an op along a dimension; attributes: besides those that all have.
local function apply(name, x, dimension, attributes)
  local found, ranks = ranks_of(name, dimension)
  if ranks == 1 then return x end
  attributes.dim, attributes.ranks = found.id, ranks
  local y = ops.apply(name, { x }, attributes)[1]
  -- Ranks use the equal sums differently there: with their own rows.
  if name == "all_reduce" and found.data then y = ops.apply("copy_to", { y }, { dim = found.id, ranks = ranks })[1] end
  return y
end

---The sum of all ranks' values, element by element, or the largest. The gradient of a sum is right whether ranks use it
---alike or not. The largest has no gradient, so call x:detach() first.
---@param dimension "tensor"|"shard"|"replicate"
---@param reduction "sum"|"max"|nil default "sum"
---@return moonshard.Tensor the same shape
function methods:all_reduce(dimension, reduction)
  if reduction ~= nil and reduction ~= "sum" and reduction ~= "max" then
    errors.invalid("all_reduce: the second argument must be \"sum\" or \"max\", not %s%s", options.describe(reduction),
      (reduction == "mean" or reduction == "avg") and ": divide the sum by the number of ranks" or "")
  end
  return apply("all_reduce", self, dimension, { max = reduction == "max" })
end

---All ranks' values, joined along an axis in the order of ranks. Backward sums the gradients of all ranks, and each
---gets that of its own value.
---@param dimension "tensor"|"shard"|"replicate"
---@param axis integer? default 0; negative: from the end
---@return moonshard.Tensor that axis times the number of ranks
function methods:all_gather(dimension, axis)
  return apply("all_gather", self, dimension, { along = axes.of(self, axis or 0) })
end

---This rank's part of the sum of all ranks' values: the part of an axis, whose size the ranks must divide. Backward
---gathers.
---@param dimension "tensor"|"shard"|"replicate"
---@param axis integer? default 0; negative: from the end
---@return moonshard.Tensor 1/ranks of that axis
function methods:reduce_scatter(dimension, axis)
  return apply("reduce_scatter", self, dimension, { along = axes.of(self, axis or 0) })
end

---Sends each rank its part of one axis, and joins what comes from them along another. Backward is the reverse.
---@param dimension "tensor"|"shard"|"replicate"
---@param split_axis integer the ranks must divide its size; negative: from the end
---@param concat_axis integer negative: from the end
---@return moonshard.Tensor
function methods:all_to_all(dimension, split_axis, concat_axis)
  return apply("all_to_all", self, dimension,
    { split_axis = axes.of(self, split_axis), concat_axis = axes.of(self, concat_axis) })
end

---The same values, which each rank uses in its own way from here on: backward sums their gradients over the ranks
---(Megatron's f). The engine does this by itself wherever such values meet values of one rank; call it to choose where.
---@param dimension "tensor"|"shard"|"replicate"
---@return moonshard.Tensor
function methods:copy_to(dimension)
  local found = ranks_of("copy_to", dimension)
  if found.data then return self end -- ranks use everything differently there
  return apply("copy_to", self, dimension, {})
end

---The value of the rank n places before this one, in a ring: with n = 1, rank 1 has that of rank 0. Backward shifts
---back.
---@param dimension "tensor"|"shard"|"replicate"
---@param n integer? default 1; negative: of the ranks behind
---@return moonshard.Tensor
function methods:shift(dimension, n)
  if n ~= nil and (type(n) ~= "number" or n % 1 ~= 0) then
    errors.invalid("shift: the number of places must be a whole number, not %s", options.describe(n))
  end
  local _, ranks = ranks_of("shift", dimension)
  return apply("shift", self, dimension, { by = math.fmod(n or 1, ranks) })
end

-- ---- borders ----------------------------------------------------------------------------------------------------

-- What each rank has, as attributes.
local function read_border(what, x, where)
  if type(where) ~= "table" or next(where) ~= "tensor" or next(where, "tensor") ~= nil then
    errors.invalid("%s: say what each rank of the dimension tensor has, as in x:%s { tensor = ms.Shard(0) }", what,
      what)
  end
  local placement = where.tensor
  if type(placement) == "table" and rawget(placement, "axis") then
    return { kind = SHARD, along = axes.of(x, placement.axis) }
  end
  local name = type(placement) == "table" and next(placement) == nil and "replicate" or placement
  if KINDS[name] then return { kind = KINDS[name] } end
  errors.invalid("%s: tensor must be ms.Shard(axis), \"replicate\" or \"partial\", not %s", what,
    options.describe(placement))
end

---Begins a part of a module that a recipe divides by hand: this rank's part of the value. Everything that is computed
---from it has the shape of one rank, and the recipe exchanges what is needed, until x:from_local ends it.
---@param where { tensor: table|string } ms.Shard(axis), "replicate" (or ms.Replicate()), or "partial": a summand
---@return moonshard.Tensor the same shape; with ms.Shard(axis), whose size the ranks must divide, 1/ranks of that axis
function methods:to_local(where)
  return apply("to_local", self, "tensor", read_border("to_local", self, where))
end

---Ends such a part: returns the value of which each rank of `tensor` has this part, this summand, or all. "replicate"
---needs a value that is known to be equal on all ranks: the result of all_reduce or all_gather, or one computed only
---from such results. "partial" adds all ranks' values, also equal ones: after an all_reduce write "replicate".
---@param where { tensor: table|string } ms.Shard(axis), "replicate" (or ms.Replicate()), or "partial": a summand
---@return moonshard.Tensor the same shape; with ms.Shard(axis) that axis times the number of ranks
function methods:from_local(where)
  return apply("from_local", self, "tensor", read_border("from_local", self, where))
end

for name, method in pairs(methods) do ops[name] = method end

return collectives
