-- Writes adapters as a folder that PEFT reads, from any source of parameters: a model over ranks, or a checkpoint.

local adapter_config = require("moonshard.huggingface.adapter_config")
local adapter_names = require("moonshard.huggingface.adapter_names")
local errors = require("moonshard.base.error")
local ffi = require("ffi")
local files_written = require("moonshard.base.files.written")
local input_file = require("moonshard.base.files.input_file")
local one_writer = require("moonshard.distributed.one_writer")
local output_file = require("moonshard.base.files.output_file")
local safetensors = require("moonshard.base.files.safetensors")
local saved_dtypes = require("moonshard.huggingface.saved_dtypes")

local adapter_writer = {}

local FILE = adapter_config.WEIGHTS

-- A folder of a whole model, which adapters next to it would change.
local OF_MODEL = { "config.json", "model.safetensors", "model.safetensors.index.json" }

---@class moonshard.AdapterSource
---@field records moonshard.AdapterRecord[] not empty
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

---What a folder of adapters leaves out, for people; nil if nothing else was trained.
---@param records moonshard.AdapterRecord[]
---@param trained string[] names of the parameters that were trained
---@return string?
function adapter_writer.left_out(records, trained)
  local saved, others = {}, {}
  for _, record in ipairs(records) do saved[record.down], saved[record.up] = true, true end
  for _, name in ipairs(trained) do
    if not saved[name] then others[#others + 1] = name end
  end
  if not others[1] then return nil end
  return ("%s%s was trained, too, and is not in a folder of adapters: save the whole model"):format(others[1],
    #others > 1 and (" (and %d more)"):format(#others - 1) or "")
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
      written[#written + 1] = { module = module, parts = parts, rank = rank, alpha = scale * rank, dropout = dropout }
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

-- B [outputs, rank]. A layer with another factor alpha / rank than the module's has the ratio in its values.
local function up_of(source, one)
  local values, scale = ffi.new("float[?]", one.module.outputs * one.rank), one.alpha / one.rank
  for _, part in ipairs(one.parts) do
    local record = part.record
    local own = source.read(record.up, 0, part.rows * record.rank)
    local ratio = scale == 0 and 1 or record.alpha / record.rank / scale
    for row = 0, source.writes ~= false and part.rows - 1 or -1 do
      local at = (part.row + row) * one.rank + part.column
      for column = 0, record.rank - 1 do values[at + column] = ratio * own[row * record.rank + column] end
    end
  end
  return values
end

local function write_tensors(source, folder, written, dtype, one)
  local declared = {}
  for _, entry in ipairs(written) do
    local down, up = adapter_names.tensors(entry.module.name)
    table.insert(declared, { name = down, dtype = dtype, shape = { entry.rank, entry.module.inputs } })
    table.insert(declared, { name = up, dtype = dtype, shape = { entry.module.outputs, entry.rank } })
  end
  local writer = one:try(safetensors.create, folder .. "/" .. FILE, declared, { metadata = { format = "pt" } })
  local ok, problem = pcall(function()
    for _, entry in ipairs(written) do
      local down, up = adapter_names.tensors(entry.module.name)
      local a = down_of(source, entry)
      if one.writes then one:try(writer.put_f32, writer, down, nil, 0, entry.rank * entry.module.inputs, a) end
      local b = up_of(source, entry)
      if one.writes then one:try(writer.put_f32, writer, up, nil, 0, entry.rank * entry.module.outputs, b) end
    end
    if one.writes then one:try(writer.finish, writer) end
  end)
  if writer and (not ok or one.problem) then writer:abort() end
  if not ok then error(problem, 0) end
  return declared
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
function adapter_writer.write(folder, source, given)
  given = given or {}
  local dtype = saved_dtypes.read("ms.lora.save", given.dtype)
  folder = folder:gsub("(.)/+$", "%1")
  local written, modules, family = collect(source)
  local one = one_writer.new(source)
  one:try(adapter_writer.check_folder, folder)
  one:meet()
  local declared = write_tensors(source, folder, written, dtype.stored, one)
  local elements = 0
  for _, tensor in ipairs(declared) do elements = elements + tensor.shape[1] * tensor.shape[2] end
  one:try(function()
    local text, dropout = adapter_config.text(written, modules, {
      transposed = family ~= nil and family.transposed == true, base = given.base, generates = generates(family),
    })
    output_file.write("adapters", folder .. "/" .. adapter_config.NAME, text)
    if dropout then
      io.stderr:write(("moonshard: warning: %s has one lora_dropout for all adapters: those that are loaded from it "
        .. "have %g, and some of these have less\n"):format(adapter_config.NAME, dropout))
    end
  end)
  one:meet()
  files_written.note("adapters", folder)
  return { bytes = elements * dtype.bytes, tensors = #declared }
end

return adapter_writer
