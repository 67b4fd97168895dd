-- Which elements of the parameters and of the optimizer's state this rank owns, and which of these it writes to a
-- checkpoint.
--
-- A rank owns one range of elements of every parameter and of each of its moments; its replicas own the same ranges.
-- For a save, the ranges are concatenated and divided evenly among the replicas: all ranks write the same number of
-- bytes, and most tensors are still in one file.

local engine = require("moonshard.base.ffi")
local optimizers = require("moonshard.engine.optimizers")
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

---@class moonshard.OwnedRange
---@field param moonshard.ShardedParameter
---@field index integer of the parameter, from 0
---@field kind string "param", "exp_avg", ...
---@field what integer the same as enum ms_tensor_kind
---@field first number first element of the range in the flattened parameter
---@field count number elements; can be 0

---The ranges that this rank owns, in the order in which they are written. Some can be empty.
---@param session moonshard.Session
---@param optimizer moonshard.Optimizer? nil: only the parameters
---@param ema table? of the session; nil: without averages
---@return moonshard.OwnedRange[]
function owned_ranges.owned(session, optimizer, ema)
  local list, first, count = {}, ffi.new("int64_t[1]"), ffi.new("int64_t[1]")
  local kinds = { { kind = "param", what = C.MS_TENSOR_PARAM }, unpack(owned_ranges.states(optimizer, ema)) }
  local handle = session.sharding:handle()
  for _, kind in ipairs(kinds) do
    for i, param in ipairs(session.sharding.params) do
      if kind.kind == "param" or not param.frozen then
        check(C.ms_model_owned(handle, i - 1, first, count))
        list[#list + 1] = {
          param = param, index = i - 1, kind = kind.kind, what = kind.what,
          first = tonumber(first[0]), count = tonumber(count[0]),
        }
      end
    end
  end
  return list
end

-- This rank's index among its replicas, and their number.
local function replica(sharding)
  local dim = sharding.replicate_dim
  if dim < 0 then return 0, 1 end
  return sharding.mesh:get_local_rank(dim), sharding.mesh:size(dim)
end

---The ranges that this rank writes: its share of what it and its replicas own.
---@param session moonshard.Session
---@return moonshard.OwnedRange[] none of them empty
function owned_ranges.written(session)
  local owned, total = owned_ranges.owned(session, session.optimizer, session.ema), 0
  for _, range in ipairs(owned) do total = total + range.count end
  local place, replicas = replica(session.sharding)
  local from, to = math.floor(total * place / replicas), math.floor(total * (place + 1) / replicas)
  local list, at = {}, 0
  for _, range in ipairs(owned) do
    local first, last = math.max(from, at), math.min(to, at + range.count)
    if last > first then
      range.first, range.count, at = range.first + (first - at), last - first, at + range.count
      list[#list + 1] = range
    else
      at = at + range.count
    end
  end
  return list
end

---The name of a tensor in a file: model.layers.0.weight, optimizer.exp_avg.layers.0.weight, ema.layers.0.weight.
---@param kind string
---@param fqn string
---@return string
function owned_ranges.tensor_name(kind, fqn)
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
