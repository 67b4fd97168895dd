-- Writes a folder in Hugging Face's layout from any source of parameters by element ranges: a model sharded over ranks,
-- or a checkpoint on disk. Holds a small part of the parameters in memory at a time.
--
-- Files appear one by one, each complete, config.json last: a folder without it is unfinished.

local adapter_config = require("moonshard.huggingface.adapter_config")
local byte_size = require("moonshard.base.text.byte_size")
local config = require("moonshard.huggingface.config")
local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.files.input_file")
local json = require("moonshard.base.text.json")
local listing = require("moonshard.data.files.listing")
local options = require("moonshard.base.checks.options")
local one_writer = require("moonshard.distributed.one_writer")
local outer = require("moonshard.huggingface.folder.outer")
local output_file = require("moonshard.base.files.output_file")
local safetensors = require("moonshard.base.files.safetensors")
local saved_dtypes = require("moonshard.huggingface.saved_dtypes")
local weights = require("moonshard.huggingface.weights")
local written = require("moonshard.base.files.written")

local PIECE = 2 ^ 23 -- elements per read
local F32 = saved_dtypes.read("ms.huggingface")

---@class moonshard.HuggingFaceSource
---@field config table contents of config.json: as read from a file, or as returned by huggingface.config
---@field parameters fun(): string?, integer[]?, function? yields name, dims and read(first, count), which returns
---  elements [first, first + count) of the flattened parameter as const float *, valid until the next read
---@field folder string? where the model was read from: its tokenizer and what it says of generation are copied, and the
---  tensors of parts that Moonshard does not run
---@field writes boolean? false: only take part in collective reads, write nothing; default true

local function read_size(given)
  local bytes = byte_size.read(given)
  if not bytes or bytes < 1 then
    errors.invalid("max_shard_size must be a size such as \"5GB\", \"500MB\" or a number of bytes, not %s",
      options.describe(given))
  end
  return bytes
end

local function read_options(given)
  given = options.parse("ms.huggingface", given, {
    dtype = { "string" }, max_shard_size = { "any", default = "5GB" },
    ema = { "boolean" }, -- handled by ms.huggingface.save
  })
  return saved_dtypes.read("ms.huggingface", given.dtype), read_size(given.max_shard_size)
end

local function collect(source)
  local found = {}
  for name, dims, read in source.parameters do found[name] = { dims = dims, read = read } end
  return found
end

local function holds_vocabulary(tensor, model)
  if tensor.vocabulary then return true end
  local slice = tensor.slices[1]
  return #tensor.shape == 2 and tensor.shape[1] == model.vocab and not slice.column and not slice.parts
end

-- Checks that every part of every tensor has a parameter of its size, apart from vocabulary padding.
local function check_parameters(found, tensors, model)
  local left = {}
  for name in pairs(found) do left[name] = true end
  for _, tensor in ipairs(tensors) do
    for _, slice in ipairs(tensor.slices) do
      local parameter = found[slice.parameter]
      local _, elements = weights.view(tensor, slice)
      if not parameter then errors.raise("MS_EMISMATCH", "parameter %s is missing", slice.parameter) end
      local size, first = weights.numel(parameter.dims), tensor.shape[1]
      local padded = holds_vocabulary(tensor, model) and parameter.dims[1] > first
        and elements / first == size / parameter.dims[1]
      if size ~= elements * (slice.parts or 1) and not padded then
        errors.raise("MS_EMISMATCH", "parameter %s is [%s], but tensor %s contains %d elements of it", slice.parameter,
          table.concat(parameter.dims, ","), tensor.name, elements)
      end
      left[slice.parameter] = nil
    end
  end
  local extra = next(left)
  if extra then errors.raise("MS_EMISMATCH", "parameter %s has no place in config.json's model", extra) end
end

local function dtype_of(tensor, dtype) return tensor.exact and F32 or dtype end

-- Splits like the reference library: in order, with a new file when the next tensor would exceed the size limit.
local function divide(tensors, dtype, limit)
  local files = { { bytes = 0 } }
  for _, tensor in ipairs(tensors) do
    local bytes = tensor.stored and tensor.stored.bytes or weights.numel(tensor.shape) * dtype_of(tensor, dtype).bytes
    local file = files[#files]
    if #file > 0 and file.bytes + bytes > limit then
      file = { bytes = 0 }
      files[#files + 1] = file
    end
    file[#file + 1], file.bytes = tensor, file.bytes + bytes
  end
  for i, file in ipairs(files) do
    file.name = #files == 1 and "model.safetensors" or ("model-%05d-of-%05d.safetensors"):format(i, #files)
  end
  return files
end

---Copies a parameter to its place in a tensor, a piece at a time. Reading can be collective.
---@param one table of distributed/one_writer.lua
---@param writer table? of base/files/safetensors.lua; nil on ranks that write nothing
---@param tensor { shape: integer[], stored_as: string }
---@param slice table of a moonshard.HuggingFaceTensor
---@param parameter { read: fun(first: number, count: number): ffi.cdata*? }
local function copy_slice(one, writer, tensor, slice, parameter)
  local view, elements = weights.view(tensor, slice)
  for first = 0, elements - 1, PIECE do
    local count = math.min(PIECE, elements - first)
    local values = parameter.read((slice.first or 0) + first, count)
    if one.writes then one:try(writer.put_f32, writer, tensor.stored_as, view, first, count, values) end
  end
end

-- others: the file with the tensors of other parts.
local function write_file(folder, file, found, dtype, one, others)
  local declared = {}
  for i, tensor in ipairs(file) do
    local stored = tensor.stored and tensor.stored.dtype or dtype_of(tensor, dtype).stored
    declared[i] = { name = tensor.stored_as, dtype = stored, shape = tensor.shape }
  end
  one:file(safetensors.create, function(writer)
    for _, tensor in ipairs(file) do
      for _, slice in ipairs(tensor.slices or {}) do copy_slice(one, writer, tensor, slice, found[slice.parameter]) end
      if tensor.stored then one:try(outer.copy, others, writer, tensor.stored) end
    end
  end, folder .. "/" .. file.name, declared, { metadata = { format = "pt" } })
end

local function index_text(files)
  local map, total = {}, 0
  for _, file in ipairs(files) do
    total = total + file.bytes
    for _, tensor in ipairs(file) do map[tensor.stored_as] = file.name end
  end
  return json.encode({ metadata = { total_size = total }, weight_map = map }) .. "\n", total
end

-- Files that a saved model would replace, and those that would change it: what to do about each.
local REPLACED = "save into a different folder"
local CHANGING = "Hugging Face's library would add these adapters to the saved weights: save into a different folder, "
  .. "or remove the adapters first"
local REFUSED = {
  { "config.json", REPLACED }, { "model.safetensors", REPLACED }, { "model.safetensors.index.json", REPLACED },
}
for _, name in ipairs(adapter_config.FILES) do REFUSED[#REFUSED + 1] = { name, CHANGING } end

---Creates a folder, and raises MS_EINVAL when it contains a model or adapters, or is not writable. Called before
---training, so that the error does not come after it.
---@param folder string
local function check_folder(folder)
  for _, row in ipairs(REFUSED) do
    if input_file.exists(folder .. "/" .. row[1]) then
      errors.invalid("%s/%s already exists: %s", folder, row[1], row[2])
    end
  end
  output_file.check("a model cannot be saved:", folder .. "/config.json")
end

-- What a folder says of its model's texts, in every form that tokenizers of Hugging Face's library are saved in.
local COMPANIONS = {
  "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
  "chat_template.json", "added_tokens.json", "tokenizer.model", "vocab.json", "merges.txt", "vocab.txt",
  "tiktoken.model", "tekken.json",
  -- Of images.
  "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json",
}
-- Further ones, by pattern.
local MORE_TEMPLATES = "additional_chat_templates/*.jinja"

local function companions_of(folder)
  local names = { unpack(COMPANIONS) }
  for _, path in ipairs(listing.match(listing.literal(folder) .. "/" .. MORE_TEMPLATES)) do
    names[#names + 1] = path:sub(#folder + 2)
  end
  return names
end

---Refuses a folder that has none of these files.
---@param folder string
local function check_companions(folder)
  for _, name in ipairs(COMPANIONS) do
    if input_file.exists(folder .. "/" .. name) then return end
  end
  errors.invalid("%s: there is no tokenizer and no generation_config.json to copy: give the folder of a model, with "
    .. "one of %s", folder, table.concat(COMPANIONS, ", "))
end

-- A file that is already there stays: it was put there for this model.
local function copy_companions(from, to)
  for _, name in ipairs(companions_of(from)) do
    local path = to .. "/" .. name
    if input_file.exists(from .. "/" .. name) and not input_file.exists(path) then
      output_file.make_folders(name, path)
      local text = input_file.read(from .. "/" .. name, "it is saved with the model that was read there")
      output_file.write(name, path .. ".partial", text)
      local ok, why = os.rename(path .. ".partial", path)
      if not ok then errors.raise("MS_EIO", "%s %s", name, why) end
    end
  end
end

-- The config with the fields that depend on this save.
local function config_of(source, family, dtype)
  local whole = { architectures = { family.architecture } }
  for key, value in pairs(source.config) do whole[key] = value end
  -- A config can name the type twice, by its old name and its new one.
  for _, name in ipairs({ "dtype", "torch_dtype" }) do
    if whole[name] ~= nil then whole[name] = dtype.torch end
  end
  if whole.dtype == nil then whole.torch_dtype = dtype.torch end
  return config.text(whole, source.config)
end

---Writes config.json and model.safetensors, or several files and their index. If reading is collective, all ranks must
---call it; one of them writes.
---@param folder string created; must not already contain a model
---@param source moonshard.HuggingFaceSource
---@param given { dtype: string?, max_shard_size: string|number? }? "f32" (default), "bf16" or "f16"; "5GB"
---@return { bytes: number, files: string[], tensors: integer } written
local function write(folder, source, given)
  local dtype, limit = read_options(given)
  folder = folder:gsub("(.)/+$", "%1")
  local family, model = config.parse(source.config, "config.json")
  local found = collect(source)
  if family.nested then model.tied = not found["head.weight"] end
  local tensors = family.tensors(model)
  check_parameters(found, tensors, model)
  local one = one_writer.new(source)
  one:try(check_folder, folder)
  local others = family.nested and one:on_each(outer.open, family, source.config.model_type, source.folder, config.read)
  one:meet()
  if others then
    family = family.nested(others)
    tensors = family.tensors(model)
  end
  for _, tensor in ipairs(tensors) do
    tensor.stored_as = weights.full_name(family, family.prefix, tensor)
  end
  for _, tensor in ipairs(others and outer.others(family, others) or {}) do tensors[#tensors + 1] = tensor end
  local files, names = divide(tensors, dtype, limit), {}
  for i, file in ipairs(files) do
    write_file(folder, file, found, dtype, one, others)
    names[i] = file.name
  end
  local index, bytes = index_text(files)
  one:try(function()
    if #files > 1 then output_file.write("index", folder .. "/model.safetensors.index.json", index) end
    if source.folder then copy_companions(source.folder, folder) end
    output_file.write("config", folder .. "/config.json", config_of(source, family, dtype))
  end)
  one:meet()
  written.note("model", folder)
  return { bytes = bytes, files = names, tensors = #tensors }
end

---Shapes of embedding and head without vocabulary padding.
---@param layout table contents of config.json
---@return table<string, integer[]> by the parameter's name
local function vocabulary_shapes(layout)
  local family, model = config.parse(layout, "config.json")
  local found = {}
  for _, tensor in ipairs(family.tensors(model)) do
    if holds_vocabulary(tensor, model) then found[tensor.slices[1].parameter] = tensor.shape end
  end
  return found
end

return {
  write = write, copy_slice = copy_slice, check_folder = check_folder, check_companions = check_companions,
  vocabulary_shapes = vocabulary_shapes,
}
