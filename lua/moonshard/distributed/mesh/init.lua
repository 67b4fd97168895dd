-- Meshes: ranks in named dimensions, row-major, like PyTorch's DeviceMesh. Dimensions, ranks and coordinates count from
-- 0. A slice of a mesh is also a mesh: on each rank, the copy that contains this rank.

local arguments = require("moonshard.base.checks.arguments")
local devices = require("moonshard.distributed.device")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local grid = require("moonshard.distributed.mesh.grid")
local groups = require("moonshard.distributed.group")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")
local sealed = require("moonshard.base.checks.sealed")
local shape = require("moonshard.distributed.mesh.shape")
local show = require("moonshard.distributed.mesh.show")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

---@class moonshard.Mesh
---@field handle ffi.cdata* ms_mesh*
---@field device string "cpu" or "cuda"
---@field shape integer[] sizes, outermost first
---@field ndim integer
---@field private rank_count integer ranks, in a slice of one copy
---@field world_ranks integer ranks of the world that it was made for
---@field private root_rank_count integer ranks of the mesh that it was sliced from
---@field names string[]? of the dimensions; nil if unnamed
---@field [string] moonshard.Mesh the slice of that dimension: mesh["shard"]
local Mesh = { __name = "a mesh" }

local mesh = {}

---@param value any
---@return boolean
function mesh.is(value)
  return getmetatable(value) == Mesh
end

-- ---- making -----------------------------------------------------------------------------------------------------

local function c_strings(names)
  return ffi.new("const char *[?]", #names, names)
end

-- For an unknown name, suggests the nearest name of the mesh.
local function check_named(status)
  if status == 0 then return end
  local message = ffi.string(C.ms_error_message())
  local name, valid = message:match('has no dimension "(.-)": it has (.*)$')
  local names = {}
  for one in (valid or ""):gmatch("[^, ]+") do names[#names + 1] = one end
  local near = name and nearest.name(name, names)
  if not near then check(status) end
  C.ms_error_clear()
  errors.raise("MS_ENAME", "%s: did you mean %s?", message, near)
end

-- Wraps a mesh made by the engine; out is ms_mesh *[1].
local function adopt(device, out)
  local handle = ffi.gc(out[0], C.ms_free)
  local info = ffi.new("ms_mesh_info")
  check(C.ms_mesh_describe(handle, info, ffi.sizeof(info)))
  local self = { handle = handle, device = device, ndim = info.ndim, rank_count = info.count,
    root_rank_count = info.root_count, world_ranks = info.world, shape = {}, slices = {} }
  local names = {}
  for d = 0, self.ndim - 1 do
    self.shape[d + 1] = info.size[d]
    names[d + 1] = ffi.string(info.name[d])
  end
  if names[1] ~= "" then self.names = names end
  return sealed.seal(setmetatable(self, Mesh))
end

---Refuses groups along a dimension that span nodes with different numbers of ranks; the error names the nodes.
---@param dim integer|string
function Mesh:check_nodes(dim)
  local nodes, names = world.nodes(), {}
  if nodes == 1 then return end
  local node_of = ffi.new("int[?]", world.size)
  for rank = 0, world.size - 1 do node_of[rank] = world.node_of(rank) end
  for node = 0, nodes - 1 do names[node + 1] = world.node_name(node) end
  check(C.ms_mesh_check_nodes(self.handle, self:dim(dim), nodes, node_of, c_strings(names)))
end

---A mesh over all ranks of the world. Its sizes multiply to the world's size; one may be -1 and is inferred.
---@param device string? "cpu" or "cuda"; default: --device, or "cpu"
---@param sizes integer|integer[]|string 4, { 2, 2 } or "2x2"
---@param names string[]? one per dimension; optional for a single dimension
---@return moonshard.Mesh
function mesh.init_device_mesh(device, sizes, names)
  return mesh.of_ranks(world.size, device, sizes, names)
end

---init_device_mesh over a given number of ranks instead of the world's.
---@param ranks integer
---@param device string?
---@param sizes integer|integer[]|string
---@param names string[]?
---@return moonshard.Mesh
function mesh.of_ranks(ranks, device, sizes, names)
  if device ~= nil and type(device) ~= "string" then
    errors.invalid('ms.init_device_mesh: the first argument is the device, "cpu", "cuda" or nil, not %s',
      options.describe(device))
  end
  device, sizes = device or devices.default, shape.read(sizes)
  local kind = devices.kind(device, "mesh on device")
  shape.check_names(sizes, names)
  local out = ffi.new("ms_mesh *[1]")
  check(C.ms_mesh_new(kind, #sizes, ffi.new("int[?]", #sizes, sizes), names and c_strings(names) or nil, ranks, 0, nil,
    out))
  local self = adopt(device, out)
  if self:has("shard") and ranks == world.size then self:check_nodes("shard") end
  return self
end

local function over_ranks(sizes, names, ranks)
  local kind = devices.kind(devices.default)
  local out = ffi.new("ms_mesh *[1]")
  check(C.ms_mesh_new(kind, #sizes, ffi.new("int[?]", #sizes, sizes), c_strings(names), world.size, #ranks,
    ffi.new("int[?]", #ranks, ranks), out))
  return adopt(devices.default, out)
end

-- The groups of every dimension as a list; a single group becomes a list of one.
local function read_groups(given, names)
  if groups.is(given) then given = { given } end
  if type(given) ~= "table" or #given == 0 then
    errors.invalid("ms.mesh_from_groups: give for each dimension its groups, made by ms.new_group")
  end
  if #given ~= #names then
    errors.raise("MS_ENAME", "ms.mesh_from_groups: groups of %d dimension%s but %d name%s (%s): give one name for each",
      #given, #given == 1 and "" or "s", #names, #names == 1 and "" or "s", table.concat(names, ", "))
  end
  local lists = {}
  for d, entry in ipairs(given) do
    lists[d] = groups.is(entry) and { entry } or entry
    if type(entry) ~= "table" or #entry == 0 then
      errors.invalid("ms.mesh_from_groups: dimension %s: give a group or a list of groups", names[d])
    end
  end
  return lists
end

local COPIES = "(copies)" -- of a grid: a dimension that is removed by slicing

---A mesh over groups made by hand.
---@param given moonshard.Group|(moonshard.Group|moonshard.Group[])[] for each dimension every group along it, or the
---  only group; a single group makes a mesh of one dimension. Groups that form several disjoint meshes of one shape
---  give several copies: each rank gets its own.
---@param names string|string[] of the dimensions
---@return moonshard.Mesh
function mesh.mesh_from_groups(given, names)
  if type(names) == "string" then names = { names } end
  if type(names) ~= "table" or #names == 0 then
    errors.raise("MS_ENAME", "ms.mesh_from_groups: give a name for each dimension")
  end
  local copies, sizes, ranks = grid.order(read_groups(given, names), names)
  shape.check_names(sizes, names)
  if copies == 1 then return over_ranks(sizes, names, ranks) end
  return over_ranks({ copies, unpack(sizes) }, { COPIES, unpack(names) }, ranks):slice(names)
end

---The same ranks with a single dimension renamed; other meshes do not learn the name.
---@param name string
---@return moonshard.Mesh
function Mesh:as_one(name)
  local ranks = self:ranks()
  return over_ranks({ #ranks }, { name }, ranks)
end

-- ---- slices -----------------------------------------------------------------------------------------------------

-- mesh.size("shard") would be the size of no mesh: the engine takes a handle that is nil.
local function check_self(self, name)
  if getmetatable(self) == Mesh then return end
  errors.invalid("mesh.%s: call methods with a colon: mesh:%s(...)", name, name)
end

---How many copies of this slice exist along a dimension removed by slicing; 1 if there is no such dimension.
---@param name string
---@return integer
function Mesh:copies(name)
  check_self(self, "copies")
  if type(name) ~= "string" then
    errors.invalid("mesh:copies takes the name of a dimension that was sliced out, not %s", options.describe(name))
  end
  return C.ms_mesh_copies(self.handle, name)
end

---The submesh of some dimensions, in the mesh's order; mesh["shard"] is mesh:slice { "shard" }. Accepts names made by
---flatten and unflatten, on this mesh or on other slices of it.
---@param names string[]|string
---@return moonshard.Mesh
function Mesh:slice(names)
  check_self(self, "slice")
  if type(names) == "string" then names = { names } end
  if type(names) ~= "table" or #names == 0 then
    errors.invalid("slice of mesh %s: give a list of names of dimensions", self:label())
  end
  for _, name in ipairs(names) do
    if type(name) ~= "string" then
      errors.invalid("slice of mesh %s: %s is not the name of a dimension", self:label(), tostring(name))
    end
  end
  local key = table.concat(names, "\0")
  if not self.slices[key] then
    local out = ffi.new("ms_mesh *[1]")
    check_named(C.ms_mesh_slice(self.handle, #names, c_strings(names), out))
    self.slices[key] = adopt(self.device, out)
  end
  return self.slices[key]
end

---Merges all dimensions into one. The name can then be sliced from every mesh that contains these dimensions.
---@param name string
---@return moonshard.Mesh
function Mesh:flatten(name)
  if type(name) ~= "string" then errors.invalid("mesh %s: flatten: give a name", self:label()) end
  local out = ffi.new("ms_mesh *[1]")
  check(C.ms_mesh_flatten(self.handle, name, out))
  return adopt(self.device, out)
end

---Splits a dimension into several, in its place.
---@param dim integer|string
---@param sizes integer|integer[]|string with the dimension's size as product; one may be -1
---@param names string[]
---@return moonshard.Mesh
function Mesh:unflatten(dim, sizes, names)
  sizes = shape.read(sizes)
  shape.check_names(sizes, names)
  local out = ffi.new("ms_mesh *[1]")
  check(C.ms_mesh_unflatten(self.handle, self:dim(dim), #sizes, ffi.new("int[?]", #sizes, sizes),
    names and c_strings(names) or nil, out))
  return adopt(self.device, out)
end

-- A field that is not a method is the name of a dimension.
function Mesh:__index(key)
  local method = Mesh[key]
  if method ~= nil or type(key) ~= "string" or key == "names" then return method end
  return self:slice { key }
end

sealed.class(Mesh, {
  what = Mesh.__name, answers = {}, tables = { shape = 1, names = 1 },
  otherwise = "a mesh is as ms.init_device_mesh(device, sizes, names) made it: make another one",
})

-- ---- dimensions -------------------------------------------------------------------------------------------------

local function raise_unknown(self, name)
  if not self.names then
    errors.raise("MS_ENAME", "mesh %s has no dimension \"%s\": its dimension has no name", self:label(), name)
  end
  local near = nearest.name(name, self.names)
  errors.raise("MS_ENAME", "mesh %s has no dimension \"%s\": it has %s%s", self:label(), name,
    table.concat(self.names, ", "), near and (": did you mean %s?"):format(near) or "")
end

---The index of a dimension. Refuses -1 and names of other meshes.
---@param dim integer|string|nil index from 0, or name; optional if there is one dimension
---@return integer
function Mesh:dim(dim)
  if dim == nil then
    if self.ndim == 1 then return 0 end
    errors.invalid("mesh %s has %d dimensions: say which one", self:label(), self.ndim)
  end
  if type(dim) == "string" then
    for d, own in ipairs(self.names or {}) do
      if own == dim then return d - 1 end
    end
    raise_unknown(self, dim)
  end
  if type(dim) ~= "number" or dim % 1 ~= 0 or dim < 0 or dim >= self.ndim then
    errors.invalid("mesh %s has no dimension %s: they are 0 to %d", self:label(), tostring(dim), self.ndim - 1)
  end
  return dim
end

---The name of a dimension, or "dim 0" if unnamed.
---@param dim integer from 0
---@return string
function Mesh:dim_name(dim)
  return self.names and self.names[dim + 1] or "dim " .. dim
end

---Whether the mesh has a dimension of that name.
---@param name string
---@return boolean
function Mesh:has(name)
  check_self(self, "has")
  for _, own in ipairs(self.names or {}) do
    if own == name then return true end
  end
  return false
end

---Number of ranks along a dimension, or of the whole (sub)mesh.
---@param dim integer|string|nil
---@return integer
function Mesh:size(dim)
  check_self(self, "size")
  if dim == nil then return self.rank_count end
  return self.shape[self:dim(dim) + 1]
end

---The engine's numbers per dimension [ndim], keyed by name.
---@param values ffi.cdata* double*
---@return table<string, number>
function Mesh:by_dimension(values)
  local named = {}
  for d = 0, self.ndim - 1 do named[self:dim_name(d)] = values[d] end
  return named
end

-- ---- ranks ------------------------------------------------------------------------------------------------------

-- n ints filled in by a call of the engine, as a list.
local function list_of(n, call, ...)
  local out, list = ffi.new("int[?]", n), {}
  local given = { ... }
  given[#given + 1] = out
  check(call(unpack(given)))
  for i = 1, n do list[i] = out[i - 1] end
  return list
end

---@return integer this process's rank
function Mesh:get_rank() return world.rank end

local function check_rank(rank, who)
  if type(rank) == "number" and rank % 1 == 0 and math.abs(rank) < 2 ^ 31 then return end
  errors.invalid("%s takes a rank, a whole number from 0, not %s", who, options.describe(rank))
end

---Whether the mesh contains a rank; only meshes made from groups can lack ranks.
---@param rank integer
---@return boolean
function Mesh:contains(rank)
  check_rank(rank, "mesh:contains")
  if C.ms_mesh_coordinate(self.handle, rank, ffi.new("int[?]", self.ndim)) == 0 then return true end
  C.ms_error_clear()
  return false
end

---The ranks of this (sub)mesh, row-major.
---@param rank integer? selects the copy that contains this rank instead of the caller's
---@return integer[]
function Mesh:ranks(rank)
  rank = rank or world.rank
  check_rank(rank, "mesh:ranks")
  return list_of(self:size(), C.ms_mesh_ranks, self.handle, -1, rank)
end

---This rank's index in ranks().
---@return integer from 0
function Mesh:get_index()
  local index, coordinate = 0, self:get_coordinate()
  for d = 1, self.ndim do index = index * self.shape[d] + coordinate[d] end
  return index
end

---This rank's coordinates.
---@return integer[] from 0, one per dimension
function Mesh:get_coordinate()
  return self:coordinate_of(world.rank)
end

---The coordinates of any rank.
---@param rank integer
---@return integer[]
function Mesh:coordinate_of(rank)
  return list_of(self.ndim, C.ms_mesh_coordinate, self.handle, rank)
end

---This rank's coordinate along one dimension: its index in get_group(dim), from 0.
---@param dim integer|string|nil
---@return integer
function Mesh:get_local_rank(dim)
  return self:get_coordinate()[self:dim(dim) + 1]
end

---The ranks that differ from this one along `dim` only.
---@param dim integer|string|nil
---@return moonshard.Group
function Mesh:get_group(dim)
  return self:group_of(world.rank, dim)
end

---The group of any rank along one dimension.
---@param rank integer
---@param dim integer|string|nil
---@return moonshard.Group
function Mesh:group_of(rank, dim)
  dim = self:dim(dim)
  return groups.of(list_of(self.shape[dim + 1], C.ms_mesh_ranks, self.handle, dim, rank))
end

---This rank's group along every dimension, or, given a dimension, all groups along it.
---@param dim integer|string|nil
---@return moonshard.Group[]
function Mesh:get_all_groups(dim)
  local all = {}
  if dim == nil then
    for d = 0, self.ndim - 1 do all[d + 1] = self:get_group(d) end
    return all
  end
  dim = self:dim(dim)
  local size, count = self.shape[dim + 1], self.root_rank_count
  local ranks = list_of(count, C.ms_mesh_ranks, self.handle, dim, -1)
  for first = 1, count, size do
    local group = {}
    for i = 1, size do group[i] = ranks[first + i - 1] end
    all[#all + 1] = groups.of(group)
  end
  return all
end

-- ---- printing ---------------------------------------------------------------------------------------------------

---"2x2 (replicate, shard)"
---@return string
function Mesh:label()
  return show.label(self)
end

function Mesh:__tostring()
  return show.text(self)
end

arguments.exact_all("mesh", Mesh)

return mesh
