-- Element types, read from the engine's table (runtime/base/dtype.c): a new type there needs no change here.

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local C, ffi = engine.C, engine.ffi

local dtypes = {
  names = {}, -- by number
  ctypes = {}, -- by name: C type of one element
  sizes = {}, -- by name: bytes per element
  ranges = {}, -- by name: { lowest, highest } of an integer type
}

local ids, short_names, known = {}, {}, {}
for id = 0, tonumber(C.MS_DTYPES) - 1 do
  local info = ffi.new("ms_dtype_info")
  engine.check(C.ms_dtype_describe(id, info))
  local name = ffi.string(info.name)
  ids[name], short_names[name], short_names[ffi.string(info.long_name)] = id, name, name
  dtypes.names[id], dtypes.ctypes[name], dtypes.sizes[name] = name, ffi.string(info.c_type), info.size
  if info.is_float == 0 then dtypes.ranges[name] = { info.lowest, info.largest } end
  known[#known + 1] = name
end
local either = table.concat(known, ", ", 1, #known - 1) .. " or " .. known[#known]

---The number of an element type in moonshard.h.
---@param name string "f32", "bf16", "i32", "u8", or PyTorch's name
---@return integer id, string name the short name
function dtypes.id(name)
  local short = short_names[name]
  if not short then
    errors.raise("MS_EDTYPE", "unknown element type %s: it must be %s", tostring(name), either)
  end
  return ids[short], short
end

-- ---- memory that a recipe made through the FFI ----------------------------------------------------------------------

local function refuse(what, data, dtype, why)
  local kind = type(data) == "cdata" and tostring(ffi.typeof(data)):match("^ctype<(.*)>$") or "a " .. type(data)
  local wanted = dtypes.ctypes[dtype]
  errors.raise("MS_EDTYPE", "%s is %s, but dtype %s needs %s: %s", what, kind, dtype, wanted, why)
end

-- The element type of a pointer or an array, and whether it is a pointer (of unknown size); nil for other cdata.
local function elements_of(data)
  local text = tostring(ffi.typeof(data)):match("^ctype<(.*)>$"):gsub("const ", ""):gsub("volatile ", "")
  local base, rest = text:match("^([%w_ ]-) ?([%[%(%*].*)$")
  if not base then return nil end
  return base, rest:find("*", 1, true) ~= nil
end

-- Whether elements that LuaJIT prints as `base` match a dtype; bool and uint8_t are interchangeable.
local function is_element(dtype, base)
  local ctype = dtypes.ctypes[dtype]
  return base == tostring(ffi.typeof(ctype)):match("^ctype<(.*)>$") or (base == "bool" and ctype == "uint8_t")
end

---Raises unless `data` is memory with elements of the dtype and, where its size is known, at least `count` of them. The
---engine copies as many bytes as the shape needs, so smaller memory would be read out of bounds.
---@param what string name of the data in messages: "batch.inputs.data"
---@param data any
---@param dtype string short name
---@param count number elements that will be read
function dtypes.check_memory(what, data, dtype, count)
  if type(data) ~= "cdata" then
    refuse(what, data, dtype, ('give memory made by ffi.new("%s[?]", n), or a tensor'):format(
      dtypes.ctypes[dtype]))
  end
  local base, is_pointer = elements_of(data)
  if not base or not (is_element(dtype, base) or is_pointer and base == "void") then
    refuse(what, data, dtype, "elements of another type would be misread")
  end
  if is_pointer then
    if data == nil then errors.invalid("%s is a NULL pointer", what) end
    return
  end
  local bytes, needed = ffi.sizeof(data), count * dtypes.sizes[dtype]
  if bytes < needed then
    errors.raise("MS_ESHAPE", "%s has %d bytes, but its dtype %s and its shape need %d", what, bytes, dtype, needed)
  end
end

return dtypes
