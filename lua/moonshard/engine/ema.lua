-- An exponential moving average of the weights: the trainer's option `ema`.
--
-- The engine stores the averages like the optimizer's state, f32 on the owned chunks, and updates them after the
-- optimizer's pass. To evaluate, export or sample with them they are swapped with the weights while a function runs,
-- so that no other code needs to handle them.

local agreement = require("moonshard.distributed.agreement")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local world = require("moonshard.distributed.world")
local C, check = engine.C, engine.check

local ema = {}

---@class moonshard.EmaOptions
---@field decay? number 0.999; at least 0 and below 1
---@field warmup? boolean use min(decay, (1 + step) / (10 + step)) as the decay of a step, like TensorFlow's
---  ExponentialMovingAverage; default false

local WHO = "ms.trainer: ema"

---Reads the trainer's option: a decay, a table, or 0, nil or false for no averages.
---@param given number|moonshard.EmaOptions|boolean|nil
---@return { decay: number, warmup: boolean }?
function ema.parse(given)
  if given == nil or given == false or given == 0 then return nil end
  if type(given) == "number" then given = { decay = given } end
  if type(given) ~= "table" then
    errors.invalid("%s: give a decay such as 0.999, or { decay =, warmup = }, not %s", WHO, options.describe(given))
  end
  local o = options.parse(WHO, given, {
    decay = { "number", default = 0.999 }, warmup = { "boolean", default = false },
  })
  if not (o.decay > 0 and o.decay < 1) then
    errors.invalid("%s: decay must be above 0 and below 1, not %g (ema = 0 turns averages off)", WHO, o.decay)
  end
  return o
end

---Whether two parsed options are equal.
---@param a table?
---@param b table?
---@return boolean
function ema.same(a, b)
  return a == b or a ~= nil and b ~= nil and a.decay == b.decay and a.warmup == b.warmup
end

---Sets the fields of an ms_plan_config for averages.
---@param config ffi.cdata* ms_plan_config
---@param kept { decay: number, warmup: boolean }?
function ema.configure(config, kept)
  if kept then config.ema_decay, config.ema_warmup = kept.decay, kept.warmup and 1 or 0 end
end

---Sets the averages to the current weights if no step has run yet. The weights can have changed since they were drawn.
---@param train moonshard.Trainer
function ema.initialize(train)
  local session = train.session
  if session.ema and session.updates == 0 and not session.averaged then
    check(C.ms_state_restart(session:ensure_state(), C.MS_TENSOR_EMA))
  end
end

-- Its first collective is the barrier before any change, as agreement.uninterrupted requires.
local function swap(session, alone)
  check(C.ms_state_swap_ema(session.state, alone and 1 or 0))
  session.averaged, session.unsharded = not session.averaged, {}
end

-- All ranks put the weights back, and know of each other whether the function failed: one that went on alone would read
-- and save averages where the others have weights. Ranks that do not meet here put them back alone, and raise.
local function put_back(session, ok, ...)
  local met, failure = pcall(agreement.first_failure, session, "of train:with_ema's function", ok, (...))
  local swapped, why = met, failure
  if met then swapped, why = pcall(agreement.uninterrupted, swap, session, false) end
  if session.averaged then swap(session, true) end
  if not ok then error((...), 0) end
  if not swapped then error(why, 0) end
  if failure then error(failure, 0) end
  return ...
end

---Calls a function while the averages replace the weights; see Trainer:with_ema.
---@param who string for messages
---@param train moonshard.Trainer
---@param call function
---@param ... any its arguments
---@return ... what it returns
function ema.with_averages(who, train, call, ...)
  local session = train.session
  if not session.ema then
    errors.invalid("%s: the trainer keeps no averages of its weights: give ms.trainer ema = 0.999", who)
  end
  if type(call) ~= "function" then errors.invalid("%s: give a function, not %s", who, options.describe(call)) end
  if world.plan_only or session.averaged then return call(...) end
  if session.in_full_params then errors.invalid("%s: it cannot run inside ms.with_full_params", who) end
  session:ensure_state()
  session:require_same_model("of train:with_ema")
  agreement.uninterrupted(ema.initialize, train)
  agreement.uninterrupted(swap, session, false)
  return put_back(session, pcall(call, ...))
end

return ema
