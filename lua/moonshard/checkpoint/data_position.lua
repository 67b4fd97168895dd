-- The position of a run's data object, as checkpoints see it: reading it, and moving the object to that of a
-- checkpoint. load_state is the only part of a load that can be a recipe's own code, so it comes before everything that
-- is replaced: where it raises on a rank, no rank loads anything, and all objects go back to where they were.

local agreement = require("moonshard.distributed.agreement")
local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local half_loaded = require("moonshard.engine.agreement.half_loaded")
local json = require("moonshard.base.text.json")
local options = require("moonshard.base.checks.options")
local state_values = require("moonshard.checkpoint.state_values")

local data_position = {}

local WHENCE = "data:state()"

---Refuses a data object without the methods by which it is saved.
---@param who string for messages
---@param data table
---@param method "state"|"load_state"
function data_position.check(who, data, method)
  local ok, found = pcall(function() return data[method] end)
  if ok and type(found) == "function" then return end
  errors.invalid("%s: data must have a method %s, as ms.data's objects have, not %s", who, method,
    options.describe(ok and found or nil))
end

-- Calls a method of a data object while a checkpoint is written or read. It must not start anything that ranks do
-- together (engine/session_ranks.lua), which would begin within what they are doing.
local function call_data(data, method, ...)
  local before = context.in_data
  context.in_data = ("data:%s()"):format(method)
  local ok, result = pcall(data[method], data, ...)
  context.in_data = before
  if not ok then error(result, 0) end
  return result
end

---The position as JSON. Raises MS_EINVAL for a value that cannot be kept.
---@param data table
---@return string
function data_position.text(data)
  local state = call_data(data, "state")
  if state == nil then errors.invalid("%s returned nil: return what data:load_state is to be given", WHENCE) end
  return state_values.encode(state, WHENCE)
end

-- Takes a data object back to a position. Returns whether all ranks have done so. Collective.
local function go_back(session, data, text)
  local ok = text and pcall(function()
    call_data(data, "load_state", state_values.decode(json.decode(text), WHENCE))
  end)
  local met, all = pcall(session.gather_numbers, session, ok and 1 or 0, "of the data's position")
  if not met then return false end
  for _, one in ipairs(all) do
    if one == 0 then return false end
  end
  return true
end

---Moves the data objects of all ranks to the position of a checkpoint. Where one raises, all go back to where they were
---and all ranks raise its error; if some cannot go back, as where load_state is all that they have, the session needs
---another load before it goes on. Collective.
---@param session moonshard.Session
---@param path string of the checkpoint
---@param data table
---@param state any what its load_state is given
---@return fun() back takes all objects back, in the same way, where the load fails later. Collective
function data_position.move(session, path, data, state)
  local has_position, before = pcall(data_position.text, data)
  local function back()
    if not go_back(session, data, has_position and before or nil) then half_loaded.begin(session, path, "data") end
  end
  local ok, raised = pcall(call_data, data, "load_state", state)
  local agreed, why = pcall(agreement.raise_first_failure, session, "of the data's position", ok, raised)
  if agreed then return back end
  back()
  error(why, 0)
end

return data_position
