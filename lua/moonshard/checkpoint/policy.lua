-- The option `checkpoint` of ms.trainer: when a trainer saves on its own, and what it resumes from.

local agreement = require("moonshard.distributed.agreement")
local branches = require("moonshard.checkpoint.folders.branches")
local checkpoint = require("moonshard.checkpoint")
local clock = require("moonshard.base.clock")
local disks = require("moonshard.checkpoint.folders.disks")
local errors = require("moonshard.base.error")
local folder = require("moonshard.checkpoint.folders.folder")
local half_loaded = require("moonshard.engine.agreement.half_loaded")
local line = require("moonshard.checkpoint.folders.line")
local input_file = require("moonshard.base.files.input_file")
local log = require("moonshard.metrics.log")
local not_kept = require("moonshard.checkpoint.not_kept")
local newest = require("moonshard.checkpoint.folders.newest")
local owned_ranges = require("moonshard.engine.owned_ranges")
local policy_options = require("moonshard.checkpoint.policy_options")
local rank_states = require("moonshard.checkpoint.rank_states")
local termination = require("moonshard.checkpoint.termination")
local world = require("moonshard.distributed.world")

---@class moonshard.CheckpointPolicy: moonshard.CheckpointOptions
---@field train moonshard.Trainer
---@field saved_step integer? the last step that was saved or loaded
---@field saved_edits integer? how often weights had been written by hand then
---@field saved_updates integer? how often trainers of the model that save nothing themselves had updated them
---@field saved_total integer? how often all trainers of the model had
---@field saved_path string? its checkpoint
---@field saved_states table<string, string>? of rank_states.of; nil: it was loaded
---@field saved_data table? whose state is among them
---@field moved boolean? the trainer has made a step since
---@field begun boolean? the folder has a checkpoint of this run
---@field first_update integer? the trainer's first update in this process, counted as all of the model are
---@field last_update integer? its last one
---@field last boolean? SIGTERM arrived: the next save is the last
---@field metrics moonshard.StepMetrics? of the latest step
---@field tried boolean? the data's state was made once, and can be saved
local Policy = {}
Policy.__index = Policy

local policy = {}

local WHO = policy_options.WHO

-- The step of what a run resumes from; -1: a fresh run, or unknown before it is read.
local function step_of(path) return tonumber(path and path:match("step%-(%d+)[^/]*/*$")) or -1 end

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

-- Makes the folder one of the line that this run goes on. Collective.
local function settle(self, path)
  local train = self.train
  if folder.is_checkpoint(self.resume) then line.of(train).leaves = true end
  branches.arrange(train, self.dir, disks.of(train.session, self.dir))
  if not folder.is_checkpoint(path) then self.saved_path = folder.of(self.dir, train.steps_done) end -- it was renamed
  self.begun = self:is_own()
end

-- What other trainers of the model did to its weights, so that a recipe which makes their steps again is seen to.
local function of_others(loaded)
  local more = loaded.updates - loaded.step
  return more > 0 and (" and %d update%s by other trainers of the model"):format(more, more == 1 and "" or "s") or ""
end

-- The other trainers of the model whose folders have them as they are. If two resume one after the other, the
-- later one's load changes the weights, but takes no step that the earlier one's folder lacks.
local function saved_on(session)
  local list = {}
  for _, other in ipairs(termination.policies) do
    if other.train.session == session and other:is_saved() then list[#list + 1] = other end
  end
  return list
end

-- The first rank says where the run goes on, also to the files of metrics.
local function say(self, loaded, skipped)
  if world.rank ~= 0 then return end
  log.line(("resumed from %s, after step %d%s%s%s%s"):format(loaded.path, loaded.step, of_others(loaded),
    (loaded.seed or "") .. (loaded.ema or ""), loaded.frozen or "", skipped or loaded.skipped or ""))
  log.resumed(loaded.step, self.train)
  if loaded.others then log.line("other settings than before: " .. loaded.others) end
end

local function resume(self, path, skipped)
  local session = self.train.session
  session:require_same(path and 1 or 0, "of what to resume", function(rank)
    return ("%s: rank %d finds %s to resume in %s, rank %d another: all ranks need the same folder"):format(WHO,
      world.rank, path or "nothing", self.dir, rank)
  end)
  if not path then return end
  self.train.resuming = function(read, found)
    if self.dir == "" or not folder.is_checkpoint(self.resume) then return end
    branches.check_resumed(WHO, session, self.dir, found, read)
  end
  local saved = saved_on(session)
  local ok, loaded = pcall(checkpoint.load, self.train, path, { data = self.data })
  self.train.resuming = nil
  for _, other in ipairs(saved) do other.saved_edits = session.edits end
  if not ok then error(loaded, 0) end
  self:note(loaded.path)
  local settled, raised = pcall(function()
    if self.dir ~= "" then settle(self, loaded.path) end
    session:all_or_none("what is said of a resume", say, self, loaded, skipped)
  end)
  if settled then return end
  half_loaded.begin(session, loaded.path, "run")
  error(raised, 0)
end

---Reads a trainer's option, and resumes from a checkpoint if it says so. Resuming is collective.
---@param train moonshard.Trainer
---@param given moonshard.CheckpointOptions
---@param compare fun(train: moonshard.Trainer, facts: [string, any][]) lets ranks compare all options. Collective
---@return moonshard.CheckpointPolicy? nil when nothing is saved
function policy.new(train, given, compare)
  local self = setmetatable(policy_options.parse(given), Policy)
  self.train = train
  if checkpoint.is_inert() then return nil end
  if self.dir ~= "" or self.resume ~= "" then
    compare(train, policy_options.facts(self))
  end
  if self.dir ~= "" then
    termination.check_folder(WHO, train, self.dir)
    local disk = disks.of(train.session, self.dir)
    train.session:all_or_none("a run's folder", function()
      folder.make(WHO, self.dir)
      if disk.is_first then folder.lock(WHO, self.dir) end
    end)
  end
  local path, skipped = source(self)
  if self.dir ~= "" then
    train.session:all_or_none("a run's folder", folder.check_whole, WHO, self.dir, step_of(path))
  end
  if self.resume ~= "" then resume(self, path, skipped) end
  if self.dir == "" then return nil end
  termination.register(self)
  train.session.retire = function() termination.retire(train.session) end
  return self
end

---Notes that the trainer is as a checkpoint has it, which was just saved or loaded.
---@param path string
---@param states table<string, string>? what this rank saved besides tensors; nil: it was loaded
---@param data table? whose state is among them
function Policy:note(path, states, data)
  local train, session = self.train, self.train.session
  self.saved_path, self.saved_step, self.moved = path, train.steps_done, false
  self.saved_edits, self.saved_updates = session.edits, session.unsaved_updates or 0
  self.saved_total, self.saved_states, self.saved_data = session.updates, states, data
  self.begun = self.begun or self:is_own()
end

---Whether what was saved or loaded last is this step's checkpoint in the folder.
---@return boolean
function Policy:is_own() return folder.is_same(self.saved_path, folder.of(self.dir, self.train.steps_done)) end

-- Replaces the checkpoint of this step, which this run saved; it stays until the new one is complete. Collective.
local function replace(self, data, states)
  checkpoint.finish(self.train)
  local path, now = require("moonshard.checkpoint.save").run(self.train, { root = self.dir, async = false,
    data = data, states = states, replaces = true })
  self:note(path, now, data)
end

-- Whether this run saved the step that the trainer is at, and only other trainers of the model have changed it since:
-- then a save is of the same run at the same step. Weights that a recipe wrote by hand are not: the checkpoint without
-- them is kept under another name.
local function goes_on_from_saved(self)
  local train = self.train
  return self.saved_states ~= nil and not self.moved and self.saved_step == train.steps_done and self:is_own()
    and self.saved_edits == train.session.edits
end

---Saves now, whatever the folder has: what it has of this step, or of later ones, is another branch, but for the step
---that this run saved where only other trainers went on. Collective.
---@param o { async: boolean, keep_last: integer?, states: table<string, string>? }
---@return string path
function Policy:save(o)
  local train = self.train
  if goes_on_from_saved(self) and (o.keep_last or self.keep_last) == self.keep_last then
    local data = self.data or self.saved_data
    replace(self, data, data == self.data and o.states or nil)
    return self.saved_path
  end
  line.of(train):make_way(train.steps_done)
  not_kept.warn(train, self.data)
  local path, states = require("moonshard.checkpoint.save").run(train, { root = self.dir, async = o.async,
    keep_last = o.keep_last, data = self.data, states = o.states })
  self:note(path, states, self.data)
  return path
end

---Whether some folder has the trainer's weights as they are, or there is nothing to save.
---@return boolean
function Policy:is_saved()
  local train, session = self.train, self.train.session
  if self.moved then return false end
  if not self.saved_path and train.steps_done == 0 then return true end
  return self.saved_step == train.steps_done and self.saved_edits == session.edits
    and self.saved_updates == (session.unsaved_updates or 0)
end

---Whether the folder has the trainer as it is, but for generators and data.
---@return boolean
function Policy:has_saved() return self.saved_path ~= nil and self:is_saved() and self:is_own() end

-- Whether generators or data have moved on since this run saved the checkpoint: what a recipe draws or reads between
-- its last step and its end would be drawn and read once more by a run that goes on. Collective.
local function have_states_moved(self)
  local before, session = self.saved_states, self.train.session
  local ok, now = pcall(rank_states.of, self.train, self.saved_data)
  agreement.raise_first_failure(session, "of generators and data", ok, now)
  local moved = false
  for _, name in ipairs(rank_states.names) do moved = moved or now[name] ~= before[name] end
  for _, one in ipairs(session:gather_numbers(moved and 1 or 0, "of generators and data")) do
    if one == 1 then return true end
  end
  return false
end

---Replaces the checkpoint of this step, whose weights are those of the trainer, if this run saved it and generators or
---data have moved on since, or if a save by hand gave it other data than the trainer's. Collective.
function Policy:resave_states()
  local data = self.data or self.saved_data
  if not self.saved_states or self.saved_data == data and not have_states_moved(self) then return end
  replace(self, data)
end

---Called when the ranks of this trainer agree that its run should end: after the step that they are about to make, or
---immediately if no trainer has anything to save. If one has, a save now would have the generators and the data after
---the batch of that step. Collective.
function Policy:terminate()
  self.last = true
  for _, other in ipairs(termination.policies) do
    if not other:is_saved() then return end
  end
  termination.now(self)
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

-- Makes what a rank saves besides tensors after the first step, when its data has been read: what cannot be kept ends a
-- run there, and not at its first save, with all of the work until then.
local function try_states(self)
  if not self.tried and self.data then agreement.noting_failure(rank_states.of, self.train, self.data) end
  self.tried = true
end

---Saves if a save is due. Collective.
---@param metrics moonshard.StepMetrics receives save_ms, the time that training was blocked, and snapshot_bytes
function Policy:after_step(metrics)
  local update = self.train.session.updates
  self.metrics, self.moved = metrics, true
  self.first_update, self.last_update = self.first_update or update, update
  try_states(self)
  local due = self.last or self.every > 0 and self.train.steps_done % self.every == 0
  if due then
    local began = clock.now()
    -- The run waits for its last save anyway.
    self:save { async = self.async and not self.last, keep_last = self.keep_last }
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

-- Whether a trainer that was made before this one has saved later weights. A run that goes on makes its trainers in the
-- same order, so the weights that it loads last would be the earlier ones. Trainers that took their turns one after
-- another stay as they are at the end of a run: what the first one made is a result of its own.
local function is_overtaken(self)
  for _, other in ipairs(termination.policies) do
    if other == self then return false end
    local is_later = other.train.session == self.train.session and (other.saved_total or 0) > (self.saved_total or 0)
    local take_turns = (self.last_update or 0) > (other.first_update or math.huge)
    if is_later and self.begun and (self.last or other.last or take_turns) then return true end
  end
  return false
end

-- The run ends at a checkpoint that it went back to, so the folder's later ones are left behind.
local function leave_later(self)
  branches.arrange(self.train, self.dir, disks.of(self.train.session, self.dir))
end

-- The generators and data as they were after the model's last step, where a run is ended before another one, whose
-- batch the recipe has drawn or read already; nil: as they are now, or no save has them.
local function states_of_last_step(self)
  for _, other in ipairs(termination.ended and termination.policies or {}) do
    local session, states = other.train.session, other.saved_states
    if states and session == self.train.session and other.saved_total == session.updates
      and other.saved_data == self.data then
      return states
    end
  end
end

---Finishes a run: the newest checkpoint of the folder becomes the trainer as it is. Waits until everything is on disk.
---Collective.
function Policy:finish()
  if not self:is_saved() or is_overtaken(self) or self.begun and not self:is_own() then
    self:save { async = false, keep_last = self.keep_last, states = states_of_last_step(self) }
  elseif self.saved_states and not termination.ended then
    self:resave_states()
  elseif self.begun then
    leave_later(self)
  end
  checkpoint.finish(self.train)
end

---The state that a terminated run leaves, as text.
---@return string
function Policy:describe_end()
  local step = self.train.steps_done
  if not self.saved_path then return "before the first step" end
  return ("after step %d, saved as %s"):format(step, self.saved_path)
end

return policy
