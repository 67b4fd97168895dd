-- ms.checkpoint: a training run on disk, and back, on any mesh.
--
-- A checkpoint is a folder of safetensors files, one for each rank, and a manifest. It appears under its name complete
-- or not at all, so whatever happens while one is being written, the last one is there.

local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local folder = require("moonshard.checkpoint.folder")
local options = require("moonshard.base.options")
local reference = require("moonshard.shard.reference")
local world = require("moonshard.distributed.world")

---@class moonshard.checkpoint
local checkpoint = {}

---Whether nothing is saved or loaded here: where plans are only made, and where a recipe is compared with itself.
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
---@field data? table whose data:state() is saved too, so that a run goes on with the next batch
---@field async? boolean false; true: returns when the state was copied, and threads write the copy
---@field keep_last? integer when this one is there, older ones are removed until so many are left; nil: none is

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

---Waits until an asynchronous save is on disk, and raises what went wrong with it. Collective.
---@param train moonshard.Trainer
---@return string? path of the checkpoint; nil when nothing was under way
function checkpoint.finish(train)
  if checkpoint.is_inert() then return nil end
  return require("moonshard.checkpoint.save").finish(train.session)
end

---@class moonshard.LoadOptions
---@field data? table whose position is set
---@field ema? boolean the averages that were saved, as the parameters of a model; false
---@field verify? boolean true; false: checksums are not looked at, and ranks read not a byte more than they own

---Loads a checkpoint, or the newest of a folder, on any mesh. A trainer goes on from its step; a model gets its
---parameters alone. Errors list what the checkpoint and the model do not share; files that are damaged are found by
---their checksums. Collective.
---@param target moonshard.Trainer|moonshard.Module
---@param path string
---@param o moonshard.LoadOptions?
---@return { step: integer, path: string, bytes_read: number, ema: string? }? loaded ema: what became of averages that
---  only one of both has
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
    errors.invalid("%s: ema loads averages as the parameters of a model; a trainer goes on with both: give its model, "
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
  if train and train.ema and not read.ema then about.ema = "; it holds no averages: they begin from its weights" end
  if train and read.ema and not train.ema then about.ema = "; its averages are left out: the trainer has no ema" end
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

return require("moonshard.base.unknown_name").strict("ms.checkpoint", checkpoint)
