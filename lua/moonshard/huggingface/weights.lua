-- Compares the tensors of a folder with those that its config.json requires, and locates our parameters in them.

local errors = require("moonshard.base.error")
local faults = require("moonshard.huggingface.folder.faults")
local quantised = require("moonshard.huggingface.quantised")
local safetensors = require("moonshard.base.files.safetensors")
local ffi = require("ffi")

local weights = {}

local LISTED = 8 -- most names that an error lists

local function numel(shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  return n
end
weights.numel = numel

local function shape_text(shape)
  return "[" .. table.concat(shape, ",") .. "]"
end

---The location of a slice in its tensor, for reading and writing in the order of our parameter.
---@param tensor moonshard.HuggingFaceTensor
---@param slice table
---@return moonshard.TensorView? nil: the whole tensor as stored
---@return integer elements
function weights.view(tensor, slice)
  if slice.matrix then -- of one of several below one another, each [inputs, outputs]: some outputs
    local _, inputs, outputs = unpack(tensor.shape)
    return { rows = slice.columns, columns = inputs, first = slice.matrix * inputs * outputs + slice.column,
      row_stride = 1, column_stride = outputs }, slice.columns * inputs
  end
  if not slice.column then return nil, numel(tensor.shape) end
  if slice.blocks then -- some rows of each block of as many
    local width, rows = numel(tensor.shape) / tensor.shape[1], slice.columns
    return { rows = slice.blocks, columns = rows * width, first = slice.column * width,
      row_stride = tensor.shape[1] / slice.blocks * width, column_stride = 1 }, slice.blocks * rows * width
  end
  if not slice.transposed then -- rows below one another, or elements of a vector
    local width = numel(tensor.shape) / tensor.shape[1]
    local elements = slice.columns * width
    return { rows = 1, columns = elements, first = slice.column * width, row_stride = 1, column_stride = 1 }, elements
  end
  local inputs, width = tensor.shape[1], tensor.shape[2]
  return { rows = slice.columns, columns = inputs, first = slice.column, row_stride = 1, column_stride = width },
    slice.columns * inputs
end

-- ---- missing, extra, misshapen ----------------------------------------------------------------------------------

local function enough(list)
  local shown = {}
  for i = 1, math.min(#list, LISTED) do shown[i] = list[i] end
  if #list > LISTED then shown[LISTED + 1] = ("and %d more"):format(#list - LISTED) end
  return table.concat(shown, ", ")
end

---Whether the name of one of a file's tensors begins so.
---@param file moonshard.Safetensors
---@param prefix string
---@return boolean
function weights.has_prefix(file, prefix)
  for _, tensor in ipairs(file.tensors) do
    if tensor.name:sub(1, #prefix) == prefix then return true end
  end
  return false
end

-- Whether its name, without the prefix, matches a pattern.
local function is_one_of(name, prefix, patterns)
  if name:sub(1, #prefix) == prefix then name = name:sub(#prefix + 1) end
  for _, pattern in ipairs(patterns) do
    if name:match(pattern) then return true end
  end
  return false
end

---The full name of a tensor.
---@param family moonshard.HuggingFaceFamily
---@param prefix string of names in this folder
---@param tensor moonshard.HuggingFaceTensor
---@return string
function weights.full_name(family, prefix, tensor)
  return (tensor.outside or tensor.name == family.head) and tensor.name or prefix .. tensor.name
end

-- The name of a tensor in a file, which can be an old one.
local function name_in(file, family, name)
  if file.by_name[name] then return name end
  for today, old in pairs(family.renamed or {}) do
    local before = name:sub(-#today) == today and name:sub(1, -#today - 1) .. old
    if before and file.by_name[before] then return before end
  end
  return name
end

-- The differences between the folder's tensors and the required ones, as texts.
local function differences(file, family, prefix, expected, skipped)
  local missing, misshapen, extra, twins, count_skipped = {}, {}, {}, {}, 0
  for name, tensor in pairs(expected) do
    if tensor.tied_to then twins[tensor.tied_to] = true end
    local stored = file.by_name[name]
    if not stored then
      missing[#missing + 1] = name
    elseif shape_text(stored.shape) ~= shape_text(tensor.shape) then
      misshapen[#misshapen + 1] = ("%s is %s instead of %s"):format(name, shape_text(stored.shape),
        shape_text(tensor.shape))
    end
  end
  for _, stored in ipairs(file.tensors) do
    local name = stored.name
    local known = expected[name] or name == family.head or twins[name] or is_one_of(name, prefix, family.buffers)
      or family.is_other and family.is_other(name)
    if not known and is_one_of(name, prefix, skipped) then
      count_skipped = count_skipped + 1
    elseif not known then
      extra[#extra + 1] = name
    end
  end
  return missing, misshapen, extra, count_skipped
end

local function check_names(file, family, prefix, expected, skipped)
  local missing, misshapen, extra, count_skipped = differences(file, family, prefix, expected, skipped)
  local found = {}
  for _, kind in ipairs({ { "missing", missing }, { "misshapen", misshapen }, { "extra", extra } }) do
    table.sort(kind[2])
    if #kind[2] > 0 then found[#found + 1] = ("%s: %s"):format(kind[1], enough(kind[2])) end
  end
  if #found > 0 then
    errors.raise("MS_EMISMATCH", "%s does not contain the tensors that config.json requires; %s", file.path,
      table.concat(found, "; "))
  end
  return count_skipped
end

-- ---- reading ----------------------------------------------------------------------------------------------------

-- A tied head or bias can also be stored; values that differ from those that are read would be lost.
local function check_twin(file, twin, name, first, count, values)
  local other = ffi.new("float[?]", count)
  local bytes = file:read_f32(twin, nil, first, count, other)
  local a, b = ffi.cast("const int32_t *", values), ffi.cast("const int32_t *", other)
  for i = 0, tonumber(count) - 1 do
    if a[i] ~= b[i] then
      errors.raise("MS_EMISMATCH", "%s: config.json ties %s to %s, but they differ at element %d: remove one of "
        .. "them, or, if the family can have both, set tie_word_embeddings to false", file.path, twin, name, first + i)
    end
  end
  return bytes
end

---The origin of a parameter: a slice of a tensor of a file.
---@param file moonshard.Safetensors
---@param tensor { shape: integer[], stored_as: string }
---@param slice table of a moonshard.HuggingFaceTensor
---@param twin string? a tensor that must have the same values
---@return moonshard.ValueSource
function weights.source(file, tensor, slice, twin)
  local view, elements = weights.view(tensor, slice)
  local function read(first, count, out)
    local stored = math.max(0, math.min(count, elements - first)) -- the rest is padding of the vocabulary
    if stored < count then ffi.fill(out + stored, (count - stored) * 4) end
    if stored == 0 then return 0 end
    local bytes = file:read_f32(tensor.stored_as, view, first, stored, out)
    if twin then bytes = bytes + check_twin(file, twin, tensor.stored_as, first, stored, out) end
    return bytes
  end
  return { read = read, path = file.path, identity = function() return file:sample() end }
end

-- A parameter of several tensors, one after the other, as each expert's matrix has one. Adds one of them.
local function join(sources, slice, source, elements)
  local whole, parts = sources[slice.parameter], { source }
  if whole then
    whole.parts[#whole.parts + 1] = source
    return whole
  end
  local function read(first, count, out)
    local bytes = 0
    first, count = tonumber(first), tonumber(count)
    while count > 0 do
      local part = math.floor(first / elements)
      local n = math.min(count, (part + 1) * elements - first)
      bytes = bytes + parts[part + 1].read(first - part * elements, n, out)
      first, count, out = first + n, count - n, out + n
    end
    return bytes
  end
  return { read = read, path = source.path, identity = source.identity, parts = parts }
end

---Opens a folder's weights, checks them against the model, and locates each parameter.
---@param folder string
---@param family moonshard.HuggingFaceFamily
---@param options table the model's
---@param reading { skipped: string[]?, scheme: moonshard.QuantisedScheme? }? patterns of names, without the prefix, of
---  tensors that are not read; how the weights are quantised
---@return table<string, moonshard.ValueSource> sources by our parameter's name
---@return integer skipped how many tensors are not read
function weights.open(folder, family, options, reading)
  faults.check_weights(folder, family)
  reading = reading or {}
  local file = quantised.file(safetensors.open(folder), reading.scheme)
  if options.layers > #file.tensors then -- before building a list of all
    errors.raise("MS_EMISMATCH", "%s: config.json requires %d layers, but there are only %d tensors", file.path,
      options.layers, #file.tensors)
  end
  if family.nested then
    family = family.nested(file)
    family.settle(file, options)
  end
  local prefix = (family.nested or weights.has_prefix(file, family.prefix)) and family.prefix or ""
  local expected, list = {}, family.tensors(options)
  for _, tensor in ipairs(list) do
    tensor.stored_as = name_in(file, family, weights.full_name(family, prefix, tensor))
    expected[tensor.stored_as] = tensor
  end
  local count_skipped = check_names(file, family, prefix, expected, reading.skipped or {})
  local sources = {}
  local head = options.tied and file.by_name[family.head] and family.head or nil
  for _, tensor in ipairs(list) do
    for _, slice in ipairs(tensor.slices) do
      local twin = slice.parameter == "embed.weight" and head or tensor.tied_to
      local source = weights.source(file, tensor, slice, file.by_name[twin] and twin or nil)
      local _, elements = weights.view(tensor, slice)
      sources[slice.parameter] = slice.parts and join(sources, slice, source, elements) or source
    end
  end
  return sources, count_skipped
end

return weights
