-- Writes adapters as a folder that PEFT reads, from any source of parameters: a model over ranks, or a checkpoint.

local adapter = require("moonshard.nn.adapter")
local adapter_config = require("moonshard.huggingface.adapter_config")
local adapter_names = require("moonshard.huggingface.adapter_names")
local base_tensors = require("moonshard.huggingface.peft.base_tensors")
local copy_slice = require("moonshard.huggingface.write").copy_slice
local errors = require("moonshard.base.error")
local ffi = require("ffi")
local files_written = require("moonshard.base.files.written")
local input_file = require("moonshard.base.files.input_file")
local one_writer = require("moonshard.distributed.one_writer")
local output_file = require("moonshard.base.files.output_file")
local safetensors = require("moonshard.base.files.safetensors")
local saved_dtypes = require("moonshard.huggingface.saved_dtypes")
local saved_parts = require("moonshard.huggingface.peft.saved_parts")

local adapter_writer = {}

local FILE = adapter_config.WEIGHTS

-- A folder of a whole model, which adapters next to it would change.
local OF_MODEL = { "config.json", "model.safetensors", "model.safetensors.index.json" }

---@class moonshard.AdapterSource
---@field records moonshard.AdapterRecord[] not empty
---@field tokens moonshard.TokensRecord[]? rows of embeddings that train
---@field parameters { name: string, shape: integer[], trained: boolean }[] all of the model
---@field layout string|table? contents of the model's config.json
---@field read fun(name: string, first: number, count: number): ffi.cdata* elements of a parameter as const float *,
---  valid until the next read; collective if the parameters are divided over ranks
---@field writes boolean? false: only take part in collective reads, write nothing; default true

---Creates a folder, and raises MS_EINVAL if it contains adapters or a model, or is not writable.
---@param folder string
function adapter_writer.check_folder(folder)
  for _, name in ipairs(adapter_config.FILES) do
    if input_file.exists(folder .. "/" .. name) then
      errors.invalid("%s/%s already exists: save into a different folder", folder, name)
    end
  end
  for _, name in ipairs(OF_MODEL) do
    if input_file.exists(folder .. "/" .. name) then
      errors.invalid("%s/%s already exists: Hugging Face's library would add adapters in the folder of a whole model "
        .. "to its weights: save them into a folder of their own", folder, name)
    end
  end
  output_file.check("adapters cannot be saved:", folder .. "/" .. adapter_config.NAME)
end

-- What a folder has besides adapters, the fields of its config for that, and a warning of what it leaves out.
local function others_of(source, written)
  local adapted, own, base, trained = {}, {}, {}, {}
  for _, one in ipairs(written) do adapted[one.module.name] = true end
  for _, record in ipairs(source.records) do
    for _, part in ipairs(adapter.PARTS) do own[record[part.record] or ""] = true end
  end
  for _, record in ipairs(source.tokens or {}) do own[record.delta] = true end
  for _, param in ipairs(source.parameters) do
    if not own[param.name] then base[#base + 1] = param end
    if not own[param.name] and param.trained then trained[#trained + 1] = param.name end
  end
  local list = base_tensors.list(source.layout, base)
  local saved, fields, left_out = saved_parts.of_trained(list, adapted, trained, source.tokens or {})
  local warning = left_out[1] and ("%s%s was trained, too, and is not in a folder of adapters: save the whole model")
    :format(left_out[1], #left_out > 1 and (" (and %d more)"):format(#left_out - 1) or "")
  return saved, fields, warning
end

-- A file has one kind of adapters, and lengths of all rows of a module.
local function check_kind(written, one)
  for _, part in ipairs(adapter.PARTS) do
    for _, place in ipairs(one.parts) do
      if part.when and (place.record[part.record] ~= nil) ~= written[1][part.when] then
        errors.raise("MS_EUNSUPPORTED", "adapters: %s has %s%s, and %s has not: PEFT's files have one %s for all: give "
          .. "all of them the same", place.record.layer, part.when, written[1][part.when] and " = false" or " = true",
          written[1].parts[1].record.layer, part.when)
      end
    end
  end
  if one.use_dora and #one.parts < #one.module.rows then
    errors.raise("MS_EUNSUPPORTED", "adapters: %s has use_dora, and %s has more layers, whose rows need lengths, too: "
      .. "give all of them adapters", one.parts[1].record.layer, one.module.name)
  end
end

-- The modules with adapters, with the alpha of all their layers.
local function collect(source)
  local records, written = {}, {}
  for _, record in ipairs(source.records) do records[record.layer] = record end
  local modules, family = adapter_names.modules(source.layout, source.records)
  for _, module in ipairs(modules) do
    local parts, rank = adapter_names.parts(module, records)
    if parts[1] then
      local scale, dropout = 0, 0 -- a folder can have adapters that are multiplied by 0
      for _, part in ipairs(parts) do
        if scale == 0 then scale = part.record.alpha / part.record.rank end
        dropout = math.max(dropout, part.record.dropout)
        if part.record.inputs ~= module.inputs or part.record.outputs < part.rows then -- more rows are padding
          errors.raise("MS_EMISMATCH", "adapters: layer %s is [%d,%d], but module %s has [%d,%d] of it",
            part.record.layer, part.record.outputs, part.record.inputs, module.name, part.rows, module.inputs)
        end
      end
      local first = parts[1].record
      written[#written + 1] = { module = module, parts = parts, rank = rank, alpha = scale * rank, dropout = dropout,
        use_dora = first.magnitude ~= nil, lora_bias = first.bias ~= nil }
      check_kind(written, written[#written])
    end
  end
  return written, modules, family
end

-- A [rank, inputs] of a module, from those of its layers.
local function down_of(source, one)
  local inputs = one.module.inputs
  local values = ffi.new("float[?]", one.rank * inputs)
  for _, part in ipairs(one.parts) do
    if part.first then
      local count = part.record.rank * inputs
      local own = source.read(part.record.down, 0, count)
      if source.writes ~= false then ffi.copy(values + part.column * inputs, own, 4 * count) end
    end
  end
  return values
end

-- B [outputs, rank], or a vector [outputs]. A layer with another factor alpha / rank than the module's has the ratio in
-- what is multiplied by it.
local function rows_of(source, one, part)
  local width = #part.shape(one.rank, 1, 1) == 2 and one.rank or 1
  local values, scale = ffi.new("float[?]", one.module.outputs * width), one.alpha / one.rank
  for _, place in ipairs(one.parts) do
    local record = place.record
    local columns = width > 1 and record.rank or 1
    local own = source.read(record[part.record], 0, place.rows * columns)
    local ratio = (scale == 0 or not part.scaled) and 1 or record.alpha / record.rank / scale
    for row = 0, source.writes ~= false and place.rows - 1 or -1 do
      local at = (place.row + row) * width + (width > 1 and place.column or 0)
      for column = 0, columns - 1 do values[at + column] = ratio * own[row * columns + column] end
    end
  end
  return values
end

-- The tensors of a folder: what each is called, its shape, and what writes it.
local function declare(source, written, saved)
  local list = {}
  for _, entry in ipairs(written) do
    for _, part in ipairs(adapter.PARTS) do
      if not part.when or entry[part.when] then
        local shape = part.shape(entry.rank, entry.module.inputs, entry.module.outputs)
        list[#list + 1] = { name = adapter_names.tensor(entry.module.name, part), shape = shape,
          values = function() return part.rows and rows_of(source, entry, part) or down_of(source, entry) end }
      end
    end
  end
  for _, part in ipairs(saved.parts) do
    for _, name in ipairs({ part.stored, part.twin }) do
      list[#list + 1] = { name = name, shape = part.entry.tensor.shape, slices = part.entry.tensor.slices }
    end
  end
  for _, tokens in ipairs(saved.tokens) do
    local record = tokens.record
    list[#list + 1] = { name = tokens.stored, shape = { #record.indices, record.dim },
      values = function() return source.read(record.delta, 0, #record.indices * record.dim) end }
  end
  for _, tensor in ipairs(list) do
    tensor.elements = 1
    for _, size in ipairs(tensor.shape) do tensor.elements = tensor.elements * size end
  end
  return list
end

local function write_tensor(source, writer, tensor, one)
  if tensor.values then
    local values = tensor.values()
    if one.writes then one:try(writer.put_f32, writer, tensor.name, nil, 0, tensor.elements, values) end
    return
  end
  for _, slice in ipairs(tensor.slices) do
    copy_slice(one, writer, { shape = tensor.shape, stored_as = tensor.name }, slice, {
      read = function(first, count) return source.read(slice.parameter, first, count) end,
    })
  end
end

local function write_tensors(source, folder, tensors, dtype, one)
  local declared = {}
  for i, tensor in ipairs(tensors) do declared[i] = { name = tensor.name, dtype = dtype, shape = tensor.shape } end
  one:file(safetensors.create, function(writer)
    for _, tensor in ipairs(tensors) do write_tensor(source, writer, tensor, one) end
  end, folder .. "/" .. FILE, declared, { metadata = { format = "pt" } })
end

-- Whether a family's model predicts the next token; of a model without a family nothing is known.
local function generates(family)
  local architecture = family and family.architecture or ""
  return architecture:find("ForCausalLM$") ~= nil or architecture:find("LMHeadModel$") ~= nil
end

---Writes adapter_model.safetensors and adapter_config.json. If reading is collective, all ranks must call it.
---@param folder string created; must not already contain adapters
---@param source moonshard.AdapterSource
---@param given { dtype: string?, base: string? }? "f32" (default), "bf16" or "f16"; base_model_name_or_path
---@return { bytes: number, tensors: integer } written
---@return string? warning of what was trained and is not in it
function adapter_writer.write(folder, source, given)
  given = given or {}
  local dtype = saved_dtypes.read("ms.lora.save", given.dtype)
  folder = folder:gsub("(.)/+$", "%1")
  local written, modules, family = collect(source)
  local saved, fields, warning = others_of(source, written)
  local one = one_writer.new(source)
  one:try(adapter_writer.check_folder, folder)
  one:meet()
  local tensors, elements = declare(source, written, saved), 0
  write_tensors(source, folder, tensors, dtype.stored, one)
  for _, tensor in ipairs(tensors) do elements = elements + tensor.elements end
  one:try(function()
    local text, dropout = adapter_config.text(written, modules, {
      transposed = family ~= nil and family.transposed == true, base = given.base, generates = generates(family),
      more = fields,
    })
    output_file.write("adapters", folder .. "/" .. adapter_config.NAME, text)
    if dropout then
      io.stderr:write(("moonshard: warning: %s has one lora_dropout for all adapters: those that are loaded from it "
        .. "have %g, and some of these have less\n"):format(adapter_config.NAME, dropout))
    end
  end)
  one:meet()
  files_written.note("adapters", folder)
  return { bytes = elements * dtype.bytes, tensors = #tensors }, warning
end

return adapter_writer
