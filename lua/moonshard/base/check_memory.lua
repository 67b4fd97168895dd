-- Memory that a recipe made through the FFI, before the engine reads it: that it holds what its owner says it does. The
-- engine copies as many bytes as a shape has, so memory that is too small, or of other numbers, must not come through.

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local ffi = engine.ffi

-- The C types whose elements are those of a dtype, as LuaJIT names them.
local ELEMENTS = {
  f32 = { ["float"] = true },
  bf16 = { ["unsigned short"] = true },
  i32 = { ["int"] = true },
  u8 = { ["unsigned char"] = true, ["bool"] = true },
}

local function refuse(what, data, dtype, why)
  local kind = type(data) == "cdata" and tostring(ffi.typeof(data)):match("^ctype<(.*)>$") or "a " .. type(data)
  local wanted = engine.dtype_ctypes[dtype]
  errors.raise("MS_EDTYPE", "%s is %s, and dtype %s says %s: %s", what, kind, dtype, wanted, why)
end

-- What the elements of a pointer or an array are, and whether it is a pointer, whose size is not known; nil: neither.
local function elements_of(data)
  local text = tostring(ffi.typeof(data)):match("^ctype<(.*)>$"):gsub("const ", ""):gsub("volatile ", "")
  local base, rest = text:match("^([%w_ ]-) ?([%[%(%*].*)$")
  if not base then return nil end
  return base, rest:find("*", 1, true) ~= nil
end

---Raises unless `data` is FFI memory of a dtype's elements, and, where its size is known, of at least so many.
---@param what string what the data are, for messages: "batch.inputs.data"
---@param data any
---@param dtype string short name
---@param count number elements that are read
return function(what, data, dtype, count)
  if type(data) ~= "cdata" then
    refuse(what, data, dtype, ('give memory made by ffi.new("%s[?]", n), or a tensor'):format(
      engine.dtype_ctypes[dtype]))
  end
  local base, is_pointer = elements_of(data)
  if not base or not (ELEMENTS[dtype][base] or is_pointer and base == "void") then
    refuse(what, data, dtype, "numbers of another type would be read as if they were of this one")
  end
  if is_pointer then
    if data == nil then errors.invalid("%s is a NULL pointer", what) end
    return
  end
  local bytes, needed = ffi.sizeof(data), count * engine.dtype_sizes[dtype]
  if bytes < needed then
    errors.raise("MS_ESHAPE", "%s has %d bytes, and dtype %s with its shape needs %d", what, bytes, dtype, needed)
  end
end
