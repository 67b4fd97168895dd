-- What the dimensions of a mesh mean to ms.fully_shard. Only this table gives their names a meaning; a role is a row.
-- A dimension's name decides its role, and its place in the mesh does not. A name without a role is refused: a guess by
-- position would train another run than the user means.

local errors = require("moonshard.base.error")
local meshes = require("moonshard.distributed.mesh")
local nearest = require("moonshard.base.names.nearest")

local roles = {}

---@class moonshard.Role
---@field name string of the mesh dimension
---@field aliases string[] what PyTorch, torchtitan, Megatron and DeepSpeed call the dimension
---@field data boolean? its ranks train on different rows of the batch, and the engine divides the model over it
---@field model boolean? its ranks train on the same rows, and the engine divides the model's layers or the rows'
---positions over it
---@field collectives table<string, string[]>? of data and model roles: what a plan runs along it, by stream
---@field stage boolean? a slice of the mesh along it is one pipeline stage

-- Data roles in the order of a mesh that is given as sizes alone: the last one has the whole of a single size.
---@type moonshard.Role[]
local ROLES = {
  { name = "replicate", aliases = { "dp_replicate", "ddp", "data_parallel_replicate" }, data = true,
    collectives = {
      -- After the first: of shard_optimizer_over_replicate, and of sums in few bits.
      replicate = { "all_reduce", "reduce_scatter", "all_gather", "all_to_all" },
    } },
  { name = "shard", aliases = { "dp_shard", "fsdp", "data_parallel_shard" }, data = true,
    collectives = {
      -- The gradients' norm is an all_reduce; a recipe's collectives are any; sums in few bits are an all_to_all.
      gather = { "all_gather" }, reduce = { "reduce_scatter", "all_reduce", "all_gather", "all_to_all" },
    } },
  { name = "context", aliases = { "cp", "context_parallel" }, model = true,
    collectives = { context = { "all_reduce", "reduce_scatter", "all_gather" } } },
  { name = "tensor", aliases = { "tp", "tensor_parallel" }, model = true,
    collectives = { tensor = { "all_reduce", "reduce_scatter", "all_gather" } } },
  { name = "pipe", aliases = { "pp", "pipeline", "pipeline_parallel" }, stage = true },
}
roles.all = ROLES

local SIZES_ALONE, by_name = {}, {}
for _, role in ipairs(ROLES) do
  if role.data then table.insert(SIZES_ALONE, role.name) end
  by_name[role.name] = role
  for _, alias in ipairs(role.aliases) do by_name[alias] = role end
end

-- Names that could be two roles, or are none, and what to write.
local UNCLEAR = {
  dp = "name it replicate if each of its ranks has all weights (DDP), or shard if it divides them (FSDP)",
  sp = "name it context if it divides the rows' positions; for sequence parallel over the ranks of tensor, give "
    .. "ms.fully_shard sequence_parallel = true",
  mp = "name it tensor",
  dp_shard_cp = "keep dp_shard and cp apart: the ranks of both together divide the weights, and those of cp also "
    .. "divide the rows' positions",
  ep = "name it shard or replicate: there is no expert parallelism, and shard divides the memory of experts",
}
UNCLEAR.data, UNCLEAR.data_parallel, UNCLEAR.batch = UNCLEAR.dp, UNCLEAR.dp, UNCLEAR.dp
UNCLEAR.seq, UNCLEAR.sequence, UNCLEAR.sequence_parallel = UNCLEAR.sp, UNCLEAR.sp, UNCLEAR.sp
UNCLEAR.model, UNCLEAR.model_parallel = UNCLEAR.mp, UNCLEAR.mp
UNCLEAR.expert, UNCLEAR.expert_parallel = UNCLEAR.ep, UNCLEAR.ep

---The mesh of ms.fully_shard's option: a mesh, sizes of one or two dimensions, or nil for all ranks.
---@param given any
---@return moonshard.Mesh
function roles.read_mesh(given)
  if given == nil then return meshes.init_device_mesh(nil, { -1 }, { SIZES_ALONE[#SIZES_ALONE] }) end
  if meshes.is(given) then return given end
  if type(given) == "table" and #given == 0 and next(given) ~= nil then
    errors.invalid("ms.fully_shard: mesh has a field %s: sizes are a list, { 2, 2 } for replicate and shard; other "
      .. "names are given to a mesh, as in mesh = ms.init_device_mesh(\"cpu\", { 2, 2 }, { \"shard\", \"tensor\" })",
      tostring((next(given))))
  end
  local _, crosses = tostring(given):gsub("x", "")
  local ndim = type(given) == "table" and #given or type(given) == "string" and crosses + 1 or 1
  if ndim < 1 or ndim > #SIZES_ALONE then
    errors.invalid("ms.fully_shard: mesh with %d dimensions: write one or two sizes, or name the dimensions, as in "
      .. "mesh = ms.init_device_mesh(\"cpu\", { 1, 2, 2 }, { \"replicate\", \"shard\", \"tensor\" })", ndim)
  end
  local names = { unpack(SIZES_ALONE, #SIZES_ALONE - ndim + 1) }
  return meshes.init_device_mesh(nil, given, names)
end

-- What to write instead of a name without a role.
local function advice(name)
  if UNCLEAR[name] then return UNCLEAR[name] end
  local names = {}
  for known in pairs(by_name) do names[#names + 1] = known end
  local near = #name > 3 and nearest.name(name, names, 2)
  if near then return ("did you mean %s?"):format(near) end
  names = {}
  for i, role in ipairs(ROLES) do names[i] = ("%s (also %s)"):format(role.name, table.concat(role.aliases, ", ")) end
  return "the roles are " .. table.concat(names, ", ") .. "; or train on a slice of the dimensions that have one, as "
    .. 'in mesh:slice { "replicate", "shard" }, whose copies train separately'
end

-- The dimension of each role: -1 without one. Raises for a name without a role, and for two names of one.
local function read_names(mesh)
  local dims, names = {}, {}
  for dim = 0, mesh.ndim - 1 do
    local name = mesh:dim_name(dim)
    local role = by_name[name]
    if not role then
      errors.raise("MS_ENAME", "ms.fully_shard: mesh %s: dimension %s has no role: %s", mesh:label(), name,
        advice(name))
    end
    if names[role.name] then
      errors.raise("MS_ENAME", "ms.fully_shard: mesh %s: dimensions %s and %s are both %s: flatten them into one, as "
        .. 'in mesh:slice { "%s", "%s" }:flatten("%s")', mesh:label(), names[role.name], name, role.name,
        names[role.name], name, role.name)
    end
    names[role.name], dims[role.name] = name, dim
    if role.stage and mesh:size(dim) > 1 then
      errors.invalid("ms.fully_shard: mesh %s: dimension %s divides the model into stages, which ms.fully_shard "
        .. 'does not; train on a slice without it, as in mesh:slice { "replicate", "shard" }, whose copies train '
        .. "separately",
        mesh:label(), name)
    end
  end
  return dims
end

---The place of a dimension's role among all roles, from 1.
---@param name string of a mesh dimension
---@return integer? nil: the name has no role
function roles.number(name)
  for i, role in ipairs(ROLES) do
    if role == by_name[name] then return i end
  end
end

---Whether the ranks of a mesh dimension with this name train on the same rows.
---@param name string
---@return boolean
function roles.is_model(name)
  local role = by_name[name]
  return role ~= nil and role.model == true
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
  for i, role in ipairs(ROLES) do
    place[role.name] = i
    for _, alias in ipairs(role.aliases) do place[alias] = i end
  end
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

---The dimension of each data role and model role, by the names of the mesh; one without names has the roles of a mesh
---given as sizes alone.
---@param mesh moonshard.Mesh
---@return table<string, integer> dims by role; -1: none
function roles.dims(mesh)
  local dims = mesh.names and read_names(mesh) or {}
  if not mesh.names then
    if mesh.ndim > #SIZES_ALONE then
      errors.invalid("ms.fully_shard: mesh %s: name the dimensions to use \"%s\"", mesh:label(),
        table.concat(SIZES_ALONE, '" and "'))
    end
    for dim = 0, mesh.ndim - 1 do dims[SIZES_ALONE[#SIZES_ALONE - mesh.ndim + 1 + dim]] = dim end
  end
  for _, role in ipairs(ROLES) do
    if role.data or role.model then dims[role.name] = dims[role.name] or -1 end
  end
  return dims
end

---The name that a mesh has for a role's dimension.
---@param mesh moonshard.Mesh
---@param role string "tensor"
---@return string? name nil: the mesh has no such dimension
function roles.name_in(mesh, role)
  for _, name in ipairs(mesh.names or {}) do
    if by_name[name] and by_name[name].name == role then return name end
  end
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

-- The name that slicing removed of a role's dimension, and how many copies of the slice there are along it; nil: none.
local function removed(mesh, role)
  for _, name in ipairs({ role.name, unpack(role.aliases) }) do
    local copies = mesh:copies(name)
    if copies > 1 then return name, copies end
  end
end

---Whether a mesh is the slice of one pipeline stage.
---@param mesh moonshard.Mesh
---@return boolean
function roles.is_stage(mesh)
  for _, role in ipairs(ROLES) do
    if role.stage and removed(mesh, role) then return true end
  end
  return false
end

---Warnings of data dimensions that a slice leaves out: nothing averages gradients over them, so that copies of the
---model drift apart, each with the rows of its own ranks.
---@param mesh moonshard.Mesh
---@return string[]
function roles.left_out(mesh)
  local warnings = {}
  for _, role in ipairs(ROLES) do
    local name, copies = nil, nil
    if role.data then name, copies = removed(mesh, role) end
    if name then
      local names = { name, unpack(mesh.names) }
      roles.sort(names)
      warnings[#warnings + 1] = ("ms.fully_shard: mesh %s is a slice that leaves out dimension %s of %d ranks: "
        .. "gradients are not averaged over it, so %d copies of the model train apart; for one model give "
        .. 'mesh:slice { "%s" } of the mesh that has it'):format(mesh:label(), name, copies, copies,
          table.concat(names, '", "'))
    end
  end
  return warnings
end

return roles
