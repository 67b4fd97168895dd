-- Loading: each rank reads the elements that it owns now from the files that contain them, independently of the
-- sharding of the saved model.

local agreement = require("moonshard.distributed.agreement")
local data_position = require("moonshard.checkpoint.data_position")
local disks = require("moonshard.checkpoint.folders.disks")
local division = require("moonshard.shard.division")
local engine = require("moonshard.base.ffi")
local engine_model = require("moonshard.shard.engine_model")
local errors = require("moonshard.base.error")
local folder = require("moonshard.checkpoint.folders.folder")
local half_loaded = require("moonshard.engine.agreement.half_loaded")
local line = require("moonshard.checkpoint.folders.line")
local log = require("moonshard.metrics.log")
local long_wait = require("moonshard.distributed.long_wait")
local manifest = require("moonshard.checkpoint.manifest")
local model_options = require("moonshard.checkpoint.model_options")
local moment_blocks = require("moonshard.engine.moment_blocks")
local momentum_starts = require("moonshard.shard.momentum_starts")
local newest = require("moonshard.checkpoint.folders.newest")
local owned_ranges = require("moonshard.engine.owned_ranges")
local rank_states = require("moonshard.checkpoint.rank_states")
local reader = require("moonshard.checkpoint.reader")
local replicas = require("moonshard.checkpoint.replicas")
local same_run = require("moonshard.engine.agreement.same_run")
local stored_words = require("moonshard.checkpoint.stored_words")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

local load = {}

-- The elements that the engine is asked to load from a piece. From a piece of another part these are those in it.
local function wanted_of(owned, range)
  if not division.equals(owned.part, range.piece.part) then return owned.first, owned.count end
  local first = math.max(owned.first, range.from)
  return first, math.min(owned.first + owned.count, range.to) - first
end

-- The records in which a stored parameter is saved, if they are not as long as here.
local function others_of(checkpoint, owned)
  local saved = owned.stored and checkpoint:records_of(owned.kind, owned.param.fqn)
  return saved and saved.elements ~= owned.stored.records.elements and saved or nil
end

-- The pieces that this rank has to read, in file order, and what it has to convert.
local function plan(checkpoint, session, wanted)
  local list, conversions, ema = {}, {}, wanted.optimizer and checkpoint.manifest.ema and session.ema
  local replica = wanted.optimizer and replicas.source(checkpoint.manifest, checkpoint.path, session.sharding) or nil
  for _, owned in ipairs(owned_ranges.owned(session, wanted.optimizer, ema, { replica = replica })) do
    local others = owned.count > 0 and others_of(checkpoint, owned)
    if others then conversions[#conversions + 1] = { owned = owned, records = others }
    elseif owned.count > 0 then
      local averaged = wanted.averages and owned.kind == "param"
      local kind = averaged and checkpoint:kind_of_average(owned.param.fqn) or owned.kind
      for _, range in ipairs(checkpoint:cover(kind, owned.param.fqn, owned.part, owned.first, owned.count)) do
        range.owned, range.tensor = owned, checkpoint:file(range.piece.file):tensor(range.piece.tensor)
        range.first, range.count = wanted_of(owned, range)
        list[#list + 1] = range
      end
    end
  end
  table.sort(list, function(a, b)
    if a.piece.file ~= b.piece.file then return a.piece.file < b.piece.file end
    return a.tensor.offset < b.tensor.offset
  end)
  list.conversions = conversions
  return list
end

-- An error of reading names the next older checkpoint, if there is one.
local function reading(path, read, ...)
  local results = { pcall(read, ...) }
  if results[1] then return unpack(results, 2) end
  local raised, older = results[2], folder.before(path)
  if older and errors.is(raised) then
    raised.message = ("%s; the checkpoint before it is %s"):format(raised.message, older)
  end
  error(raised, 0)
end

-- Reads a stored parameter whose records are of another length than here. Returns the bytes of what it has become.
local function convert(checkpoint, session, conversion, verify)
  local owned = conversion.owned
  if verify then checkpoint:verify_pieces(owned.kind, owned.param.fqn) end
  local out = ffi.new("float[?]", owned.count)
  stored_words.convert(checkpoint, conversion.records, owned, out)
  check(C.ms_state_write(session.state, owned.index, owned.what, owned.first, owned.count, out))
  return 4 * owned.count
end

-- "runs/gpt/step-00000100 (1.2 GiB in 4 files)"
local function files_of(checkpoint)
  local paths = {}
  for i, file in ipairs(checkpoint.manifest.files) do paths[i] = checkpoint.path .. "/" .. file.file end
  return long_wait.of_files(checkpoint.path, paths)
end

local function read_all(checkpoint, session, list, verify)
  local wait = long_wait.begin("loading", function() return files_of(checkpoint) end)
  local bytes, saved = ffi.new("int64_t[1]"), ffi.new("ms_saved_piece")
  for _, range in ipairs(list) do
    local piece = range.piece
    wait:check()
    saved.file, saved.tensor = checkpoint:file(piece.file).handle, range.tensor.index
    saved.first, saved.checksums = piece.first, verify and piece.xxh3 or nil
    local part = piece.division
    saved.part.run, saved.part.stride, saved.part.origin = part.run, part.stride, part.origin
    check(C.ms_state_load(session.state, range.owned.index, range.owned.what, range.first, range.count, saved,
      ffi.sizeof("ms_saved_piece"), bytes))
  end
  local converted = 0
  for _, conversion in ipairs(list.conversions) do
    wait:check()
    converted = converted + convert(checkpoint, session, conversion, verify)
  end
  wait:finish()
  return tonumber(bytes[0]) + converted
end

local function open(path, session, wanted)
  local checkpoint = reading(path, reader.open, path)
  manifest.check_parameters(checkpoint.manifest, path, session.sharding.params)
  manifest.check_storage(checkpoint.manifest, path, session.sharding.params)
  local noted = checkpoint.manifest.model
  require("moonshard.huggingface.layout").check(path, noted, wanted.model)
  local told = model_options.check(path, noted and noted.options, wanted.model)
  if wanted.optimizer then manifest.check_optimizer(checkpoint.manifest, path, wanted.optimizer) end
  if wanted.averages then checkpoint:check_averages() end
  rank_states.check(checkpoint.manifest, path, session.sharding, { data = wanted.data ~= nil,
    generator = wanted.generator })
  return checkpoint, reading(path, plan, checkpoint, session, wanted), told
end

-- A path can be another checkpoint on each rank: of hosts with folders of their own, or relative. Ranks would load
-- parts of several runs. Copies of one checkpoint are alike.
local function require_same_checkpoint(session, who, path, read)
  local fact = { "the checkpoint", ("step %d, saved at %s, contents %.0f"):format(read.step, read.saved_at or "no time",
    read.contents), "give all ranks one checkpoint, or copies of one", path }
  same_run.new(who, { fact }, {}):require(session, "of the checkpoint's contents")
end

-- Averages that are missing in the checkpoint start from its weights.
local function settle_averages(session, read)
  if session.ema and not read.ema then check(C.ms_state_restart(session.state, C.MS_TENSOR_EMA)) end
end

-- Weights that all replicas read are those from which local SGD starts.
local function settle_outer(session, wanted, read)
  if session.sharding.local_sync and not (wanted.optimizer and read.replicate_sync) then
    check(C.ms_state_restart(session.state, C.MS_TENSOR_SYNCED))
  end
end

-- The number of updates of each parameter belongs to its optimizer state.
local function settle_updates(session, read)
  local updates = {}
  for _, saved in ipairs(read.parameters) do updates[saved.name] = saved.updates end
  for i, param in ipairs(session.sharding.params) do
    check(C.ms_state_set_updates(session.state, i - 1, param.frozen and 0 or updates[param.fqn] or read.step))
  end
end

-- When momentum began belongs to it, too. Plans that say another update are of other rules.
local function settle_momentum(session, read)
  local sharding, optimizer, starts = session.sharding, session.optimizer, {}
  if not momentum_starts.concern(optimizer) then return end
  for _, saved in ipairs(read.parameters) do
    starts[saved.name] = momentum_starts.loaded(saved.momentum_from, saved.updates or read.step)
  end
  local before = engine_model.describe_groups(sharding, optimizer)
  momentum_starts.continue(session, starts)
  local groups = engine_model.set_groups(sharding, sharding:handle(), optimizer)
  if groups == before then return end
  if session.rules == "" then
    session.rules, session.kept_rules = before, { before }
    session.plans:name_rules(before)
  end
  session.rules, session.group_key = session.rules .. groups, nil
  table.insert(session.kept_rules, session.rules)
end

-- How often all trainers of the model had updated it.
local function updates_of(read) return read.updates or read.step end

-- The newest checkpoint next to another one that has the model after so many updates, or fewer.
local function newest_until(path, updates)
  local found
  for _, one in ipairs(folder.list(("./" .. path):match("^%./(.*)/[^/]+/*$") or ".")) do
    local ok, read = pcall(manifest.read, one.path)
    if ok and updates_of(read) <= updates then found = one.path end
  end
  return found
end

-- Where two trainers of a model resume, each from a folder of its own, the later weights count: those that are loaded
-- last must not be the earlier ones.
local function check_goes_on(who, session, path, read)
  local earlier, updates = session.resumed, updates_of(read)
  if not earlier or updates >= earlier.updates then return end
  local common = newest_until(earlier.path, updates)
  errors.invalid("%s: %s has the model after %d updates, and another trainer of it has resumed from %s, after %d. If "
    .. "one trained after the other, make the trainers in the order in which they trained, so that the later weights "
    .. "are loaded last. If they take turns, the run was killed between their saves, and %s", who, path, updates,
    earlier.path, earlier.updates, common
    and ("can go on from %s, the newest there that is not later: move away what is newer there"):format(common)
    or "nothing there is as early: move that folder away, and its trainer begins with the weights of this one")
end

---@class moonshard.Wanted what to load
---@field model moonshard.Module
---@field train moonshard.Trainer? nil: only the parameters
---@field optimizer moonshard.Optimizer? the trainer's
---@field averages boolean? load them in place of the parameters
---@field verify boolean
---@field data table? of the trainer, whose position is restored
---@field generator boolean? whether the trainer's generators are
---@field resumes fun(read: moonshard.Manifest, path: string)? a trainer resumes, and the model may have resumed with
---  another: what else refuses the checkpoint. Collective

-- Everything that can refuse a checkpoint, but for the data object and damaged files. Collective.
local function examine(who, path, session, wanted)
  local given, skipped = path, nil
  if disks.are_on_several_hosts(session:ranks()) then path, skipped = newest.find(session, who, path) end
  local checkpoint, list, told, position
  local ok, raised = pcall(function()
    path = folder.find(who, path)
    if path ~= given then folder.check_whole(who, given, tonumber(path:match("step%-(%d+)$")) or -1) end
    checkpoint, list, told = open(path, session, wanted)
    position = wanted.data and rank_states.data_of(checkpoint.manifest, path, session)
  end)
  agreement.raise_first_failure(session, "of the checkpoint", ok, raised)
  -- From here on no peer reads the old values any more.
  require_same_checkpoint(session, who, path, checkpoint.manifest)
  if wanted.resumes then
    check_goes_on(who, session, path, checkpoint.manifest)
    wanted.resumes(checkpoint.manifest, path)
  end
  return path, { checkpoint = checkpoint, list = list, told = told, position = position, skipped = skipped }
end

-- Replaces the values of the model, and with an optimizer its state. Returns the bytes that were read. Collective.
local function replace(session, path, found, wanted)
  local checkpoint, bytes = found.checkpoint, nil
  local ok, raised = pcall(function()
    bytes = reading(path, read_all, checkpoint, session, found.list, wanted.verify)
    if wanted.optimizer then
      settle_updates(session, checkpoint.manifest)
      settle_momentum(session, checkpoint.manifest)
      settle_averages(session, checkpoint.manifest)
    end
    settle_outer(session, wanted, checkpoint.manifest)
  end)
  session.unsharded = {} -- gathered by unshard before loading, now stale
  session.edits = session.edits + 1
  agreement.raise_first_failure(session, "of loading", ok, raised)
  check(C.ms_state_finish_writes(session.state)) -- gives replicas what only one has, as others may not reach its file
  return bytes
end

-- Restores the rest of a trainer: step, generators, and which call of its data goes on.
local function settle_trainer(read, path, wanted)
  local train = wanted.train
  train.steps_done, train.session.updates = read.step, updates_of(read)
  train.session.outer_rates = nil -- those that ranks agreed on for steps which run again
  if wanted.resumes then train.session.resumed = { path = path, updates = updates_of(read) } end
  train.line = line.to(read)
  if wanted.generator then rank_states.load_generators(train, read) end
  if wanted.data and wanted.data.count_from then wanted.data:count_from(read.step) end
end

---Loads the parameters of a model, for a trainer also its optimizer's state, step, generators and data position, and
---averages if both have them. Collective: if one rank fails, all do. What is refused changes nothing; where a load
---fails later, the session goes on only after another load (engine/agreement/half_loaded.lua).
---@param who string for messages
---@param path string a checkpoint, or a folder of them: its newest
---@param session moonshard.Session
---@param wanted moonshard.Wanted
---@return moonshard.Manifest
---@return { path: string, bytes_read: number, skipped: string? } of this rank; skipped: about a newer one that not all
---  hosts have
function load.run(who, path, session, wanted)
  session:ensure_state()
  session:require_weights(who, "load")
  local found
  path, found = examine(who, path, session, wanted)
  local checkpoint, read = found.checkpoint, found.checkpoint.manifest
  local back = wanted.data and data_position.move(session, path, wanted.data, found.position)
  half_loaded.begin(session, path, wanted.train and "run" or "weights")
  local ok, result = pcall(function()
    local bytes = replace(session, path, found, wanted)
    if wanted.train then session:all_or_none("the trainer's state", settle_trainer, read, path, wanted) end
    return bytes
  end)
  checkpoint:close()
  if not ok then
    if back then back() end
    error(result, 0)
  end
  half_loaded.finish(session, wanted.data and "data" or wanted.train and "run" or "weights")
  local rounded = wanted.optimizer and moment_blocks.describe(moment_blocks.of_load(session, read, found.list))
  local told = found.told
  for _, text in ipairs({ told or rounded, told and rounded or nil }) do
    if world.rank == 0 then log.line(("checkpoint %s: %s"):format(path, text)) end
  end
  return read, { path = path, bytes_read = result, skipped = found.skipped }
end

return load
