-- Moves the values of a model to a state that divides its parameters in another way, as new placements do, or that has
-- fewer of them: weights, the optimizer's state and averages. One tensor at a time is gathered in full, and each rank
-- keeps what it owns, so the values are the same bit for bit.

local division = require("moonshard.shard.division")
local engine = require("moonshard.base.ffi")
local owned_ranges = require("moonshard.engine.owned_ranges")
local records = require("moonshard.shard.records")
local storage = require("moonshard.shard.policies.storage")
local C, ffi, check = engine.C, engine.ffi, engine.check

-- Writes the elements of a whole tensor that this rank owns, changed by a function if one is given. part: of the
-- tensor, which this rank's shard group has.
local function keep(state, part, index, what, whole, change)
  local kept, done = division.kept(state, index, what), 0
  local first, count = kept.first, kept.count
  local own = ffi.new("float[?]", count)
  while done < count do
    local at, run = division.index(part, first + done)
    run = math.min(run, count - done)
    ffi.copy(own + done, whole + at, 4 * run)
    if change then change(own + done, at, run) end
    done = done + run
  end
  check(C.ms_state_write(state, index, what, first, count, own))
end

local move_state = {}

---Copies a parameter that is kept as codes with scales, as it is: quantising its values again would change them. Its
---ranks own the same of it in both states, whose models divide it alike.
---@param from ffi.cdata* ms_state*
---@param old integer its index there
---@param to ffi.cdata* ms_state*
---@param index integer its index there
function move_state.copy_stored(from, old, to, index)
  local kept = division.kept(from, old, C.MS_TENSOR_STORED)
  local words = ffi.new("float[?]", kept.count)
  check(C.ms_state_read(from, old, C.MS_TENSOR_STORED, kept.first, kept.count, words))
  check(C.ms_state_write(to, index, C.MS_TENSOR_STORED, kept.first, kept.count, words))
end

-- The same where ranks own other elements of it in the new state: each gathers the records, and keeps its own.
local function redivide_stored(param, from, old, to, index)
  local kept = division.kept(to, index, C.MS_TENSOR_PARAM)
  local before, part = division.kept(from, old, C.MS_TENSOR_PARAM).part, kept.part
  if division.equals(before, part) then return move_state.copy_stored(from, old, to, index) end
  local saved, own = records.of_part(param.storage, before), records.of_part(param.storage, part)
  local whole = ffi.new("float[?]", records.count(saved, param.numel))
  check(C.ms_state_gather(from, old, C.MS_TENSOR_STORED, 0, -1, whole))
  local at, count = kept.first, kept.count
  local words = ffi.new("float[?]", records.count(own, count))
  records.take(saved, whole, 0, param.numel, own, part, at, count, words)
  check(C.ms_state_write(to, index, C.MS_TENSOR_STORED, records.count(own, at), records.count(own, count), words))
end

---@class moonshard.StateMove
---@field index table<moonshard.Parameter, integer> the parameters' indices in the old state
---@field change table<moonshard.Parameter, fun(values: ffi.cdata*, first: number, count: number)> changes elements of a
---  weight on the way

---Copies the values of a model from one state to another. Collective.
---@param session moonshard.Session
---@param from ffi.cdata* ms_state*
---@param to ffi.cdata* ms_state* of the model that session.sharding:handle() is now
---@param move moonshard.StateMove? nil: both have the same parameters, and no value changes
---@return ffi.cdata* to
function move_state.all(session, from, to, move)
  local model = session.sharding:handle()
  for i, param in ipairs(session.sharding.params) do
    local whole, old = ffi.new("float[?]", param.numel), move and move.index[param.parameter] or i - 1
    local function copy(what, change, is_whole)
      local part = is_whole and division.whole(param.numel) or division.of(model, i - 1)
      check(C.ms_state_gather(from, old, what, 0, -1, whole))
      keep(to, part, i - 1, what, whole, change)
    end
    if storage.is_quantised(param) then redivide_stored(param, from, old, to, i - 1)
    else copy(C.MS_TENSOR_PARAM, move and move.change[param.parameter]) end
    local states = param.frozen and {} or owned_ranges.states_of(session.optimizer, session.ema, param)
    for _, state in ipairs(states) do copy(state.what, nil, state.shape ~= nil) end
    check(C.ms_state_set_updates(to, i - 1, division.kept(from, old, C.MS_TENSOR_PARAM).updates))
  end
  check(C.ms_state_finish_writes(to))
  return to
end

return move_state
