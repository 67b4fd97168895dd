-- Saving: every rank writes its ranges, and the first rank commits when all ranks have finished. An asynchronous save
-- leaves the writing to threads; the ranks learn its outcome at the next save, or when they finish.

local agreement = require("moonshard.distributed.agreement")
local args = require("moonshard.recipe.args")
local create = require("moonshard.tensor.create")
local ema = require("moonshard.engine.ema")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local folder = require("moonshard.checkpoint.folder")
local hash = require("moonshard.base.hash")
local manifest = require("moonshard.checkpoint.manifest")
local owned_ranges = require("moonshard.engine.owned_ranges")
local C, ffi, check = engine.C, engine.ffi, engine.check

local save = {}

---@class moonshard.Saver the state of a session's saves
---@field handle ffi.cdata* ms_save*
---@field bytes number that this rank writes
---@field unfinished string? folder of the save in progress
---@field target string? its final path

local function fill(list, kept, i, range)
  local piece, shape = list[i - 1], owned_ranges.shape(range.param.shape, range.param.numel, range.first, range.count)
  local name = owned_ranges.tensor_name(range.kind, range.param.fqn)
  kept[#kept + 1] = name
  piece.name, piece.parameter, piece.kind, piece.what = name, range.param.fqn, range.kind, range.what
  piece.param, piece.first, piece.count, piece.ndim = range.index, range.first, range.count, #shape
  for d, size in ipairs(shape) do piece.dims[d - 1] = size end
end

local function saver_of(session)
  local state = session:ensure_state()
  local saver = session.saver
  if saver and saver.state == state then return saver end
  local ranges, kept, bytes = owned_ranges.written(session), {}, 0
  -- Sorted like the names in a file, so that the file is written sequentially.
  table.sort(ranges, function(a, b)
    return owned_ranges.tensor_name(a.kind, a.param.fqn) < owned_ranges.tensor_name(b.kind, b.param.fqn)
  end)
  local list, out = ffi.new("ms_save_piece[?]", #ranges), ffi.new("ms_save *[1]")
  for i, range in ipairs(ranges) do
    fill(list, kept, i, range)
    bytes = bytes + 4 * range.count
  end
  check(C.ms_save_new(state, #ranges, list, out))
  session.saver = { handle = ffi.gc(out[0], C.ms_save_free), state = state, bytes = bytes }
  return session.saver
end

local function is_first(session) return session:ranks()[1] == session.sharding.rank end

local function compare(session, number, what, format, ...)
  local here = format:format(...)
  session:require_same(number, "of " .. what, function(rank)
    return ("%s; rank %d differs: all ranks must save the same"):format(here, rank)
  end)
end

local function give_up(session, saver)
  C.ms_save_stop(saver.handle)
  local unfinished = saver.unfinished
  saver.unfinished, saver.target = nil, nil
  if unfinished and is_first(session) then pcall(folder.discard, unfinished) end
end

-- Runs one stage of a save on every rank; if a rank fails, removes the unfinished save.
local function all_do(session, saver, what, call, ...)
  local ok, raised = pcall(call, ...)
  local agreed, other = pcall(agreement.raise_first_failure, session, what, ok, raised)
  if agreed then return end
  give_up(session, saver)
  error(other, 0)
end

local function wait(saver, stage) check(C.ms_save_wait(saver.handle, stage)) end

---Waits for the save in progress, if any, and raises its error if it failed. Collective.
---@param session moonshard.Session
---@return string? path of the checkpoint
function save.finish(session)
  local saver = session.saver
  if not saver or not saver.unfinished then return nil end
  -- No rank waits for the commit before all have written.
  all_do(session, saver, "of the save", wait, saver, C.MS_SAVE_WRITTEN)
  all_do(session, saver, "of the checkpoint", wait, saver, C.MS_SAVE_COMMITTED)
  local target = saver.target
  saver.unfinished, saver.target = nil, nil
  return target
end

-- Checkpoints to remove once this one is complete: all but the newest, so that `keep` remain.
local function retired(root, keep)
  local paths = {}
  if not keep then return paths end
  local found = folder.list(root)
  for i = 1, #found - keep + 1 do paths[i] = found[i].path end
  return paths
end

local function prepare(root, target, unfinished)
  if folder.is_checkpoint(target) then
    errors.invalid("checkpoint %s already exists: save into another folder, or remove it first", target)
  end
  folder.prepare(root, unfinished)
end

local function describe(train, o)
  return manifest.head(train.session, {
    step = train.steps_done, ranks = #train.session:ranks(), data = o.data and o.data:state() or nil,
    generator = { seed = train.seed, micro_batches = train.micro_batches, eager = create.generator() },
    schedule = train.steps_done > 0 and { lr = train.optimizer.lr(train.steps_done),
      next_lr = train.optimizer.lr(train.steps_done + 1) } or nil,
    model = require("moonshard.huggingface").layout(train.model), settings = next(args.texts) and args.texts,
  })
end

local function start(train, saver, o)
  local session, config = train.session, ffi.new("ms_save_config")
  C.ms_save_config_default(config, ffi.sizeof(config))
  local writer = 0
  for place, rank in ipairs(session:ranks()) do
    if rank == session.sharding.rank then writer = place - 1 end
  end
  config.folder, config.writer, config.asynchronous = saver.unfinished, writer, o.async and 1 or 0
  local head, paths, retires
  if is_first(session) then
    head, paths = describe(train, o), retired(o.root, o.keep_last)
    retires = ffi.new("const char *[?]", #paths, paths)
    config.target, config.writers, config.head = saver.target, #session:ranks(), head
    config.retired, config.retires = #paths, retires
  end
  check(C.ms_save_start(saver.handle, config))
end

---Saves a trainer; see ms.checkpoint.save. Collective.
---@param train moonshard.Trainer
---@param o { root: string, async: boolean, keep_last: integer?, data: table? }
---@return string path the checkpoint's final path
function save.run(train, o)
  local session = train.session
  save.finish(session)
  local saver, step = saver_of(session), train.steps_done
  ema.initialize(train)
  compare(session, step, "the saved step", "ms.checkpoint.save: after step %d", step)
  compare(session, hash.of_text(o.root), "the checkpoint's folder", "ms.checkpoint.save: into folder %s", o.root)
  local nonce = session:gather_numbers(is_first(session) and folder.nonce() or 0, "of the save")[1]
  saver.target, saver.unfinished = folder.of(o.root, step), folder.unfinished(o.root, step, nonce)
  all_do(session, saver, "of the checkpoint's folder", function()
    if is_first(session) then prepare(o.root, saver.target, saver.unfinished) end
  end)
  all_do(session, saver, "of the save", start, train, saver, o)
  local target = saver.target
  if not o.async then save.finish(session) end
  return target
end

return save
