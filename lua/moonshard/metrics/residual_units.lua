-- With error_feedback ranks add what they rounded off of a step's gradients to the next step's. Both are sums that
-- the end of a step divides, by its counted targets or by its terms. Where that number changes much from step to
-- step, such as with few targets now and then, or between trainers with other micro-batches, the residual of one
-- step counts for too much in another. This module notices it, and a warning says so once.

local progress = require("moonshard.base.text.progress")
local world = require("moonshard.distributed.world")

local residual_units = {}

local MOST_CHANGE = 2 -- up to here feedback still gains more than it loses

local function keeps_residuals(sharding)
  for _, unit in ipairs(sharding.units) do
    if unit.error_feedback then return true end
  end
  return false
end

---A step has ended.
---@param session moonshard.Session
---@param divisor number of the sums of its gradients; 0: it had no targets
function residual_units.note(session, divisor)
  local before = session.residual_divisor
  if divisor <= 0 then return end
  session.residual_divisor = divisor
  if not before or session.residual_warned then return end
  local change = math.max(before / divisor, divisor / before)
  if change <= MOST_CHANGE or not keeps_residuals(session.sharding) then return end
  session.residual_warned = true
  if world.rank ~= 0 or world.plan_only then return end
  progress.finish()
  io.stderr:write(("moonshard: warning: error_feedback adds what one step rounded off to the sums of the next, whose "
    .. "divisor is %.3g times %s: where counted targets or micro-batches change so much, leave it out, or give "
    .. 'ms.loss.cross_entropy reduction = "mean"\n'):format(change, divisor > before and "as large" or "smaller"))
end

return residual_units
