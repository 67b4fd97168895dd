-- What the dimensions of a mesh mean to ms.fully_shard. Only this table gives their names a meaning; a role is a row.

local errors = require("moonshard.base.error")
local meshes = require("moonshard.distributed.mesh")
local nearest = require("moonshard.base.nearest")

local roles = {}

---@class moonshard.Role
---@field name string of the mesh dimension
---@field data boolean? its ranks train on different rows of the batch, and the engine divides the model over it
---@field model boolean? its ranks train on the same rows, and the engine divides the model's layers or the rows'
---positions over it
---@field collectives table<string, string[]>? of data and model roles: what a plan runs along it, by stream
---@field stage boolean? a slice of the mesh along it is one pipeline stage

-- Data roles in the order of a mesh that is given as sizes alone: the last one has the whole of a single size.
---@type moonshard.Role[]
local ROLES = {
  { name = "replicate", data = true, collectives = {
    -- After the first: of shard_optimizer_over_replicate, and of sums in few bits.
    replicate = { "all_reduce", "reduce_scatter", "all_gather", "all_to_all" },
  } },
  { name = "shard", data = true, collectives = {
    -- The gradients' norm is an all_reduce; a recipe's collectives are any; sums in few bits are an all_to_all.
    gather = { "all_gather" }, reduce = { "reduce_scatter", "all_reduce", "all_gather", "all_to_all" },
  } },
  { name = "context", model = true, collectives = { context = { "all_reduce", "reduce_scatter", "all_gather" } } },
  { name = "tensor", model = true, collectives = { tensor = { "all_reduce", "reduce_scatter", "all_gather" } } },
  { name = "pipe", stage = true },
}
roles.all = ROLES

local SIZES_ALONE = {}
for _, role in ipairs(ROLES) do
  if role.data then table.insert(SIZES_ALONE, role.name) end
end

---The mesh of ms.fully_shard's option: a mesh, sizes of one or two dimensions, or nil for all ranks.
---@param given any
---@return moonshard.Mesh
function roles.read_mesh(given)
  if given == nil then return meshes.init_device_mesh(nil, { -1 }, { SIZES_ALONE[#SIZES_ALONE] }) end
  if meshes.is(given) then return given end
  local _, crosses = tostring(given):gsub("x", "")
  local ndim = type(given) == "table" and #given or type(given) == "string" and crosses + 1 or 1
  if ndim < 1 or ndim > #SIZES_ALONE then
    errors.invalid("ms.fully_shard: mesh with %d dimensions: write one or two sizes, or name the dimensions, as in "
      .. "mesh = ms.init_device_mesh(\"cpu\", { 1, 2, 2 }, { \"replicate\", \"shard\", \"tensor\" })", ndim)
  end
  local names = { unpack(SIZES_ALONE, #SIZES_ALONE - ndim + 1) }
  return meshes.init_device_mesh(nil, given, names)
end

-- Raises if a dimension of several ranks has the name that another library gives to a role, which it would not get.
local function check_names(mesh, named)
  for dim = 0, mesh.ndim - 1 do
    local name = mesh:dim_name(dim)
    local here = name and nearest.DIMENSIONS[name]
    local counts = named or roles.is_model(here) or here == "pipe"
    if here and counts and mesh:size(dim) > 1 and not mesh:has(here) then
      errors.invalid("ms.fully_shard: mesh %s: dimension %s has no role: name it %s", mesh:label(), name, here)
    end
  end
end

-- Raises if the mesh has ranks along a dimension without a role.
local function check_others(mesh, dims)
  local used = {}
  for _, dim in pairs(dims) do used[dim] = true end
  for dim = 0, mesh.ndim - 1 do
    if not used[dim] and mesh:size(dim) > 1 then
      errors.invalid("ms.fully_shard: mesh %s: dimension %s has no role; use a slice of the dimensions "
        .. "that have one, as in mesh:slice { \"replicate\", \"shard\" }: its copies train separately",
        mesh:label(), mesh:dim_name(dim))
    end
  end
end

---Whether the ranks of a mesh dimension with this name train on the same rows.
---@param name string
---@return boolean
function roles.is_model(name)
  for _, role in ipairs(ROLES) do
    if role.name == name then return role.model == true end
  end
  return false
end

---The dimensions, of more than one rank, along which ranks train on the same rows.
---@param mesh moonshard.Mesh
---@return integer[]
function roles.model_dims(mesh)
  local dims = {}
  for dim = 0, mesh.ndim - 1 do
    if mesh:size(dim) > 1 and roles.is_model(mesh:dim_name(dim)) then dims[#dims + 1] = dim end
  end
  return dims
end

---Sorts names of mesh dimensions as a mesh has them, from the outermost: those with a role, then others by name.
---@param names string[] in any order; sorted in place
function roles.sort(names)
  local place = {}
  for i, role in ipairs(ROLES) do place[role.name] = i end
  table.sort(names, function(a, b)
    local at, other = place[a] or math.huge, place[b] or math.huge
    if at ~= other then return at < other end
    return a < b
  end)
end

---The ranks of a mesh that train on different rows: without the dimensions along which they train on the same ones.
---@param mesh moonshard.Mesh
---@return moonshard.Mesh? nil: there is one
function roles.data_mesh(mesh)
  if #roles.model_dims(mesh) == 0 then return mesh end
  local names = {}
  for dim = 0, mesh.ndim - 1 do
    if not roles.is_model(mesh:dim_name(dim)) then names[#names + 1] = mesh:dim_name(dim) end
  end
  return #names > 0 and mesh:slice(names) or nil
end

---The dimension of each data role and model role. Dimensions with other names have the roles of a mesh given as sizes
---alone.
---@param mesh moonshard.Mesh
---@return table<string, integer> dims by role; -1: none
function roles.dims(mesh)
  local dims, named = {}, false
  for _, role in ipairs(ROLES) do
    if role.data or role.model then
      dims[role.name] = mesh:has(role.name) and mesh:dim(role.name) or -1
      named = named or dims[role.name] >= 0
    end
  end
  check_names(mesh, named)
  if named then
    check_others(mesh, dims)
    return dims
  end
  if mesh.ndim < 1 or mesh.ndim > #SIZES_ALONE then
    errors.invalid("ms.fully_shard: mesh %s: name the dimensions to use \"%s\"", mesh:label(),
      table.concat(SIZES_ALONE, '" and "'))
  end
  for dim = 0, mesh.ndim - 1 do dims[SIZES_ALONE[#SIZES_ALONE - mesh.ndim + 1 + dim]] = dim end
  return dims
end

---Stores the dimensions of the roles in a sharding; -1: none.
---@param sharding moonshard.Sharding
---@param dims table<string, integer> by role
function roles.assign(sharding, dims)
  for _, role in ipairs(ROLES) do
    if role.data or role.model then sharding[role.name .. "_dim"] = dims[role.name] or -1 end
  end
end

---How many ranks a model's mesh has along the dimension of a role.
---@param sharding moonshard.Sharding
---@param role string "tensor"
---@return integer 1 without such a dimension
function roles.ranks(sharding, role)
  local dim = sharding[role .. "_dim"] or -1
  return dim >= 0 and sharding.mesh:size(dim) or 1
end

---How many ranks own parts of each parameter, those of context among them, and which of them this rank is.
---@param sharding moonshard.Sharding
---@return integer shards
---@return integer place from 0
function roles.shards(sharding)
  local shards, place, coordinate = 1, 0, sharding.mesh:coordinate_of(sharding.rank)
  for _, dim in ipairs({ sharding.shard_dim, sharding.context_dim }) do
    if dim >= 0 then
      local size = sharding.mesh:size(dim)
      shards, place = shards * size, place * size + coordinate[dim + 1]
    end
  end
  return shards, place
end

---How many ranks sum gradients over a data role.
---@param sharding moonshard.Sharding
---@param role string "shard", to which the ranks of context belong, or "replicate"
---@return integer
function roles.ranks_of_sum(sharding, role)
  if role == "shard" then return (roles.shards(sharding)) end
  return roles.ranks(sharding, role)
end

---Whether a mesh is the slice of one pipeline stage.
---@param mesh moonshard.Mesh
---@return boolean
function roles.is_stage(mesh)
  for _, role in ipairs(ROLES) do
    if role.stage and mesh:copies(role.name) > 1 then return true end
  end
  return false
end

return roles
