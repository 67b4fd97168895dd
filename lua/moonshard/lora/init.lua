-- ms.lora: fine-tunes a model through low-rank adapters (nn/adapter.lua). Rules over the names of modules, or the
-- fields of PEFT's LoraConfig, choose the linear layers that get one; every other parameter is frozen, so that
-- gradients, their reductions and the optimizer's state are those of the adapters alone.
--
--   ms.lora(model, {
--     { re[[attn\.(wq|wv)$]], { rank = 16, alpha = 32 } },
--     { re[[mlp\.]], { rank = 4, dropout = 0.05 } },
--   })
--   ms.fully_shard(model, ...)

local adapter = require("moonshard.nn.adapter")
local attach = require("moonshard.lora.attach")
local choose = require("moonshard.lora.choose")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local other_names = require("moonshard.base.names.other_names")
local rules = require("moonshard.shard.rules")
local world = require("moonshard.distributed.world")

---@class moonshard.LoraConfig the value of a rule
---@field rank? integer default 8
---@field alpha? number the adapter is multiplied by alpha / rank; default 2 * rank
---@field dropout? number probability with which the adapter does not see an element of the layer's input; default 0
---@field use_rslora? boolean the adapter is multiplied by alpha / sqrt(rank); default false
---@field use_dora? boolean the lengths of the merged weight's rows train, too (DoRA); the model is from a folder
---@field lora_bias? boolean the adapter has a bias; not with use_dora
---@field init_lora_weights? boolean|"gaussian" B begins as zeros and A uniform (true, the default) or normal with
---  deviation 1 / rank ("gaussian"); false: both begin uniform

---@class moonshard.LoraOptions
---@field train? any rules over names of parameters that also train, such as { "head", re"norm" }; default: none
---@field bias? "none"|"all"|"lora_only" biases that train: all of the model, or those of adapted layers; default none
---@field trainable_token_indices? integer[]|table<string, integer[]> rows of the embedding, or of several layers by
---  name, that train while the others stay; the model is from a folder

---@class moonshard.lora
---@overload fun(model: moonshard.Module, rules: table, o: moonshard.LoraOptions?): moonshard.Module
local lora = {}

local OPTIONS = { train = { "any" }, bias = { "string", default = "none" }, trainable_token_indices = { "table" } }
local LOAD_OPTIONS = { train = { "any" } }

-- What trains by the options that have PEFT's names.
local function saved_by(who, model, chosen, given)
  local layers, fields = {}, { bias = given.bias, trainable_token_indices = given.trainable_token_indices }
  for _, wanted in ipairs(chosen) do layers[wanted.name] = true end
  return require("moonshard.huggingface.adapter_reader").saved(who, model, layers, fields)
end

local function add(_, model, list, given)
  given = options.parse("ms.lora", given, OPTIONS)
  attach.check_model("ms.lora", model)
  for name in pairs(type(list) == "table" and list or {}) do
    local text = other_names.of_option(name)
    if text then errors.raise("MS_ENAME", "ms.lora: unknown option %s: %s", name, text) end
  end
  if type(list) ~= "table" or not rules.is_list(list) then
    errors.raise("MS_ERULE", "ms.lora: give rules over modules, as in { { re[[attn\\.wq$]], { rank = 16 } } }, not %s",
      options.describe(list))
  end
  local chosen = choose(model, list)
  attach.adapt("ms.lora", model, chosen, given.train, saved_by("ms.lora", model, chosen, given))
  return model
end

---Gives a model the adapters that PEFT's get_peft_model would, by the fields of a LoraConfig: modules have the names of
---the reference library, and fields its defaults and rules (lua/guides/adapters.md lists them). Raises MS_EUNSUPPORTED
---for a field that asks for what is not here, and MS_EMISMATCH if the fields choose no module.
---@param model moonshard.Module
---@param fields table { r = 8, lora_alpha = 8, target_modules = ..., ... }; a pattern whose keys overlap is a list of
---  { key, number }, of which the first that matches counts
---@return moonshard.Module model
function lora.from_config(model, fields)
  attach.check_model("ms.lora.from_config", model)
  if type(fields) ~= "table" then
    errors.invalid("ms.lora.from_config: the second argument must be a table of LoraConfig's fields, as in { r = 8, "
      .. "target_modules = { \"q_proj\" } }, not %s", options.describe(fields))
  end
  local config = require("moonshard.huggingface.adapter_config").of_table("ms.lora.from_config", fields)
  if config.given.target_modules == nil then
    errors.invalid("ms.lora.from_config: target_modules is missing: list names of modules, or give \"all-linear\"")
  end
  local chosen, saved = require("moonshard.huggingface.adapter_reader").new_layers(model, config)
  attach.adapt("ms.lora.from_config", model, chosen, nil, saved)
  return model
end

-- ---- files and merging ------------------------------------------------------------------------------------------

---Reads a folder of PEFT's (adapter_config.json and adapter_model.safetensors) into a model that is not sharded yet. A
---model without adapters gets those of the folder; otherwise both must be the same. Ranks read their own elements when
---the model is first used.
---@param model moonshard.Module
---@param folder string
---@param given { train: any }? rules over names of parameters that also train
---@return moonshard.Module model
function lora.load(model, folder, given)
  given = options.parse("ms.lora.load", given, LOAD_OPTIONS)
  attach.check_model("ms.lora.load", model)
  if type(folder) ~= "string" then
    errors.invalid("ms.lora.load: the second argument must be a folder, a string, not %s", options.describe(folder))
  end
  local read_folder, has_some = require("moonshard.huggingface.adapter_reader"), adapter.layers(model)[1] ~= nil
  if has_some and given.train ~= nil then
    errors.invalid("ms.lora.load: the model already has adapters, so train was decided with them: give train to the "
      .. "call of ms.lora that made them")
  end
  if not has_some then
    local chosen, saved = read_folder.layers(model, folder)
    attach.adapt("ms.lora.load", model, chosen, given.train, saved)
  end
  if world.plan_only then return model end
  local ok, raised = pcall(read_folder.values, model, folder)
  if not ok then
    if not has_some then require("moonshard.lora.remove").all(model) end
    error(raised, 0)
  end
  return model
end

---@class moonshard.LoraSaveOptions
---@field dtype? "f32"|"bf16"|"f16" default f32
---@field ema? boolean save the averages of a trainer's weights
---@field base? string what adapter_config.json names as base_model_name_or_path

---Saves the adapters alone as a folder that PEFT reads. Collective; the first rank of the mesh writes.
---@param model moonshard.Module|moonshard.Trainer
---@param folder string created; must not already contain adapters
---@param given moonshard.LoraSaveOptions?
---@return { bytes: number, tensors: integer } written
function lora.save(model, folder, given) return require("moonshard.lora.save")(model, folder, given) end

---Refuses a folder that already contains adapters, so that a run fails at its start and not when it saves at its end.
---@param folder string
function lora.check_folder(folder)
  options.folder("ms.lora.check_folder", folder)
  if world.rank == 0 and not world.plan_only then
    require("moonshard.huggingface.adapter_writer").check_folder(folder)
  end
end

---Adds the adapters to the weights and removes them, so that the model is again as it was made, with other weights. A
---sharded model stays sharded by the same rules; a trainer that it had is over. Collective if it is sharded.
---@param model moonshard.Module|moonshard.Trainer
---@return moonshard.Module model
function lora.merge(model) return require("moonshard.lora.merge")(model) end

lora = require("moonshard.base.checks.strict").fields("ms.lora", lora)
getmetatable(lora).__call = add
return lora
