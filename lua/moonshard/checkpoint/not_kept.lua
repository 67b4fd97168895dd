-- Warns of what a run uses and its checkpoints do not keep, which begins again after a resume: the position of further
-- data, and eager tensors that a recipe writes into. What an object of the recipe's saves as its state is not known.

local sealed = require("moonshard.base.checks.sealed")
local world = require("moonshard.distributed.world")
local written_constants = require("moonshard.engine.trace.written_constants")

local not_kept = {}

local function warn(train, format, what)
  if train.warned[format] or world.rank ~= 0 then return end
  train.warned[format] = true
  io.stderr:write(("moonshard: warning: " .. format .. "\n"):format(what))
end

local function warn_of_data(train, kept)
  for source in pairs(train.sources) do
    if source ~= kept then
      return warn(train, "steps took batches of data whose position the checkpoint does not keep (%s): after a resume "
        .. "it begins again; give data an object whose state() and load_state() have both", source)
    end
  end
end

---Called before a save.
---@param train moonshard.Trainer
---@param data table? whose position is saved
function not_kept.warn(train, data)
  local kept = data and rawget(sealed.fields(data), "source") -- of a loader
  if type(kept) == "string" then warn_of_data(train, kept) end
  if data and type(kept) ~= "string" then return end
  local name = written_constants.first_name(train.session)
  if not name then return end
  warn(train, "%s was written into since forward first read it, but checkpoints do not keep it: make it a parameter, "
    .. "ms.parameter { ..., frozen = true }, and write it by train:set_parameter", name)
end

return not_kept
