-- The options of a trainer's `checkpoint`, by themselves: ranks compare those of every trainer, also of one that saves
-- nothing and so never loads what saves (checkpoint/policy.lua).

local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local same_run = require("moonshard.engine.agreement.same_run")

local policy_options = {}

---@class moonshard.CheckpointOptions
---@field dir? string folder of the checkpoints; "": save none
---@field every? integer steps between checkpoints; default: save only when the run ends
---@field keep_last? integer number of checkpoints to keep; default 2
---@field async? boolean true (default): threads write while training continues; false: training waits
---@field resume? string|boolean "auto": resume from the newest in dir, if there is one; a path: resume from that one
---@field data? table whose position is saved and restored

---For messages.
policy_options.WHO = "ms.trainer: checkpoint"
local WHO = policy_options.WHO

-- What ranks would save at other steps, keep elsewhere or resume without each other.
local COMPARED = {
  { name = "dir" }, { name = "every" }, { name = "keep_last" }, { name = "async" }, { name = "resume" },
  { name = "data", of = same_run.presence("data") },
}

---@param given moonshard.CheckpointOptions
---@return moonshard.CheckpointOptions every option has a value, but for data
function policy_options.parse(given)
  local o = options.parse(WHO, given, {
    dir = { "string", default = "" }, every = { "integer", default = 0 }, keep_last = { "positive", default = 2 },
    async = { "boolean", default = true }, resume = { "string|boolean", default = "" }, data = { "table" },
  })
  for _, method in ipairs(o.data and { "state", "load_state" } or {}) do
    require("moonshard.checkpoint.data_position").check(WHO, o.data, method)
  end
  if o.every < 0 then errors.invalid("%s: every must be at least 0, not %d", WHO, o.every) end
  if given.dir == nil and (given.every ~= nil or given.keep_last ~= nil) then
    errors.invalid("%s: without dir nothing is saved: give a folder, dir = \"runs/a\", or dir = \"\" for none", WHO)
  end
  if o.resume == true then o.resume = "auto" end
  if not o.resume then o.resume = "" end
  if o.resume == "auto" and o.dir == "" then errors.invalid("%s: resume=auto needs a folder: give dir too", WHO) end
  return o
end

---The options of checkpoints as facts of a run (engine/agreement/same_run.lua); without dir and resume they have no
---effect.
---@param o moonshard.CheckpointOptions? parsed; nil: the trainer has none
---@return [string, any][]
function policy_options.facts(o)
  if not o or o.dir == "" and o.resume == "" then o = policy_options.parse({}) end
  return same_run.options(COMPARED, o, "checkpoint.%s of ms.trainer")
end

return policy_options
