-- When a trainer saves by itself, and what it goes on from: the option `checkpoint` of ms.trainer.

local checkpoint = require("moonshard.checkpoint")
local clock = require("moonshard.clock")
local errors = require("moonshard.error")
local folder = require("moonshard.checkpoint.folder")
local options = require("moonshard.options")
local pieces = require("moonshard.checkpoint.pieces")
local world = require("moonshard.world")

---@class moonshard.CheckpointOptions
---@field dir? string folder of the checkpoints; "": none are saved
---@field every? integer steps from one to the next; without it one is saved when the run ends
---@field keep_last? integer how many are kept; 2
---@field async? boolean true: threads write while training goes on; false: training waits
---@field resume? string|boolean "auto": go on from the newest in dir, if there is one; a path: from that one
---@field data? table whose position is saved and set

---@class moonshard.CheckpointPolicy: moonshard.CheckpointOptions
---@field train moonshard.Trainer
---@field saved_step integer? the last one that is saved or was loaded
local Policy = {}
Policy.__index = Policy

local policy = {
  ---@type moonshard.CheckpointPolicy[] of this run
  all = {},
}

local WHO = "ms.trainer: checkpoint"

local function parse(given)
  local o = options.parse(WHO, given, {
    dir = { "string", default = "" }, every = { "integer", default = 0 }, keep_last = { "positive", default = 2 },
    async = { "boolean", default = true }, resume = { "string|boolean", default = "" }, data = { "table" },
  })
  if o.every < 0 then errors.invalid("%s: every must be at least 0, not %d", WHO, o.every) end
  if o.resume == true then o.resume = "auto" end
  if not o.resume then o.resume = "" end
  if o.resume == "auto" and o.dir == "" then errors.invalid("%s: resume=auto needs a folder: give dir too", WHO) end
  return o
end

-- What to go on from: nil for a fresh run.
local function source(o)
  local latest = o.dir ~= "" and folder.latest(o.dir) or nil
  if o.resume == "auto" then return latest end
  if o.resume ~= "" then return o.resume end
  if latest then
    errors.invalid("%s: folder %s holds %s of an earlier run: go on from it with resume=auto, or save into another "
      .. "folder", WHO, o.dir, latest:match("[^/]*$"))
  end
end

local function resume(self, path)
  local session = self.train.session
  for place, other in ipairs(session:gather(path and 1 or 0, "of what to resume")) do
    if other ~= (path and 1 or 0) then
      errors.raise("MS_EMISMATCH", "%s: rank %d finds %s to go on from in %s, rank %d another: all ranks need the same "
        .. "folder", WHO, world.rank, path or "nothing", self.dir, session:ranks()[place])
    end
  end
  if not path then return end
  local loaded = checkpoint.load(self.train, path, { data = self.data })
  self.saved_step = loaded.step
  if world.rank == 0 then
    require("moonshard.log").print(("resumed from %s, after step %d%s"):format(loaded.path, loaded.step,
      loaded.ema or ""))
  end
end

---Takes a trainer's option, and goes on from a checkpoint if it says so. Collective in the latter case.
---@param train moonshard.Trainer
---@param given moonshard.CheckpointOptions
---@return moonshard.CheckpointPolicy? nil where nothing is saved
function policy.new(train, given)
  local self = setmetatable(parse(given), Policy)
  self.train = train
  if checkpoint.is_inert() then return nil end
  local path = source(self)
  if self.resume ~= "" then resume(self, path) end
  if self.dir == "" then return nil end
  policy.all[#policy.all + 1] = self
  return self
end

---Saves now.
function Policy:save()
  checkpoint.save(self.train, self.dir, { data = self.data, async = self.async, keep_last = self.keep_last })
  self.saved_step = self.train.steps_done
end

---Saves if it is time to. Collective.
---@param metrics moonshard.StepMetrics gets save_ms, for how long training was held, and snapshot_bytes
function Policy:after_step(metrics)
  if self.every > 0 and self.train.steps_done % self.every == 0 and self.saved_step ~= self.train.steps_done then
    local began = clock.now()
    self:save()
    metrics.save_ms = 1e3 * (clock.now() - began)
  end
  if self.async then metrics.snapshot_bytes = policy.snapshot_bytes(self.train, self) end
end

---Bytes of this rank that the copy for asynchronous saves takes, beside the arenas.
---@param train moonshard.Trainer
---@param o moonshard.CheckpointOptions?
---@return number
function policy.snapshot_bytes(train, o)
  if not o or not o.dir or o.dir == "" or o.async == false then return 0 end
  local bytes = 0
  for _, part in ipairs(pieces.written(train.session)) do bytes = bytes + 4 * part.count end
  return bytes
end

---The end of a run: saves what was not saved yet, and waits until all is on disk. Collective.
function policy.finish()
  for _, self in ipairs(policy.all) do
    if self.train.steps_done > 0 and self.saved_step ~= self.train.steps_done then self:save() end
    checkpoint.finish(self.train)
  end
end

return policy
