-- Ranks that share a data source must read the same one: each selects its part of the samples by their numbers, so with
-- other files on one host, or another seed, some samples would be trained on twice and others never, without an error.
--
-- A batch of a loader has a text that says what it is from (moonshard.data.loader). Ranks compare it once. Ranks that
-- compute a batch together, along tensor and context, need the same one, wherever it is from: they compare a hash.

local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local hash = require("moonshard.base.hash")
local roles = require("moonshard.shard.roles")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

local same_data = {}

local NAME_BYTES, TEXT_BYTES = 32, 216

ffi.cdef(("typedef struct { double values; char shared_by[%d], text[%d]; } ms_lua_source;"):format(NAME_BYTES,
  TEXT_BYTES))

local function name(rank)
  return world.nodes() > 1 and ("rank %d on %s"):format(rank, world.node_name(world.node_of(rank)))
    or ("rank %d"):format(rank)
end

-- A hash of a batch's arrays.
local function values_of(batch)
  local names, text = {}, {}
  for field in pairs(batch) do names[#names + 1] = tostring(field) end
  table.sort(names)
  for _, field in ipairs(names) do
    local array = batch[field]
    if type(array) == "table" and array.data and dtypes.sizes[array.dtype] and type(array.shape) == "table" then
      local bytes = dtypes.sizes[array.dtype]
      for _, size in ipairs(array.shape) do bytes = bytes * size end
      text[#text + 1] = ("%s [%s] %.0f"):format(field, table.concat(array.shape, ","), hash.of_bytes(array.data, bytes))
    end
  end
  return hash.of_text(table.concat(text, " "))
end

-- "tensor", "context and tensor": the dimensions of several ranks that need the same batch; nil: there are none.
local function shared_dimensions(mesh)
  local names = {}
  for dim = 0, mesh.ndim - 1 do
    local called = mesh:dim_name(dim)
    if roles.is_model(called) and mesh:size(dim) > 1 then names[#names + 1] = called end
  end
  return #names > 0 and table.concat(names, " and ") or nil
end

-- Which rows of the global batch a rank trains on: ranks with equal ones compute them together.
local function rows_of(mesh, rank)
  local place = mesh:coordinate_of(rank)
  for dim = mesh.ndim - 1, 0, -1 do
    if roles.is_model(mesh:dim_name(dim)) then table.remove(place, dim + 1) end
  end
  return table.concat(place, ",")
end

local function require_same_batch(mesh, ranks, all)
  local shared, first = shared_dimensions(mesh), {}
  for place, rank in ipairs(shared and ranks or {}) do
    local rows = rows_of(mesh, rank)
    local other = first[rows]
    if other and other.values ~= all[place - 1].values then
      errors.raise("MS_EMISMATCH", "%s has another batch than %s, but along %s of mesh %s they train on the same one: "
        .. "give the data or its sampler the mesh, as in ms.data.sampler { mesh = mesh, ... }, or these ranks the same "
        .. "batch", name(rank), name(other.rank), shared, mesh:label())
    end
    first[rows] = other or { rank = rank, values = all[place - 1].values }
  end
end

---Raises MS_EMISMATCH on all ranks of a model if two that share data have batches of different sources, or if two that
---compute a batch together have different ones. Collective.
---@param session moonshard.Session
---@param what string for reports, equal on all ranks: "of the training data"
---@param batch { source: string?, shared_by: string? } this rank's
function same_data.require(session, what, batch)
  local ranks, first = session:ranks(), {}
  if #ranks == 1 then return end
  if batch.shared_by == "all" and session:data_ranks() < #ranks then
    errors.invalid("the data divides the samples over all ranks, but the ranks along %s of mesh %s need the same "
      .. "ones: give the data the mesh, as in ms.data.text { mesh = mesh, ... }",
      shared_dimensions(session.sharding.mesh), session.sharding.mesh:label())
  end
  local mine, all = ffi.new("ms_lua_source"), ffi.new("ms_lua_source[?]", #ranks)
  if type(batch.source) == "string" and type(batch.shared_by) == "string" then
    ffi.copy(mine.shared_by, batch.shared_by:sub(1, NAME_BYTES - 1))
    ffi.copy(mine.text, batch.source:sub(1, TEXT_BYTES - 1))
  end
  mine.values = values_of(batch)
  local state = session:ensure_state()
  world.set_activity(what)
  local status = C.ms_state_all_gather_bytes(state, mine, ffi.sizeof(mine), all)
  world.set_activity(nil)
  check(status)
  for place, rank in ipairs(ranks) do
    local sharers, text = ffi.string(all[place - 1].shared_by), ffi.string(all[place - 1].text)
    local other = first[sharers]
    if sharers ~= "" and other and other.text ~= text then
      errors.raise("MS_EMISMATCH", "the data differs between ranks that share it: %s has %s; %s has %s; give all ranks "
        .. "the same files and settings", name(other.rank), other.text, name(rank), text)
    end
    first[sharers] = other or { rank = rank, text = text }
  end
  require_same_batch(session.sharding.mesh, ranks, all)
end

return same_data
