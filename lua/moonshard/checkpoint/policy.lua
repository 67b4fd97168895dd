-- The option `checkpoint` of ms.trainer: when a trainer saves on its own, and what it resumes from.

local checkpoint = require("moonshard.checkpoint")
local clock = require("moonshard.base.clock")
local disks = require("moonshard.checkpoint.disks")
local errors = require("moonshard.base.error")
local folder = require("moonshard.checkpoint.folder")
local input_file = require("moonshard.base.input_file")
local newest = require("moonshard.checkpoint.newest")
local options = require("moonshard.base.options")
local owned_ranges = require("moonshard.engine.owned_ranges")
local termination = require("moonshard.checkpoint.termination")
local world = require("moonshard.distributed.world")

---@class moonshard.CheckpointOptions
---@field dir? string folder of the checkpoints; "": save none
---@field every? integer steps between checkpoints; default: save only when the run ends
---@field keep_last? integer number of checkpoints to keep; default 2
---@field async? boolean true (default): threads write while training continues; false: training waits
---@field resume? string|boolean "auto": resume from the newest in dir, if there is one; a path: resume from that one
---@field data? table whose position is saved and restored

---@class moonshard.CheckpointPolicy: moonshard.CheckpointOptions
---@field train moonshard.Trainer
---@field saved_step integer? the last step that was saved or loaded
---@field saved_path string? its checkpoint
---@field last boolean? SIGTERM arrived: the next save is the last
---@field metrics moonshard.StepMetrics? of the latest step
local Policy = {}
Policy.__index = Policy

local policy = {}

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

-- The checkpoint to resume from; nil for a fresh run. Collective with resume = "auto".
local function source(o)
  if o.resume == "auto" then return newest.of(o.train.session, WHO, o.dir) end
  local latest = o.dir ~= "" and folder.latest(o.dir) or nil
  if o.resume ~= "" and o.dir ~= "" and not input_file.exists(o.resume) then
    errors.invalid("%s: resume=%s: No such file or directory; resume=auto resumes from the newest checkpoint in %s",
      WHO, o.resume, o.dir)
  end
  if o.resume ~= "" then return o.resume end
  if latest then
    errors.invalid("%s: folder %s contains %s of an earlier run: resume it with resume=auto, or save into another "
      .. "folder", WHO, o.dir, latest:match("[^/]*$"))
  end
end

local function resume(self, path, skipped)
  local session = self.train.session
  session:require_same(path and 1 or 0, "of what to resume", function(rank)
    return ("%s: rank %d finds %s to resume in %s, rank %d another: all ranks need the same folder"):format(WHO,
      world.rank, path or "nothing", self.dir, rank)
  end)
  if not path then return end
  local loaded = checkpoint.load(self.train, path, { data = self.data })
  self.saved_step, self.saved_path = loaded.step, loaded.path
  if world.rank == 0 then
    require("moonshard.metrics.log").print(("resumed from %s, after step %d%s%s"):format(loaded.path, loaded.step,
      loaded.ema or "", skipped or loaded.skipped or ""))
    require("moonshard.metrics.log").resumed(loaded.step)
  end
end

---Reads a trainer's option, and resumes from a checkpoint if it says so. Resuming is collective.
---@param train moonshard.Trainer
---@param given moonshard.CheckpointOptions
---@return moonshard.CheckpointPolicy? nil when nothing is saved
function policy.new(train, given)
  local self = setmetatable(parse(given), Policy)
  self.train = train
  if checkpoint.is_inert() then return nil end
  if self.dir ~= "" then
    folder.make(WHO, self.dir)
    if disks.of(train.session, self.dir).is_first then folder.lock(WHO, self.dir) end
  end
  local path, skipped = source(self)
  if self.resume ~= "" then resume(self, path, skipped) end
  if self.dir == "" then return nil end
  termination.register(self)
  return self
end

---Saves now. The last save of a run is not asynchronous, because the run waits for it anyway.
function Policy:save()
  self.saved_path = checkpoint.save(self.train, self.dir,
    { data = self.data, async = self.async and not self.last, keep_last = self.keep_last })
  self.saved_step = self.train.steps_done
end

local function is_saved(self) return self.train.steps_done == 0 or self.saved_step == self.train.steps_done end

---Called when the ranks of this trainer agree that its run should end: after the step that they are about to make, or
---immediately if there is nothing to save. Collective.
function Policy:terminate()
  self.last = true
  if is_saved(self) then termination.now(self) end
end

---Ends a run whose last step is done. Collective.
function Policy:before_step()
  if self.last then termination.now(self) end
end

---Ends a run, instead of evaluating, when all its trainers have finished their last step. Collective.
function Policy:before_evaluation()
  if self.last and termination.all_saved() then termination.now(self) end
end

---Called when the ranks agree, between two steps, that the run should end. Collective.
function Policy:terminate_now()
  self.last = true
  termination.now(self)
end

---Saves if a save is due. Collective.
---@param metrics moonshard.StepMetrics receives save_ms, the time that training was blocked, and snapshot_bytes
function Policy:after_step(metrics)
  self.metrics = metrics
  local due = self.last or self.every > 0 and self.train.steps_done % self.every == 0
  if due and not is_saved(self) then
    local began = clock.now()
    self:save()
    metrics.save_ms = 1e3 * (clock.now() - began)
  end
  if self.async then metrics.snapshot_bytes = policy.snapshot_bytes(self.train, self) end
end

---Size in bytes of this rank's copy for asynchronous saves, outside the arenas.
---@param train moonshard.Trainer
---@param o moonshard.CheckpointOptions?
---@param plan moonshard.Plan? before the model has values
---@return number
function policy.snapshot_bytes(train, o, plan)
  if not o or not o.dir or o.dir == "" or o.async == false then return 0 end
  local bytes = 0
  local disk = disks.known(train.session, o.dir)
  for _, range in ipairs(owned_ranges.written(train.session, disk, plan)) do bytes = bytes + 4 * range.count end
  return bytes
end

---Finishes a run: saves if necessary, and waits until everything is on disk. Collective.
function Policy:finish()
  if not is_saved(self) then self:save() end
  checkpoint.finish(self.train)
end

---The state that a terminated run leaves, as text.
---@return string
function Policy:describe_end()
  local step = self.train.steps_done
  if step == 0 then return "before the first step" end
  return ("after step %d, saved as %s"):format(step, self.saved_path)
end

return policy
