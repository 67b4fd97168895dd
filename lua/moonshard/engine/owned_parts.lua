-- Which elements each rank writes, and which pieces of a checkpoint hold what a rank owns.
--
-- A rank owns one stretch of every parameter and of what the optimizer keeps of it; its replicas own the same. Laid end
-- to end, these stretches are one row of elements that the replicas cut into equal parts: each writes one, so all write
-- the same number of bytes, and most tensors still lie in one file.

local engine = require("moonshard.base.ffi")
local C, ffi, check = engine.C, engine.ffi, engine.check

local owned_parts = {}

-- What the optimizer keeps, by the engine's names.
local STATES = {
  adamw = { { kind = "exp_avg", what = C.MS_TENSOR_EXP_AVG }, { kind = "exp_avg_sq", what = C.MS_TENSOR_EXP_AVG_SQ } },
  sgd = { { kind = "momentum", what = C.MS_TENSOR_MOMENTUM } },
}

---What is kept of every parameter that trains, besides itself.
---@param optimizer moonshard.Optimizer?
---@param ema table? of a session
---@return { kind: string, what: integer }[]
function owned_parts.states(optimizer, ema)
  local without = not optimizer or optimizer.kind == "sgd" and optimizer.momentum == 0
  local list = without and {} or { unpack(STATES[optimizer.kind]) }
  if ema then list[#list + 1] = { kind = "ema", what = C.MS_TENSOR_EMA } end
  return list
end

---@class moonshard.OwnedPart
---@field param moonshard.ShardedParameter
---@field index integer of the parameter
---@field kind string "param", "exp_avg", ...
---@field what integer the same to the engine: enum ms_tensor_kind
---@field first number elements of the flattened parameter
---@field count number

---What this rank owns, in the order in which it is written; parts may be empty.
---@param session moonshard.Session
---@param optimizer moonshard.Optimizer? nil: the parameters alone
---@param ema table? of the session; nil: not the averages
---@return moonshard.OwnedPart[]
function owned_parts.owned(session, optimizer, ema)
  local list, first, count = {}, ffi.new("int64_t[1]"), ffi.new("int64_t[1]")
  local kinds = { { kind = "param", what = C.MS_TENSOR_PARAM }, unpack(owned_parts.states(optimizer, ema)) }
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

-- This rank's place among its replicas, and how many they are.
local function replica(sharding)
  local dim = sharding.replicate_dim
  if dim < 0 then return 0, 1 end
  return sharding.mesh:get_local_rank(dim), sharding.mesh:size(dim)
end

---The part of what it owns that this rank writes.
---@param session moonshard.Session
---@return moonshard.OwnedPart[] none of them empty
function owned_parts.written(session)
  local owned, total = owned_parts.owned(session, session.optimizer, session.ema), 0
  for _, part in ipairs(owned) do total = total + part.count end
  local place, replicas = replica(session.sharding)
  local from, to = math.floor(total * place / replicas), math.floor(total * (place + 1) / replicas)
  local list, at = {}, 0
  for _, part in ipairs(owned) do
    local first, last = math.max(from, at), math.min(to, at + part.count)
    if last > first then
      part.first, part.count, at = part.first + (first - at), last - first, at + part.count
      list[#list + 1] = part
    else
      at = at + part.count
    end
  end
  return list
end

---The name of a tensor in a file: model.layers.0.weight, optimizer.exp_avg.layers.0.weight, ema.layers.0.weight.
---@param kind string
---@param fqn string
---@return string
function owned_parts.tensor_name(kind, fqn)
  if kind == "ema" then return "ema." .. fqn end
  return kind == "param" and "model." .. fqn or ("optimizer.%s.%s"):format(kind, fqn)
end

---The shape in which a stretch of a parameter is written: rows where it is whole rows, else a list of elements.
---@param shape integer[] of the parameter
---@param numel number
---@param first number
---@param count number
---@return integer[]
function owned_parts.shape(shape, numel, first, count)
  local row = #shape > 0 and numel / shape[1] or 1
  if #shape == 0 or first % row ~= 0 or count % row ~= 0 then return #shape == 0 and {} or { count } end
  return { count / row, unpack(shape, 2) }
end

return owned_parts
