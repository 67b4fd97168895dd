-- Models in Hugging Face's layout: loads a folder with config.json and safetensors files as one of our models, and
-- saves our models as folders that the reference library loads.

local adapter = require("moonshard.nn.adapter")
local adapter_config = require("moonshard.huggingface.adapter_config")
local agreement = require("moonshard.distributed.agreement")
local config = require("moonshard.huggingface.config")
local errors = require("moonshard.base.error")
local faults = require("moonshard.huggingface.folder.faults")
local ignored = require("moonshard.huggingface.config.ignored")
local input_file = require("moonshard.base.files.input_file")
local layout = require("moonshard.huggingface.layout")
local merged = require("moonshard.huggingface.merged")
local models = require("moonshard.models")
local options = require("moonshard.base.checks.options")
local outer = require("moonshard.huggingface.folder.outer")
local sealed = require("moonshard.base.checks.sealed")
local quantised = require("moonshard.huggingface.quantised")
local same_run = require("moonshard.engine.agreement.same_run")
local session = require("moonshard.engine.session")
local text_lines = require("moonshard.base.text.text_lines")
local tokenizer = require("moonshard.data.tokenizer")
local trainable_tokens = require("moonshard.nn.adapters.trainable_tokens")
local tree = require("moonshard.nn.tree")
local weights = require("moonshard.huggingface.weights")
local without_effect = require("moonshard.huggingface.config.without_effect")
local world = require("moonshard.distributed.world")
local writing = require("moonshard.huggingface.write")

---@class moonshard.HuggingFaceModelOptions
---@field dropout? number for training (GPT-2); default 0
---@field pad_vocab_to_multiple_of? integer
---@field document_start? integer token that begins a document: attention does not cross it; not saved
---@field aux_loss? number factor of the auxiliary loss of routers; default: what the folder says
---@field bias_rate? number biases of routers, where the folder has them, move by so much in a step; default 0
---@field adapter? boolean false: read a folder that has adapters of its own without them; default: refuse it
---@field ignore? string[] fields of config.json to load without, such as unknown ones that do not affect the results;
---  they are not saved, and a note names those that have an effect

---@class moonshard.HuggingFaceSaveOptions
---@field dtype? "f32"|"bf16"|"f16" default f32
---@field max_shard_size? string|number size limit of a file; default "5GB"
---@field ema? boolean save the averages of a trainer's weights

---@class moonshard.huggingface
local huggingface = {}

---As huggingface/write.lua has it.
---@param folder string created; must not already contain a model
---@param source moonshard.HuggingFaceSource
---@param given { dtype: string?, max_shard_size: string|number? }? "f32" (default), "bf16" or "f16"; "5GB"
---@return { bytes: number, files: string[], tensors: integer } written
function huggingface.write(folder, source, given)
  options.folder("ms.huggingface.write", folder)
  if type(source) ~= "table" or type(source.config) ~= "table" or type(source.parameters) ~= "function" then
    errors.invalid("ms.huggingface.write: give { config = table, parameters = function } behind the folder, not %s",
      options.describe(source))
  end
  if source.folder ~= nil then options.folder("ms.huggingface.write: folder", source.folder) end
  return writing.write(folder, source, given)
end

-- Hugging Face's library adds the adapters to the weights of the model that adapter_config.json names.
local function refuse_adapter(folder)
  local path = folder:gsub("(.)/+$", "%1") .. "/" .. adapter_config.NAME
  if not input_file.exists(path) then return end
  errors.raise("MS_EUNSUPPORTED", "%s: the folder has adapters next to its weights, which Hugging Face's library would "
    .. "add: read the weights alone, ms.huggingface.model(folder, { adapter = false }), and apply the adapters, "
    .. "ms.lora.load(model, folder); or merge them by PEFT (merge_and_unload), and read that folder", path)
end

local said = {}

-- Says once what a user has to know of a config.
local function say(path, notes)
  for _, note in ipairs(notes) do
    local text = ("moonshard: note: %s: %s\n"):format(text_lines.escape(path), text_lines.escape(note))
    if world.rank == 0 and not said[text] then io.stderr:write(text) end
    said[text] = true
  end
end

-- Removes the fields that a user asks to load without: of config.json, or of its text_config.
local function remove_ignored(whole, path, names)
  local who, own, inner = "ms.huggingface.model", {}, {}
  local text = outer.rows[whole.model_type] and outer.text_of(whole, path)
  for _, name in ipairs(names) do
    local inside = text and type(name) == "string" and rawget(whole, name) == nil and text[name] ~= nil
    table.insert(inside and inner or own, name)
  end
  local notes = ignored.remove(who, whole, path, config.family(whole.model_type), own)
  if not inner[1] then return notes end
  for _, note in ipairs(ignored.remove(who, text, path, config.family(text.model_type), inner)) do
    notes[#notes + 1] = "text_config: " .. note
  end
  whole.text_config = text
  return notes
end

---A model with the weights of a folder. Checks names and shapes now; each rank reads its own elements when the model is
---first used. For planning, config.json is enough.
---@param folder string
---@param given moonshard.HuggingFaceModelOptions?
---@return moonshard.Module
function huggingface.model(folder, given)
  given = options.parse("ms.huggingface.model", given, {
    dropout = { "number" }, pad_vocab_to_multiple_of = { "positive" }, document_start = { "integer" },
    ignore = { "table" }, aux_loss = { "number" }, bias_rate = { "number" }, adapter = { "boolean", default = true },
  })
  options.folder("ms.huggingface.model", folder)
  local whole, path = config.read(folder)
  if given.adapter then refuse_adapter(folder) end
  say(path, remove_ignored(whole, path, given.ignore or {}))
  local reading = { scheme = quantised.take(whole) }
  local family, wanted = config.parse(whole, path)
  say(path, without_effect.notes(whole))
  if family.text then say(path, { outer.note(family) }) end
  if reading.scheme and family.text then
    errors.raise("MS_EUNSUPPORTED", "%s: quantised weights are not read from the folder of a model with other parts, "
      .. "%s, which are copied as they are", path, family.parts)
  elseif reading.scheme then
    say(path, { quantised.note(reading.scheme) })
  end
  local of_skipped
  if family.skipped then reading.skipped, of_skipped = family.skipped(whole, wanted) end
  for _, name in ipairs({ "dropout", "pad_vocab_to_multiple_of", "document_start" }) do wanted[name] = given[name] end
  if given.bias_rate and not wanted.route_bias then
    errors.raise("MS_EUNSUPPORTED", "ms.huggingface.model: bias_rate is given, but the folder's %s has no biases of "
      .. "routers, and could not be saved with them: leave bias_rate out, or give aux_loss", whole.model_type)
  end
  for _, name in ipairs({ "aux_loss", "bias_rate" }) do wanted[name] = given[name] or wanted[name] end
  local sources, count_skipped = {}, 0
  if not world.plan_only then sources, count_skipped = weights.open(folder, family, wanted, reading) end
  if not world.plan_only then say(folder, { faults.read_of_two(folder) }) end
  if count_skipped > 0 then say(path, { of_skipped:format(count_skipped) }) end
  local model = models[family.text or whole.model_type](wanted)
  rawset(model, "_huggingface", whole)
  rawset(model, "_huggingface_folder", folder)
  for name, parameter in model:named_parameters() do parameter.source = sources[name] end
  return model
end

---The tokenizer of a folder.
---@param folder string
---@return moonshard.Tokenizer? nil if it has no tokenizer.json
function huggingface.tokenizer(folder)
  options.folder("ms.huggingface.tokenizer", folder)
  if not input_file.exists(folder .. "/tokenizer.json") then return nil end
  return tokenizer.open(folder)
end

---Refuses a folder that already contains a model, so that a run fails at its start and not when it saves at its end.
---@param folder string
function huggingface.check_folder(folder)
  options.folder("ms.huggingface.check_folder", folder)
  if world.rank == 0 and not world.plan_only then writing.check_folder(folder) end
end

---A model's config.json: the one it was read from, or one made from its options. Raises MS_EUNSUPPORTED for a model
---without a layout in Hugging Face's library.
---@param model moonshard.Module
---@return table
function huggingface.config(model)
  if not tree.is_module(model) then
    errors.invalid("ms.huggingface.config: give a model, not %s", options.describe(model))
  end
  return layout.config(model)
end

-- Iterates over a model's parameters in the form that write takes; reading is collective.
local function parameters_of(model, around, writes)
  local entries, i, read = tree.inventory(model).parameters, 0, layout.reader(around, writes)
  return function()
    i = i + 1
    local entry = entries[i]
    if not entry then return nil end
    return entry.name, entry.parameter.shape, function(first, count) return read(entry.parameter, first, count) end
  end
end

local function save(model, folder, given)
  local whole = layout.config(model)
  if world.plan_only then return { bytes = 0, files = {}, tensors = 0 } end
  local around = session.around(model)
  layout.check_writers("ms.huggingface.save", around)
  same_run.of_save("ms.huggingface.save", around, folder, given, { "dtype", "max_shard_size" })
  local writes = around.sharding.single_rank or around.sharding.mesh:get_index() == 0
  local written = writing.write(folder, {
    config = whole, writes = writes,
    parameters = merged(parameters_of(model, around, writes), adapter.records(model), trainable_tokens.records(model)),
    folder = rawget(model, "_huggingface_folder"),
    agree = around.sharding.mesh:size() > 1 and function(problem)
      agreement.raise_first_failure(around, "of a saved model", problem == nil, problem)
    end or nil,
  }, given)
  return written
end

---Saves a model: config.json and model.safetensors, or several files and their index. No rank needs more memory than
---its chunks and 64 MiB. Adapters of ms.lora are merged into the saved weights. The tokenizer, chat template and
---generation_config.json of the folder that the model was read from are copied. Collective; the first rank of the mesh
---writes.
---@param model moonshard.Module|moonshard.Trainer
---@param folder string created; must not already contain a model
---@param given moonshard.HuggingFaceSaveOptions?
---@return { bytes: number, files: string[], tensors: integer } written
function huggingface.save(model, folder, given)
  local fields = type(model) == "table" and sealed.fields(model) or {}
  local trainer = rawget(fields, "session") and rawget(fields, "model") and model or nil
  model = trainer and trainer.model or model
  if not tree.is_module(model) then
    errors.invalid("ms.huggingface.save: give a model or a trainer, not %s", options.describe(model))
  end
  options.folder("ms.huggingface.save", folder)
  if not given or not given.ema then return save(model, folder, given) end
  if not trainer then errors.invalid("ms.huggingface.save: ema needs the trainer, which has the averages") end
  return trainer:with_ema(save, model, folder, given)
end

return require("moonshard.base.checks.strict").fields("ms.huggingface", huggingface)
