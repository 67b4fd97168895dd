-- Meshes: the ranks of the world laid out in named dimensions, row-major, as PyTorch's DeviceMesh does it. Dimensions
-- are numbered from 0, as ranks and coordinates are.

local errors = require("moonshard.error")
local engine = require("moonshard.ffi")
local world = require("moonshard.world")
local C, ffi = engine.C, engine.ffi

---@class moonshard.Group
---@field size integer number of ranks
---@field rank integer this rank's place in it, 0 first
---@field [integer] integer the ranks, in order, from index 1
local Group = {}
Group.__index = Group

function Group:__tostring()
  return "{" .. table.concat(self, ", ") .. "}"
end

---@class moonshard.Mesh
---@field handle ffi.cdata* ms_mesh*
---@field device string "cpu"
---@field shape integer[] sizes, outermost first
---@field ndim integer
---@field names string[]? of the dimensions; nil when they have none
local Mesh = {}
Mesh.__index = Mesh

local mesh = {}

local MOST_RANKS = 4096 -- of a mesh, as the engine has it

---@param value any
---@return boolean
function mesh.is(value)
  return getmetatable(value) == Mesh
end

local function label(sizes)
  return table.concat(sizes, "x")
end

-- "2x-1", { 2, -1 } or 4 as a list of sizes.
local function read_shape(shape)
  if type(shape) == "number" then return { shape } end
  local sizes = {}
  if type(shape) == "string" then
    for part in (shape .. "x"):gmatch("(.-)x") do
      sizes[#sizes + 1] = part:match("^%s*%-?%d+%s*$") and tonumber(part) or nil
      if not tonumber(part) then errors.invalid("mesh shape %q: write sizes joined by x, like 2x4", shape) end
    end
    return sizes
  end
  if type(shape) ~= "table" or #shape == 0 then
    errors.invalid("mesh shape %s: write a size, a list of sizes or text like \"2x4\"", tostring(shape))
  end
  for i, size in ipairs(shape) do
    if type(size) ~= "number" or size % 1 ~= 0 or math.abs(size) > MOST_RANKS then
      errors.invalid("mesh shape: size %s of dimension %d must be an integer of at most %d", tostring(size),
        i - 1, MOST_RANKS)
    end
    sizes[i] = size
  end
  return sizes
end

local function check_names(sizes, names)
  if names == nil then return end
  if type(names) ~= "table" then errors.invalid("mesh %s: names must be a list of strings", label(sizes)) end
  if #names ~= #sizes then
    errors.raise("MS_ENAME", "mesh %s has %d dimension%s but %d name%s (%s): give one name for each dimension",
      label(sizes), #sizes, #sizes == 1 and "" or "s", #names, #names == 1 and "" or "s", table.concat(names, ", "))
  end
  for i, name in ipairs(names) do
    if type(name) ~= "string" then
      errors.raise("MS_ENAME", "mesh %s: the name of dimension %d must be a string", label(sizes), i - 1)
    end
  end
end

---A mesh over all ranks of the world. Its sizes multiply to the world's size; one may be -1 and is inferred.
---@param device string? "cpu", the default
---@param shape integer|integer[]|string 4, { 2, 2 } or "2x2"
---@param names string[]? one for each dimension; may be left out for one dimension
---@return moonshard.Mesh
function mesh.init_device_mesh(device, shape, names)
  device = device or "cpu"
  local sizes = read_shape(shape)
  check_names(sizes, names)
  local c_names = names and ffi.new("const char *[?]", #sizes, names) or nil
  local out = ffi.new("ms_mesh *[1]")
  engine.check(C.ms_mesh_new(device, #sizes, ffi.new("int[?]", #sizes, sizes), c_names, world.size, out))
  local self = setmetatable({ handle = ffi.gc(out[0], C.ms_mesh_free), device = device, ndim = #sizes }, Mesh)
  self.shape, self.names = {}, names and {} or nil
  for d = 0, self.ndim - 1 do
    self.shape[d + 1] = C.ms_mesh_size(self.handle, d)
    if names then self.names[d + 1] = ffi.string(C.ms_mesh_name(self.handle, d)) end
  end
  return self
end

---The number of a dimension. Not for -1 or names of other meshes.
---@param dim integer|string|nil number from 0, or name; may be left out when there is one dimension
---@return integer
function Mesh:dim(dim)
  if dim == nil then
    if self.ndim == 1 then return 0 end
    errors.invalid("mesh %s has %d dimensions: say which one", label(self.shape), self.ndim)
  end
  if type(dim) == "string" then
    local out = ffi.new("int[1]")
    engine.check(C.ms_mesh_dim(self.handle, dim, out))
    return out[0]
  end
  if type(dim) ~= "number" or dim % 1 ~= 0 or dim < 0 or dim >= self.ndim then
    errors.invalid("mesh %s has no dimension %s: they are 0 to %d", label(self.shape), tostring(dim), self.ndim - 1)
  end
  return dim
end

---Whether the mesh has a dimension of that name.
---@param name string
---@return boolean
function Mesh:has(name)
  for _, own in ipairs(self.names or {}) do
    if own == name then return true end
  end
  return false
end

---Ranks along a dimension, or of the whole mesh.
---@param dim integer|string|nil
---@return integer
function Mesh:size(dim)
  if dim == nil then return C.ms_mesh_world(self.handle) end
  return self.shape[self:dim(dim) + 1]
end

---@return integer this process's rank
function Mesh:get_rank()
  return world.rank
end

---This rank's place along every dimension.
---@return integer[] from 0, one for each dimension
function Mesh:get_coordinate()
  return self:coordinate_of(world.rank)
end

---The place of any rank along every dimension.
---@param rank integer
---@return integer[]
function Mesh:coordinate_of(rank)
  local out = ffi.new("int[?]", self.ndim)
  engine.check(C.ms_mesh_coordinate(self.handle, rank, out))
  local coordinate = {}
  for d = 1, self.ndim do coordinate[d] = out[d - 1] end
  return coordinate
end

---This rank's place along one dimension: its index in get_group(dim), from 0.
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

---The group of any rank along one dimension; `rank` of the result is that rank's place in it.
---@param rank integer
---@param dim integer|string|nil
---@return moonshard.Group
function Mesh:group_of(rank, dim)
  dim = self:dim(dim)
  local size = self.shape[dim + 1]
  local out = ffi.new("int[?]", size)
  engine.check(C.ms_mesh_group(self.handle, dim, rank, out))
  local group = setmetatable({ size = size }, Group)
  for i = 1, size do
    group[i] = out[i - 1]
    if out[i - 1] == rank then group.rank = i - 1 end
  end
  return group
end

---"2x2 (replicate, shard)"
---@return string
function Mesh:label()
  local names = self.names and " (" .. table.concat(self.names, ", ") .. ")" or ""
  return label(self.shape) .. names
end

local MAX_SHOWN = 256

-- The ranks as a table: a row for each place along all dimensions but the last.
local function rank_table(self)
  local columns, world_size = self.shape[self.ndim], self:size()
  local width = #tostring(world_size - 1)
  local lines = {}
  for first = 0, world_size - 1, columns do
    local row = { "" }
    local coordinate = self:coordinate_of(first)
    for d = 1, self.ndim - 1 do
      row[#row + 1] = ("%s=%d"):format(self.names and self.names[d] or "dim " .. (d - 1), coordinate[d])
    end
    for rank = first, first + columns - 1 do row[#row + 1] = ("%" .. width .. "d"):format(rank) end
    lines[#lines + 1] = table.concat(row, "  ")
  end
  return lines
end

function Mesh:__tostring()
  local head = ("mesh %s on %s, rank %d at (%s)"):format(self:label(), self.device, world.rank,
    table.concat(self:get_coordinate(), ", "))
  if self:size() > MAX_SHOWN then return head end
  local lines = rank_table(self)
  table.insert(lines, 1, head)
  return table.concat(lines, "\n")
end

return mesh
