-- SIGTERM, which clusters send some time before they kill: the ranks agree on a last step, save after it, and end.
--
-- The signal reaches ranks at different times, or only one of them. At the start of each step all ranks compare what
-- they are about to run; with it each reports whether it has seen the signal, and that step becomes the last one on all
-- ranks. It is saved and returned to the recipe as usual, which can log it; the run ends when the recipe calls the next
-- step or evaluates.
--
-- Copies of a mesh slice train independently, and some can save while others do not. A rank on which nothing saves ends
-- at its next call, and then waits for the ranks that save.

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local folder = require("moonshard.checkpoint.folders.folder")
local in_progress = require("moonshard.checkpoint.in_progress")
local log = require("moonshard.metrics.log")
local world = require("moonshard.distributed.world")
local C = engine.C

local termination = {
  ---Ends this rank after everything is saved; nil when SIGTERM ends the process as usual. Does not
  ---return.
  ---@type fun()?
  exit_rank = nil,
  ---Whether the run was ended between two of its steps.
  ended = false,
  ---The policies that save in this run.
  ---@type moonshard.CheckpointPolicy[]
  policies = {},
}

---From now on catches SIGTERM if `exit_rank` can end this process: something saves here.
function termination.catch()
  if termination.exit_rank then C.ms_world_catch_termination(world.handle, 1) end
end

---Registers a policy, which saves at the end of the run.
---@param policy moonshard.CheckpointPolicy
function termination.register(policy)
  table.insert(termination.policies, policy)
  termination.catch()
end

---Refuses the folder of another trainer of this run, which can be saving there.
---@param who string for messages
---@param train moonshard.Trainer
---@param dir string
function termination.check_folder(who, train, dir)
  for _, policy in ipairs(termination.policies) do
    if policy.train ~= train and folder.is_same(policy.dir, dir) then
      errors.invalid("%s: another trainer of this run saves into %s: give each a folder of its own", who, dir)
    end
  end
end

---A trainer that goes on no longer, as its model has changed: saves its last step if the folder lacks it, and ends its
---policy. Collective.
---@param session moonshard.Session
function termination.retire(session)
  for i = #termination.policies, 1, -1 do
    local policy = termination.policies[i]
    if policy.train.session == session then
      policy:finish()
      table.remove(termination.policies, i)
      policy.train.policy = nil
    end
  end
end

---Whether this rank knows that the run should end; others may not know yet.
---@return boolean
function termination.wanted()
  return termination.exit_rank ~= nil and C.ms_world_terminating(world.handle) ~= 0
end

---The flags that a rank sends along with a number that the ranks gather anyway.
---@return integer bit 0: this rank knows that the run should end; bit 1: something saves on this rank
function termination.status()
  return (termination.wanted() and 1 or 0) + (termination.policies[1] and 2 or 0)
end

---Whether one of the ranks knows that the run should end.
---@param statuses integer[] of all ranks
---@return boolean
function termination.any_wants(statuses)
  for _, status in ipairs(statuses) do
    if status % 2 == 1 then return true end
  end
  return false
end

---Whether the run should end and nothing saves on any of these ranks, so that they can end immediately.
---@param statuses integer[] of all ranks
---@return boolean
function termination.wanted_without_save(statuses)
  for _, status in ipairs(statuses) do
    if status >= 2 then return false end
  end
  return termination.any_wants(statuses)
end

---Whether all policies have made their last save.
---@return boolean
function termination.all_saved()
  for _, policy in ipairs(termination.policies) do
    if not policy.last then return false end
  end
  return true
end

---Saves if necessary, and waits until everything is on disk, also what the recipe has saved. Collective.
---@return string? the outcome of the run; nil when nothing saves
---@return boolean? whether this rank reports it
function termination.finish()
  local ends, is_first, failed = {}, false, nil
  for i, policy in ipairs(termination.policies) do
    local ok, raised = pcall(policy.finish, policy)
    if not ok then failed = failed or raised end -- the others save what they can
    ends[i] = policy:describe_end()
    is_first = is_first or policy.train.session:is_first()
  end
  if failed then error(failed, 0) end
  local paths, is_first_of_one = in_progress.finish()
  for _, path in ipairs(paths) do ends[#ends + 1] = "with the save of " .. path end
  if not ends[1] then return nil end
  return "terminated " .. table.concat(ends, "; "), is_first or is_first_of_one
end

---Ends the run. Logs the metrics of the last step if the recipe has not done so. Collective.
---@param policy moonshard.CheckpointPolicy
function termination.now(policy)
  termination.ended = true
  if policy.metrics then log.catch_up(policy.train.steps_done, policy.metrics) end
  termination.exit_rank()
end

return termination
