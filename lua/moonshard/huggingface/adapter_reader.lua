-- Reads a folder of PEFT's adapters: which layers they are for, and their values as the origin of parameters, of which
-- each rank reads its own elements.

local adapter = require("moonshard.nn.adapter")
local adapter_config = require("moonshard.huggingface.adapter_config")
local adapter_names = require("moonshard.huggingface.adapter_names")
local errors = require("moonshard.base.error")
local faults = require("moonshard.huggingface.folder.faults")
local input_file = require("moonshard.base.files.input_file")
local layouts = require("moonshard.huggingface.layout")
local nearest = require("moonshard.base.names.nearest")
local safetensors = require("moonshard.base.files.safetensors")
local shardings = require("moonshard.shard.sharding")
local ffi = require("ffi")

local adapter_reader = {}

local FLOATS = { F32 = true, BF16 = true, F16 = true, F64 = true }

-- The modules of a model's linear layers, as its layout or its own names have them; and the layer whose weight is all
-- of a stored tensor, by the tensor's name without ".weight".
local function modules_of(model)
  local own, linear, list, layers, by_name = {}, {}, {}, {}, {}
  for name, module in model:named_modules() do
    layers[name] = module
    if module.takes_adapter and name ~= "" then
      linear[name] = true
      own[#own + 1] = { layer = name, inputs = module.weight.shape[2], outputs = module.weight.shape[1] }
    end
  end
  local layout = layouts.of(model)
  local modules, family = adapter_names.modules(layout and layout.huggingface, own)
  for _, module in ipairs(modules) do
    local first = module.rows[1]
    if linear[first.layer] then list[#list + 1] = module end
    if first.rows == module.outputs then by_name[module.name] = layers[first.layer] end
  end
  local head = family and family.head:match("^(.*)%.weight$")
  if head then by_name[head] = layers.head end -- which no tensor has if it is tied
  return list, by_name
end

-- ---- weights of the model itself --------------------------------------------------------------------------------
--
-- If a head or an embedding has an adapter, PEFT also saves its weight, and that of the other (save_embedding_layers =
-- "auto"): the base model's, unless that was changed.

local AT_ONCE = 2 ^ 20 -- elements that are compared at a time

-- The name of a layer of the model whose weight a tensor is.
local function weight_of(tensor)
  local name = tensor:match("^base_model%.model%.(.*)%.weight$")
  return name and not name:find("%.lora_[^.]*$") and name:gsub("%.base_layer$", "") or nil
end

local function equals_weight(file, tensor, weight)
  local shape, stored, own = tensor.shape, ffi.new("float[?]", AT_ONCE), ffi.new("float[?]", AT_ONCE)
  if #shape ~= 2 or shape[1] > weight.shape[1] or shape[2] ~= weight.shape[2] then return false end
  for first = 0, tensor.elements - 1, AT_ONCE do
    local count = math.min(AT_ONCE, tensor.elements - first)
    file:read_f32(tensor.name, nil, first, count, stored)
    weight.source.read(first, count, own)
    for i = 0, count - 1 do
      if stored[i] ~= own[i] then return false end
    end
  end
  return true
end

local function check_weight(file, found)
  local weight, tensor = found.layer.weight, file.by_name[found.tensor]
  if weight.source and FLOATS[tensor.dtype] and equals_weight(file, tensor, weight) then return end
  errors.raise("MS_EMISMATCH", "%s: %s is a weight of the model itself, %s: load the adapters into the model that they "
    .. "were trained on; if its weight did not change, save them with PEFT's save_embedding_layers=False", file.path,
    found.tensor, weight.source and "and differs from the one here"
    or "and the one here is not from a folder, so the two cannot be compared")
end

-- ---- adapters ---------------------------------------------------------------------------------------------------

-- "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight" -> "transformer.h.0.attn.c_attn", "A"
local function split(path, name)
  local module, which = name:match("^base_model%.model%.(.*)%.lora_([AB])%.weight$")
  if module then return module, which end
  errors.raise("MS_EUNSUPPORTED", "%s: tensor %s is not the lora_A or lora_B of a linear layer, "
    .. "base_model.model.<name>.lora_A.weight", path, name)
end

local function expect(file, tensor, shape, why)
  if #tensor.shape == 2 and tensor.shape[1] == shape[1] and tensor.shape[2] == shape[2] then return end
  errors.raise("MS_EMISMATCH", "%s: %s is [%s], but %s it is [%d,%d]: the adapters are of another model or rank",
    file.path, tensor.name, table.concat(tensor.shape, ","), why, shape[1], shape[2])
end

---@class moonshard.AdapterFile
---@field file moonshard.Safetensors
---@field modules { module: moonshard.AdaptedModule, config: moonshard.Adapter, down: string, up: string }[] in the
---  order of the model
---@field weights { tensor: string, layer: moonshard.Module }[] of the model itself

local function check_tensors(file, path, found)
  local module, config = found.module, found.config
  for _, name in ipairs({ found.down, found.up }) do
    local stored = file.by_name[name]
    if not stored then errors.raise("MS_EMISMATCH", "%s: tensor %s is missing", file.path, name) end
    if not FLOATS[stored.dtype] then
      errors.raise("MS_EDTYPE", "%s: tensor %s is %s: adapters are F32, BF16, F16 or F64", file.path, name,
        stored.dtype)
    end
  end
  expect(file, file.by_name[found.down], { config.rank, module.inputs }, "with the model and " .. path)
  expect(file, file.by_name[found.up], { module.outputs, config.rank }, "with the model and " .. path)
end

-- Says what a folder without adapters is, where it is something else.
local function open_file(folder)
  local path = folder .. "/adapter_model.safetensors"
  if input_file.exists(path) then
    faults.check_safetensors(path)
    return safetensors.open(path)
  end
  local hint = ""
  if input_file.exists(folder .. "/adapter_model.bin") then
    hint = "; adapter_model.bin cannot be read: save with PEFT's safe_serialization = True"
  elseif input_file.exists(folder .. "/config.json") then
    hint = "; it is the folder of a whole model, which ms.huggingface.model reads"
  end
  errors.invalid("%s has no adapter_model.safetensors, so it is not a folder of adapters%s", folder, hint)
end

-- Opens a folder, and checks its names, shapes and types against a model.
local function open(model, folder)
  local file = open_file((folder:gsub("(.)/+$", "%1")))
  local config = adapter_config.read(folder) -- first: its fields say why a file has other tensors
  local modules, layers = modules_of(model)
  local opened, by_name, names, present = { file = file, modules = {}, weights = {} }, {}, {}, {}
  for _, module in ipairs(modules) do by_name[module.name] = module end
  for _, tensor in ipairs(file.tensors) do
    local of_model = weight_of(tensor.name)
    local name = not layers[of_model or ""] and split(file.path, tensor.name)
    if not name then
      opened.weights[#opened.weights + 1] = { tensor = tensor.name, layer = layers[of_model] }
    elseif not by_name[name] then
      errors.raise("MS_EMISMATCH", "%s: tensor %s: the model has no linear layer %s: %s", file.path, tensor.name, name,
        nearest.advice(name, by_name))
    else
      present[name] = true
    end
  end
  local all = {}
  for i, module in ipairs(modules) do
    all[i] = module.name
    if present[module.name] then names[#names + 1] = module.name end
  end
  local lacking = adapter_config.lacking(config, all, present)
  if lacking[1] then
    opened.lacking = ("%s: target_modules names %s%s, of which the folder has no tensors: they get no adapter"):format(
      config.path, lacking[1], lacking[2] and (" and %d more"):format(#lacking - 1) or "")
  end
  if not names[1] then errors.invalid("%s holds no adapters", file.path) end
  local configs = adapter_config.of_modules(config, names)
  for i, name in ipairs(names) do
    local down, up = adapter_names.tensors(name)
    opened.modules[i] = { module = by_name[name], config = configs[name], down = down, up = up }
    check_tensors(file, config.path, opened.modules[i])
  end
  return opened
end

---The layers that a folder has adapters for, as ms.lora gives them: those of one module have one A.
---@param model moonshard.Module without adapters
---@param folder string
---@return { name: string, layer: moonshard.Module, config: moonshard.Adapter, shared: moonshard.Module?,
---  loaded: boolean }[]
function adapter_reader.layers(model, folder)
  local by_name, list = {}, {}
  for name, module in model:named_modules() do by_name[name] = module end
  local opened = open(model, folder)
  shardings.report({ opened.lacking })
  for _, found in ipairs(opened.modules) do
    local first
    for _, place in ipairs(found.module.rows) do
      local layer = by_name[place.layer]
      list[#list + 1] = { name = place.layer, layer = layer, config = found.config, shared = first, loaded = true }
      first = first or layer
    end
  end
  opened.file:close()
  return list
end

-- ---- values -----------------------------------------------------------------------------------------------------

-- Elements of a matrix [rows, columns] of a file, from a row and a column on; zeros behind its last row.
local function source(file, name, rows, columns, row, column)
  local width = file.by_name[name].shape[2]
  local view = { rows = rows, columns = columns, first = row * width + column, row_stride = width, column_stride = 1 }
  local elements = rows * columns
  local function read(first, count, out)
    local stored = math.max(0, math.min(count, elements - first))
    if stored < count then ffi.fill(out + stored, (count - stored) * 4) end
    return stored > 0 and file:read_f32(name, view, first, stored, out) or 0
  end
  return { read = read, path = file.path, identity = function() return file:sample() end }
end

-- Refuses values of B outside of the blocks: they would be lost.
local function check_blocks(file, found, parts)
  local outputs, rank = found.module.outputs, found.config.rank
  local values = ffi.new("float[?]", outputs * rank)
  file:read_f32(found.up, nil, 0, outputs * rank, values)
  for _, part in ipairs(parts) do
    for row = part.row, part.row + part.rows - 1 do
      for column = part.column, part.column + part.record.rank - 1 do values[row * rank + column] = 0 end
    end
  end
  for i = 0, outputs * rank - 1 do
    if values[i] ~= 0 then
      errors.raise("MS_EMISMATCH", "%s: %s has values outside of the adapters that the model has in %s: load it into a "
        .. "model without adapters", file.path, found.up, found.module.name)
    end
  end
end

-- Where a module's values are for each of its layers: in blocks, or all of A and of the columns of B for each.
local function check_ranks(file, found, parts, rank)
  local whole = true
  for _, part in ipairs(parts) do whole = whole and part.record.rank == found.config.rank end
  if whole and #parts == #found.module.rows then
    for _, part in ipairs(parts) do part.column = 0 end
  elseif rank ~= found.config.rank then
    errors.raise("MS_EMISMATCH", "%s: the adapter of %s has rank %d, and the model's layers there %d: ms.lora.load "
      .. "gives a model without adapters those of a folder", file.path, found.module.name, found.config.rank, rank)
  end
  check_blocks(file, found, parts)
  for _, part in ipairs(parts) do
    local mine, theirs = part.record.alpha / part.record.rank, found.config.alpha / found.config.rank
    if math.abs(mine - theirs) > 1e-6 * theirs then
      errors.raise("MS_EMISMATCH", "%s: the adapter of %s is multiplied by %.9g, and the model's %s by alpha / rank = "
        .. "%.9g: %s", file.path, found.module.name, theirs, part.record.layer, mine, theirs > 0
          and ("set alpha = %.9g"):format(theirs * part.record.rank)
          or "load it into a model without adapters")
    end
  end
end

---Makes a folder the origin of the values of a model's adapters.
---@param model moonshard.Module
---@param folder string
function adapter_reader.values(model, folder)
  local opened, records, layers, left = open(model, folder), {}, {}, {}
  for _, found in ipairs(opened.weights) do check_weight(opened.file, found) end
  for _, found in ipairs(adapter.layers(model)) do layers[found.name] = found.layer end
  for _, record in ipairs(adapter.records(model)) do records[record.layer], left[record.layer] = record, true end
  for _, found in ipairs(opened.modules) do
    local parts, rank = adapter_names.parts(found.module, records)
    if not parts[1] then
      errors.raise("MS_EMISMATCH", "%s has adapters of %s, and the model has none there", opened.file.path,
        found.module.name)
    end
    check_ranks(opened.file, found, parts, rank)
    for _, part in ipairs(parts) do
      local layer, own = layers[part.record.layer], part.record.rank
      layer.lora_A.source = source(opened.file, found.down, own, found.module.inputs, part.column, 0)
      layer.lora_B.source = source(opened.file, found.up, part.rows, own, part.row, part.column)
      left[part.record.layer] = nil
    end
  end
  local missing = next(left)
  if missing then
    errors.raise("MS_EMISMATCH", "%s has no adapter of %s, and the model has one", opened.file.path, missing)
  end
end

return adapter_reader
