-- ms.checkpoint: saves a training run to disk, and loads it on any mesh.
--
-- A checkpoint is a folder of safetensors files, one per rank, and a manifest. It appears under its name complete or
-- not at all, so an interrupted save leaves the previous checkpoint intact.

local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local folder = require("moonshard.checkpoint.folder")
local options = require("moonshard.base.options")
local reference = require("moonshard.shard.reference")
local world = require("moonshard.distributed.world")

---@class moonshard.checkpoint
local checkpoint = {}

---Whether saving and loading are disabled: when only planning, and under `moonshard check`.
---@return boolean
function checkpoint.is_inert()
  return world.plan_only or reference.active or context.stepper ~= nil
end

local function is_trainer(value)
  return type(value) == "table" and rawget(value, "session") ~= nil and rawget(value, "steps_done") ~= nil
end

local function check_root(who, root)
  if type(root) ~= "string" or root == "" then
    errors.invalid("%s: give a folder, not %s", who, options.describe(root))
  end
end

---@class moonshard.SaveOptions
---@field data? table whose data:state() is also saved, so that a resumed run continues with the next batch
---@field async? boolean default false; true: return once the state is copied; threads write the copy
---@field keep_last? integer number of checkpoints to keep: older ones are removed after this one is saved; nil: all

---Saves a trainer into ROOT/step-NNNNNNNN: parameters, optimizer state, step, generators, data position. Collective.
---@param train moonshard.Trainer
---@param root string
---@param o moonshard.SaveOptions?
---@return string? path
function checkpoint.save(train, root, o)
  local who = "ms.checkpoint.save"
  o = options.parse(who, o, {
    data = { "table" }, async = { "boolean", default = false }, keep_last = { "positive" },
  })
  if not is_trainer(train) then errors.invalid("%s: the first argument must be a trainer", who) end
  check_root(who, root)
  if checkpoint.is_inert() then return nil end
  o.root = root
  return require("moonshard.checkpoint.save").run(train, o)
end

---Waits until an asynchronous save is on disk, and raises its error if it failed. Collective.
---@param train moonshard.Trainer
---@return string? path of the checkpoint; nil when no save was in progress
function checkpoint.finish(train)
  if checkpoint.is_inert() then return nil end
  return require("moonshard.checkpoint.save").finish(train.session)
end

---@class moonshard.LoadOptions
---@field data? table whose position is restored
---@field ema? boolean load the saved averages as the parameters of a model; default false
---@field verify? boolean default true; false: skip checksums, so that ranks read only the bytes that they own

---Loads a checkpoint, or the newest of a folder, on any mesh. A trainer resumes from its step; a model gets only its
---parameters. Errors list the differences between checkpoint and model; checksums detect damaged files. Collective.
---@param target moonshard.Trainer|moonshard.Module
---@param path string
---@param o moonshard.LoadOptions?
---@return { step: integer, path: string, bytes_read: number, ema: string?, skipped: string? }? loaded ema: a note when
---  only one of checkpoint and trainer has averages; skipped: about a newer checkpoint that not all hosts have
function checkpoint.load(target, path, o)
  local who = "ms.checkpoint.load"
  o = options.parse(who, o, {
    data = { "table" }, verify = { "boolean", default = true }, ema = { "boolean", default = false },
  })
  check_root(who, path)
  local train = is_trainer(target) and target or nil
  if not train and not require("moonshard.nn.module").is(target) then
    errors.invalid("%s: the first argument must be a trainer or a model", who)
  end
  if train and o.ema then
    errors.invalid("%s: ema loads averages as the parameters of a model; a trainer resumes with both: give its model, "
      .. "or leave ema out", who)
  end
  if checkpoint.is_inert() then return nil end
  local load = require("moonshard.checkpoint.load")
  local session = train and train.session or require("moonshard.engine.session").of(target)
  require("moonshard.checkpoint.save").finish(session)
  local read, about = load.state(who, path, session,
    { model = train and train.model or target, optimizer = train and train.optimizer, averages = o.ema,
      verify = o.verify })
  if train then load.trainer(train, read, o.data) end
  if train and train.ema and not read.ema then about.ema = "; it contains no averages: they start from its weights" end
  if train and read.ema and not train.ema then about.ema = "; its averages are ignored: the trainer has no ema" end
  about.step = read.step
  return about
end

---Whether a path is a checkpoint, or a folder of them.
---@param path string
---@return boolean
function checkpoint.is_one(path)
  return folder.is_checkpoint(path) or folder.latest(path) ~= nil
end

checkpoint.latest = folder.latest
checkpoint.list = folder.list

---A checkpoint without a model: its manifest, and elements of its parameters.
---@param path string a checkpoint, or a folder of them
---@return moonshard.Checkpoint
function checkpoint.open(path)
  check_root("ms.checkpoint.open", path)
  return require("moonshard.checkpoint.reader").open(folder.find("ms.checkpoint.open", path))
end

return require("moonshard.base.strict").fields("ms.checkpoint", checkpoint)
