-- The memory of eager tensors: allocation, and reading numbers from it.

local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local tensor = require("moonshard.tensor.class")
local ffi = engine.ffi

-- The largest object that LuaJIT can allocate.
local MAX_BYTES = 2 ^ 31 - 64

local values = {}

local function numel(shape)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  return count
end

values.bytes = tensor.bytes

---Refuses tensors above the size limit of eager tensors.
---@param dtype string
---@param shape integer[]
---@return integer count of elements
function values.check_size(dtype, shape)
  local count = numel(shape)
  if count * dtypes.sizes[dtype] > MAX_BYTES then
    errors.raise("MS_EUNSUPPORTED", "a tensor %s %s needs %.1f GiB; eager tensors must be below 2 GiB", dtype,
      tensor.shape_text(shape), count * dtypes.sizes[dtype] / 2 ^ 30)
  end
  return count
end

---Zeroed memory for a tensor.
---@param dtype string
---@param shape integer[]
---@return ffi.cdata* data, integer count of elements
function values.allocate(dtype, shape)
  local count = values.check_size(dtype, shape)
  return ffi.new(dtypes.ctypes[dtype] .. "[?]", count), count
end

---Creates a tensor whose elements fill(data, count) writes as C numbers; types without C numbers, such as bf16, are
---written as f32 and cast.
---@param dtype string
---@param shape integer[]
---@param fill fun(data: ffi.cdata*, count: integer)
---@return moonshard.Tensor
function values.make(dtype, shape, fill)
  local written = dtypes.readable_as[dtype]
  local data, count = values.allocate(written, shape)
  fill(data, count)
  local made = tensor.eager(written, shape, data)
  return written ~= dtype and made:cast(dtype) or made
end

---An eager tensor with a copy of existing memory.
---@param dtype string
---@param shape integer[]
---@param source ffi.cdata* pointer
---@param placement string?
---@return moonshard.Tensor
function values.copy(dtype, shape, source, placement)
  local data, count = values.allocate(dtype, shape)
  ffi.copy(data, source, count * dtypes.sizes[dtype])
  return tensor.eager(dtype, shape, data, placement)
end

---Multiplies numbers in place, in double precision.
---@param data ffi.cdata* array of f32
---@param count integer
---@param factor number
function values.scale(data, count, factor)
  for i = 0, count - 1 do data[i] = data[i] * factor end
end

-- Bits of f32: minus infinity, after which come the negative NaNs, and the NaN that processors make.
local MINUS_INFINITY, NAN = 0xff800000, 0xffc00000

-- x, or a copy if it has other negative NaNs, as damaged files do: their bits are those by which LuaJIT marks nil,
-- tables and the like, and as such it would read them.
local function with_plain_nans(x)
  local bits, count = ffi.cast("const uint32_t *", x.data), numel(x.shape)
  local function is_strange(i) return bits[i] > MINUS_INFINITY and bits[i] ~= NAN end
  local i = 0
  while i < count and not is_strange(i) do i = i + 1 end
  if i == count then return x end
  local copy = values.copy(x.dtype, x.shape, x.data, x.placement)
  local own = ffi.cast("uint32_t *", copy.data)
  for k = i, count - 1 do
    if is_strange(k) then own[k] = NAN end
  end
  return copy
end

-- Lua has no floats of 16 bits; the engine's cast is exact.
local function readable(x)
  tensor.bytes(x)
  local as = dtypes.readable_as[x.dtype]
  if as ~= x.dtype and numel(x.shape) > 0 then x = x:cast(as) end
  return x.dtype == "f32" and with_plain_nans(x) or x
end
values.readable = readable

---Element i of the flattened tensor, from 0.
---@param x moonshard.Tensor eager
---@param i integer
---@return number
function values.at(x, i)
  return readable(x).data[i]
end

---The values as nested lists; a number if there are no axes.
---@param x moonshard.Tensor eager
---@return table|number
function values.nested(x)
  local data, shape, at = readable(x).data, x.shape, 0
  local function read(axis)
    if axis > #shape then
      at = at + 1
      return data[at - 1]
    end
    local list = {}
    for i = 1, shape[axis] do list[i] = read(axis + 1) end
    return list
  end
  return read(1)
end

return values
