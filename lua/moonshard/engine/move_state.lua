-- Moves the values of a model to a state that divides its parameters in another way, as new placements do: weights,
-- the optimizer's state and averages. One tensor at a time is gathered in full, and each rank keeps what it owns, so
-- the values are the same bit for bit.

local division = require("moonshard.shard.division")
local engine = require("moonshard.base.ffi")
local owned_ranges = require("moonshard.engine.owned_ranges")
local C, ffi, check = engine.C, engine.ffi, engine.check

-- Writes the elements of a whole tensor that this rank owns. Returns whether no other replica has them.
local function keep(state, model, index, what, whole)
  local from, n, sliced = ffi.new("int64_t[1]"), ffi.new("int64_t[1]"), ffi.new("int[1]")
  check(C.ms_state_kept(state, index, what, from, n, sliced))
  local part, first, count, done = division.of(model, index), tonumber(from[0]), tonumber(n[0]), 0
  local own = ffi.new("float[?]", count)
  while done < count do
    local at, run = division.index(part, first + done)
    run = math.min(run, count - done)
    ffi.copy(own + done, whole + at, 4 * run)
    done = done + run
  end
  check(C.ms_state_write(state, index, what, first, count, own))
  return sliced[0] ~= 0
end

---Copies the values of a model from one state to another. Collective.
---@param session moonshard.Session
---@param from ffi.cdata* ms_state*
---@param to ffi.cdata* ms_state* of the model that session.sharding:handle() is now
---@return ffi.cdata* to
return function(session, from, to)
  local model, any_sliced, updates = session.sharding:handle(), false, ffi.new("int64_t[1]")
  local states = owned_ranges.states(session.optimizer, session.ema)
  for i, param in ipairs(session.sharding.params) do
    local whole = ffi.new("float[?]", param.numel)
    local function move(what)
      check(C.ms_state_gather(from, i - 1, what, whole))
      any_sliced = keep(to, model, i - 1, what, whole) or any_sliced
    end
    move(C.MS_TENSOR_PARAM)
    for _, state in ipairs(param.frozen and {} or states) do move(state.what) end
    check(C.ms_state_updates(from, i - 1, updates))
    check(C.ms_state_set_updates(to, i - 1, updates[0]))
  end
  if any_sliced then check(C.ms_state_spread(to)) end
  return to
end
