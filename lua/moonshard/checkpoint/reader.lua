-- Reads a checkpoint without a model: its parameters and any of their elements, whichever files contain them.

local division = require("moonshard.shard.division")
local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local manifest = require("moonshard.checkpoint.manifest")
local optimizers = require("moonshard.engine.optimizers")
local owned_ranges = require("moonshard.engine.owned_ranges")
local records = require("moonshard.shard.records")
local host_parts = require("moonshard.checkpoint.folders.host_parts")
local safetensors = require("moonshard.base.files.safetensors")
local stored_words = require("moonshard.checkpoint.stored_words")
local C, ffi = engine.C, engine.ffi

---@class moonshard.SavedPiece elements of a parameter, or of a part of it, in one file
---@field file string
---@field tensor string its name in the file
---@field part moonshard.Division in words of a stored form
---@field division moonshard.Division the same part in elements
---@field records moonshard.Records? of a stored form
---@field first number of the flattened part
---@field count number
---@field xxh3 string 16 hexadecimal digits per block

---@class moonshard.Checkpoint
---@field path string
---@field manifest moonshard.Manifest
---@field parameters { name: string, shape: integer[], dtype: string, frozen: boolean }[]
local Checkpoint = {}
Checkpoint.__index = Checkpoint

local reader = {}

local function precedes(a, b)
  if a.part.origin ~= b.part.origin then return a.part.origin < b.part.origin end
  return a.first < b.first
end

local function numel(shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  return n
end

-- The elements of a tensor of this kind, of a parameter with this shape.
local function elements_of(kind, shape) return numel((optimizers.state_shape(kind, shape))) end

-- Pieces by kind and parameter, those of one part after each other in the order of their elements.
local function pieces_of(read)
  local by_name, shapes = {}, {}
  for _, param in ipairs(read.parameters) do shapes[param.name] = param.shape end
  for _, file in ipairs(read.files) do
    for _, tensor in ipairs(file.tensors) do
      local name = owned_ranges.tensor_name(tensor.kind, tensor.parameter)
      local part = tensor.run and { run = tensor.run, stride = tensor.stride, origin = tensor.origin }
        or division.whole(shapes[tensor.parameter] and elements_of(tensor.kind, shapes[tensor.parameter])
          or tensor.first + tensor.count)
      local of = dtypes.may(tensor.kind, "coded") and records.of_part(tensor.kind, part) or nil
      by_name[name] = by_name[name] or {}
      table.insert(by_name[name], {
        file = file.file, tensor = tensor.name, first = tensor.first, count = tensor.count, xxh3 = tensor.xxh3,
        part = of and records.in_words(of, part) or part, division = part, records = of,
      })
    end
  end
  for _, list in pairs(by_name) do table.sort(list, precedes) end
  return by_name
end

---Opens a checkpoint: reads its manifest now, and its files when needed.
---@param path string
---@return moonshard.Checkpoint
function reader.open(path)
  local read = manifest.read(path)
  return setmetatable({
    path = path, manifest = read, parameters = read.parameters, pieces = pieces_of(read), files = {},
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

-- The forms in which the weights of a parameter can be saved: f32 values, or codes with scales. By kind of tensor.
local FORMS = { param = "f32" }
for _, name in ipairs(dtypes.with("coded")) do FORMS[name] = name end

-- The form in which the weights of a parameter were saved.
local function form_of(self, fqn)
  for kind in pairs(FORMS) do
    if self.pieces[owned_ranges.tensor_name(kind, fqn)] then return kind end
  end
end

---The element type in which the weights of a parameter were saved; nil: no piece has them.
---@param fqn string
---@return string?
function Checkpoint:saved_in(fqn) return FORMS[form_of(self, fqn)] end

local function refuse_form(self, kind, fqn)
  local saved = FORMS[kind] and form_of(self, fqn)
  if not saved or saved == kind then return end
  manifest.refuse_storage(self.path, fqn, FORMS[saved], FORMS[kind])
end

-- What only parameters that train have is not in a checkpoint of one that was frozen.
local function refuse_frozen(self, kind, fqn)
  if self.pieces[owned_ranges.tensor_name(kind, fqn)] then return end
  for _, saved in ipairs(self.parameters) do
    if saved.name == fqn and saved.frozen and not FORMS[kind] then
      errors.raise("MS_EMISMATCH", "checkpoint %s has no %s of %s, which was frozen when it was saved: freeze it here, "
        .. "too, or start a run from the weights alone, by ms.checkpoint.load(model, path)", self.path, kind, fqn)
    end
  end
end

---The pieces that contain elements [first, first + count) of a part of a parameter, and in each those among which they
---are. Parts of several hosts can contain the same elements. Raises MS_EINVAL when no piece contains some of them.
---@param kind string "param", "exp_avg", ...
---@param fqn string
---@param part moonshard.Division
---@param first number
---@param count number
---@return { piece: moonshard.SavedPiece, from: number, to: number }[] elements [from, to) of the piece's part
function Checkpoint:cover(kind, fqn, part, first, count)
  local list, found, last = {}, 0, nil
  for _, piece in ipairs(self.pieces[owned_ranges.tensor_name(kind, fqn)] or {}) do
    local from, to = piece.first, piece.first + piece.count
    if last and division.equals(last.piece.part, piece.part) then from = math.max(from, last.to) end
    local common = from < to and division.common(part, first, count, piece.part, from, to) or 0
    if common > 0 then
      last = { piece = piece, from = from, to = to }
      list[#list + 1], found = last, found + common
    end
  end
  if found < count then
    refuse_form(self, kind, fqn)
    refuse_frozen(self, kind, fqn)
    errors.invalid("checkpoint %s: %s of %s: %.0f of its elements %.0f to %.0f%s are in no file%s", self.path, kind,
      fqn, count - found, division.index(part, first), division.index(part, first + count - 1) + 1,
      division.is_whole(part) and "" or ", of which this rank has a part,",
      host_parts.describe_missing(self.manifest.missing))
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

-- Copies those of elements [first, first + count) of a parameter that a piece contains to their places in `out`.
local function read_piece(file, range, first, count, out)
  local piece = range.piece
  local from = math.max(range.from, division.below(piece.part, first))
  local to = math.min(range.to, division.below(piece.part, first + count))
  local index, run = division.index(piece.part, from)
  local is_run = run >= to - from
  local read = is_run and out + (index - first) or ffi.new("float[?]", to - from)
  file:read(piece.tensor, 4 * (from - piece.first), 4 * (to - from), read)
  local at = is_run and to or from
  while at < to do
    index, run = division.index(piece.part, at)
    run = math.min(run, to - at)
    ffi.copy(out + (index - first), read + (at - from), 4 * run)
    at = at + run
  end
end

---Copies what files have of a part of a parameter, without verifying checksums: elements, or words of a stored form.
---@param kind string
---@param fqn string
---@param part moonshard.Division
---@param first number
---@param count number
---@param out ffi.cdata* float[count]
function Checkpoint:read_pieces(kind, fqn, part, first, count, out)
  for _, range in ipairs(self:cover(kind, fqn, part, first, count)) do
    read_piece(self:file(range.piece.file), range, first, count, out)
  end
end

---Whether a checkpoint has state of this kind of a parameter.
---@param kind string "param", "exp_avg", ...
---@param fqn string
---@return boolean
function Checkpoint:has(kind, fqn) return self.pieces[owned_ranges.tensor_name(kind, fqn)] ~= nil end

---The records in which a parameter is saved in a stored form.
---@param kind string
---@param fqn string
---@return moonshard.Records? nil: it is not
function Checkpoint:records_of(kind, fqn)
  local pieces = self.pieces[owned_ranges.tensor_name(kind, fqn)]
  return pieces and pieces[1].records
end

---Copies elements of a parameter, f32, without verifying checksums (see verify).
---@param kind string
---@param fqn string
---@param first number
---@param count number
---@param out ffi.cdata* float[count]
function Checkpoint:read(kind, fqn, first, count, out)
  local at, elements = ffi.cast("float *", out), 0
  for _, param in ipairs(self.parameters) do
    if param.name == fqn then elements = elements_of(kind, param.shape) end
  end
  local form = kind == "param" and form_of(self, fqn)
  if form and form ~= "param" then
    return stored_words.values(self, self:records_of(form, fqn), fqn, first, count, at)
  end
  self:read_pieces(kind, fqn, division.whole(elements), first, count, at)
end

-- The checksums of all blocks of a tensor, concatenated.
local function checksums(file, name)
  local tensor, parts, block = file:tensor(name), {}, tonumber(C.MS_CHECKPOINT_BLOCK)
  for at = 0, tensor.bytes - 1, block do
    parts[#parts + 1] = file:checksum(name, at, math.min(block, tensor.bytes - at))
  end
  return table.concat(parts)
end

local function check_tensor(self, file, name, xxh3)
  if checksums(self:file(file), name) == xxh3 then return end
  errors.raise("MS_EIO", "%s/%s: the checksum of tensor %s does not match the saved one: the file is damaged",
    self.path, file, name)
end

---Compares what files have of a parameter with the checksums of the manifest. Raises MS_EIO if a file is damaged.
---@param kind string
---@param fqn string
function Checkpoint:verify_pieces(kind, fqn)
  for _, piece in ipairs(self.pieces[owned_ranges.tensor_name(kind, fqn)]) do
    check_tensor(self, piece.file, piece.tensor, piece.xxh3)
  end
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
      check_tensor(self, listed.file, tensor.name, tensor.xxh3)
    end
  end
end

return reader
