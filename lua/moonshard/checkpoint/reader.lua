-- Reads a checkpoint without a model: its parameters and any of their elements, whichever files contain them.

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local manifest = require("moonshard.checkpoint.manifest")
local owned_ranges = require("moonshard.engine.owned_ranges")
local host_parts = require("moonshard.checkpoint.host_parts")
local safetensors = require("moonshard.base.safetensors")

---@class moonshard.SavedPiece elements of a parameter in one file
---@field file string
---@field tensor string its name in the file
---@field first number
---@field count number
---@field xxh3 string 16 hexadecimal digits per block

---@class moonshard.Checkpoint
---@field path string
---@field manifest moonshard.Manifest
---@field parameters { name: string, shape: integer[], dtype: string, frozen: boolean }[]
local Checkpoint = {}
Checkpoint.__index = Checkpoint

local reader = {}

-- Pieces by kind and parameter, in the order of their elements.
local function index(read)
  local by_name = {}
  for _, file in ipairs(read.files) do
    for _, tensor in ipairs(file.tensors) do
      local name = owned_ranges.tensor_name(tensor.kind, tensor.parameter)
      by_name[name] = by_name[name] or {}
      table.insert(by_name[name], {
        file = file.file, tensor = tensor.name, first = tensor.first, count = tensor.count, xxh3 = tensor.xxh3,
      })
    end
  end
  for _, list in pairs(by_name) do table.sort(list, function(a, b) return a.first < b.first end) end
  return by_name
end

---Opens a checkpoint: reads its manifest now, and its files when needed.
---@param path string
---@return moonshard.Checkpoint
function reader.open(path)
  local read = manifest.read(path)
  return setmetatable({
    path = path, manifest = read, parameters = read.parameters, pieces = index(read), files = {},
  }, Checkpoint)
end

---A file of the checkpoint, opened at the first call.
---@param name string
---@return moonshard.Safetensors
function Checkpoint:file(name)
  self.files[name] = self.files[name] or safetensors.open(self.path .. "/" .. name)
  return self.files[name]
end

---Closes all files.
function Checkpoint:close()
  for _, file in pairs(self.files) do file:close() end
  self.files = {}
end

---The pieces that contain elements [first, first + count) of a parameter, and the elements in each. Parts of several
---hosts can contain the same elements. Raises MS_EINVAL when no piece contains some of them.
---@param kind string "param", "exp_avg", ...
---@param fqn string
---@param first number
---@param count number
---@return { piece: moonshard.SavedPiece, first: number, count: number }[]
function Checkpoint:cover(kind, fqn, first, count)
  local list, at, last = {}, first, first + count
  for _, piece in ipairs(self.pieces[owned_ranges.tensor_name(kind, fqn)] or {}) do
    if at < last and piece.first <= at and piece.first + piece.count > at then
      local stop = math.min(last, piece.first + piece.count)
      list[#list + 1] = { piece = piece, first = at, count = stop - at }
      at = stop
    end
  end
  if at < last then
    errors.invalid("checkpoint %s: %s of %s: elements %.0f to %.0f are in no file%s", self.path, kind, fqn, at,
      last, host_parts.describe_missing(self.manifest.missing))
  end
  return list
end

---Refuses a checkpoint without averages of the weights.
function Checkpoint:check_averages()
  if self.manifest.ema then return end
  errors.invalid("checkpoint %s contains no averages of the weights: it was saved by a trainer without ema", self.path)
end

---The kind of tensor that contains the average of a parameter: the parameter itself if it was frozen; with local SGD
---the average of the first replica.
---@param fqn string
---@return string kind
function Checkpoint:kind_of_average(fqn)
  for _, kind in ipairs({ "ema", owned_ranges.of_replica("ema", 0) }) do
    if self.pieces[owned_ranges.tensor_name(kind, fqn)] then return kind end
  end
  return "param"
end

---Copies elements of a parameter, f32, without verifying checksums (see verify).
---@param kind string
---@param fqn string
---@param first number
---@param count number
---@param out ffi.cdata* float[count]
function Checkpoint:read(kind, fqn, first, count, out)
  local at = engine.ffi.cast("float *", out)
  for _, range in ipairs(self:cover(kind, fqn, first, count)) do
    self:file(range.piece.file):read(range.piece.tensor, 4 * (range.first - range.piece.first), 4 * range.count, at)
    at = at + range.count
  end
end

-- The checksums of all blocks of a tensor, concatenated.
local function checksums(file, name)
  local tensor, parts, block = file:tensor(name), {}, tonumber(engine.C.MS_CHECKPOINT_BLOCK)
  for at = 0, tensor.bytes - 1, block do
    parts[#parts + 1] = file:checksum(name, at, math.min(block, tensor.bytes - at))
  end
  return table.concat(parts)
end

---Reads everything and compares it with the checksums of the manifest. Raises MS_EIO with the first damaged file and
---tensor.
function Checkpoint:verify()
  for _, listed in ipairs(self.manifest.files) do
    local file = self:file(listed.file)
    if #file.tensors ~= #listed.tensors then
      errors.raise("MS_EIO", "%s/%s: contains %d tensors, but was saved with %d: the file is damaged", self.path,
        listed.file, #file.tensors, #listed.tensors)
    end
    for _, tensor in ipairs(listed.tensors) do
      if checksums(file, tensor.name) ~= tensor.xxh3 then
        errors.raise("MS_EIO", "%s/%s: the checksum of tensor %s does not match the saved one: the file is damaged",
          self.path, listed.file, tensor.name)
      end
    end
  end
end

return reader
