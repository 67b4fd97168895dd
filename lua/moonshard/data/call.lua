-- Which call of data:batches a state was saved in, and how a run that resumes goes on with it.
--
-- A recipe calls batches once for all steps of a run, or again and again: for an epoch, for a number of steps between
-- evaluations, for a second stage. A state therefore records the call under way: of how many steps it was, and how many
-- of them were done. The first call after a resume is that call again, so it gives the steps that were left. The call
-- under way is that whose batch a training step took last: one within its loop, to evaluate on some batches, is not.

local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")

local call = {}

---@class moonshard.Call
---@field steps integer? of the call; nil: unknown, in states from before calls were recorded
---@field done integer of them

---The call of a state; nil if it has none.
---@param state table
---@return moonshard.Call?
function call.of(state)
  local steps, done = state.call_steps, state.call_done
  if type(steps) ~= "number" or type(done) ~= "number" then return nil end
  return { steps = steps, done = done }
end

---The call that data records: nil before the first one.
---@param data moonshard.Loader
---@return moonshard.Call?
function call.under_way(data) return data.trained_call or data.call or data.loaded_call end

---Data goes on from a state: what calls were made before is over.
---@param data moonshard.Loader
---@param state table
function call.load(data, state)
  data.loaded_call, data.loads = call.of(state), (data.loads or 0) + 1
  data.call, data.trained_call = nil, nil
end

---Reads what data:batches was given: a number of steps, or what it means.
---@param steps any
---@return integer? steps nil: the rest of an epoch
---@return "total"|"more"|nil meant
function call.given(steps)
  local meant
  if type(steps) == "table" then
    local o = options.parse("data:batches", steps, { total = { "any" }, more = { "any" } })
    if (o.total == nil) == (o.more == nil) then
      errors.invalid("data:batches: give total, all steps of the call with those done before a resume, or more, steps "
        .. "from here on")
    end
    meant = o.more and "more" or "total"
    steps = o[meant]
  end
  if steps ~= nil and (type(steps) ~= "number" or steps % 1 ~= 0 or steps < 0) then
    errors.invalid("data:batches: the number of steps must be a whole number of at least 0, not %s",
      options.describe(steps))
  end
  return steps, meant
end

-- A call that had given all of its steps was the whole run, or one of several.
local function after_all(saved, run_step) return saved.done == run_step and saved.done or 0 end

local function left_of(saved, steps, run_step, meant)
  if steps == saved.steps then return saved.done < steps and saved.done or after_all(saved, run_step) end
  -- The recipe gives the rest itself: batches(all - train.steps_done).
  if not meant and saved.steps and steps == saved.steps - saved.done then return 0 end
  return math.min(saved.done, steps)
end

-- A recipe can mean another number than the one that is made where it gives another than before: that is said.
local function told(saved, steps, done)
  if steps == saved.steps and done < steps then return nil end
  return ("data:batches: the run was saved after %d steps of a call%s, so batches(%d) makes %d now; "
    .. "batches { total = n } counts those that are done, batches { more = n } does not"):format(saved.done,
    saved.steps and (" of %d"):format(saved.steps) or "", steps, steps - done)
end

---How many steps of a call of batches are done already.
---@param saved moonshard.Call the call that the state was saved in
---@param steps integer of the call now
---@param run_step integer steps of the run when the state was saved
---@param meant "total"|"more"|nil
---@return integer done
---@return string? said what the call makes, where a recipe may have meant something else
function call.begin(saved, steps, run_step, meant)
  if meant == "more" then return 0 end
  local done = left_of(saved, steps, run_step, meant)
  return done, not meant and saved.done > 0 and told(saved, steps, done) or nil
end

---The same for a call without a number, which makes the rest of an epoch: how many of its steps that is, the position
---says, as the steps that are done can have had another number of samples.
---@param saved moonshard.Call
---@param before integer steps of the epoch before the position
---@return integer done
function call.done_of_epoch(saved, before)
  if not saved.steps then return before end
  return saved.done < saved.steps and saved.done or 0
end

return call
