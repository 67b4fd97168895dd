-- Folders whose weights are stored in few bits with scales, read as the f32 values that they mean. Two forms:
--
--   fp8    X.weight is F8_E4M3 [out,in], and X.weight_scale_inv has a factor for each block, 128 x 128 by default
--          (DeepSeek V3, Qwen 3)
--   mxfp4  X_blocks U8 [E,N,K/32,16] has two numbers of 4 bits in a byte, the first one in the low bits, and X_scales
--          U8 [E,N,K/32] the exponent of two of each 32, plus 127: X is [E,K,N] in folders without it (gpt-oss)
--
-- A folder is shown as if it were not quantised: its tensors without scales, and reads of the values.

local errors = require("moonshard.base.error")
local ffi = require("ffi")
local json = require("moonshard.base.text.json")

local quantised = {}

---@class moonshard.QuantisedScheme
---@field name string its quant_method
---@field rows integer? of a block
---@field columns integer?

local function is_size(value) return type(value) == "number" and value >= 1 and value % 1 == 0 end

-- By quant_method: what a config has to say, as a scheme; nil: of another kind, which is refused like other methods.
local SCHEMES = {
  fp8 = function(config)
    local size = config.weight_block_size
    if type(size) ~= "table" or not (is_size(size[1]) and is_size(size[2])) then return nil end
    if config.fmt ~= nil and config.fmt ~= "e4m3" then return nil end
    return { name = "fp8", rows = size[1], columns = size[2] }
  end,
  mxfp4 = function() return { name = "mxfp4" } end,
}

---Takes quantization_config out of a config whose weights can be read. What is there otherwise is left, and refused.
---@param config table as returned by config.read; changed
---@return moonshard.QuantisedScheme?
function quantised.take(config)
  local given = config.quantization_config
  if type(given) ~= "table" or given == json.null then return nil end
  local read = SCHEMES[given.quant_method]
  local scheme = read and read(given)
  if not scheme then return nil end
  config.quantization_config = nil
  return scheme
end

---What to say of a folder that is read by a scheme.
---@param scheme moonshard.QuantisedScheme
---@return string
function quantised.note(scheme)
  return ("quantization_config: the weights are stored in %s, and read as the values that they mean; a saved folder "
    .. "has these values, and no quantization_config"):format(scheme.name)
end

-- ---- blocks of f8 with a factor each ----------------------------------------------------------------------------

local SUFFIX = "_scale_inv"

local Blocks = {}
Blocks.__index = Blocks

-- Its scale is [rows of blocks, columns of blocks].
local function check_scale(self, tensor, scale)
  local rows, columns = tensor.shape[1], tensor.shape[2]
  local wanted = #tensor.shape == 2 and { math.ceil(rows / self.scheme.rows), math.ceil(columns / self.scheme.columns) }
  if wanted and #scale.shape == 2 and scale.shape[1] == wanted[1] and scale.shape[2] == wanted[2] then return end
  errors.raise("MS_EMISMATCH", "%s: %s is [%s], and does not have a factor for each block of %d x %d of %s [%s]",
    self.path, scale.name, table.concat(scale.shape, ","), self.scheme.rows, self.scheme.columns, tensor.name,
    table.concat(tensor.shape, ","))
end

-- Elements of 8 bits alone mean nothing here, and those of more bits have their values already.
local function check_dtype(self, tensor)
  local scale, is_short = self.file.by_name[tensor.name .. SUFFIX], tensor.dtype:find("^F8_E%dM%d$") ~= nil
  if is_short == (scale ~= nil) then return end
  local what, advice = "no factors", "fetch or convert the folder again"
  if scale then
    what, advice = "factors", "if the weights are dequantised already, remove quantization_config from config.json, "
      .. "and the factors"
  end
  errors.raise("MS_EMISMATCH", "%s: %s is %s and has %s, %s%s: %s", self.path, tensor.name, tensor.dtype, what,
    tensor.name, SUFFIX, advice)
end

local function open_blocks(self)
  for _, tensor in ipairs(self.file.tensors) do
    local of = tensor.name:sub(-#SUFFIX) == SUFFIX and self.file.by_name[tensor.name:sub(1, -#SUFFIX - 1)]
    if of then
      check_scale(self, of, tensor)
    else
      check_dtype(self, tensor)
      self.tensors[#self.tensors + 1], self.by_name[tensor.name] = tensor, tensor
    end
  end
end

-- The factors of a tensor; those of the last one are kept, since a tensor is read piece by piece.
local function factors_of(self, name)
  local scale = self.file.by_name[name .. SUFFIX]
  if not scale or self.factors_name == name then return scale and self.factors, scale, 0 end
  local factors = ffi.new("float[?]", scale.elements)
  local bytes = self.file:read_f32(scale.name, nil, 0, scale.elements, factors)
  self.factors_name, self.factors = name, factors
  return factors, scale, bytes
end

-- As Safetensors:read_f32.
function Blocks:read_f32(name, view, first, count, out)
  local bytes = self.file:read_f32(name, view, first, count, out)
  local factors, scale, more = factors_of(self, name)
  if not factors then return bytes end
  local width, columns = self.by_name[name].shape[2], scale.shape[2]
  local size_rows, size_columns = self.scheme.rows, self.scheme.columns
  view = view or { rows = 1, columns = self.by_name[name].elements, first = 0, row_stride = 1 }
  first, count = tonumber(first), tonumber(count)
  local done = 0
  while done < count do -- runs of one factor
    local at = first + done
    local in_row = at % view.columns
    local place = view.first + (at - in_row) / view.columns * view.row_stride + in_row
    local column = place % width
    local row, block = (place - column) / width, math.floor(column / size_columns)
    local n = math.min(count - done, view.columns - in_row, math.min(width, (block + 1) * size_columns) - column)
    local factor = factors[math.floor(row / size_rows) * columns + block]
    for i = done, done + n - 1 do out[i] = out[i] * factor end
    done = done + n
  end
  return bytes + more
end

-- ---- two numbers of four bits in a byte -------------------------------------------------------------------------

local GROUP, GROUP_BYTES, BIAS = 32, 16, 127

-- The numbers of a byte, each of one bit of sign, two of exponent, one of fraction.
local VALUES = { 0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6 }
local LOW, HIGH = ffi.new("float[256]"), ffi.new("float[256]")
for byte = 0, 255 do LOW[byte], HIGH[byte] = VALUES[byte % 16 + 1], VALUES[math.floor(byte / 16) + 1] end

local Groups = {}
Groups.__index = Groups

local function open_groups(self)
  for _, tensor in ipairs(self.file.tensors) do
    local name = tensor.name:match("^(.*)_blocks$")
    local scales = name and self.file.by_name[name .. "_scales"]
    local shape = tensor.shape
    if scales and #shape == 4 and shape[4] == GROUP_BYTES and scales.elements * GROUP_BYTES == tensor.elements then
      local columns = shape[3] * GROUP
      self.packed[name] = { blocks = tensor.name, scales = scales.name, rows = shape[2], columns = columns }
      tensor = { name = name, shape = { shape[1], columns, shape[2] }, elements = tensor.elements * 2 }
    end
    if tensor.name:match("_scales$") == nil or not self.file.by_name[tensor.name:gsub("_scales$", "_blocks")] then
      self.tensors[#self.tensors + 1], self.by_name[tensor.name] = tensor, tensor
    end
  end
end

-- Bytes [first, first + count) of a tensor.
local function bytes_of(self, name, first, count)
  local bytes = ffi.new("uint8_t[?]", count)
  self.file:read(name, first, count, bytes)
  return bytes
end

-- As Safetensors:read_f32, of each expert's matrix by rows, as the blocks have it.
function Groups:read_f32(name, view, first, count, out)
  local packed = self.packed[name]
  if not packed then return self.file:read_f32(name, view, first, count, out) end
  if not (view and view.row_stride == 1 and view.columns == packed.columns and view.column_stride == packed.rows) then
    errors.raise("MS_EUNSUPPORTED", "%s: %s is in mxfp4, which is read by rows of each expert's matrix alone",
      self.path, name)
  end
  local begin = view.first + tonumber(first)
  local stop = begin + tonumber(count)
  local from, to = math.floor(begin / GROUP), math.ceil(stop / GROUP)
  local blocks = bytes_of(self, packed.blocks, from * GROUP_BYTES, (to - from) * GROUP_BYTES)
  local scales = bytes_of(self, packed.scales, from, to - from)
  local aligned = begin == from * GROUP and stop == to * GROUP
  local whole = aligned and out or ffi.new("float[?]", (to - from) * GROUP)
  for g = 0, to - from - 1 do
    local factor = 2 ^ (scales[g] - BIAS)
    for b = 0, GROUP_BYTES - 1 do
      local byte, at = blocks[g * GROUP_BYTES + b], g * GROUP + 2 * b
      whole[at], whole[at + 1] = LOW[byte] * factor, HIGH[byte] * factor
    end
  end
  if not aligned then ffi.copy(out, whole + (begin - from * GROUP), 4 * (stop - begin)) end
  return (to - from) * (GROUP_BYTES + 1)
end

local FORMS = { fp8 = { Blocks, open_blocks }, mxfp4 = { Groups, open_groups } }

---A folder's tensors as if they were not quantised.
---@param file moonshard.Safetensors
---@param scheme moonshard.QuantisedScheme?
---@return moonshard.Safetensors file the same without a scheme; else what reads and lists of it answer
function quantised.file(file, scheme)
  if not scheme then return file end
  local class, open = unpack(FORMS[scheme.name])
  local self = setmetatable({ file = file, scheme = scheme, path = file.path, tensors = {}, by_name = {}, packed = {} },
    class)
  open(self)
  return self
end

function Blocks:sample() return self.file:sample() end
function Groups:sample() return self.file:sample() end

return quantised
