-- Looking into a model that lives on many ranks: parameters, gradients and optimizer state as eager tensors, in full or
-- the shard that this rank owns; and setting parameters.

local create = require("moonshard.tensor.create")
local division = require("moonshard.shard.division")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local hash = require("moonshard.base.hash")
local nearest = require("moonshard.base.names.nearest")
local optimizers = require("moonshard.engine.optimizers")
local owned_ranges = require("moonshard.engine.owned_ranges")
local placements = require("moonshard.shard.policies.placements")
local roles = require("moonshard.shard.roles")
local session = require("moonshard.engine.session")
local tensor = require("moonshard.tensor")
local tree = require("moonshard.nn.tree")
local values = require("moonshard.tensor.values")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

local inspect = {}

-- ---- finding a parameter ----------------------------------------------------------------------------------------

-- The session in which a parameter of a module lives, and its index there.
local function find(module, name)
  local names = {}
  for _, entry in ipairs(tree.inventory(module).parameters) do
    for _, place in ipairs(entry.places) do
      if place.name == name then
        local around = session.around(module)
        local index = around.sharding.index[entry.parameter]
        return around, index, around.sharding.params[index + 1]
      end
      names[#names + 1] = place.name
    end
  end
  local near = nearest.name(tostring(name), names)
  errors.raise("MS_ENAME", "the model has no parameter %s%s", tostring(name),
    near and ("; did you mean %s?"):format(near) or "")
end

-- ---- reading ----------------------------------------------------------------------------------------------------

-- shape: of a tensor that has another one than the parameter.
local function read_full(around, index, param, what, factor, shape)
  shape = shape or { unpack(param.shape) }
  local state = around:ensure_state()
  around:require_same_model("of train:parameter or train:gradient")
  local data, count = values.allocate("f32", shape)
  check(C.ms_state_gather(state, index, what, 0, -1, data))
  if factor then values.scale(data, count, factor) end
  return tensor.eager("f32", shape, data, not around.sharding.single_rank and "replicated" or nil)
end

-- "shard 1 of 4: rows 3 to 5 of [10,5]"
local function describe_shard(sharding, param, first, count, row)
  local part, of = placements.part(sharding, param)
  local whole = tensor.shape_text(part) .. (of and ", " .. of or "")
  local shards, place = roles.shards(sharding)
  local unit = row and "rows" or "elements"
  if count == 0 then return ("shard %d of %d: no %s of %s"):format(place, shards, unit, whole) end
  row = row or 1
  return ("shard %d of %d: %s %d to %d of %s"):format(place, shards, unit, first / row, (first + count) / row - 1,
    whole)
end

---The shape of the part of a parameter that a rank owns: rows, or a vector where it does not own whole rows.
---@param around moonshard.Session
---@param param moonshard.Param
---@param begin integer its first element
---@param owned integer elements
---@return integer[] shape
---@return integer? row elements of a row; nil: a vector
function inspect.shard_shape(around, param, begin, owned)
  local part, row = placements.part(around.sharding, param), nil
  if param.unit.layout == "rows" then
    row = 1
    for d = 2, #part do row = row * part[d] end
  end
  if row and (begin % row ~= 0 or owned % row ~= 0) then row = nil end -- a replica's slice of a gradient
  if not row then return { owned }, nil end
  if #part > 0 or owned == 0 then part[1] = owned / row end
  return part, row
end

local function read_shard(around, index, param, what, factor)
  local state = around:ensure_state()
  local kept = division.kept(state, index, what)
  local begin, owned = kept.first, kept.count
  local data = ffi.new("float[?]", math.max(1, owned))
  check(C.ms_state_read(state, index, what, begin, owned, data))
  local shape, row = inspect.shard_shape(around, param, begin, owned)
  local placement = not around.sharding.single_rank and describe_shard(around.sharding, param, begin, owned, row) or nil
  local shard = values.copy("f32", shape, data, placement)
  if factor then values.scale(shard.data, owned, factor) end
  return shard
end

---A parameter in full. Collective if the model is sharded.
---@param module moonshard.Module
---@param name string
---@return moonshard.Tensor
function inspect.parameter(module, name)
  local around, index, param = find(module, name)
  local unsharded = around.unsharded[param.unit]
  return unsharded and unsharded[index] or read_full(around, index, param, C.MS_TENSOR_PARAM)
end

---The shard of a parameter that this rank owns, of one that is known by its place.
---@param around moonshard.Session
---@param index integer of the parameter in the engine's state
---@param param moonshard.Param
---@return moonshard.Tensor
function inspect.own_shard(around, index, param) return read_shard(around, index, param, C.MS_TENSOR_PARAM) end

---The shard of a parameter that this rank owns.
---@param module moonshard.Module
---@param name string
---@return moonshard.Tensor
function inspect.local_parameter(module, name)
  return inspect.own_shard(find(module, name))
end

-- ---- trainers ----------------------------------------------------------------------------------------

-- The engine sums the gradients of all ranks and micro-batches; this factor turns the sum into the mean's gradient.
local function mean_factor(trainer, param)
  if trainer.steps_done == 0 then errors.invalid("there is no gradient before the first step") end
  trainer.session:require_gradient()
  return trainer.session:gradient_factor(param)
end

---The gradient of the last step's mean loss, before clipping. Collective unless `own`.
---@param trainer moonshard.Trainer
---@param name string
---@param own boolean? only the shard of this rank
---@return moonshard.Tensor
function inspect.gradient(trainer, name, own)
  local around, index, param = find(trainer.model, name)
  return (own and read_shard or read_full)(around, index, param, C.MS_TENSOR_GRAD, mean_factor(trainer, param))
end

-- The number of updates of a parameter. A step in which it has no gradient does not update it.
local function updates_of(trainer, name)
  local around, index = find(trainer.model, name)
  return create.tensor(division.kept(around:ensure_state(), index, C.MS_TENSOR_PARAM).updates)
end

---The optimizer's state of a parameter. Collective, except with `own` and for "step".
---@param trainer moonshard.Trainer
---@param name string
---@param what string "step": the number of its updates; AdamW: "exp_avg", "exp_avg_sq"; SGD and Muon: "momentum";
---  Adafactor, whose state every rank has whole: "row_var" [..., rows, 1], "col_var" [..., 1, columns] or "variance";
---  averages of the weights: "ema"; local SGD: "synced", "outer_momentum", "outer_sum"
---@param own boolean? only the shard of this rank
---@return moonshard.Tensor
function inspect.optimizer_state(trainer, name, what, own)
  if what == "step" then return updates_of(trainer, name) end
  local states, sync, optimizer = {}, trainer.session.sharding.local_sync, trainer.optimizer
  local _, _, found = find(trainer.model, name)
  for _, state in ipairs(owned_ranges.states_of(optimizer, trainer.session.ema, found)) do
    states[state.kind] = state.what
  end
  for _, state in ipairs(sync and owned_ranges.outer_states(sync) or {}) do states[state.kind] = state.what end
  if not states[what] then
    errors.raise("MS_ENAME", "%s keeps no %s: %s", optimizer:part_of(found.fqn).kind, tostring(what),
      nearest.advice(what, states))
  end
  local around, index, param = find(trainer.model, name)
  if what == "ema" then
    around:require_weights("optimizer_state of " .. name, "here `parameter` gives them; ask for them")
  end
  local shape, is_whole = optimizers.state_shape(what, param.shape)
  if is_whole then return read_full(around, index, param, states[what], nil, shape) end
  return (own and read_shard or read_full)(around, index, param, states[what])
end

-- ---- writing ----------------------------------------------------------------------------------------------------

-- Each rank writes its own shard, so different values would produce a mixture of them.
local function check_equal(around, index, name, data, count)
  local values_hash = hash.of_bytes(data, 4 * count)
  if not around:find_mismatch(hash.of_text(("%d %.0f"):format(index, values_hash)), "of values to set") then return end
  around:require_same(index, "of parameters to set", function(other)
    return ("set_parameter of %s: rank %d sets a different parameter than rank %d; all ranks must set the same ones "
      .. "in the same order (pairs differs between ranks, named_parameters does not)"):format(name, other, world.rank)
  end)
  around:require_same(values_hash, "of values to set", function(other)
    return ("set_parameter of %s: rank %d was given different values than rank %d; all ranks must pass the same")
      :format(name, other, world.rank)
  end)
end

---Overwrites a parameter. Collective.
---@param module moonshard.Module
---@param name string
---@param given moonshard.Tensor|table
function inspect.set_parameter(module, name, given)
  local around, index, param = find(module, name)
  if around.sharding.single_rank then
    errors.invalid("set_parameter of %s: shard the model first (ms.fully_shard); until then it has no values of its "
      .. "own", name)
  end
  around:require_weights("set_parameter of " .. name, "set it")
  local new = tensor.is_eager(given) and given or create.tensor(given)
  if tensor.shape_text(new.shape) ~= tensor.shape_text(param.shape) then
    errors.raise("MS_ESHAPE", "set_parameter of %s: the parameter is %s, the values are %s", name,
      tensor.shape_text(param.shape), tensor.shape_text(new.shape))
  end
  new = new:cast("f32")
  check_equal(around, index, name, new.data, param.numel)
  check(C.ms_state_scatter(around:ensure_state(), index, -1, new.data))
  around.edits = around.edits + 1
  if around.unsharded[param.unit] then around.unsharded[param.unit][index] = new end
end

return inspect
