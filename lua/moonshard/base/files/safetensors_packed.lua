-- Tensors of types whose elements share bytes in safetensors files. The format has none of them, so the bytes are
-- stored as U8, two elements in each (the first one in the high four bits), and the file's metadata says what they
-- hold:
--
--   "moonshard.packed": {"layers.0.weight":{"dtype":NAME,"shape":[4096,4096]}}
--
-- The stored shape is that one with the last axis counted in bytes.

local dtypes = require("moonshard.base.dtypes")
local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")

local packed = {}

local KEY = "moonshard.packed"

---@class moonshard.PackedElements
---@field dtype string a `packed` one of base/dtypes.lua
---@field shape integer[] in elements

-- The shape in bytes; nil if rows do not fill whole bytes.
local function bytes_shape(dtype, shape)
  local stored, last = { unpack(shape) }, #shape
  if last == 0 or shape[last] % dtypes.packed[dtype] ~= 0 then return nil end
  stored[last] = shape[last] / dtypes.packed[dtype]
  return stored
end

---The type and shape with which a declared tensor is stored.
---@param who string
---@param given { name: string, dtype: string, shape: integer[] }
---@return string dtype, integer[] shape
function packed.stored(who, given)
  if not dtypes.packed[given.dtype] then return given.dtype, given.shape end
  local shape = bytes_shape(given.dtype, given.shape)
  if not shape then
    errors.raise("MS_ESHAPE", "%s: tensor %s: %d elements of %s share a byte: make its last axis a multiple of it", who,
      given.name, dtypes.packed[given.dtype], given.dtype)
  end
  return dtypes.in_files[given.dtype], shape
end

---The metadata with what the packed ones of the declared tensors are.
---@param who string
---@param tensors { name: string, dtype: string, shape: integer[] }[]
---@param metadata table<string, string>
---@return table<string, string>
function packed.metadata(who, tensors, metadata)
  local found
  for _, given in ipairs(tensors) do
    if dtypes.packed[given.dtype] then
      found = found or {}
      found[given.name] = { dtype = given.dtype, shape = given.shape }
    end
  end
  if not found then return metadata end
  if metadata[KEY] then
    errors.invalid("%s: metadata %s is written for tensors of %s: leave it out", who, KEY, dtypes.list("packed"))
  end
  local with = { [KEY] = json.encode(found) }
  for key, value in pairs(metadata) do with[key] = value end
  return with
end

-- What is wrong with an entry of the metadata, or nil.
local function fault(tensor, entry)
  if not tensor then return "the file has no such tensor" end
  if type(entry) ~= "table" or not dtypes.packed[entry.dtype] then
    return "its dtype must be " .. dtypes.list("packed")
  end
  if type(entry.shape) ~= "table" then return "it has no shape" end
  for _, size in ipairs(entry.shape) do
    if type(size) ~= "number" or size < 0 or size % 1 ~= 0 then return "its shape must be whole numbers" end
  end
  local stored = bytes_shape(entry.dtype, entry.shape)
  if tensor.dtype ~= dtypes.in_files[entry.dtype] or not stored
    or table.concat(stored, ",") ~= table.concat(tensor.shape, ",") then
    return ("%s [%s] does not hold %s [%s]"):format(tensor.dtype, table.concat(tensor.shape, ","), entry.dtype,
      table.concat(entry.shape, ","))
  end
end

---Sets `packed` of the tensors of an open file that the metadata of their file describes. MS_EINVAL if it describes
---what is not there.
---@param file moonshard.Safetensors
function packed.read(file)
  for _, entry in ipairs(file.metadata) do
    if entry.key == KEY then
      local described, why = json.decode(entry.value)
      if type(described) ~= "table" then
        errors.invalid("%s: metadata %s: %s", entry.file, KEY, why or "it must be an object")
      end
      for name, elements in pairs(described) do
        local tensor = file.by_name[name]
        local problem = fault(tensor and tensor.file == entry.file and tensor or nil, elements)
        if problem then errors.invalid("%s: metadata %s: tensor %s: %s", entry.file, KEY, tostring(name), problem) end
        tensor.packed = { dtype = elements.dtype, shape = elements.shape }
      end
    end
  end
end

return packed
