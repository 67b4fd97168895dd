-- What fails on one rank within something that all ranks do together. A recipe may catch that and go on; the others
-- wait elsewhere then, and what they find in the end hides the cause. So the engine keeps it, and quotes it when ranks
-- disagree.

local errors = require("moonshard.base.error")
local engine = require("moonshard.base.ffi")
local one_line = require("moonshard.base.one_line")
local world = require("moonshard.distributed.world")

local failure = {}

-- They follow from what another rank, or the user, did.
local FOLLOWS = { MS_EPEER = true, MS_EINTERRUPT = true }

local function note(raised)
  if not (errors.is(raised) or type(raised) == "string") or FOLLOWS[raised.status] then return end
  if world.plan_only or world.size == 1 then return end
  engine.C.ms_world_note_failure(world.handle, one_line.message(tostring(raised)))
end

---Calls a function that all ranks call; its error is noted and raised.
---@generic T
---@param call fun(...): T
---@param ... any arguments
---@return T
function failure.noting(call, ...)
  local ok, result = pcall(call, ...)
  if ok then return result end
  note(result)
  error(result, 0)
end

return failure
