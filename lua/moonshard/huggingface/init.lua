-- Models in Hugging Face's layout: loads a folder with config.json and safetensors files as one of our models, and
-- saves our models as folders that the reference library loads.

local adapter = require("moonshard.nn.adapter")
local config = require("moonshard.huggingface.config")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.input_file")
local merged = require("moonshard.huggingface.merged")
local models = require("moonshard.models")
local options = require("moonshard.base.options")
local session = require("moonshard.engine.session")
local tokenizer = require("moonshard.data.tokenizer")
local tree = require("moonshard.nn.tree")
local weights = require("moonshard.huggingface.weights")
local world = require("moonshard.distributed.world")
local writing = require("moonshard.huggingface.write")
local C, ffi, check = engine.C, engine.ffi, engine.check

---@class moonshard.HuggingFaceModelOptions
---@field dropout? number for training (GPT-2); default 0
---@field pad_vocab_to_multiple_of? integer
---@field document_start? integer token that begins a document: attention does not cross it; not saved
---@field aux_loss? number factor of the auxiliary loss of routers; default: what the folder says
---@field ignore? string[] unknown fields of config.json to ignore because they do not affect the results; they are not
---  saved

---@class moonshard.HuggingFaceSaveOptions
---@field dtype? "f32"|"bf16"|"f16" default f32
---@field max_shard_size? string|number size limit of a file; default "5GB"
---@field ema? boolean save the averages of a trainer's weights

---@class moonshard.huggingface
local huggingface = { write = writing.write }

---A model with the weights of a folder. Checks names and shapes now; each rank reads its own elements when the model is
---first used. For planning, config.json is enough.
---@param folder string
---@param given moonshard.HuggingFaceModelOptions?
---@return moonshard.Module
function huggingface.model(folder, given)
  given = options.parse("ms.huggingface.model", given, {
    dropout = { "number" }, pad_vocab_to_multiple_of = { "positive" }, document_start = { "integer" },
    ignore = { "table" }, aux_loss = { "number" },
  })
  if type(folder) ~= "string" then errors.invalid("ms.huggingface.model: give a folder, not %s", tostring(folder)) end
  local whole, path = config.read(folder)
  for _, name in ipairs(given.ignore or {}) do whole[name] = nil end
  local family, wanted = config.parse(whole, path)
  for _, name in ipairs({ "dropout", "pad_vocab_to_multiple_of", "document_start" }) do wanted[name] = given[name] end
  if given.aux_loss then wanted.aux_loss = given.aux_loss end
  local sources = not world.plan_only and weights.open(folder, family, wanted) or {}
  local model = models[whole.model_type](wanted)
  rawset(model, "_huggingface", whole)
  for name, parameter in model:named_parameters() do parameter.source = sources[name] end
  return model
end

---The tokenizer of a folder.
---@param folder string
---@return moonshard.Tokenizer? nil if it has no tokenizer.json
function huggingface.tokenizer(folder)
  if not input_file.exists(folder .. "/tokenizer.json") then return nil end
  return tokenizer.open(folder)
end

---Refuses a folder that already contains a model, so that a run fails at its start and not when it saves at its end.
---@param folder string
function huggingface.check_folder(folder)
  if world.rank == 0 and not world.plan_only then writing.check_folder(folder) end
end

---A model's config.json: the one it was read from, or one made from its options. Raises MS_EUNSUPPORTED for a model
---without a layout in Hugging Face's library.
---@param model moonshard.Module
---@return table
function huggingface.config(model)
  local read = rawget(model, "_huggingface")
  if read then return read end
  local family = model.family and config.family(model.family)
  if not family then
    errors.raise("MS_EUNSUPPORTED", "a %s has no Hugging Face layout; the models of ms.models have one",
      getmetatable(model).name)
  end
  return family.config(model.config)
end

---@class moonshard.ModelLayout
---@field huggingface table? contents of config.json, for a model that has a layout
---@field lora moonshard.AdapterRecord[]? for a model with adapters

---Layout metadata for a checkpoint, so that it can be exported as a folder later; nil for a model without any.
---@param model moonshard.Module
---@return moonshard.ModelLayout?
function huggingface.layout(model)
  local has_one, whole = pcall(huggingface.config, model)
  local records = adapter.records(model)
  if not has_one and not records[1] then return nil end
  return { huggingface = has_one and whole or nil, lora = records[1] and records or nil }
end

-- Options that must match the saved weights, but that shapes do not reveal.
local KEPT = { "heads", "kv_heads", "activation", "norm_from_one", "experts_per_token", "renormalise" }

local function check_adapters(path, saved, here)
  local by_layer = {}
  for _, record in ipairs(saved or {}) do by_layer[record.layer] = record end
  for _, record in ipairs(here or {}) do
    local other = by_layer[record.layer]
    if other and other.alpha / other.rank ~= record.alpha / record.rank then
      errors.raise("MS_EMISMATCH", "checkpoint %s has adapters of another scale: alpha of %s is %g with rank %d, here "
        .. "%g with rank %d", path, record.layer, other.alpha, other.rank, record.alpha, record.rank)
    end
  end
end

---Raises MS_EMISMATCH when saved weights would have a different meaning in this model.
---@param path string of the checkpoint, for messages
---@param noted moonshard.ModelLayout? layout metadata of the saved model
---@param model moonshard.Module
function huggingface.check_layout(path, noted, model)
  local mine = huggingface.layout(model)
  check_adapters(path, noted and noted.lora, mine and mine.lora)
  if not (noted and noted.huggingface and mine and mine.huggingface) then return end
  local _, saved = config.parse(noted.huggingface, path)
  local _, here = config.parse(mine.huggingface, path)
  for _, key in ipairs(KEPT) do
    if saved[key] ~= here[key] then
      errors.raise("MS_EMISMATCH", "checkpoint %s belongs to a different model: %s=%s, here %s", path, key, saved[key],
        here[key])
    end
  end
end

---Reads elements of parameters of a model that is divided over ranks. Reading is collective.
---@param around moonshard.Session
---@param writes boolean whether this rank needs the values
---@return fun(param: moonshard.Parameter, first: number, count: number): ffi.cdata*? values valid until the next read
function huggingface.reader(around, writes)
  local state, buffer, room = around:ensure_state(), nil, 0
  return function(param, first, count)
    if writes and count > room then buffer, room = ffi.new("float[?]", count), count end
    check(C.ms_state_gather_range(state, around.sharding.index[param], C.MS_TENSOR_PARAM, first, count, buffer))
    return buffer
  end
end

-- Iterates over a model's parameters in the form that write takes; reading is collective.
local function parameters_of(model, around, writes)
  local entries, i, read = tree.inventory(model).parameters, 0, huggingface.reader(around, writes)
  return function()
    i = i + 1
    local entry = entries[i]
    if not entry then return nil end
    return entry.name, entry.parameter.shape, function(first, count) return read(entry.parameter, first, count) end
  end
end

---Refuses to save a model that several ranks have undivided: each would write the folder.
---@param who string for messages
---@param around moonshard.Session
function huggingface.check_writers(who, around)
  if not around.sharding.single_rank or world.size == 1 then return end
  errors.invalid("%s: the model is not divided, so each of %d ranks would write the folder: call ms.fully_shard(model, "
    .. "...) before, or run on one rank", who, world.size)
end

local function save(model, folder, given)
  local whole = huggingface.config(model)
  if world.plan_only then return { bytes = 0, files = {}, tensors = 0 } end
  local around = session.around(model)
  huggingface.check_writers("ms.huggingface.save", around)
  local writes = around.sharding.single_rank or around.sharding.mesh:get_index() == 0
  local written = writing.write(folder, {
    config = whole, parameters = merged(parameters_of(model, around, writes), adapter.records(model)), writes = writes,
  }, given)
  around:gather_numbers(0, "of a saved model") -- the folder is complete before any rank continues
  return written
end

---Saves a model: config.json and model.safetensors, or several files and their index. No rank needs more memory than
---its chunks and 64 MiB. Adapters of ms.lora are merged into the saved weights. Collective; the first rank of the mesh
---writes.
---@param model moonshard.Module|moonshard.Trainer
---@param folder string created; must not already contain a model
---@param given moonshard.HuggingFaceSaveOptions?
---@return { bytes: number, files: string[], tensors: integer } written
function huggingface.save(model, folder, given)
  local trainer = model.with_ema and model or nil
  model = model.model or model
  if not tree.is_module(model) then errors.invalid("ms.huggingface.save: give a model or a trainer") end
  if not given or not given.ema then return save(model, folder, given) end
  if not trainer then errors.invalid("ms.huggingface.save: ema needs the trainer, which has the averages") end
  return trainer:with_ema(save, model, folder, given)
end

return require("moonshard.base.strict").fields("ms.huggingface", huggingface)
