-- SIGTERM, as clusters send it some time before they kill: the ranks agree on a last step, save after it, and end.
--
-- The signal reaches ranks at different times, or one of them alone. So each tells with the learning rate, which all
-- exchange when a step begins, whether it has seen it: that step is then the last one on all of them. It is saved and
-- handed to the recipe as ever, which may log it; the run ends where the recipe wants the next step, or evaluates.
--
-- Copies of a mesh slice train apart, and some may save while others do not. A rank on which nothing saves ends with
-- what it would do next, and waits then for those that save.

local engine = require("moonshard.base.ffi")
local log = require("moonshard.metrics.log")
local world = require("moonshard.distributed.world")
local C = engine.C

local termination = {
  ---Ends this rank, once what is to be saved is saved; nil where SIGTERM ends a process as it always does. Does not
  ---return.
  ---@type fun()?
  exit_rank = nil,
  ---Those who save in this run, and what they did last.
  ---@type moonshard.CheckpointPolicy[]
  policies = {},
}

---From here on SIGTERM is waited for, where there is somebody who ends this process then.
---@param policy moonshard.CheckpointPolicy
function termination.attend(policy)
  table.insert(termination.policies, policy)
  if termination.exit_rank then C.ms_world_catch_termination(world.handle) end
end

---Whether this rank knows that the run should end; others may not know yet.
---@return boolean
function termination.wanted()
  return termination.exit_rank ~= nil and C.ms_world_terminating(world.handle) ~= 0
end

---What a rank tells the others with a number that they exchange anyway.
---@return integer 1 where the run should end as far as this rank knows, and 2 more where something saves on it
function termination.word()
  return (termination.wanted() and 1 or 0) + (termination.policies[1] and 2 or 0)
end

---Whether one of the ranks knows that the run should end.
---@param words integer[] of all ranks
---@return boolean
function termination.any(words)
  for _, word in ipairs(words) do
    if word % 2 == 1 then return true end
  end
  return false
end

---Whether the run should end, and nothing saves on any of these ranks: they end without it.
---@param words integer[] of all ranks
---@return boolean
function termination.of_others(words)
  for _, word in ipairs(words) do
    if word >= 2 then return false end
  end
  return termination.any(words)
end

---Whether all that save have done so for the last time.
---@return boolean
function termination.all_saved()
  for _, policy in ipairs(termination.policies) do
    if not policy.last then return false end
  end
  return true
end

---Saves what is not saved yet, and waits until all is on disk. Collective.
---@return string? what became of the run; nil where nothing saves
---@return boolean? whether this rank is the one to tell it
function termination.finish()
  local ends, is_first = {}, false
  for i, policy in ipairs(termination.policies) do
    policy:finish()
    ends[i] = policy:describe_end()
    is_first = is_first or policy.train.session:ranks()[1] == world.rank
  end
  if not ends[1] then return nil end
  return "terminated " .. table.concat(ends, "; "), is_first
end

---Ends the run. What the last step measured is logged, should the recipe not have come to that. Collective.
---@param policy moonshard.CheckpointPolicy
function termination.now(policy)
  if policy.metrics then log.catch_up(policy.train.steps_done, policy.metrics) end
  termination.exit_rank()
end

return termination
