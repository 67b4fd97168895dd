-- Element types: what the engine says of them, what LuaJIT calls their memory, and PyTorch's names for them.
--
-- Names, numbers and sizes come from the engine's own table. A type that it gains has to get a row here, or nothing of
-- this layer loads.

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local C, ffi = engine.C, engine.ffi

-- ctype: C type of an element; memory: how LuaJIT prints such an element; range: of whole numbers.
local ROWS = {
  f32 = { long = "float32", ctype = "float", memory = { ["float"] = true } },
  bf16 = { long = "bfloat16", ctype = "uint16_t", memory = { ["unsigned short"] = true } },
  i32 = { long = "int32", ctype = "int32_t", memory = { ["int"] = true }, range = { -2 ^ 31, 2 ^ 31 - 1 } },
  u8 = {
    long = "uint8", ctype = "uint8_t", memory = { ["unsigned char"] = true, ["bool"] = true }, range = { 0, 255 },
  },
}

local dtypes = {
  names = {}, -- by number
  ctypes = {}, -- by name: C type of an element
  sizes = {}, -- by name: bytes of an element
  ranges = {}, -- by name: { lowest, highest } of a type of whole numbers
}

local ids, short_names = {}, {}
for id = 0, tonumber(C.MS_DTYPES) - 1 do
  local name = ffi.string(C.ms_dtype_name(id))
  local row = assert(ROWS[name], "base/dtypes.lua has no row for element type " .. name)
  ids[name], short_names[name], short_names[row.long] = id, name, name
  dtypes.names[id], dtypes.ctypes[name], dtypes.sizes[name] = name, row.ctype, C.ms_dtype_size(id)
  dtypes.ranges[name] = row.range
end

---The number that moonshard.h gives an element type.
---@param name string "f32", "bf16", "i32", "u8", or PyTorch's name
---@return integer id, string name the short name
function dtypes.id(name)
  local short = short_names[name]
  if not short then
    errors.raise("MS_EDTYPE", "unknown element type %s: it must be f32, bf16, i32 or u8", tostring(name))
  end
  return ids[short], short
end

-- ---- memory that a recipe made through the FFI ----------------------------------------------------------------------

local function refuse(what, data, dtype, why)
  local kind = type(data) == "cdata" and tostring(ffi.typeof(data)):match("^ctype<(.*)>$") or "a " .. type(data)
  local wanted = dtypes.ctypes[dtype]
  errors.raise("MS_EDTYPE", "%s is %s, and dtype %s says %s: %s", what, kind, dtype, wanted, why)
end

-- What the elements of a pointer or an array are, and whether it is a pointer, whose size is not known; nil: neither.
local function elements_of(data)
  local text = tostring(ffi.typeof(data)):match("^ctype<(.*)>$"):gsub("const ", ""):gsub("volatile ", "")
  local base, rest = text:match("^([%w_ ]-) ?([%[%(%*].*)$")
  if not base then return nil end
  return base, rest:find("*", 1, true) ~= nil
end

---The engine copies as many bytes as a shape has, so memory that is too small, or of other numbers, must not come
---through: raises unless `data` is memory of a dtype's elements, and, where its size is known, of at least so many.
---@param what string what the data are, for messages: "batch.inputs.data"
---@param data any
---@param dtype string short name
---@param count number elements that are read
function dtypes.check_memory(what, data, dtype, count)
  if type(data) ~= "cdata" then
    refuse(what, data, dtype, ('give memory made by ffi.new("%s[?]", n), or a tensor'):format(
      dtypes.ctypes[dtype]))
  end
  local base, is_pointer = elements_of(data)
  if not base or not (ROWS[dtype].memory[base] or is_pointer and base == "void") then
    refuse(what, data, dtype, "numbers of another type would be read as if they were of this one")
  end
  if is_pointer then
    if data == nil then errors.invalid("%s is a NULL pointer", what) end
    return
  end
  local bytes, needed = ffi.sizeof(data), count * dtypes.sizes[dtype]
  if bytes < needed then
    errors.raise("MS_ESHAPE", "%s has %d bytes, and dtype %s with its shape needs %d", what, bytes, dtype, needed)
  end
end

return dtypes
