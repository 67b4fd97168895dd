-- ms.checkpoint: saves a training run to disk, and loads it on any mesh.
--
-- A checkpoint is a folder of safetensors files, one per rank, and a manifest. It appears under its name complete or
-- not at all, so an interrupted save leaves the previous checkpoint intact.

local context = require("moonshard.base.context")
local data_position = require("moonshard.checkpoint.data_position")
local errors = require("moonshard.base.error")
local folder = require("moonshard.checkpoint.folders.folder")
local options = require("moonshard.base.checks.options")
local reference = require("moonshard.shard.reference")
local sealed = require("moonshard.base.checks.sealed")
local world = require("moonshard.distributed.world")

---@class moonshard.checkpoint
local checkpoint = {}

---Whether saving and loading are disabled: when only planning, and under `moonshard check`.
---@return boolean
function checkpoint.is_inert()
  return world.plan_only or reference.active or context.stepper ~= nil
end

local function is_trainer(value)
  if type(value) ~= "table" then return false end
  local fields = sealed.fields(value)
  return rawget(fields, "session") ~= nil and rawget(fields, "steps_done") ~= nil
end

local function check_root(who, root)
  if type(root) ~= "string" or root == "" then
    errors.invalid("%s: give a folder, not %s", who, options.describe(root))
  end
end

---@class moonshard.SaveOptions
---@field data? table whose data:state() is also saved, so that a resumed run continues with the next batch: any Lua
---  value of numbers, strings, booleans, integers of the FFI, small tensors and plain tables of them
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
  if o.data then data_position.check(who, o.data, "state") end
  if checkpoint.is_inert() then return nil end
  o.root = root
  local save = require("moonshard.checkpoint.save")
  save.compare(train, o) -- before folders and data decide which save it is
  -- In the trainer's own folder it is the save of this step, so it has what that would have. A step that is there
  -- without the data that is given now has not been saved so.
  local own = train.policy and folder.is_same(train.policy.dir, root) and train.policy or nil
  if own and (o.data == nil or o.data == own.data) then
    if not own:has_saved() then return own:save(o) end
    own:resave_states()
    if not o.async then checkpoint.finish(train) end
    return own.saved_path
  end
  require("moonshard.checkpoint.not_kept").warn(train, o.data)
  local path, states = save.run(train, o)
  if own then own:note(path, states, o.data) end
  return path
end

---Waits until an asynchronous save is on disk, and raises its error if it failed. Collective.
---@param train moonshard.Trainer
---@return string? path of the checkpoint; nil when no save was in progress
function checkpoint.finish(train)
  if not is_trainer(train) then
    errors.invalid("ms.checkpoint.finish: give a trainer, not %s", options.describe(train))
  end
  if checkpoint.is_inert() then return nil end
  return require("moonshard.checkpoint.save").finish(train.session)
end

---@class moonshard.LoadOptions
---@field data? table whose position is restored
---@field generator? boolean default true; false: leave the generators of dropout and ms.rand as they are
---@field ema? boolean load the saved averages as the parameters of a model; default false
---@field verify? boolean default true; false: skip checksums, so that ranks read only the bytes that they own

-- A note on the optimizer's state of parameters that train in a checkpoint and are frozen here.
local function left_out(session, read)
  local frozen, names = {}, {}
  for _, param in ipairs(session.sharding.params) do frozen[param.fqn] = param.frozen end
  for _, saved in ipairs(read.parameters) do
    if frozen[saved.name] and not saved.frozen then names[#names + 1] = saved.name end
  end
  if not names[1] then return nil end
  return ("; the optimizer's state of %s is left out, which %s frozen here"):format(#names == 1 and names[1]
    or ("%s and %d more"):format(names[1], #names - 1), #names == 1 and "is" or "are")
end

---Loads a checkpoint, or the newest of a folder, on any mesh. A trainer resumes from its step; a model gets only its
---parameters. Errors list the differences between checkpoint and model; checksums detect damaged files. A load that is
---refused changes nothing, on any rank: what can be checked is checked before anything is replaced, and data whose
---load_state raises goes back, by its own state(). Where a load fails later, over a damaged file, or data cannot go
---back, steps, evaluations and saves are refused until a load succeeds. Collective.
---@param target moonshard.Trainer|moonshard.Module
---@param path string
---@param o moonshard.LoadOptions?
---@return { step: integer, path: string, bytes_read: number, seed: string?, ema: string?, frozen: string?,
---  skipped: string? }? loaded
---  seed: a note when the generator's is not the trainer's; ema: a note when only one of checkpoint and trainer has
---  averages; frozen: a note when the optimizer's state of
---  parameters is left out, which are frozen here; skipped: about a newer checkpoint that not all hosts have
function checkpoint.load(target, path, o)
  local who = "ms.checkpoint.load"
  if type(o) == "number" then
    errors.invalid("%s: the third argument is a number, %s, and must be a table of options: ms.checkpoint.latest gives "
      .. "a path and its step; give the folder itself, whose newest checkpoint is loaded, or "
      .. "(ms.checkpoint.latest(dir))", who, tostring(o))
  end
  o = options.parse(who, o, {
    data = { "table" }, generator = { "boolean", default = true }, verify = { "boolean", default = true },
    ema = { "boolean", default = false },
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
  if o.data and not train then
    errors.invalid("%s: a model is given only its parameters, so the position of data stays: give the trainer, or "
      .. "leave data out", who)
  end
  if o.data then data_position.check(who, o.data, "load_state") end
  if checkpoint.is_inert() then return nil end
  local load = require("moonshard.checkpoint.load")
  local session = train and train.session or require("moonshard.engine.session").of(target)
  require("moonshard.checkpoint.save").finish(session)
  local same_run = require("moonshard.engine.agreement.same_run")
  same_run.new(who, same_run.options({
    { name = "ema" }, { name = "generator" }, { name = "data", of = same_run.presence("data") },
  }, o, "%s"), {}):require(session, "of the options of a load")
  local seed = train and train.seed
  local read, about = load.run(who, path, session, {
    model = train and train.model or target, train = train, optimizer = train and train.optimizer, averages = o.ema,
    verify = o.verify, data = o.data, generator = train and o.generator, resumes = train and train.resuming,
  })
  if train and train.seed ~= seed then
    about.seed = ("; random numbers go on from its seed %.0f, not from %.0f"):format(train.seed, seed)
  end
  if train then train.resumed_after = not o.data and read.step or nil end
  if train and train.policy then train.policy:note(about.path) end
  if train and train.ema and not read.ema then about.ema = "; it contains no averages: they start from its weights" end
  if train and read.ema and not train.ema then about.ema = "; its averages are ignored: the trainer has no ema" end
  about.frozen = train and left_out(session, read)
  about.others = train and require("moonshard.checkpoint.other_settings").of(train, read, o.data)
  about.step, about.updates = read.step, read.updates or read.step
  if train and not train.resuming then require("moonshard.metrics.log").loaded(read.step, train) end
  return about
end

---Whether a path is a checkpoint, or a folder of them.
---@param path string
---@return boolean
function checkpoint.is_one(path)
  check_root("ms.checkpoint.is_one", path)
  return folder.is_checkpoint(path) or folder.latest(path) ~= nil
end

---The newest checkpoint of a folder.
---@param root string
---@return string? path nil when there is none
---@return integer? step
function checkpoint.latest(root)
  check_root("ms.checkpoint.latest", root)
  return folder.latest(root)
end

---The checkpoints of a folder, the oldest first.
---@param root string
---@return { path: string, step: integer }[]
function checkpoint.list(root)
  check_root("ms.checkpoint.list", root)
  return folder.list(root)
end

---A checkpoint without a model: its manifest, and elements of its parameters.
---@param path string a checkpoint, or a folder of them
---@return moonshard.Checkpoint
function checkpoint.open(path)
  check_root("ms.checkpoint.open", path)
  return require("moonshard.checkpoint.reader").open(folder.find("ms.checkpoint.open", path))
end

return require("moonshard.base.checks.strict").fields("ms.checkpoint", checkpoint, "is_inert is_one")
