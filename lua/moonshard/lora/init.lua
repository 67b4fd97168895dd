-- ms.lora: fine-tunes a model through low-rank adapters (nn/adapter.lua). Rules over the names of modules choose the
-- linear layers that get one; every other parameter is frozen, so that gradients, their reductions and the optimizer's
-- state are those of the adapters alone.
--
--   ms.lora(model, {
--     { re[[attn\.(wq|wv)$]], { rank = 16, alpha = 32 } },
--     { re[[mlp\.]], { rank = 4, dropout = 0.05 } },
--   })
--   ms.fully_shard(model, ...)

local adapter = require("moonshard.nn.adapter")
local errors = require("moonshard.base.error")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")
local other_names = require("moonshard.base.names.other_names")
local rules = require("moonshard.shard.rules")
local shardings = require("moonshard.shard.sharding")
local tree = require("moonshard.nn.tree")
local world = require("moonshard.distributed.world")

---@class moonshard.LoraConfig the value of a rule
---@field rank? integer default 8
---@field alpha? number the adapter is multiplied by alpha / rank; default 2 * rank
---@field dropout? number probability with which the adapter does not see an element of the layer's input; default 0

---@class moonshard.LoraOptions
---@field train? any rules over names of parameters that also train, such as { "head", re"norm" }; default: none

---@class moonshard.lora
---@overload fun(model: moonshard.Module, rules: table, o: moonshard.LoraOptions?): moonshard.Module
local lora = {}

-- ---- the values of rules ----------------------------------------------------------------------------------------

local function read(value, rule)
  if type(value) ~= "table" then
    errors.invalid("ms.lora: %s must have a table, as in { rank = 16, alpha = 32 }, not %s", rule,
      options.describe(value))
  end
  local config = options.parse("ms.lora: " .. rule, value, adapter.OPTIONS.specs)
  config.alpha = config.alpha or 2 * config.rank
  if not (config.alpha > 0 and config.alpha < math.huge) then
    errors.invalid("ms.lora: %s: alpha must be above 0 and finite, not %g", rule, config.alpha)
  end
  if not (config.dropout >= 0 and config.dropout < 1) then
    errors.invalid("ms.lora: %s: dropout must be at least 0 and below 1, not %g", rule, config.dropout)
  end
  return config
end

-- ---- which layers -----------------------------------------------------------------------------------------------

local function is_linear(entry) return entry.module.takes_adapter == true end

-- The modules that contain linear layers.
local function containers(modules)
  local contains = {}
  for _, entry in ipairs(modules) do
    local at = is_linear(entry) and entry.parent
    while at and not contains[modules[at]] do
      contains[modules[at]] = true
      at = modules[at].parent
    end
  end
  return contains
end

local function refuse_module(rule, entry, names)
  errors.raise_at(rule.where, "MS_ERULE", "ms.lora: rule %s matches %s (%s), which is not a linear layer "
    .. "(ms.nn.linear), and only those take adapters; nearest: %s", rules.describe(rule), entry.name,
    getmetatable(entry.module).name, nearest.several(entry.name, names, 3))
end

-- The layers that rules choose, with what they give them. A rule can match a module that contains what it matches.
local function choose(model, list)
  local modules, entries, names, linear = tree.inventory(model).modules, {}, {}, {}
  for _, entry in ipairs(modules) do
    if entry.name ~= "" then
      entries[#entries + 1], names[#names + 1] = entry, entry.name
      if is_linear(entry) then linear[entry.name] = true end
    end
  end
  if next(linear) == nil then errors.invalid("ms.lora: the model has no linear layer (ms.nn.linear)") end
  local policy = rules.policy("ms.lora", list, { read = read })
  if #policy.rules == 0 then errors.invalid("ms.lora: there is no rule: write { { re[[...]], { rank = 16 } } }") end
  local decisions, warnings = policy:resolve(names, false)
  shardings.report(warnings)
  local chosen, contains, effect, container = {}, containers(modules), {}, {}
  for i, entry in ipairs(entries) do
    local decision = decisions[i]
    if decision.rule and is_linear(entry) then
      chosen[#chosen + 1] = { name = entry.name, layer = entry.module, config = decision.value }
      effect[decision.rule] = true
    elseif decision.rule and contains[entry] then
      container[decision.rule] = container[decision.rule] or entry
    elseif decision.rule then
      refuse_module(policy.rules[decision.rule], entry, linear)
    end
  end
  for i, entry in pairs(container) do
    if not effect[i] then refuse_module(policy.rules[i], entry, linear) end
  end
  return chosen
end

-- ---- the model --------------------------------------------------------------------------------------------------

local function check_model(who, model)
  if not tree.is_module(model) then
    errors.invalid("%s: the first argument must be a module, not %s", who, options.describe(model))
  end
  local around = shardings.around(model)
  if around and not around.single_rank then
    errors.invalid("%s: the model is already sharded (%s): add adapters before ms.fully_shard", who,
      around.where or "before")
  end
end

-- The names of every parameter that has several.
local function tied_names(model)
  local names = {}
  for _, entry in ipairs(tree.inventory(model).parameters) do
    if #entry.places > 1 then
      local list = {}
      for i, place in ipairs(entry.places) do list[i] = place.name end
      names[entry.parameter] = list
    end
  end
  return names
end

local function other_than(name, names) return names[1] ~= name and names[1] or names[2] end

local function check_layer(who, wanted, tied)
  local layer, config = wanted.layer, wanted.config
  if adapter.of(layer) then
    errors.invalid("%s: layer %s already has an adapter (%s), and takes no second one: name each layer in one call of "
      .. "ms.lora, or merge the first adapter (ms.lora.merge)", who, wanted.name, adapter.describe(adapter.of(layer)))
  end
  if tied[layer.weight] then
    errors.invalid("%s: %s.weight is tied to %s, so an adapter of %s could not be merged into it: narrow the rule, or "
      .. "make the model without tied weights", who, wanted.name,
      other_than(wanted.name .. ".weight", tied[layer.weight]), wanted.name)
  end
  local outputs, inputs = unpack(layer.weight.shape)
  if not wanted.loaded and config.rank > math.min(outputs, inputs) then
    errors.raise("MS_ESHAPE", "%s: the adapter of %s has rank %d, but its weight [%d,%d] has at most rank %d: give the "
      .. "rule a smaller rank", who, wanted.name, config.rank, outputs, inputs, math.min(outputs, inputs))
  end
end

-- Freezes all parameters but adapters and those that rules name, and notes what was frozen before.
local function freeze(model, train, tied)
  local noted = rawget(model, "_lora") or { before = {}, trained = {} }
  local names, list, first_name = {}, {}, {}
  for _, of in pairs(tied) do
    for i = 2, #of do first_name[of[i]] = of[1] end
  end
  for name, param in model:named_parameters() do
    if not param.factor then names[#names + 1], list[#list + 1] = name, param end
  end
  if train ~= nil then
    local policy = rules.policy("ms.lora: train", train, { bare_value = true })
    local decisions, warnings = policy:resolve(names, false, first_name)
    shardings.report(warnings)
    for i, decision in ipairs(decisions) do noted.trained[list[i]] = noted.trained[list[i]] or decision.value end
  end
  for _, param in ipairs(list) do
    if noted.before[param] == nil then noted.before[param] = param.frozen end
    param.frozen = not noted.trained[param]
  end
  rawset(model, "_lora", noted)
end

---Gives layers their adapters.
---@param who string
---@param model moonshard.Module
---@param chosen { name: string, layer: moonshard.Module, config: moonshard.Adapter, shared: moonshard.Module?,
---  loaded: boolean? }[] shared: a layer whose lora_A is this layer's, too
---@param train any
local function adapt(who, model, chosen, train)
  local tied = tied_names(model)
  for _, wanted in ipairs(chosen) do check_layer(who, wanted, tied) end
  for _, wanted in ipairs(chosen) do
    adapter.attach(wanted.layer, wanted.config, wanted.shared and wanted.shared.lora_A)
  end
  local ok, raised = pcall(freeze, model, train, tied)
  if not ok then
    for _, wanted in ipairs(chosen) do adapter.detach(wanted.layer) end
    error(raised, 0)
  end
  rawset(model, "_single_rank", nil) -- what it computed before has no adapters
end

local OPTIONS = { train = { "any" } }

local function add(_, model, list, given)
  given = options.parse("ms.lora", given, OPTIONS)
  check_model("ms.lora", model)
  for name in pairs(type(list) == "table" and list or {}) do
    local text = other_names.of_option(name)
    if text then errors.raise("MS_ENAME", "ms.lora: unknown option %s: %s", name, text) end
  end
  if type(list) ~= "table" or not rules.is_list(list) then
    errors.raise("MS_ERULE", "ms.lora: give rules over modules, as in { { re[[attn\\.wq$]], { rank = 16 } } }, not %s",
      options.describe(list))
  end
  adapt("ms.lora", model, choose(model, list), given.train)
  return model
end

-- ---- files and merging ------------------------------------------------------------------------------------------

---Reads a folder of PEFT's (adapter_config.json and adapter_model.safetensors) into a model that is not sharded yet. A
---model without adapters gets those of the folder; otherwise both must be the same. Ranks read their own elements when
---the model is first used.
---@param model moonshard.Module
---@param folder string
---@param given moonshard.LoraOptions?
---@return moonshard.Module model
function lora.load(model, folder, given)
  given = options.parse("ms.lora.load", given, OPTIONS)
  check_model("ms.lora.load", model)
  if type(folder) ~= "string" then
    errors.invalid("ms.lora.load: the second argument must be a folder, a string, not %s", options.describe(folder))
  end
  local read_folder, has_some = require("moonshard.huggingface.adapter_reader"), adapter.layers(model)[1] ~= nil
  if has_some and given.train ~= nil then
    errors.invalid("ms.lora.load: the model already has adapters, so train was decided with them: give train to the "
      .. "call of ms.lora that made them")
  end
  if not has_some then adapt("ms.lora.load", model, read_folder.layers(model, folder), given.train) end
  if world.plan_only then return model end
  local ok, raised = pcall(read_folder.values, model, folder)
  if not ok then
    if not has_some then require("moonshard.lora.remove")(model, adapter.layers(model)) end
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
