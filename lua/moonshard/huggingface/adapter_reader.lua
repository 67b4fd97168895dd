-- Reads a folder of PEFT's adapters: which layers they are for, what else was trained (peft/saved_parts.lua), and their
-- values as the origin of parameters, of which each rank reads its own elements.

local adapter = require("moonshard.nn.adapter")
local adapter_config = require("moonshard.huggingface.adapter_config")
local adapter_names = require("moonshard.huggingface.adapter_names")
local base_copies = require("moonshard.huggingface.peft.base_copies")
local base_modules = require("moonshard.huggingface.peft.base_modules")
local errors = require("moonshard.base.error")
local nearest = require("moonshard.base.names.nearest")
local open_file = require("moonshard.huggingface.peft.adapter_file")
local saved_parts = require("moonshard.huggingface.peft.saved_parts")
local shardings = require("moonshard.shard.sharding")
local trainable_tokens = require("moonshard.nn.adapters.trainable_tokens")
local tree = require("moonshard.nn.tree")
local weights = require("moonshard.huggingface.weights")
local ffi = require("ffi")

local adapter_reader = {}

local FLOATS = { F32 = true, BF16 = true, F16 = true, F64 = true }

-- ---- adapters ---------------------------------------------------------------------------------------------------

local function refuse_tensor(path, name)
  errors.raise("MS_EUNSUPPORTED", "%s: tensor %s is not the lora_A or lora_B of a linear layer, "
    .. "base_model.model.<name>.lora_A.weight, nor of what adapter_config.json says was trained besides", path, name)
end

local function expect(file, name, shape, why)
  local stored = file.by_name[name]
  if not stored then errors.raise("MS_EMISMATCH", "%s: tensor %s is missing", file.path, name) end
  if not FLOATS[stored.dtype] then
    errors.raise("MS_EDTYPE", "%s: tensor %s is %s: adapters are F32, BF16, F16 or F64", file.path, name, stored.dtype)
  end
  local theirs, here = table.concat(stored.shape, ","), table.concat(shape, ",")
  if theirs == here then return end
  errors.raise("MS_EMISMATCH", "%s: %s is [%s], but %s it is [%s]: the adapters are of another model or rank",
    file.path, name, theirs, why, here)
end

-- Adapters of another model compute nonsense; a folder of the same one can have another name.
local function config_note(config, model)
  local base, folder = config.given.base_model_name_or_path, rawget(model, "_huggingface_folder")
  local function last(path) return path:gsub("/+$", ""):match("[^/]*$") end
  if not base or base == "" or not folder or last(base) == last(folder) then return nil end
  return ("%s: the adapters are for %s (base_model_name_or_path), and the model is from %s"):format(config.path, base,
    folder)
end

---@class moonshard.AdapterFile
---@field file moonshard.Safetensors
---@field config moonshard.AdapterConfig
---@field modules { module: moonshard.AdaptedModule, config: moonshard.Adapter }[] in the order of the model
---@field copies moonshard.BaseCopy[] of what the model or the file has
---@field saved moonshard.SavedParts what was trained besides
---@field notes string[]

-- Compares the tensors of what was trained besides adapters with the model, and takes them out of those that are left.
local function check_saved(opened, left)
  local file, absent = opened.file, nil
  local why = "with the model and " .. opened.config.path
  for _, part in ipairs(opened.saved.parts) do
    local old = part.stored:gsub("%.base_layer(%.[^.]*)$", "%1") -- before PEFT 0.7
    if not file.by_name[part.stored] and file.by_name[old] then part.stored = old end
    if part.optional and not file.by_name[part.stored] then
      absent, part.absent = absent or part.stored, true
    else
      expect(file, part.stored, part.entry.tensor.shape, why)
    end
    left[part.stored], left[part.twin or ""] = nil, nil
  end
  for _, tokens in ipairs(opened.saved.tokens) do
    expect(file, tokens.stored, { #tokens.indices, tokens.dim }, why)
    left[tokens.stored] = nil
  end
  if absent then
    table.insert(opened.notes, ("%s: bias is %q, but the folder has no %s (PEFT saves no such biases): they begin as "
      .. "the model's"):format(opened.config.path, opened.config.given.bias, absent))
  end
end

-- The adapters of a file by module, and its other tensors.
local function sort_tensors(file, by_name, experts)
  local present, left = {}, {}
  for _, tensor in ipairs(file.tensors) do
    local name, part = adapter_names.split(tensor.name)
    if not name and tensor.name:find(".lora_", 1, true) then
      refuse_tensor(file.path, tensor.name)
    elseif not name then
      left[tensor.name] = true
    elseif experts[name] then
      base_modules.refuse_expert(file.path, name)
    elseif not by_name[name] then
      errors.raise("MS_EMISMATCH", "%s: tensor %s: the model has no linear layer %s: %s", file.path, tensor.name, name,
        nearest.advice(name, by_name))
    else
      present[name] = present[name] or {}
      present[name][part.field] = true
    end
  end
  return present, left
end

local function check_adapter(opened, found, present)
  local file, module, config = opened.file, found.module, found.config
  for _, part in ipairs(adapter.PARTS) do
    local name = adapter_names.tensor(module.name, part)
    if part.when and config[part.when] and not present[part.field] then
      errors.raise("MS_EMISMATCH", "%s: %s is true, but %s has no tensor %s", opened.config.path, part.when, file.path,
        name)
    elseif not part.when or config[part.when] then
      expect(file, name, part.shape(config.rank, module.inputs, module.outputs),
        "with the model and " .. opened.config.path)
    elseif present[part.field] then
      errors.raise("MS_EMISMATCH", "%s: tensor %s is there, but %s has no %s = true: correct the field", file.path,
        name, opened.config.path, part.when)
    end
  end
end

-- Opens a folder, and checks its names, shapes and types against a model.
local function open(model, folder)
  folder = folder:gsub("(.)/+$", "%1")
  local file = open_file(folder)
  local config = adapter_config.read(folder) -- first: its fields say why a file has other tensors
  local base = base_modules.of(model)
  local by_name, names, all = {}, {}, {}
  for i, module in ipairs(base.modules) do by_name[module.name], all[i] = module, module.name end
  local present, left = sort_tensors(file, by_name, base.experts)
  for _, name in ipairs(all) do
    if present[name] then names[#names + 1] = name end
  end
  if not names[1] then
    for name in pairs(left) do refuse_tensor(file.path, name) end
    errors.invalid("%s holds no adapters", file.path)
  end
  local opened = { file = file, config = config, modules = {}, copies = {}, notes = { config_note(config, model) } }
  local configs = adapter_config.of_modules(config, names, base.heads)
  for i, name in ipairs(names) do
    opened.modules[i] = { module = by_name[name], config = configs[name] }
    check_adapter(opened, opened.modules[i], present[name])
  end
  opened.saved = saved_parts.of_config(config, base.tensors, present)
  for _, tokens in ipairs(opened.saved.tokens) do tokens.dim = base.layers[tokens.layer].weight.shape[2] end
  check_saved(opened, left)
  for _, tensor in ipairs(file.tensors) do
    local copy = left[tensor.name] and base_copies.find(base, opened.saved, tensor.name)
    if left[tensor.name] and not copy then refuse_tensor(file.path, tensor.name) end
    if copy then table.insert(opened.copies, copy) end
  end
  local lacking = adapter_config.lacking(config, all, present, base.heads)
  if lacking[1] then
    local text = "%s: target_modules names %s%s, of which the folder has no tensors: they get no adapter"
    table.insert(opened.notes, text:format(config.path, lacking[1],
      lacking[2] and (" and %d more"):format(#lacking - 1) or ""))
  end
  return opened
end

---The layers that a folder has adapters for, as ms.lora gives them: those of one module have one A.
---@param model moonshard.Module without adapters
---@param folder string
---@return { name: string, layer: moonshard.Module, config: moonshard.Adapter, shared: moonshard.Module?,
---  loaded: boolean }[]
---@return moonshard.SavedParts what is to train besides
function adapter_reader.layers(model, folder)
  local opened = open(model, folder)
  shardings.report(opened.notes)
  opened.file:close()
  return base_modules.layers(model, opened.modules, true), opened.saved
end

---What trains besides adapters by some fields, where rules have chosen the layers.
---@param who string for messages
---@param model moonshard.Module
---@param layers table<string, boolean> names of layers that get adapters
---@param given { bias: string?, trainable_token_indices: table? }
---@return moonshard.SavedParts
function adapter_reader.saved(who, model, layers, given)
  local base, adapted = base_modules.of(model), {}
  for _, module in ipairs(base.modules) do
    for _, place in ipairs(module.rows) do adapted[module.name] = adapted[module.name] or layers[place.layer] end
  end
  return saved_parts.of_config(adapter_config.of_table(who, given), base.tensors, adapted)
end

---The layers that get new adapters by the fields of a LoraConfig.
---@param model moonshard.Module without adapters
---@param config moonshard.AdapterConfig
---@return { name: string, layer: moonshard.Module, config: moonshard.Adapter, shared: moonshard.Module? }[]
---@return moonshard.SavedParts
function adapter_reader.new_layers(model, config)
  local base, names, all, modules, adapted = base_modules.of(model), {}, {}, {}, {}
  for i, module in ipairs(base.modules) do all[i] = module.name end
  for _, entry in ipairs(base.tensors) do
    if base.experts[entry.module] then all[#all + 1] = entry.module end
  end
  local left_out = adapter_config.left_out(config, all, base.heads)
  for _, name in ipairs(all) do
    if base.experts[name] and not left_out[name] then base_modules.refuse_expert(config.path, name) end
  end
  for i, module in ipairs(base.modules) do
    if not left_out[module.name] then
      names[#names + 1], adapted[module.name] = module.name, true
      modules[#modules + 1] = { module = base.modules[i] }
    end
  end
  if not names[1] then
    errors.raise("MS_EMISMATCH", "%s: no linear layer of the model is chosen by its fields: the first one, %s, is left "
      .. "out by %s", config.path, all[1], left_out[all[1]])
  end
  local configs = adapter_config.of_modules(config, names, base.heads)
  for _, found in ipairs(modules) do found.config = configs[found.module.name] end
  return base_modules.layers(model, modules, false), saved_parts.of_config(config, base.tensors, adapted)
end

-- ---- values -----------------------------------------------------------------------------------------------------

-- Elements of a matrix [rows, columns] of a file, or of a vector [rows], from a row and a column on; zeros behind its
-- last row.
local function source(file, name, rows, columns, row, column)
  local width = file.by_name[name].shape[2] or 1
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
  local values, up = ffi.new("float[?]", outputs * rank), adapter_names.tensor(found.module.name, adapter.PARTS[2])
  file:read_f32(up, nil, 0, outputs * rank, values)
  for _, part in ipairs(parts) do
    for row = part.row, part.row + part.rows - 1 do
      for column = part.column, part.column + part.record.rank - 1 do values[row * rank + column] = 0 end
    end
  end
  for i = 0, outputs * rank - 1 do
    if values[i] ~= 0 then
      errors.raise("MS_EMISMATCH", "%s: %s has values outside of the adapters that the model has in %s: load it into a "
        .. "model without adapters", file.path, up, found.module.name)
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

-- The values of a module's adapters, for each of its layers.
local function take_adapters(file, found, parts, layers)
  for _, place in ipairs(parts) do
    local layer, own = layers[place.record.layer], place.record.rank
    for _, part in ipairs(adapter.PARTS) do
      local name, param = adapter_names.tensor(found.module.name, part), rawget(layer, part.field)
      if (param ~= nil) ~= (file.by_name[name] ~= nil) then
        errors.raise("MS_EMISMATCH", "%s: the adapter of %s has %s %s, and the model's %s: load it into a model "
          .. "without adapters", file.path, found.module.name, param and "no" or "a", part.stored,
          param and "has" or "has none")
      elseif param and part.rows then
        local columns = param.shape[2]
        param.source = source(file, name, place.rows, columns or 1, place.row, columns and place.column or 0)
      elseif param then
        param.source = source(file, name, own, found.module.inputs, place.column, 0)
      end
    end
  end
end

-- Those of what was trained besides.
local function take_saved(opened, model)
  local params, layers = {}, {}
  for _, entry in ipairs(tree.inventory(model).parameters) do
    for _, place in ipairs(entry.places) do params[place.name] = entry.parameter end
  end
  for _, found in ipairs(trainable_tokens.layers(model)) do layers[found.name] = found end
  local file = opened.file
  for _, part in ipairs(opened.saved.parts) do
    local tensor = { shape = part.entry.tensor.shape, stored_as = part.stored }
    for _, slice in ipairs(part.absent and {} or part.entry.tensor.slices) do
      local param = params[slice.parameter]
      if param.frozen then
        errors.raise("MS_EMISMATCH", "%s: %s was trained, and %s is frozen in the model: load it into a model without "
          .. "adapters", file.path, part.stored, slice.parameter)
      end
      param.source = weights.source(file, tensor, slice, file.by_name[part.twin or ""] and part.twin)
    end
  end
  for _, tokens in ipairs(opened.saved.tokens) do
    local found = layers[tokens.layer]
    if not found or table.concat(found.tokens.indices, ",") ~= table.concat(tokens.indices, ",") then
      errors.raise("MS_EMISMATCH", "%s: trainable_token_indices of %s are others than the model's: load it into a "
        .. "model without adapters", opened.config.path, tokens.layer)
    end
    found.layer.trainable_tokens.source = source(file, tokens.stored, #tokens.indices, tokens.dim, 0, 0)
  end
end

---Makes a folder the origin of the values of a model's adapters, and of what was trained besides.
---@param model moonshard.Module
---@param folder string
function adapter_reader.values(model, folder)
  local opened, records, layers, left = open(model, folder), {}, {}, {}
  for _, copy in ipairs(opened.copies) do base_copies.check(opened.file, copy) end
  for _, found in ipairs(adapter.layers(model)) do layers[found.name] = found.layer end
  for _, record in ipairs(adapter.records(model)) do records[record.layer], left[record.layer] = record, true end
  for _, found in ipairs(opened.modules) do
    local parts, rank = adapter_names.parts(found.module, records)
    if not parts[1] then
      errors.raise("MS_EMISMATCH", "%s has adapters of %s, and the model has none there", opened.file.path,
        found.module.name)
    end
    check_ranks(opened.file, found, parts, rank)
    take_adapters(opened.file, found, parts, layers)
    for _, part in ipairs(parts) do left[part.record.layer] = nil end
  end
  local missing = next(left)
  if missing then
    errors.raise("MS_EMISMATCH", "%s has no adapter of %s, and the model has one", opened.file.path, missing)
  end
  take_saved(opened, model)
end

return adapter_reader
