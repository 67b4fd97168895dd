-- Which elements of the parameters and of the optimizer's state this rank owns, and which of these it writes to a
-- checkpoint.
--
-- A rank owns one range of elements of every parameter and of each of its moments; its replicas own the same ranges.
-- For a save, the ranges are concatenated and divided evenly among the replicas: all ranks write the same number of
-- bytes, and most tensors are still in one file. Ranges that no other replica has (shard_optimizer_over_replicate) are
-- written whole.

local engine = require("moonshard.base.ffi")
local optimizers = require("moonshard.engine.optimizers")
local placements = require("moonshard.shard.placements")
local C, ffi, check = engine.C, engine.ffi, engine.check

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
---@field kind string "param", "exp_avg", ...
---@field what integer the same as enum ms_tensor_kind
---@field first number first element of the range in the flattened parameter
---@field count number elements; can be 0
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

---The ranges that this rank keeps, in the order in which they are written. Some can be empty.
---@param session moonshard.Session
---@param optimizer moonshard.Optimizer? nil: only the parameters
---@param ema table? of the session; nil: without averages
---@param o { replica: integer?, plan: moonshard.Plan? }? replica: with local SGD, the one whose local values they are,
---  from 0; nil: as without local SGD. plan: where there is no state
---@return moonshard.OwnedRange[]
function owned_ranges.owned(session, optimizer, ema, o)
  placements.refuse(session.sharding, "checkpoints")
  local list, first, count = {}, ffi.new("int64_t[1]"), ffi.new("int64_t[1]")
  local plan, replica, sliced = o and o.plan, o and o.replica, ffi.new("int[1]")
  local state = not plan and session:ensure_state()
  local all = { { kind = "param", what = C.MS_TENSOR_PARAM }, unpack(owned_ranges.states(optimizer, ema)) }
  local sync = session.sharding.local_sync
  local outer = replica and sync and owned_ranges.outer_states(sync) or nil
  local most = #all + (outer and #outer or 0)
  for place = 1, most do
    for i, param in ipairs(session.sharding.params) do
      local kind = kinds_of(param, all, outer, replica)[place]
      if kind and (kind.kind == "param" or not param.frozen) then
        if plan then check(C.ms_plan_kept(plan.handle, i - 1, first, count, sliced))
        else check(C.ms_state_kept(state, i - 1, kind.what, first, count, sliced)) end
        list[#list + 1] = {
          param = param, index = i - 1, kind = kind.kind, what = kind.what, replica = kind.replica,
          first = tonumber(first[0]), count = tonumber(count[0]), sliced = sliced[0] ~= 0,
        }
      end
    end
  end
  return list
end

---This rank's index among its replicas, and their number.
---@param sharding moonshard.Sharding
---@param disk moonshard.Disk? counts only the replicas on it
---@return integer index from 0
---@return integer replicas
function owned_ranges.replica(sharding, disk)
  local dim = sharding.replicate_dim
  if dim < 0 then return 0, 1 end
  if not disk then return sharding.mesh:get_local_rank(dim), sharding.mesh:size(dim) end
  local place, n = 0, 0
  for _, rank in ipairs(sharding.mesh:get_group(dim)) do
    if rank == sharding.rank then place = n end
    if disk.holds[rank] then n = n + 1 end
  end
  return place, n
end

---The ranges that this rank writes: its share of what it and its replicas own, and what only it owns. Replicas on
---another disk do not share the work, so that ranks find what they own on theirs.
---@param session moonshard.Session
---@param disk moonshard.Disk? nil: all ranks are on one
---@param plan moonshard.Plan? where there is no state
---@return moonshard.OwnedRange[] none of them empty
function owned_ranges.written(session, disk, plan)
  local place, replicas = owned_ranges.replica(session.sharding, disk)
  local index = owned_ranges.replica(session.sharding)
  local owned = owned_ranges.owned(session, session.optimizer, session.ema, { replica = index, plan = plan })
  local function is_mine(range) return range.replica or range.sliced end
  local total = 0
  for _, range in ipairs(owned) do total = total + (is_mine(range) and 0 or range.count) end
  local from, to = math.floor(total * place / replicas), math.floor(total * (place + 1) / replicas)
  local list, at = {}, 0
  for _, range in ipairs(owned) do
    local first, last = math.max(from, at), math.min(to, at + range.count)
    if is_mine(range) then
      if range.count > 0 then list[#list + 1] = range end
    elseif last > first then
      range.first, range.count, at = range.first + (first - at), last - first, at + range.count
      list[#list + 1] = range
    else
      at = at + range.count
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
  return kind == "param" and "model." .. fqn or ("optimizer.%s.%s"):format(kind, fqn)
end

---The shape in which a range of a parameter is written: whole rows, or else a list of elements.
---@param shape integer[] of the parameter
---@param numel number
---@param first number
---@param count number
---@return integer[]
function owned_ranges.shape(shape, numel, first, count)
  local row = #shape > 0 and numel / shape[1] or 1
  if #shape == 0 or first % row ~= 0 or count % row ~= 0 then return #shape == 0 and {} or { count } end
  return { count / row, unpack(shape, 2) }
end

return owned_ranges
