-- The manifest of a checkpoint: describes the model and the location of every element. The engine adds the list of
-- files and a checksum of the whole (checkpoint_commit.c). Version 2 is for hosts with folders of their own: its list
-- of files is in the parts, which are files, too (host_parts.lua). Version 3 is for models that a tensor dimension
-- divides, in one folder or several: its pieces can be of parts of parameters. Version 4 has states of single ranks
-- (rank_states.lua), or values beyond JSON's (state_values.lua); for the rest it is as the version that it would be.

local args = require("moonshard.recipe.args")
local division = require("moonshard.shard.division")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local hash = require("moonshard.base.hash")
local json = require("moonshard.base.text.json")
local momentum_starts = require("moonshard.shard.momentum_starts")
local optimizers = require("moonshard.engine.optimizers")
local owned_ranges = require("moonshard.engine.owned_ranges")
local host_parts = require("moonshard.checkpoint.folders.host_parts")
local placements = require("moonshard.shard.policies.placements")
local rank_states = require("moonshard.checkpoint.rank_states")
local replicas = require("moonshard.checkpoint.replicas")
local schema = require("moonshard.checkpoint.schema")
local C, ffi, check = engine.C, engine.ffi, engine.check

local manifest = {}

local FORMAT, ONE_FOLDER, SEVERAL_FOLDERS, DIVIDED, EXTENDED_STATES = "moonshard checkpoint", 1, 2, 3, 4

local VERSIONS = { [ONE_FOLDER] = true, [SEVERAL_FOLDERS] = true, [DIVIDED] = true, [EXTENDED_STATES] = true }

-- Encodes lists that can be empty, which json.encode would write as objects.
local function list_text(list)
  return #list == 0 and "[]" or json.encode(list)
end

-- updates: the number of updates of the parameter, if it differs from the number of steps. momentum_from: that of the
-- one in which its momentum began, if it was not the first.
local function parameter_text(param, updates, momentum_from)
  return ('{"name":%s,"shape":%s,"dtype":"f32","frozen":%s,"storage":%s%s%s}'):format(json.encode(param.fqn),
    list_text(param.shape), tostring(param.frozen and true or false), json.encode(param.storage or "f32"),
    updates and (',"updates":%d'):format(updates) or "",
    momentum_from and (',"momentum_from":%d'):format(momentum_from) or "")
end

local function parameters_text(session, step)
  local texts, starts = {}, momentum_starts.now(session)
  for i, param in ipairs(session.sharding.params) do
    local updates = division.kept(session.state, i - 1, C.MS_TENSOR_PARAM).updates
    texts[i] = parameter_text(param, not param.frozen and updates ~= step and updates or nil,
      momentum_starts.saved(starts[param.fqn]))
  end
  return "[" .. table.concat(texts, ",") .. "]"
end

-- The parameters of an optimizer by rules that take Muon, sorted.
local function muon_names(optimizer)
  if not optimizer.chosen then return nil end
  local names = {}
  for fqn, part in pairs(optimizer.chosen) do
    if part:chosen_as() then names[#names + 1] = fqn end
  end
  table.sort(names)
  return names
end

---The optimizer's settings worth recording; its rules belong to the recipe.
---@param optimizer moonshard.Optimizer?
---@return table?
function manifest.optimizer_of(optimizer)
  if not optimizer then return nil end
  local kinds = {}
  for i, state in ipairs(owned_ranges.states(optimizer)) do kinds[i] = state.kind end
  local recorded = optimizers.settings(optimizer)
  recorded.kind, recorded.states = optimizer.title or optimizer.kind, #kinds > 0 and kinds or nil
  -- Next to another optimizer its settings would have the name of the list of its parameters.
  recorded.muon_settings = optimizer.rules and recorded.muon or nil
  recorded.muon = muon_names(optimizer)
  return recorded
end

local function version_of(sharding, more)
  if rank_states.are_extended(more.states) then return EXTENDED_STATES end
  for _, param in ipairs(sharding.params) do
    if placements.divides(sharding, param) then return DIVIDED end
  end
  return more.hosts and SEVERAL_FOLDERS or ONE_FOLDER
end

---The manifest without its files.
---@param session moonshard.Session
---@param more { step: integer, updates: integer, ranks: integer, states: table<string, string>, schedule: table?,
---  model: table?, settings: table<string, string>?, options: table<string, string>, save: number?,
---  hosts: string[]?, line: table } states: of rank_states.gather; options: of run_options.of; save and hosts: of a
---  checkpoint in several folders; line: of Line:describe
---@return string JSON object
function manifest.head(session, more)
  local mesh, text = session.sharding.mesh, {}
  local function add(key, value) text[#text + 1] = ('"%s":%s'):format(key, value) end
  add("format", json.encode(FORMAT))
  add("version", version_of(session.sharding, more))
  add("moonshard", json.encode(engine.version))
  add("saved_at", json.encode(os.date("!%Y-%m-%dT%H:%M:%SZ")))
  add("step", json.encode(more.step))
  if more.updates ~= more.step then add("updates", json.encode(more.updates)) end
  add("ranks", json.encode(more.ranks))
  add("mesh", ('{"label":%s,"shape":%s}'):format(json.encode(mesh:label()), list_text(mesh.shape)))
  add("block_bytes", json.encode(tonumber(C.MS_CHECKPOINT_BLOCK)))
  for _, key in ipairs({ "save", "hosts", "line", "schedule", "model", "settings", "options" }) do
    if more[key] then add(key, json.encode(more[key])) end
  end
  for _, key in ipairs(rank_states.keys) do
    if more.states[key] then add(key, more.states[key]) end
  end
  local optimizer = manifest.optimizer_of(session.optimizer)
  if optimizer then add("optimizer", json.encode(optimizer)) end
  if session.ema then add("ema", json.encode(session.ema)) end
  local sync = replicas.describe(session.sharding)
  if sync then add("replicate_sync", json.encode(sync)) end
  add("parameters", parameters_text(session, more.step))
  return "{" .. table.concat(text, ",") .. "}"
end

---@class moonshard.Manifest
---@field step integer
---@field updates integer? of the model, by all of its trainers, if that is not `step`
---@field ranks integer number of ranks that wrote it
---@field mesh { label: string, shape: integer[] }
---@field parameters { name: string, shape: integer[], dtype: string, frozen: boolean, storage: string?,
---  updates: integer?, momentum_from: integer? }[] storage: in which type it was kept, which older checkpoints do not
---  say; momentum_from: the update in which its momentum began, 0: none yet; nil: the first
---@field optimizer table? kind, and its settings
---@field ema { decay: number, warmup: boolean }? settings of its averages, if it contains them
---@field replicate_sync table? settings of local SGD, and the number of replicas
---@field generator table? of all ranks
---@field data any of all ranks
---@field generator_of_ranks table<string, table>? where ranks differ: by the rank's place, from "0"
---@field data_of_ranks table<string, any>? the same
---@field line { id: number, forks: { id: number, step: integer }[]? }? the line that it is of (line.lua)
---@field exact_states boolean data is of state_values.encode, and has to be decoded
---@field settings table<string, string>? the recipe's settings, as written
---@field options table<string, string>? of run_options.of
---@field contents number a hash of its text, which has the checksums of files, or the number of the save: equal for
---  copies of one checkpoint, and on all hosts that have folders of their own
---@field files { file: string, tensors: table[] }[] with several folders: those in this one
---@field save number? of a checkpoint in several folders: a number that its parts have, too
---@field hosts string[]? the same: the host that wrote rank-00000, and so on
---@field missing moonshard.MissingPart[]? the same: parts that are not in this folder

---Reads the manifest of a checkpoint, and parts that are files. Raises MS_EIO when it is damaged; MS_EINVAL when it is
---not a manifest, a field is invalid, or its step contradicts its folder's name; MS_EUNSUPPORTED for a later version.
---@param path string folder
---@return moonshard.Manifest
function manifest.read(path)
  local out = ffi.new("char *[1]")
  check(C.ms_checkpoint_read(path, -1, out))
  local text = ffi.string(out[0])
  C.ms_file_text_free(out[0])
  local read, why = json.decode(text)
  if type(read) ~= "table" or read.format ~= FORMAT then
    errors.invalid("%s/manifest.json: not the manifest of a checkpoint%s", path, why and ": " .. why or "")
  end
  if not VERSIONS[read.version] then
    errors.raise("MS_EUNSUPPORTED", "%s/manifest.json: version %s: this build reads versions %d to %d", path,
      tostring(read.version), ONE_FOLDER, EXTENDED_STATES)
  end
  read.contents = hash.of_text(text)
  read.exact_states = read.version == EXTENDED_STATES
  if read.version == SEVERAL_FOLDERS or read.version ~= ONE_FOLDER and read.hosts ~= nil then
    schema.check_hosts(read, path)
    host_parts.read(read, path)
  end
  schema.check(read, path)
  local named = tonumber(("/" .. path):match("/step%-(%d+)/*$"))
  if named and named ~= read.step then
    errors.invalid("%s: its name says step %d, its manifest step %s: the folder was renamed or linked; give it "
      .. "its own name, or one of another form", path, named, tostring(read.step))
  end
  return read
end

-- ---- against a model ----------------------------------------------------------------------------------------------

local MAX_LISTED = 4

local function add_list(parts, what, names)
  if #names == 0 then return end
  local shown = { unpack(names, 1, MAX_LISTED) }
  if #names > MAX_LISTED then shown[#shown + 1] = ("and %d more"):format(#names - MAX_LISTED) end
  parts[#parts + 1] = ("%s: %s"):format(what, table.concat(shown, ", "))
end

-- Recipe settings that differ from those it was saved with, since one of them probably explains why the models differ.
-- Ignores settings that are empty on either side, as paths are.
local function add_settings(parts, settings)
  local names, differing = {}, {}
  for name in pairs(settings or {}) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    local here = args.texts[name]
    if here and here ~= settings[name] and here ~= "" and settings[name] ~= "" then
      differing[#differing + 1] = ("%s=%s, here %s"):format(name, settings[name], here)
    end
  end
  if #differing > 0 then parts[#parts + 1] = "settings that it was saved with: " .. table.concat(differing, "; ") end
end

local function shape_text(shape) return "[" .. table.concat(shape, ",") .. "]" end

---Compares the parameters of a checkpoint with a model's; the error lists the first differences and their number.
---@param read moonshard.Manifest
---@param path string
---@param params moonshard.ShardedParameter[]
function manifest.check_parameters(read, path, params)
  local saved, missing, misshapen, extra = {}, {}, {}, {}
  for _, param in ipairs(read.parameters) do saved[param.name] = param end
  for _, param in ipairs(params) do
    local other = saved[param.fqn]
    saved[param.fqn] = nil
    if not other then
      missing[#missing + 1] = param.fqn
    elseif shape_text(other.shape) ~= shape_text(param.shape) then
      misshapen[#misshapen + 1] = ("%s %s, here %s"):format(param.fqn, shape_text(other.shape),
        shape_text(param.shape))
    end
  end
  for _, param in ipairs(read.parameters) do
    if saved[param.name] then extra[#extra + 1] = param.name end
  end
  local parts = {}
  add_list(parts, "missing from the checkpoint", missing)
  add_list(parts, "shapes differ", misshapen)
  add_list(parts, "missing from the model", extra)
  if #parts > 0 then
    local all_misshapen = #parts == 1 and #misshapen > 0
    add_settings(parts, read.settings)
    errors.raise(all_misshapen and "MS_ESHAPE" or "MS_ENAME",
      "checkpoint %s belongs to a different model; %s; it loads as a whole: for some of its parameters, export it "
      .. "(moonshard export), and give each tensor of the file (ms.safetensors.open) to model:set_parameter", path,
      table.concat(parts, "; "))
  end
end

---Raises MS_EMISMATCH for a parameter that was kept in another type than here, in fewer bits: they would round it.
---@param path string of the checkpoint
---@param fqn string
---@param saved string
---@param here string
function manifest.refuse_storage(path, fqn, saved, here)
  errors.raise("MS_EMISMATCH", "checkpoint %s has %s in %s, but here it is kept in %s: give ms.fully_shard the storage "
    .. "that it was saved with", path, fqn, saved, here)
end

---Compares the types in which parameters were kept with those of a model. An older checkpoint does not say those of
---frozen parameters; what trains is kept in f32.
---@param read moonshard.Manifest
---@param path string
---@param params moonshard.ShardedParameter[]
function manifest.check_storage(read, path, params)
  local kept = {}
  for _, saved in ipairs(read.parameters) do kept[saved.name] = saved.storage or not saved.frozen and "f32" or nil end
  for _, param in ipairs(params) do
    local saved = kept[param.fqn]
    if saved and param.storage and saved ~= param.storage then
      manifest.refuse_storage(path, param.fqn, saved, param.storage)
    end
  end
end

-- The states of two optimizers can have one name, and mean different things.
local function check_muon(saved, path, optimizer)
  local had, mine = {}, muon_names(optimizer)
  if not (saved.muon and mine) then return end
  for _, fqn in ipairs(saved.muon) do had[fqn] = true end
  local names = {}
  for fqn in pairs(optimizer.chosen) do names[#names + 1] = fqn end
  table.sort(names) -- so that ranks name the same one
  for _, fqn in ipairs(names) do
    local part = optimizer.chosen[fqn]
    if (part:chosen_as() ~= nil) ~= (had[fqn] == true) then
      errors.invalid("checkpoint %s: %s was trained by %s, the trainer gives it %s: use the same rules, or load only "
        .. "the model, ms.checkpoint.load(model, path)", path, fqn, had[fqn] and "muon" or "the other optimizer",
        part.kind)
    end
  end
end

---Compares the optimizer of a checkpoint with the one that resumes from it.
---@param read moonshard.Manifest
---@param path string
---@param optimizer moonshard.Optimizer
function manifest.check_optimizer(read, path, optimizer)
  local saved = read.optimizer
  if not saved then
    errors.invalid("checkpoint %s has no optimizer state: load only the model, ms.checkpoint.load(model, path)",
      path)
  end
  local mine, theirs = {}, saved.states or {}
  for i, state in ipairs(owned_ranges.states(optimizer)) do mine[i] = state.kind end
  local kind = optimizer.title or optimizer.kind
  if saved.kind ~= kind or table.concat(mine, ", ") ~= table.concat(theirs, ", ") then
    errors.invalid("checkpoint %s is from optimizer %s (state %s), the trainer has %s (%s): load only the model, "
      .. "ms.checkpoint.load(model, path), or use the same optimizer", path, saved.kind,
      #theirs > 0 and table.concat(theirs, ", ") or "nothing", kind,
      #mine > 0 and table.concat(mine, ", ") or "nothing")
  end
  check_muon(saved, path, optimizer)
end

return manifest
