-- States as JSON without loss: what a data object's state() returns.
--
-- JSON has strings of UTF-8, finite numbers, lists without gaps and objects with names. Such values are written as they
-- are, so that manifests stay readable. What Lua has beyond them is an object with one name that begins with "$":
--
--   {"$number":"inf"}              also "-inf", "nan" and "-0"
--   {"$int64":"9007199254740993"}  an integer of the FFI, also "$uint64"
--   {"$bytes":"00ff"}              a string that is not UTF-8, in hexadecimal digits
--   {"$table":[[KEY,VALUE],...]}   a table with gaps, or keys that are not all strings, or of which one begins with "$"
--   {"$tensor":{"dtype":"f32","shape":[2],"bytes":"..."}}
--
-- Whatever cannot come back as it was is an error that names its path.

local ffi = require("ffi")
local dtypes = require("moonshard.base.dtypes")
local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local tensor = require("moonshard.tensor.class")
local text_lines = require("moonshard.base.text.text_lines")
local values = require("moonshard.tensor.values")

local state_values = {}

-- The most bytes of one tensor: larger ones would make manifests slow to read.
local MAX_TENSOR_BYTES = 2 ^ 20
-- json.lua reads lists and objects that nest 200 deep; a manifest, and the forms above, are around the values.
local MAX_NESTED = 180

-- ---- writing ----------------------------------------------------------------------------------------------------

local MAX_SHOWN = 200 -- characters of a path

local function refuse(path, format, ...)
  if #path > MAX_SHOWN then path = path:sub(1, MAX_SHOWN / 2) .. " ... " .. path:sub(-MAX_SHOWN / 2) end
  errors.invalid("%s is " .. format, path, ...)
end

local function hexadecimal(bytes)
  return (bytes:gsub(".", function(byte) return ("%02x"):format(byte:byte()) end))
end

local function tagged(name, text) return ('{"$%s":%s}'):format(name, text) end

local function string_text(text)
  return not text_lines.not_utf8(text) and json.encode(text) or tagged("bytes", '"' .. hexadecimal(text) .. '"')
end

local function number_text(number)
  if number ~= number then return tagged("number", '"nan"') end
  if number == math.huge then return tagged("number", '"inf"') end
  if number == -math.huge then return tagged("number", '"-inf"') end
  if number == 0 and 1 / number < 0 then return tagged("number", '"-0"') end
  return json.encode(number)
end

local INTEGERS = { int64 = ffi.typeof("int64_t"), uint64 = ffi.typeof("uint64_t") }

local function cdata_text(value, path)
  for name, ctype in pairs(INTEGERS) do
    if ffi.istype(ctype, value) then return tagged(name, '"' .. tostring(value):match("^%-?%d+") .. '"') end
  end
  refuse(path, "%s, which a checkpoint cannot keep: give a number, int64_t, uint64_t, a string or a tensor",
    tostring(ffi.typeof(value)))
end

local function tensor_text(value, path)
  if not tensor.is_eager(value) then refuse(path, "a tensor of a trace, which has no values") end
  local placement = rawget(value, "placement")
  if placement and placement ~= "replicated" then
    refuse(path, "a tensor of which this rank has a part (%s): give it whole, or as a frozen parameter of the model",
      placement)
  end
  local bytes = values.bytes(value)
  if bytes > MAX_TENSOR_BYTES then
    refuse(path, "a tensor of %.0f bytes, but a state has at most %.0f: make it a parameter of the model, frozen or "
      .. "not", bytes, MAX_TENSOR_BYTES)
  end
  local shape = #value.shape == 0 and "[]" or json.encode(value.shape)
  return tagged("tensor", ('{"dtype":%s,"shape":%s,"bytes":"%s","placed":%s}'):format(json.encode(value.dtype), shape,
    hexadecimal(ffi.string(value.data, bytes)), tostring(placement ~= nil)))
end

-- ".name", or "[3]".
local function place_of(key)
  if type(key) == "string" and key:find("^[%a_][%w_]*$") then return "." .. key end
  return type(key) == "string" and ("[%q]"):format(key) or ("[%s]"):format(tostring(key))
end

-- The types of keys, in their order.
local KEYS = { boolean = 1, number = 2, string = 3 }

-- So that equal tables have equal texts.
local function precedes(a, b)
  local first, second = KEYS[type(a)], KEYS[type(b)]
  if first ~= second then return first < second end
  if type(a) == "boolean" then return not a and b end
  return a < b
end

-- The keys of a table, sorted, and how it is written: as "object", as "list", or as "pairs", which JSON has not.
local function keys_of(value, path)
  local keys, names = {}, true
  for key in next, value do
    if not KEYS[type(key)] then refuse(path, "a table with a key that is a %s", type(key)) end
    keys[#keys + 1] = key
    names = names and type(key) == "string" and key:sub(1, 1) ~= "$" and not text_lines.not_utf8(key)
  end
  table.sort(keys, precedes)
  if names then return keys, "object" end
  for i, key in ipairs(keys) do
    if key ~= i then return keys, "pairs" end
  end
  return keys, "list"
end

local encode

---@class moonshard.StateWriter
---@field above table<table, string> the tables that contain the value, with their paths
---@field depth integer how deep the text nests there

-- What a table's values nest within, by its kind; that of $table is within an object, a list and pairs.
local DEPTHS = { object = 1, list = 1, pairs = 3 }

local WRITERS = {
  object = function(key, text) return json.encode(key) .. ":" .. text end,
  list = function(_, text) return text end,
  pairs = function(key, text, path, writer)
    return ("[%s,%s]"):format(encode(key, "the key " .. path, writer), text)
  end,
}

local function wrapped(kind, parts)
  local text = table.concat(parts, ",")
  if kind == "object" then return "{" .. text .. "}" end
  text = "[" .. text .. "]"
  return kind == "list" and text or tagged("table", text)
end

local function table_text(value, path, writer)
  if tensor.is(value) then return tensor_text(value, path) end
  if getmetatable(value) ~= nil then
    refuse(path, "a table with a metatable, which a checkpoint cannot keep: copy its fields into a plain table")
  end
  local around = writer.above[value]
  if around then refuse(path, "%s again: a table that contains itself has no end", around) end
  local keys, kind = keys_of(value, path)
  local parts, depth = {}, writer.depth
  writer.above[value], writer.depth = path, depth + DEPTHS[kind]
  if writer.depth > MAX_NESTED then refuse(path, "nested too deep: a state has at most %d levels", MAX_NESTED) end
  for i, key in ipairs(keys) do
    local inner = path .. place_of(key)
    parts[i] = WRITERS[kind](key, encode(rawget(value, key), inner, writer), inner, writer)
  end
  writer.above[value], writer.depth = nil, depth
  return wrapped(kind, parts)
end

local TEXTS = {
  boolean = tostring, number = number_text, string = string_text, cdata = cdata_text, table = table_text,
}

function encode(value, path, writer)
  local kind = type(value)
  if not TEXTS[kind] then refuse(path, "a %s, which a checkpoint cannot keep", kind) end
  return TEXTS[kind](value, path, writer)
end

---A value as JSON from which decode gives an equal one; equal values have equal texts. Raises MS_EINVAL with the path
---of the first value that no checkpoint can keep.
---@param value any not nil
---@param path string of the value, for messages: "data:state()"
---@return string
function state_values.encode(value, path) return encode(value, path, { above = {}, depth = 0 }) end

-- ---- reading ----------------------------------------------------------------------------------------------------

local NUMBERS = { inf = math.huge, ["-inf"] = -math.huge, nan = 0 / 0, ["-0"] = -0.0 }

local function refuse_read(where, what)
  errors.invalid("%s: %s is damaged, or of a later version", where, what)
end

local function bytes_of(digits, where)
  if type(digits) ~= "string" or #digits % 2 ~= 0 or digits:find("%X") then refuse_read(where, "a string of bytes") end
  return (digits:gsub("%x%x", function(pair) return string.char(tonumber(pair, 16)) end))
end

local function integer_of(text, ctype, where)
  local sign, digits = tostring(text):match("^(%-?)(%d+)$")
  if not digits then refuse_read(where, "an integer") end
  local number = ctype(0)
  for digit in digits:gmatch("%d") do number = number * 10 + tonumber(digit) end
  return sign == "-" and -number or number
end

local decode

local function table_of(list, where)
  local result = {}
  if type(list) ~= "table" then refuse_read(where, "a table") end
  for _, pair in ipairs(list) do
    if type(pair) ~= "table" or pair[1] == nil then refuse_read(where, "a table") end
    local key = decode(pair[1], where)
    if key ~= key or pair[2] == nil then refuse_read(where, "a table") end
    result[key] = decode(pair[2], where)
  end
  return result
end

local function tensor_of(saved, where)
  local is_one = type(saved) == "table" and type(saved.shape) == "table" and dtypes.ctypes[saved.dtype]
  local bytes = is_one and bytes_of(saved.bytes, where)
  local count = 1
  for _, size in ipairs(is_one and saved.shape or {}) do
    if type(size) ~= "number" or size < 0 or size % 1 ~= 0 then refuse_read(where, "a tensor") end
    count = count * size
  end
  if not is_one or #bytes ~= count * dtypes.sizes[saved.dtype] then refuse_read(where, "a tensor") end
  return values.copy(saved.dtype, saved.shape, ffi.cast("const char *", bytes), saved.placed and "replicated" or nil)
end

local READERS = {
  ["$number"] = function(text, where) return NUMBERS[text] or refuse_read(where, "a number") end,
  ["$int64"] = function(text, where) return integer_of(text, INTEGERS.int64, where) end,
  ["$uint64"] = function(text, where) return integer_of(text, INTEGERS.uint64, where) end,
  ["$bytes"] = bytes_of,
  ["$table"] = table_of,
  ["$tensor"] = tensor_of,
}

-- The name of a tagged form; nil: the object has none. A table has its names in any order.
local function tag_of(object)
  for name in pairs(object) do
    if type(name) == "string" and name:sub(1, 1) == "$" then return name end
  end
end

function decode(value, where)
  if type(value) ~= "table" then return value end
  local tag = tag_of(value)
  if not tag then
    local result = {}
    for key, item in pairs(value) do result[key] = decode(item, where) end
    return result
  end
  local first = next(value)
  if not READERS[tag] or next(value, first) ~= nil then refuse_read(where, tag) end
  return READERS[tag](value[tag], where)
end

---The value that encode was given, from its text as JSON gave it. Raises MS_EINVAL if it is not such a text.
---@param read any
---@param where string for messages: "step-00000005/manifest.json: data"
---@return any
function state_values.decode(read, where) return decode(read, where) end

return state_values
