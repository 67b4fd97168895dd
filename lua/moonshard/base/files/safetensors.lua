-- safetensors files, single or as a folder with an index: their contents, reading and writing. The engine checks every
-- rule of the format and maps the data; nothing here copies a tensor unless asked.

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local hash = require("moonshard.base.hash")
local packed = require("moonshard.base.files.safetensors_packed")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")
local C, ffi, check = engine.C, engine.ffi, engine.check

---@class moonshard.safetensors
local safetensors = {}

local CHECKSUM_BYTES = 17 -- 16 digits and a NUL

---@class moonshard.StoredTensor
---@field name string
---@field dtype string the format's name: "F32", "BF16", ...
---@field bits integer per element
---@field shape integer[] {} for a scalar
---@field elements number
---@field offset number of its data in the file, in bytes
---@field bytes number
---@field file string path of the file that contains it
---@field index integer the engine's index, from 0
---@field packed moonshard.PackedElements? what the bytes hold, if metadata says that elements share them

---@class moonshard.Safetensors
---@field tensors moonshard.StoredTensor[] by name, ascending
---@field metadata { key: string, value: string, file: string }[] of the index, then of each file in order
---@field handle ffi.cdata*? nil after close
---@field sampled string? of Safetensors:sample
local Safetensors = {}
Safetensors.__index = Safetensors

local function read_tensor(handle, i, into)
  check(C.ms_safetensors_describe(handle, i, into, ffi.sizeof(into)))
  local shape = {}
  for d = 1, into.ndim do shape[d] = tonumber(into.dims[d - 1]) end
  return {
    name = ffi.string(into.name), dtype = ffi.string(into.dtype), bits = into.bits, shape = shape,
    elements = tonumber(into.elements), offset = tonumber(into.offset), bytes = tonumber(into.bytes),
    file = ffi.string(into.file), index = i,
  }
end

local function read_metadata(handle)
  local list, out = {}, ffi.new("const char *[3]")
  while true do
    check(C.ms_safetensors_metadata(handle, #list, out, out + 1, out + 2))
    if out[0] == nil then return list end
    list[#list + 1] = { key = ffi.string(out[0]), value = ffi.string(out[1]), file = ffi.string(out[2]) }
  end
end

---Opens a file, an index ("model.safetensors.index.json") or a folder with one of them. Reads only headers. MS_EINVAL
---names the file, tensor and field at fault; MS_EIO is an error of the system.
---@param path string
---@return moonshard.Safetensors
function safetensors.open(path)
  if type(path) ~= "string" then errors.invalid("ms.safetensors.open: give a path, not %s", tostring(path)) end
  local out, count = ffi.new("ms_safetensors *[1]"), ffi.new("int[1]")
  check(C.ms_safetensors_open(path, out, count))
  local handle = ffi.gc(out[0], C.ms_free)
  local self = setmetatable({ path = path, handle = handle, tensors = {}, by_name = {} }, Safetensors)
  local into = ffi.new("ms_safetensors_tensor")
  for i = 0, count[0] - 1 do
    local tensor = read_tensor(handle, i, into)
    self.tensors[i + 1], self.by_name[tensor.name] = tensor, tensor
  end
  self.metadata = read_metadata(handle)
  packed.read(self)
  return self
end

---Unmaps the files; pointers into them become invalid.
function Safetensors:close()
  if self.handle then C.ms_free(ffi.gc(self.handle, nil)) end
  self.handle = nil
end

local function opened(self)
  if not self.handle then errors.invalid("safetensors %s: the file is already closed", self.path) end
  return self.handle
end

---The description of a tensor. MS_ENAME if the name is unknown.
---@param name string
---@return moonshard.StoredTensor
function Safetensors:tensor(name)
  local tensor = self.by_name[name]
  if not tensor then
    errors.raise("MS_ENAME", "%s holds no tensor %s: %s", self.path, tostring(name),
      nearest.advice(tostring(name), self.by_name))
  end
  return tensor
end

---The mapped bytes of a tensor, little-endian and row-major; valid until close. Pages are read on first access.
---@param name string
---@return ffi.cdata* const uint8_t *
function Safetensors:data(name)
  local tensor = ffi.new("ms_safetensors_tensor")
  check(C.ms_safetensors_describe(opened(self), self:tensor(name).index, tensor, ffi.sizeof(tensor)))
  return ffi.cast("const uint8_t *", tensor.data)
end

---Copies bytes of a tensor. MS_EIO if the file was truncated or the disk fails.
---@param name string
---@param first number byte offset in the tensor, from 0
---@param bytes number
---@param out ffi.cdata* destination of at least that many bytes
function Safetensors:read(name, first, bytes, out)
  check(C.ms_safetensors_read(opened(self), self:tensor(name).index, nil, first, bytes, out, nil))
end

---@class moonshard.TensorView a stored tensor as a matrix: element [r, c] is first + r * row_stride + c * column_stride
---@field rows integer
---@field columns integer
---@field first integer element of the tensor; 0
---@field row_stride integer one of the two strides is 1
---@field column_stride integer

-- nil: the tensor as it is stored.
local function view_of(view)
  local config = engine.config("ms_safetensors_view")
  for name, value in pairs(view or {}) do config[name] = value end
  return config
end

---Elements of a tensor of type F32, BF16, F16, F64, F8_E4M3, F8_E5M2 or F8_E8M0 as f32, in row order of a view; reads
---no other part of the file.
---@param name string
---@param view moonshard.TensorView? nil: as stored
---@param first number element of the view
---@param count number
---@param out ffi.cdata* float *
---@return number bytes that were read
function Safetensors:read_f32(name, view, first, count, out)
  local bytes = ffi.new("int64_t[1]")
  check(C.ms_safetensors_read(opened(self), self:tensor(name).index, view_of(view), first, count, out, bytes))
  return tonumber(bytes[0])
end

---XXH3 (64 bits) of a tensor's bytes, or of a range of them: 16 hexadecimal digits.
---@param name string
---@param first number? byte offset; default 0
---@param bytes number? default: all that follow
---@return string
function Safetensors:checksum(name, first, bytes)
  local hex, tensor = ffi.new("char[?]", CHECKSUM_BYTES), self:tensor(name)
  first = first or 0
  check(C.ms_safetensors_checksum(opened(self), tensor.index, first, bytes or tensor.bytes - first, hex))
  return ffi.string(hex)
end

-- Blocks of a file that are hashed besides one of every tensor, and their size; a smaller tensor is one block.
local SAMPLED_BLOCKS, BLOCK_BYTES = 256, 4096

-- How many blocks of a tensor of a file with so many bytes are sampled.
local function blocks_of(tensor, bytes_of_file)
  return math.min(math.ceil(tensor.bytes / BLOCK_BYTES), 1 + math.floor(SAMPLED_BLOCKS * tensor.bytes / bytes_of_file))
end

---A hash by which ranks recognise equal contents: of the names, types, shapes and places of all tensors, and of blocks
---spread over the data of each, at most 256 of 4 KiB a file and one more for every tensor. Other weights differ in it;
---a few changed elements may not. Read once.
---@return string
function Safetensors:sample()
  if self.sampled then return self.sampled end
  local bytes, lines = {}, {}
  for _, tensor in ipairs(self.tensors) do bytes[tensor.file] = (bytes[tensor.file] or 0) + tensor.bytes end
  for _, tensor in ipairs(self.tensors) do
    lines[#lines + 1] = ("%s %s [%s] %.0f"):format(tensor.name, tensor.dtype, table.concat(tensor.shape, ","),
      tensor.offset)
    local blocks = tensor.bytes > 0 and blocks_of(tensor, bytes[tensor.file]) or 0
    local stretch = tensor.bytes / blocks
    for i = 0, blocks - 1 do
      local first = math.floor(i * stretch + math.max(0, stretch - BLOCK_BYTES) / 2)
      lines[#lines + 1] = self:checksum(tensor.name, first, math.min(BLOCK_BYTES, tensor.bytes - first))
    end
  end
  self.sampled = ("%.0f"):format(hash.of_text(table.concat(lines, "\n")))
  return self.sampled
end

-- ---- writing ----------------------------------------------------------------------------------------------------

---@class moonshard.SafetensorsOptions
---@field metadata? table<string, string>
---@field atomic? boolean the file gets its name only when complete; true
---@field sync? boolean flush to disk at the end; false

---@class moonshard.SafetensorsWriter
local Writer = {}
Writer.__index = Writer

-- The declared tensors as C structs, and the Lua objects that must stay alive with them.
local function declare(tensors)
  if type(tensors) ~= "table" then
    errors.invalid("ms.safetensors.create: give a list of { name = \"...\", dtype = \"F32\", shape = { ... } }, not %s",
      options.describe(tensors))
  end
  local list, kept, numbers = ffi.new("ms_safetensors_tensor[?]", #tensors), {}, {}
  for i, given in ipairs(tensors) do
    if type(given) ~= "table" or type(given.name) ~= "string" or type(given.dtype) ~= "string"
      or type(given.shape) ~= "table" then
      errors.invalid("ms.safetensors.create: tensor %d: write { name = \"...\", dtype = \"F32\", shape = { ... } }", i)
    end
    for d, size in ipairs(given.shape) do
      if type(size) ~= "number" or size % 1 ~= 0 or size < 0 or size > 2 ^ 53 then
        errors.invalid("ms.safetensors.create: tensor %s: dimension %d is %s: write a whole number of at least 0",
          given.name, d - 1, tostring(size))
      end
    end
    local dtype, shape = packed.stored("ms.safetensors.create", given)
    local dims = ffi.new("int64_t[?]", #shape, shape)
    kept[#kept + 1] = dims
    list[i - 1] = { name = given.name, dtype = dtype, ndim = #shape, dims = dims }
    numbers[given.name] = i - 1
  end
  return list, numbers, kept
end

-- Entries sorted by key, so that equal tables give equal files.
local function flatten(metadata)
  local keys, texts = {}, {}
  for key, value in pairs(metadata) do
    if type(key) ~= "string" or type(value) ~= "string" then
      errors.invalid("ms.safetensors.create: metadata %s: keys and values must be strings", tostring(key))
    end
    keys[#keys + 1] = key
  end
  table.sort(keys)
  for _, key in ipairs(keys) do
    texts[#texts + 1], texts[#texts + 2] = key, metadata[key]
  end
  return #keys, texts
end

---Starts a file and writes its header. The path does not exist before finish, unless atomic is false.
---@param path string
---@param tensors { name: string, dtype: string, shape: integer[] }[] dtypes of the format; and those
---whose elements share bytes (`packed` of base/dtypes.lua), stored as U8: the metadata says what they are
---@param given moonshard.SafetensorsOptions?
---@return moonshard.SafetensorsWriter
function safetensors.create(path, tensors, given)
  given = options.parse("ms.safetensors.create", given, {
    metadata = { "table", default = {} }, atomic = { "boolean", default = true }, sync = { "boolean", default = false },
  })
  if type(path) ~= "string" then
    errors.invalid("ms.safetensors.create: give a path, not %s", options.describe(path))
  end
  local list, numbers, dims = declare(tensors)
  local n, texts = flatten(packed.metadata("ms.safetensors.create", tensors, given.metadata))
  local config = engine.config("ms_safetensors_config")
  local text = ffi.new("const char *[?]", #texts, texts)
  config.metadata, config.metadata_text = n, text
  config.atomic, config.sync = given.atomic and 1 or 0, given.sync and 1 or 0
  local out = ffi.new("ms_safetensors_writer *[1]")
  check(C.ms_safetensors_create(path, #tensors, list, ffi.sizeof("ms_safetensors_tensor"), config, out))
  local handle = ffi.gc(out[0], C.ms_free)
  return setmetatable({ path = path, handle = handle, numbers = numbers, dims = dims }, Writer)
end

local function taken(self)
  if not self.handle then errors.invalid("safetensors %s: it was already finished or given up", self.path) end
  return ffi.gc(self.handle, nil)
end

local function number_of(self, name)
  if not self.handle then taken(self) end
  local number = self.numbers[name]
  if number then return number end
  errors.raise("MS_ENAME", "safetensors %s: tensor %s was not declared: %s", self.path, tostring(name),
    nearest.advice(tostring(name), self.numbers))
end

---Writes bytes of a declared tensor; in any order, each byte once.
---@param name string
---@param data ffi.cdata*|string
---@param bytes number? default: all of a string
---@param first number? byte offset in the tensor; default 0
function Writer:put(name, data, bytes, first)
  local number = number_of(self, name)
  if type(data) == "string" and bytes == nil then bytes = #data end
  if type(bytes) ~= "number" then errors.invalid("safetensors %s: put %s: say how many bytes", self.path, name) end
  check(C.ms_safetensors_write(self.handle, number, nil, first or 0, bytes, data))
end

---Writes f32 elements to a declared tensor of a type that read_f32 reads, rounded to it, in row order of a view.
---@param name string
---@param view moonshard.TensorView? nil: as stored
---@param first number element of the view
---@param count number
---@param data ffi.cdata* const float *
function Writer:put_f32(name, view, first, count, data)
  local number = number_of(self, name)
  check(C.ms_safetensors_write(self.handle, number, view_of(view), first, count, data))
end

---Completes the file. MS_EINVAL if bytes are missing; after any error no file is left.
function Writer:finish()
  local handle = taken(self)
  self.handle = nil
  check(C.ms_safetensors_finish(handle))
end

---Gives up and removes the unfinished file.
function Writer:abort()
  if self.handle then C.ms_free(taken(self)) end
  self.handle = nil
end

return safetensors
