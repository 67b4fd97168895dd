-- Which elements of the parameters and of the optimizer's state this rank owns, and which of these it writes to a
-- checkpoint.
--
-- A rank owns one range of elements of every parameter, or of its part of one that a tensor dimension divides, and of
-- each of its moments; its replicas own the same ranges, as do the ranks of a tensor dimension of what it does not
-- divide. For a save, the ranges that the same ranks own are concatenated and divided evenly among them: all write the
-- same number of bytes, and most tensors are still in one file. Ranges that no other replica has
-- (shard_optimizer_over_replicate) are not divided among replicas. What every rank that shards has whole is divided
-- among these, too (shard = false).

local division = require("moonshard.shard.division")
local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local optimizers = require("moonshard.engine.optimizers")
local placements = require("moonshard.shard.policies.placements")
local records = require("moonshard.shard.records")
local storage = require("moonshard.shard.policies.storage")
local C = engine.C

local owned_ranges = {}

---The state kept for every trained parameter, besides its value.
---@param optimizer moonshard.Optimizer?
---@param ema table? of a session
---@return moonshard.OptimizerState[]
function owned_ranges.states(optimizer, ema)
  local list = optimizers.states(optimizer)
  if ema then list[#list + 1] = { kind = "ema", what = C.MS_TENSOR_EMA } end
  return list
end

---The state kept for a trained parameter.
---@param optimizer moonshard.Optimizer?
---@param ema table? of a session
---@param param { fqn: string, shape: integer[] }
---@return moonshard.OptimizerState[]
function owned_ranges.states_of(optimizer, ema, param)
  local list = optimizers.states_of(optimizer, param)
  if ema then list[#list + 1] = { kind = "ema", what = C.MS_TENSOR_EMA } end
  return list
end

---What local SGD keeps for every parameter of a unit with a fragment; it is the same on all replicas.
---@param sync moonshard.ReplicateSync
---@return moonshard.OptimizerState[]
function owned_ranges.outer_states(sync)
  local list = { { kind = "synced", what = C.MS_TENSOR_SYNCED } }
  if sync.outer.momentum ~= 0 then
    list[#list + 1] = { kind = "outer_momentum", what = C.MS_TENSOR_OUTER_MOMENTUM }
  end
  if sync.delay > 0 then list[#list + 1] = { kind = "outer_sum", what = C.MS_TENSOR_OUTER_SUM } end
  return list
end

---@class moonshard.OwnedRange
---@field param moonshard.ShardedParameter
---@field index integer of the parameter, from 0
---@field kind string "param", "exp_avg", ...; a `coded` dtype: the stored form of a parameter, whose elements are words
---@field what integer the same as enum ms_tensor_kind
---@field part moonshard.Division of the parameter: what this rank's place in a tensor dimension has; in words of a
---  stored form
---@field stored { records: moonshard.Records, part: moonshard.Division, first: number, count: number }? of a stored
---  form: its records, and in elements what the range is
---@field first number first element of the range in the flattened part
---@field count number elements; can be 0
---@field whole boolean? every rank has all of it, also where it has none of the parameter
---@field sliced boolean whether no other replica has them, as each has a slice of the parameter
---@field replica integer? the only replica that has these values; nil: all have them

---Whether local steps make the values of a parameter differ between replicas.
---@param param moonshard.ShardedParameter
---@return boolean
function owned_ranges.is_local(param) return param.unit.fragment ~= nil and not param.frozen end

-- The state of a parameter in the order in which it is written. In checkpoints the weights of local SGD are the synced
-- ones, so that a program that reads only weights gets those that all replicas have.
local function kinds_of(param, all, outer, replica)
  if not outer or not owned_ranges.is_local(param) then return all end
  local list = {}
  for _, state in ipairs(outer) do
    list[#list + 1] = { kind = state.kind == "synced" and "param" or state.kind, what = state.what }
  end
  for _, state in ipairs(all) do
    list[#list + 1] = { kind = owned_ranges.of_replica(state.kind, replica), what = state.what, replica = replica }
  end
  return list
end

-- A parameter that is kept as codes with scales is saved as such: its values would be quantised again.
local function as_stored(range)
  local param = range.param
  if range.kind ~= "param" or not storage.is_quantised(param) then return range end
  local of = records.of_part(param.storage, range.part)
  range.kind, range.what = param.storage, C.MS_TENSOR_STORED
  range.stored = { records = of, part = range.part, first = range.first, count = range.count }
  range.part = records.in_words(of, range.part)
  range.first, range.count = records.count(of, range.first), records.count(of, range.count)
  return range
end

-- The range of a state that every rank has whole.
local function whole_range(param, index, kind)
  local count = optimizers.whole_numel(kind, param.shape)
  return {
    param = param, index = index, part = division.whole(count), kind = kind.kind, what = kind.what, first = 0,
    count = count, sliced = false, whole = true,
  }
end

---The ranges that this rank keeps, in the order in which they are written. Some can be empty.
---@param session moonshard.Session
---@param optimizer moonshard.Optimizer? nil: only the parameters
---@param ema table? of the session; nil: without averages
---@param o { replica: integer?, plan: moonshard.Plan? }? replica: with local SGD, the one whose local values they are,
---  from 0; nil: as without local SGD. plan: where there is no state
---@return moonshard.OwnedRange[]
function owned_ranges.owned(session, optimizer, ema, o)
  local list, plan, replica = {}, o and o.plan, o and o.replica
  local state = not plan and session:ensure_state()
  local all = { { kind = "param", what = C.MS_TENSOR_PARAM }, unpack(owned_ranges.states(optimizer, ema)) }
  local sync = session.sharding.local_sync
  local outer = replica and sync and owned_ranges.outer_states(sync) or nil
  local most, parts, own, handle = #all + (outer and #outer or 0), {}, {}, session.sharding:handle()
  for i, param in ipairs(session.sharding.params) do
    parts[i] = division.of(handle, i - 1)
    local states = param.frozen and {} or owned_ranges.states_of(optimizer, ema, param)
    own[i] = { all[1], unpack(states) }
  end
  for place = 1, most do
    for i, param in ipairs(session.sharding.params) do
      local kind = kinds_of(param, own[i], outer, replica)[place]
      if kind and kind.shape then
        list[#list + 1] = whole_range(param, i - 1, kind)
      elseif kind and (kind.kind == "param" or not param.frozen) then
        local kept = plan and division.planned(plan.handle, i - 1) or division.kept(state, i - 1, kind.what)
        list[#list + 1] = as_stored({
          param = param, index = i - 1, part = parts[i], kind = kind.kind, what = kind.what, replica = kind.replica,
          first = kept.first, count = kept.count, sliced = kept.sliced,
        })
      end
    end
  end
  return list
end

---This rank's index among its replicas, and their number.
---@param sharding moonshard.Sharding
---@return integer index from 0
---@return integer replicas
function owned_ranges.replica(sharding)
  local dim = sharding.replicate_dim
  if dim < 0 then return 0, 1 end
  return sharding.mesh:get_local_rank(dim), sharding.mesh:size(dim)
end

-- This rank's index among those along dimensions of the mesh, and their number; with a disk: of those on it.
local function place_among(sharding, dims, disk)
  local ranks, place, n = { sharding.rank }, 0, 0
  for _, dim in ipairs(dims) do
    local more = {}
    for _, rank in ipairs(ranks) do
      for _, other in ipairs(sharding.mesh:group_of(rank, dim)) do more[#more + 1] = other end
    end
    ranks = more
  end
  for _, rank in ipairs(ranks) do
    if rank == sharding.rank then place = n end
    if not disk or disk.holds[rank] then n = n + 1 end
  end
  return place, n
end

-- Ranges by the dimensions of the mesh whose ranks own the same: { dims, total, list of ranges }.
local function by_owners(sharding, owned)
  local classes, by_key = {}, {}
  for _, range in ipairs(owned) do
    local dims = {}
    if sharding.replicate_dim >= 0 and not (range.replica or range.sliced) then dims[1] = sharding.replicate_dim end
    if sharding.tensor_dim >= 0 and (range.whole or not placements.divides(sharding, range.param)) then
      dims[#dims + 1] = sharding.tensor_dim
    end
    local whole = range.whole or not range.param.unit.shard
    for _, dim in ipairs(whole and { sharding.shard_dim, sharding.context_dim } or {}) do
      if dim >= 0 then dims[#dims + 1] = dim end
    end
    local key = table.concat(dims, ",")
    local class = by_key[key]
    if not class then
      class = { dims = dims, total = 0, ranges = {} }
      classes[#classes + 1], by_key[key] = class, class
    end
    class.total = class.total + range.count
    class.ranges[#class.ranges + 1] = range
  end
  return classes
end

---The ranges that this rank writes: its share of what it and other ranks own, and what only it owns. Ranks on another
---disk do not share the work, so that ranks find what they own on theirs.
---@param session moonshard.Session
---@param disk moonshard.Disk? nil: all ranks are on one
---@param plan moonshard.Plan? where there is no state
---@return moonshard.OwnedRange[] none of them empty
function owned_ranges.written(session, disk, plan)
  local list, replica = {}, owned_ranges.replica(session.sharding)
  local owned = owned_ranges.owned(session, session.optimizer, session.ema, { replica = replica, plan = plan })
  for _, class in ipairs(by_owners(session.sharding, owned)) do
    local place, owners = place_among(session.sharding, class.dims, disk)
    local from, to = math.floor(class.total * place / owners), math.floor(class.total * (place + 1) / owners)
    local at = 0
    for _, range in ipairs(class.ranges) do
      local first, last, count = math.max(from, at), math.min(to, at + range.count), range.count
      if last > first then
        range.first, range.count = range.first + (first - at), last - first
        list[#list + 1] = range
      end
      at = at + count
    end
  end
  return list
end

---The kind of values that only one replica has: "replica.0.param".
---@param kind string
---@param replica integer from 0
---@return string
function owned_ranges.of_replica(kind, replica) return ("replica.%d.%s"):format(replica, kind) end

---The name of a tensor in a file: model.layers.0.weight, optimizer.exp_avg.layers.0.weight, ema.layers.0.weight; of one
---replica replica.0.model.layers.0.weight.
---@param kind string
---@param fqn string
---@return string
function owned_ranges.tensor_name(kind, fqn)
  local replica, of_it = kind:match("^(replica%.%d+%.)(.*)$")
  if replica then return replica .. owned_ranges.tensor_name(of_it, fqn) end
  if kind == "ema" then return "ema." .. fqn end
  if dtypes.may(kind, "coded") then return ("model.%s.%s"):format(kind, fqn) end
  return kind == "param" and "model." .. fqn or ("optimizer.%s.%s"):format(kind, fqn)
end

---The shape in which a range of a parameter is written: whole rows, or else a list of elements.
---@param shape integer[] of the parameter, or of the rank's part of it
---@param first number
---@param count number
---@return integer[]
function owned_ranges.shape(shape, first, count)
  local row = 1
  for d = 2, #shape do row = row * shape[d] end
  if #shape == 0 or first % row ~= 0 or count % row ~= 0 then return #shape == 0 and {} or { count } end
  return { count / row, unpack(shape, 2) }
end

return owned_ranges
