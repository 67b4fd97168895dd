-- Which call of data:batches a state was saved in, and how a run that resumes goes on with it.
--
-- A recipe calls batches once for all steps of a run, or again and again: for an epoch, for a number of steps between
-- evaluations, for a second stage. A state therefore records the call under way: of how many steps it was, and how many
-- of them were done. The first call after a resume is that call again, so it gives the steps that were left.

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

-- A call that had given all of its steps was the whole run, or one of several.
local function after_all(saved, run_step) return saved.done == run_step and saved.done or 0 end

---How many steps of a call of batches(steps) are done already.
---@param saved moonshard.Call the call that the state was saved in
---@param steps integer of the call now
---@param run_step integer steps of the run when the state was saved
---@return integer done
---@return string? why there is nothing left, where a recipe may have meant something else
function call.begin(saved, steps, run_step)
  if steps == saved.steps then return saved.done < steps and saved.done or after_all(saved, run_step) end
  -- The recipe gives the rest itself: batches(all - train.steps_done).
  if saved.steps and steps == saved.steps - saved.done then return 0 end
  if steps >= saved.done then return saved.done end
  return steps, ("data:batches(%d) gives no batch: the run was saved after %d steps of a call%s; give the number of "
    .. "all steps of the call, of which those that are left are made"):format(steps, saved.done,
    saved.steps and (" of %d"):format(saved.steps) or "")
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
