-- The table of element types: that of the engine (runtime/base/numbers/formats.def), which gives names, sizes, ranges,
-- and what each can be used for. tests/lua/project/tables_spec.lua compares uses with what the engine accepts.

local bit = require("bit")

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local C, ffi = engine.C, engine.ffi

local dtypes = {
  names = {}, -- by number
  ctypes = {}, -- by name: C type of one element
  sizes = {}, -- by name: bytes per element; a part of a byte of packed types
  packed = {}, -- by name: elements in a byte, of types that share one
  in_files = {}, -- by name: safetensors' name; "U8" of packed types
  long_names = {}, -- by name: PyTorch's, "bfloat16"
  ranges = {}, -- by name: { lowest, highest } of an integer type
  floats = {}, -- by name: true if it is a floating-point type of whole bytes
  -- By name: the type whose C numbers represent its values, because C and Lua have no number of its own.
  readable_as = {},
}

---@class moonshard.DtypeUses
---@field product boolean? devices have matrix products of it, so a cluster describes their peak
---@field param boolean? kernels can read parameters in it (mp_policy's param_dtype and output_dtype)
---@field reduce boolean? gradients can be summed in it over ranks
---@field moment boolean? AdamW can keep its moments in it
---@field moment_records { least: integer, bytes: number }? then as records (kernels/formats/moments.h)
---  of so many bytes an element; as in torchao, parameters of fewer elements than `least` keep theirs in f32
---@field storage boolean? frozen parameters can be kept in it
---@field coded boolean? and then as codes with scales, which their values do not determine
---@field gathered boolean? shards can gather parameters in it, in blocks with a scale
---@field saved boolean? parameters can be written in it to Hugging Face's files
---@field quantised_sum boolean? ranks can send gradients in it, in blocks with a scale
---@field packed boolean? elements share a byte
---@field tolerance number? of those that parameters have, are multiplied in, or in which gradients are sent: relative
---difference of losses and parameters between runs
---@field norm_tolerance number? the same of the norm of gradients, which some types round individually

-- The engine's flags, by what they are called here.
local FLAGS = {
  product = C.MS_DTYPE_PRODUCT, param = C.MS_DTYPE_PARAM, reduce = C.MS_DTYPE_REDUCE, moment = C.MS_DTYPE_MOMENT,
  storage = C.MS_DTYPE_STORED, coded = C.MS_DTYPE_STORED + C.MS_DTYPE_BLOCKS, gathered = C.MS_DTYPE_GATHERED,
  saved = C.MS_DTYPE_FLOAT, quantised_sum = C.MS_DTYPE_PIECES,
}

local function uses_of(info)
  local uses = { packed = info.size == 0 or nil }
  for use, flags in pairs(FLAGS) do uses[use] = bit.band(info.uses, flags) == flags or nil end
  if uses.moment and not uses.saved then uses.moment_records = { least = 4096, bytes = 1 + 4 / 256 } end
  if info.tolerance > 0 then uses.tolerance, uses.norm_tolerance = info.tolerance, info.norm_tolerance end
  return uses
end

---@type table<string, moonshard.DtypeUses>
local USES = {}
dtypes.uses = USES

local ids, short_names, known = {}, {}, {}
for id = 0, tonumber(C.MS_DTYPES) - 1 do
  local info = ffi.new("ms_dtype_info")
  engine.check(C.ms_dtype_describe(id, info, ffi.sizeof(info)))
  local name, long_name = ffi.string(info.name), ffi.string(info.long_name)
  ids[name], short_names[name], short_names[long_name], dtypes.long_names[name] = id, name, name, long_name
  dtypes.names[id], dtypes.ctypes[name], dtypes.sizes[name] = name, ffi.string(info.c_type), info.bits / 8
  dtypes.in_files[name] = ffi.string(info.stored)
  if info.size == 0 then dtypes.packed[name] = 8 / info.bits end
  if info.is_float == 0 then dtypes.ranges[name] = { info.lowest, info.largest } end
  dtypes.floats[name] = info.is_float ~= 0 and info.size > 0 or nil
  dtypes.readable_as[name] = info.is_float ~= 0 and dtypes.ctypes[name] ~= "float" and "f32" or name
  known[#known + 1], USES[name] = name, uses_of(info)
end
USES.f32.storage = true -- a master

local function either(list) -- "f32, bf16 or i32"
  if #list < 2 then return list[1] end
  return table.concat(list, ", ", 1, #list - 1) .. " or " .. list[#list]
end

---The element types that have a use, in the order of moonshard.h.
---@param use string? a field of moonshard.DtypeUses; nil: floating point
---@return string[]
function dtypes.with(use)
  local list = {}
  for _, name in ipairs(known) do
    local row = dtypes.uses[name]
    if use and row and row[use] or not use and dtypes.floats[name] then list[#list + 1] = name end
  end
  return list
end

---The same as text: "f32 or bf16".
---@param use string?
---@return string
function dtypes.list(use) return either(dtypes.with(use)) end

---The same as a recipe has them: '"f32" or "bf16"'.
---@param use string
---@return string
function dtypes.quoted(use)
  local list = dtypes.with(use)
  for i, name in ipairs(list) do list[i] = ("%q"):format(name) end
  return either(list)
end

---PyTorch's name of an element type without the module: "bfloat16" for "torch.bfloat16". Other values stay.
---@param value any
---@return any
function dtypes.without_torch(value)
  return type(value) == "string" and value:match("^torch%.(%w+)$") or value
end

---The short name of an element type.
---@param value any "bf16", or PyTorch's name, "bfloat16" or "torch.bfloat16"
---@return string? nil: it is none
function dtypes.short_name(value) return short_names[dtypes.without_torch(value)] end

---Whether an element type has a use.
---@param name any
---@param use string a field of moonshard.DtypeUses
---@return boolean
function dtypes.may(name, use) return USES[name] ~= nil and USES[name][use] == true end

---The short name of an element type that has a use; nil for any other value.
---@param value any
---@param use string a field of moonshard.DtypeUses
---@return string?
function dtypes.of_use(value, use)
  local name = dtypes.short_name(value)
  return dtypes.may(name, use) and name or nil
end

---The type with the larger tolerance, which decides how near two runs can be.
---@param a string
---@param b string
---@return string
function dtypes.coarser(a, b) return USES[b].tolerance > USES[a].tolerance and b or a end

-- Element types of others, and the nearest one here.
local NEAREST = { int64 = "i32", long = "i32", int = "i32", float64 = "f32", double = "f32", float = "f32",
  float16 = "bf16", half = "bf16", f16 = "bf16", fp16 = "bf16", fp32 = "f32", bool = "u8" }

local HALF = { float16 = true, half = true, f16 = true, fp16 = true }

---What to write in place of an element type of others.
---@param value any
---@return string "; float16 is not supported, ...: write bf16"; "" if it is none of these
function dtypes.instead(value)
  local name = dtypes.without_torch(value)
  if not NEAREST[name] then return "" end
  if not HALF[name] then return ("; the nearest type is %s"):format(NEAREST[name]) end
  return ("; %s is not supported, since small gradients vanish in it: write bf16"):format(name)
end

---The number of an element type in moonshard.h.
---@param name string "f32", "bf16", "i32", "u8", "f8e4m3", ..., or PyTorch's name
---@return integer id, string name the short name
function dtypes.id(name)
  local short = dtypes.short_name(name)
  if not short then
    errors.raise("MS_EDTYPE", "unknown element type %s: write %s, or PyTorch's name of one%s", tostring(name),
      either(known), dtypes.instead(name))
  end
  return ids[short], short
end

---Refuses types of which several elements share a byte: no tensor has them.
---@param who string
---@param name string short name
function dtypes.check_whole_bytes(who, name)
  if not dtypes.packed[name] then return end
  errors.raise("MS_EDTYPE", "%s: no tensor has dtype %s: %d elements of %s share a byte, and their values need scales: "
    .. "give the bytes the dtype \"u8\"", who, name, dtypes.packed[name], name)
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
