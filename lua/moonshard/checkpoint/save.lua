-- Saving: every rank writes its ranges, and the first rank commits when all ranks have finished. An asynchronous save
-- leaves the writing to threads; the ranks learn its outcome at the next save, or when they finish.
--
-- Where hosts have folders of their own, the first rank of each (disks.lua) commits the parts that were written there.
-- Older checkpoints are then removed only when all ranks know that all of them have committed: at any moment there is a
-- checkpoint that every host has.

local agreement = require("moonshard.distributed.agreement")
local args = require("moonshard.recipe.args")
local branches = require("moonshard.checkpoint.folders.branches")
local disks = require("moonshard.checkpoint.folders.disks")
local ema = require("moonshard.engine.ema")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local folder = require("moonshard.checkpoint.folders.folder")
local line = require("moonshard.checkpoint.folders.line")
local log = require("moonshard.metrics.log")
local manifest = require("moonshard.checkpoint.manifest")
local model_options = require("moonshard.checkpoint.model_options")
local newest = require("moonshard.checkpoint.folders.newest")
local owned_ranges = require("moonshard.engine.owned_ranges")
local rank_states = require("moonshard.checkpoint.rank_states")
local in_progress = require("moonshard.checkpoint.in_progress")
local host_parts = require("moonshard.checkpoint.folders.host_parts")
local placements = require("moonshard.shard.policies.placements")
local run_options = require("moonshard.checkpoint.run_options")
local same_run = require("moonshard.engine.agreement.same_run")
local termination = require("moonshard.checkpoint.termination")
local written = require("moonshard.base.files.written")
local C, ffi, check = engine.C, engine.ffi, engine.check

local save = {}

-- Options of which all ranks need the same.
local COMPARED = {
  { name = "folder", of = function(o) return o.root end }, { name = "async" },
  { name = "keep_last", of = function(o) return o.keep_last or "all" end },
  { name = "data", of = same_run.presence("data") },
}
local NONE = -2 -- in the place of the number of a save

---@class moonshard.Saver the state of a session's saves
---@field handle ffi.cdata* ms_save*
---@field bytes number that this rank writes
---@field unfinished string? folder of the save in progress
---@field target string? the path of the checkpoint that it becomes
---@field replaced string? the checkpoint whose name that one then gets, as it is of the same step
---@field disk moonshard.Disk of this rank
---@field save number? of the save in progress: different from every other's
---@field entry moonshard.SaveInProgress? of the save in progress, if it is asynchronous
---@field older string[] checkpoints to remove after it, if there are several disks

local function fill(sharding, list, kept, i, range)
  local piece = list[i - 1]
  local shape = (range.whole or range.what == C.MS_TENSOR_STORED) and { range.count }
    or owned_ranges.shape(placements.part(sharding, range.param), range.first, range.count)
  local name = owned_ranges.tensor_name(range.kind, range.param.fqn)
  kept[#kept + 1] = name
  piece.name, piece.parameter, piece.kind, piece.what = name, range.param.fqn, range.kind, range.what
  piece.param, piece.first, piece.count, piece.ndim = range.index, range.first, range.count, #shape
  for d, size in ipairs(shape) do piece.dims[d - 1] = size end
end

local function saver_of(session, disk)
  session:check_whole()
  local state = session:ensure_state()
  local saver = session.saver
  if saver and saver.state == state and saver.disk == disk then return saver end
  local ranges, kept, bytes = owned_ranges.written(session, disk), {}, 0
  -- Sorted as in a file, so that it is written sequentially: values, then the words of stored forms, each by name.
  table.sort(ranges, function(a, b)
    local a_is_stored, b_is_stored = a.what == C.MS_TENSOR_STORED, b.what == C.MS_TENSOR_STORED
    if a_is_stored ~= b_is_stored then return b_is_stored end
    return owned_ranges.tensor_name(a.kind, a.param.fqn) < owned_ranges.tensor_name(b.kind, b.param.fqn)
  end)
  local list, out = ffi.new("ms_save_piece[?]", #ranges), ffi.new("ms_save *[1]")
  for i, range in ipairs(ranges) do
    fill(session.sharding, list, kept, i, range)
    bytes = bytes + 4 * range.count
  end
  check(C.ms_save_new(state, #ranges, list, ffi.sizeof("ms_save_piece"), out))
  session.saver = { handle = ffi.gc(out[0], C.ms_free), state = state, bytes = bytes, disk = disk, older = {} }
  return session.saver
end

-- Forgets a save, and removes what it left. Where a disk has committed and another has not, there is no checkpoint.
local function give_up(saver)
  C.ms_save_stop(saver.handle)
  in_progress.remove(saver.entry)
  local unfinished, target = saver.unfinished, saver.target
  saver.unfinished, saver.target, saver.replaced = nil, nil, nil
  if not unfinished or not saver.disk.is_first then return end
  pcall(folder.discard, unfinished)
  if saver.disk.split and newest.save_of(target) == saver.save then pcall(folder.discard, target) end
end

-- Runs one stage of a save on every rank; if a rank fails, removes the unfinished save.
local function all_do(session, saver, what, call, ...)
  local ok, raised = pcall(call, ...)
  local agreed, other = pcall(agreement.raise_first_failure, session, what, ok, raised)
  if agreed then return end
  give_up(saver)
  error(other, 0)
end

local function wait(saver, stage) check(C.ms_save_wait(saver.handle, stage, 0)) end

---Waits for the save in progress, if any, and raises its error if it failed. Collective.
---@param session moonshard.Session
---@return string? path of the checkpoint
function save.finish(session)
  local saver = session.saver
  if not saver or not saver.unfinished then return nil end
  -- No rank waits for the commit before all have written.
  all_do(session, saver, "of the save", wait, saver, C.MS_SAVE_WRITTEN)
  all_do(session, saver, "of the checkpoint", wait, saver, C.MS_SAVE_COMMITTED)
  in_progress.remove(saver.entry)
  local target, older, replaced = saver.target, saver.older, saver.replaced
  saver.unfinished, saver.target, saver.older, saver.replaced = nil, nil, {}, nil
  if replaced then
    all_do(session, saver, "of the checkpoint's name", function()
      if saver.disk.is_first then folder.replace(replaced, target) end
    end)
  end
  if saver.disk.split then
    all_do(session, saver, "of older checkpoints", function()
      for _, path in ipairs(older) do check(C.ms_checkpoint_remove(path)) end
    end)
  end
  written.note("checkpoint", replaced or target)
  return replaced or target
end

-- Checkpoints to remove once this one is complete: all but the newest, so that `keep` remain. On several disks later
-- ones, which a run that was killed can have left on some of them, do not count.
local function retired(root, keep, before)
  local paths, found = {}, {}
  if not keep then return paths end
  for _, one in ipairs(folder.list(root)) do
    if not before or one.step < before then found[#found + 1] = one.path end
  end
  for i = 1, #found - keep + 1 do
    paths[i] = found[i]
    if folder.is_link(found[i]) then
      log.line(("checkpoints: %s is a link: the link is removed, the files that it points to stay"):format(found[i]))
    end
  end
  return paths
end

-- Makes room for the checkpoint. One that a run which was killed committed on some disks and not on others is not one.
local function prepare(saver, root, is_partial)
  if is_partial and folder.is_checkpoint(saver.target) then check(C.ms_checkpoint_remove(saver.target)) end
  if folder.is_checkpoint(saver.target) then
    errors.invalid("checkpoint %s already exists: save into another folder, or remove it first", saver.target)
  end
  folder.prepare(root, saver.unfinished)
end

-- Whether the checkpoint's name is taken by one that is neither the same save on all disks nor complete on one.
-- Collective.
local function is_partial(session, saver)
  if not saver.disk.split then return false end
  local older, lacks = newest.save_of(saver.target)
  local saves, wholes = session:gather_numbers(older or NONE, "of an older save", older and not lacks and 1 or 0)
  local partial = false
  for place, other in ipairs(saves) do
    if wholes[place] == 1 then return false end
    partial = partial or other ~= saves[1]
  end
  return partial
end

-- What the manifest says of the model.
local function model_of(model)
  local noted, of = require("moonshard.huggingface.layout").of(model), model_options.of(model)
  if not of then return noted end
  noted = noted or {}
  noted.options = of
  return noted
end

-- The rate of the last step, and that of the next one where the schedule is the library's: a recipe's own function is
-- asked once for a step, by the step.
local function schedule_of(train)
  return train.last_lr and { lr = train.last_lr, next_lr = train.optimizer:planned_lr(train.steps_done + 1) }
end

local function describe(train, saver, states, data)
  local hosts
  for i, rank in ipairs(saver.disk.split and train.session:ranks() or {}) do
    hosts = hosts or {}
    hosts[i] = disks.host_of(rank)
  end
  return manifest.head(train.session, {
    step = train.steps_done, updates = train.session.updates, ranks = #train.session:ranks(), states = states,
    save = hosts and saver.save, hosts = hosts, line = line.of(train):describe(),
    schedule = schedule_of(train),
    model = model_of(train.model), options = run_options.of(train, data), settings = next(args.texts) and args.texts,
  })
end

local function start(train, saver, o, head)
  local session, disk, config = train.session, saver.disk, engine.config("ms_save_config")
  local writer = 0
  for place, rank in ipairs(session:ranks()) do
    if rank == session.sharding.rank then writer = place - 1 end
  end
  config.folder, config.writer, config.asynchronous = saver.unfinished, writer, o.async and 1 or 0
  local part_head = disk.split and host_parts.head(saver.save, disks.host_of(session.sharding.rank)) or nil
  config.part_head = part_head
  local awaits, paths, retires
  if disk.is_first then
    awaits, paths = ffi.new("int[?]", #disk.writers, disk.writers), disk.split and {} or retired(o.root, o.keep_last)
    retires = ffi.new("const char *[?]", #paths, paths)
    config.target, config.head, config.writers, config.awaits = saver.target, head, #disk.writers, awaits
    config.retired, config.retires = #paths, retires
    saver.older = disk.split and retired(o.root, o.keep_last, train.steps_done) or {}
  end
  check(C.ms_save_start(saver.handle, config))
end

-- From here on whatever ends the run waits for the save.
local function await(session, saver)
  saver.entry = {
    path = saver.target, handle = saver.handle, is_first = session:is_first(),
    finish = function() return save.finish(session) end,
  }
  in_progress.add(saver.entry)
  termination.catch()
end

---Compares what ranks give to a save. Collective.
---@param train moonshard.Trainer
---@param o { root: string, async: boolean, keep_last: integer?, data: table? }
function save.compare(train, o)
  local facts = same_run.options(COMPARED, o, "%s")
  table.insert(facts, 1, { "the step", train.steps_done })
  same_run.new("ms.checkpoint.save", facts, {}):require(train.session, "of ms.checkpoint.save")
end

---Saves a trainer; see ms.checkpoint.save. Collective.
---@param train moonshard.Trainer
---@param o { root: string, async: boolean, keep_last: integer?, data: table?, replaces: boolean?,
---  states: table<string, string>? } replaces: the checkpoint of this step, which stays until the new one is complete;
---  not with async and keep_last; states: of rank_states.of, in place of what they are now
---@return string path the checkpoint's final path
---@return table<string, string> states that this rank saved besides tensors, of rank_states.of
function save.run(train, o)
  local session = train.session
  save.finish(session)
  local step = train.steps_done
  ema.initialize(train)
  save.compare(train, o)
  local disk = disks.of(session, o.root)
  branches.arrange(train, o.root, disk)
  local saver = saver_of(session, disk)
  saver.save = session:gather_numbers(folder.nonce(), "of the save")[1]
  saver.target, saver.unfinished = folder.of(o.root, step), folder.unfinished(o.root, step, saver.save)
  local path = saver.target
  if o.replaces then saver.replaced, saver.target = path, folder.replacement(o.root, step) end
  local partial, mine, head = is_partial(session, saver), nil, nil
  all_do(session, saver, "of the checkpoint's folder", function()
    if disk.is_first then prepare(saver, o.root, partial) end
    mine = o.states or rank_states.of(train, o.data)
  end)
  local states = rank_states.gather(session, mine)
  all_do(session, saver, "of the manifest", function()
    if session:is_first() then head = describe(train, saver, states, o.data) end
  end)
  if disk.split then head = agreement.text_of_first(session, "of the manifest", head) end
  all_do(session, saver, "of the save", start, train, saver, o, head)
  line.of(train):advance(train, step)
  if o.async then await(session, saver) else save.finish(session) end
  return path, mine
end

return save
