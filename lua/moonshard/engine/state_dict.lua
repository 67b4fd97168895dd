-- The parameters of a model, or of a module within one, as a table by their names in it: each rank its own shards, or
-- in full on the first rank.

local agreement = require("moonshard.distributed.agreement")
local division = require("moonshard.shard.division")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local hash = require("moonshard.base.hash")
local inspect = require("moonshard.engine.inspect")
local options = require("moonshard.base.checks.options")
local owned_ranges = require("moonshard.engine.owned_ranges")
local placements = require("moonshard.shard.policies.placements")
local replicate_sync = require("moonshard.shard.policies.replicate_sync")
local session = require("moonshard.engine.session")
local tensor = require("moonshard.tensor")
local tree = require("moonshard.nn.tree")
local values = require("moonshard.tensor.values")
local world = require("moonshard.distributed.world")
local C, check, ffi = engine.C, engine.check, engine.ffi

local state_dict = {}

local OPTIONS = { full = { "boolean", default = false } }

---@class moonshard.DictEntry
---@field name string of a parameter in the module
---@field index integer of the parameter in the engine's state
---@field param moonshard.Param

---@return moonshard.DictEntry[]
local function entries_of(module, around)
  local entries = {}
  for i, entry in ipairs(tree.inventory(module).parameters) do
    local index = around.sharding.index[entry.parameter]
    if not index then
      errors.raise("MS_ENAME", "state_dict: %s is not in the model that was sharded: it has no values", entry.name)
    end
    entries[i] = { name = entry.name, index = index, param = around.sharding.params[index + 1] }
  end
  return entries
end

-- Raises if ranks are at different models, or at different parts of one.
local function require_same_part(around, entries, what)
  if around.sharding.single_rank or around.sharding.local_sync then return end
  local indices = {}
  for i, entry in ipairs(entries) do indices[i] = entry.index end
  around:require_same(hash.of_text(table.concat(indices, " ")), what, function(rank)
    return ("%s is at another part of the model than %s: all ranks must call it of the same module"):format(
      world.rank_name(rank), world.rank_name(world.rank))
  end)
end

local function is_first(around) return around.sharding.single_rank or around:is_first() end

local function gather(around, index, param)
  local state = around:ensure_state()
  if not is_first(around) then return check(C.ms_state_gather(state, index, C.MS_TENSOR_PARAM, 0, -1, nil)) end
  local shape = { unpack(param.shape) }
  local data = values.allocate("f32", shape)
  check(C.ms_state_gather(state, index, C.MS_TENSOR_PARAM, 0, -1, data))
  return tensor.eager("f32", shape, data, not around.sharding.single_rank and ("rank %d"):format(world.rank) or nil)
end

---@param model moonshard.Module
---@param o { full: boolean? }?
---@return table<string, moonshard.Tensor>
function state_dict.get(model, o)
  o = options.parse("state_dict", o, OPTIONS)
  local around, dict = session.around(model), {}
  local entries = entries_of(model, around)
  if o.full then require_same_part(around, entries, "of model:state_dict") end
  for _, entry in ipairs(entries) do
    if o.full then dict[entry.name] = gather(around, entry.index, entry.param)
    else dict[entry.name] = inspect.own_shard(around, entry.index, entry.param) end
  end
  return dict
end

-- The elements of a parameter that this rank needs: shape, count, first, and whether no replica has them.
local function expected(around, entry, full)
  local param = entry.param
  if full then return param.shape, param.numel, 0 end
  local kept = division.kept(around.state, entry.index, C.MS_TENSOR_PARAM)
  return inspect.shard_shape(around, param, kept.first, kept.count), kept.count, kept.first, kept.sliced
end

local function check_entry(around, entry, given, full, wrong)
  local shape, count = expected(around, entry, full)
  if given == nil then
    wrong[#wrong + 1] = ("%s is missing"):format(entry.name)
  elseif not tensor.is_eager(given) then
    wrong[#wrong + 1] = ("%s is %s, not a tensor"):format(entry.name, options.describe(given))
  elseif given.dtype ~= "f32" then
    wrong[#wrong + 1] = ("%s is %s, not f32"):format(entry.name, given.dtype)
  elseif shape and tensor.shape_text(given.shape) ~= tensor.shape_text(shape) then
    wrong[#wrong + 1] = ("%s is %s, here %s"):format(entry.name, tensor.shape_text(given.shape),
      tensor.shape_text(shape))
  elseif given:numel() ~= count then
    wrong[#wrong + 1] = ("%s has %d elements, this rank owns %d"):format(entry.name, given:numel(), count)
  end
end

local MAX_LISTED = 8

local function check_all(around, entries, dict, full)
  if type(dict) ~= "table" then errors.invalid("load_state_dict takes a table of tensors by name, not %s",
    options.describe(dict)) end
  local wrong, known = {}, {}
  for _, entry in ipairs(entries) do
    known[entry.name] = true
    check_entry(around, entry, dict[entry.name], full, wrong)
  end
  local extra = {}
  for name in pairs(dict) do
    if not known[name] then extra[#extra + 1] = tostring(name) end
  end
  table.sort(extra)
  for _, name in ipairs(extra) do wrong[#wrong + 1] = ("the model has no %s"):format(name) end
  if #wrong == 0 then return end
  if #wrong > MAX_LISTED then
    wrong[MAX_LISTED] = ("and %d more"):format(#wrong - MAX_LISTED + 1)
    for i = #wrong, MAX_LISTED + 1, -1 do wrong[i] = nil end
  end
  errors.raise("MS_ENAME", "load_state_dict: %s: it takes every parameter of the model and nothing else; for some of "
    .. "them, give each to model:set_parameter(name, tensor)", table.concat(wrong, "; "))
end

-- Which ranks have copies of the same elements of a parameter, as text by place in session:ranks(): they differ along
-- replicate, along tensor if it does not divide the parameter, or along the dimensions that shard if its unit is whole.
local function copies_of(around, param, sliced)
  local sharding, list = around.sharding, {}
  for place, rank in ipairs(around:ranks()) do
    local coordinate = sharding.mesh:coordinate_of(rank)
    if sharding.replicate_dim >= 0 and not sliced then coordinate[sharding.replicate_dim + 1] = 0 end
    if sharding.tensor_dim >= 0 and not placements.divides(sharding, param) then
      coordinate[sharding.tensor_dim + 1] = 0
    end
    for _, dim in ipairs(param.unit.shard and {} or { sharding.shard_dim, sharding.context_dim }) do
      if dim >= 0 then coordinate[dim + 1] = 0 end
    end
    list[place] = table.concat(coordinate, " ")
  end
  return list
end

-- The places of the first two ranks that have copies and were given different ones.
local function differing(copies, of_ranks)
  local first = {}
  for place, copy in ipairs(copies) do
    local one = first[copy] or place
    first[copy] = one
    if of_ranks[one] ~= of_ranks[place] then return one, place end
  end
end

-- Refuses parts of which ranks that have copies were given different ones: what they compute would be of neither.
-- Replicas that take local steps can have weights of their own. Collective.
---@return table<integer, boolean> apart by index of a parameter: replicas were given their own
local function check_copies(around, entries, dict)
  local hashes, ranks, apart = {}, around:ranks(), {}
  if #ranks == 1 then return apart end
  for i, entry in ipairs(entries) do
    local given = dict[entry.name]
    hashes[i] = hash.of_bytes(given.data, values.bytes(given))
  end
  for i, of_ranks in ipairs(around:gather_lists(hashes, "of parts to load")) do
    local param = entries[i].param
    local _, _, _, sliced = expected(around, entries[i], false)
    local one, other = differing(copies_of(around, param, sliced or owned_ranges.is_local(param)), of_ranks)
    if one then
      errors.raise("MS_EMISMATCH", "load_state_dict: %s differs between %s and %s, which have copies of the same "
        .. "elements, so nothing is loaded: give each rank its part of one model, as its own state_dict returned it, "
        .. "or all of it to the first rank, with { full = true }", entries[i].name, world.rank_name(ranks[one]),
        world.rank_name(ranks[other]))
    end
    apart[i] = differing(copies_of(around, param, sliced), of_ranks) ~= nil
  end
  return apart
end

-- Whether this rank was given other values than it has.
local function is_new(around, entry, data)
  local _, count, first = expected(around, entry, false)
  local now = ffi.new("float[?]", count)
  check(C.ms_state_read(around.state, entry.index, C.MS_TENSOR_PARAM, first, count, now))
  return hash.of_bytes(now, 4 * count) ~= hash.of_bytes(data, 4 * count)
end

-- Replicas' own weights go into the next sum, but while one is on its way its outer step would replace them unseen.
-- Collective.
local function check_own(around, entries, dict, apart)
  local sync = around.sharding.local_sync
  local fragment, applied
  if sync then fragment, applied = replicate_sync.on_its_way(sync, around.updates) end
  if not fragment then return end
  local ok, raised = pcall(function()
    for i, entry in ipairs(entries) do
      if apart[i] and entry.param.unit.fragment == fragment and is_new(around, entry, dict[entry.name].data) then
        local sent = applied - sync.delay + 1
        errors.invalid("load_state_dict: replicas were given their own values of %s, which the end of update %d would "
          .. "replace by the sum that is on its way since update %d (replicate_sync has delay = %d): load before "
          .. "update %d or after update %d, or give all replicas the same values", entry.name, applied, sent,
          sync.delay, sent, applied)
      end
    end
  end)
  agreement.raise_first_failure(around, "of load_state_dict", ok, raised)
end

-- The same values of all replicas become those of the last sync; a sum on its way was of what the others had moved.
local function write_common(around, index, first, count, data)
  check(C.ms_state_write(around.state, index, C.MS_TENSOR_SYNCED, first, count, data))
  if around.sharding.local_sync.delay == 0 then return end
  check(C.ms_state_write(around.state, index, C.MS_TENSOR_OUTER_SUM, first, count, ffi.new("float[?]", count)))
end

-- What replicas have in common changes with their weights, unless these are their own: those go on from what they have.
local function write(around, entries, dict, full, apart)
  for i, entry in ipairs(entries) do
    local given, index = dict[entry.name], entry.index
    if full then
      check(C.ms_state_scatter(around.state, index, 0, is_first(around) and given.data or nil))
    else
      local _, count, first = expected(around, entry, false)
      check(C.ms_state_write(around.state, index, C.MS_TENSOR_PARAM, first, count, given.data))
      if owned_ranges.is_local(entry.param) and around.optimizer and not apart[i] then
        write_common(around, index, first, count, given.data)
      end
    end
  end
  check(C.ms_state_finish_writes(around.state))
end

---@param model moonshard.Module
---@param dict table<string, moonshard.Tensor>
---@param o { full: boolean? }?
function state_dict.set(model, dict, o)
  o = options.parse("load_state_dict", o, OPTIONS)
  local around = session.around(model)
  if around.sharding.single_rank then
    errors.invalid("load_state_dict: shard the model first (ms.fully_shard); until then it has no values of its own")
  end
  around:require_weights("load_state_dict", "load")
  local entries = entries_of(model, around)
  around:ensure_state()
  local ok, raised = pcall(function()
    if not o.full or is_first(around) then check_all(around, entries, dict, o.full) end
  end)
  -- This also ensures that no peer reads the old values after it.
  agreement.raise_first_failure(around, "of load_state_dict", ok, raised)
  require_same_part(around, entries, "of load_state_dict")
  local apart = o.full and {} or check_copies(around, entries, dict)
  check_own(around, entries, dict, apart)
  around.unsharded = {} -- copies of the old values
  around.edits = around.edits + 1
  write(around, entries, dict, o.full, apart)
end

return state_dict
