-- Gives layers of a model their adapters, and decides what trains: these, what rules of `train` name, and what PEFT's
-- fields say besides (biases, whole modules, rows of embeddings). All else is frozen.

local adapter = require("moonshard.nn.adapter")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local remove = require("moonshard.lora.remove")
local rules = require("moonshard.shard.rules")
local shardings = require("moonshard.shard.sharding")
local trainable_tokens = require("moonshard.nn.adapters.trainable_tokens")
local tree = require("moonshard.nn.tree")
local world = require("moonshard.distributed.world")

local attach = {}

---Refuses what is no model, and a model that is sharded already.
---@param who string for messages
---@param model any
function attach.check_model(who, model)
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

-- DoRA's lengths begin as those of the rows of a weight that is known, and of W alone.
local function check_lengths(who, wanted)
  if not wanted.layer.weight.source and not world.plan_only then
    errors.raise("MS_EUNSUPPORTED", "%s: use_dora of %s: the lengths of rows begin as those of its weight, which is "
      .. "from no file and is drawn when the model is first used: give ms.huggingface.model a folder", who, wanted.name)
  elseif wanted.config.init_lora_weights == false then
    errors.invalid("%s: use_dora of %s with init_lora_weights = false: B would not begin as zeros, and the lengths of "
      .. "rows as others than the weight's: leave one of them out", who, wanted.name)
  end
end

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
  if config.use_dora and not wanted.loaded then
    check_lengths(who, wanted)
  end
  local outputs, inputs = unpack(layer.weight.shape)
  if not wanted.any_rank and config.rank > math.min(outputs, inputs) then
    errors.raise("MS_ESHAPE", "%s: the adapter of %s has rank %d, but its weight [%d,%d] has at most rank %d: give the "
      .. "rule a smaller rank", who, wanted.name, config.rank, outputs, inputs, math.min(outputs, inputs))
  end
end

-- Makes rows of embeddings trainable, of all layers that share a weight.
local function attach_tokens(who, model, wanted, layers)
  local first = layers[wanted.layer]
  for _, entry in ipairs(tree.inventory(model).modules) do
    local layer = entry.module
    if rawget(layer, "weight") == first.weight then
      if trainable_tokens.of(layer) or adapter.of(layer) then
        errors.invalid("%s: %s has %s already: trainable_token_indices cannot train rows of it, too", who, entry.name,
          adapter.of(layer) and "an adapter" or "rows that train")
      elseif not wanted.loaded and not first.weight.source and not world.plan_only then
        errors.raise("MS_EUNSUPPORTED", "%s: trainable_token_indices: the rows begin as those of %s.weight, which is "
          .. "from no file and is drawn when the model is first used: give ms.huggingface.model a folder", who,
          wanted.layer)
      end
      trainable_tokens.attach(layer, wanted.indices, layer ~= first and first.trainable_tokens or nil)
    end
  end
end

-- The parameters that PEFT's fields let train, by name.
local function parameters_of(saved)
  local names = {}
  for _, part in ipairs(saved.parts) do
    for _, slice in ipairs(part.entry.tensor.slices) do names[slice.parameter] = part.stored end
  end
  return names
end

local function rule_decisions(train, names, list, tied, noted)
  local first_name = {}
  for _, of in pairs(tied) do
    for i = 2, #of do first_name[of[i]] = of[1] end
  end
  local policy = rules.policy("ms.lora: train", train, { bare_value = true })
  local decisions, warnings = policy:resolve(names, false, first_name)
  shardings.report(warnings)
  for i, decision in ipairs(decisions) do noted.trained[list[i]] = noted.trained[list[i]] or decision.value end
end

-- Freezes all parameters but adapters and those that are to train, and notes what was frozen before.
local function freeze(who, model, train, saved, tied)
  local noted = rawget(model, "_lora") or { before = {}, trained = {} }
  local names, list, wanted, rows = {}, {}, parameters_of(saved), {}
  for _, found in ipairs(trainable_tokens.layers(model)) do rows[found.layer.weight] = found.name end
  for name, param in model:named_parameters() do
    if not param.factor then names[#names + 1], list[#list + 1] = name, param end
  end
  if train ~= nil then rule_decisions(train, names, list, tied, noted) end
  for i, param in ipairs(list) do
    if wanted[names[i]] then noted.trained[param] = true end
    if noted.trained[param] and rows[param] then
      errors.invalid("%s: %s is to train as a whole, and rows of it by trainable_token_indices: give it one of them",
        who, names[i])
    end
    if noted.before[param] == nil then noted.before[param] = param.frozen end
    param.frozen = not noted.trained[param]
  end
  rawset(model, "_lora", noted)
end

---Gives layers their adapters.
---@param who string
---@param model moonshard.Module
---@param chosen { name: string, layer: moonshard.Module, config: moonshard.Adapter, shared: moonshard.Module?,
---  loaded: boolean?, any_rank: boolean? }[] shared: a layer whose lora_A is this layer's, too; loaded: values are from
---  a folder; any_rank: also one that is larger than the weight's, as in PEFT
---@param train any
---@param saved moonshard.SavedParts? what trains besides, by PEFT's fields
function attach.adapt(who, model, chosen, train, saved)
  local tied, done = tied_names(model), {}
  for _, wanted in ipairs(chosen) do check_layer(who, wanted, tied) end
  for i, wanted in ipairs(chosen) do
    adapter.attach(wanted.layer, wanted.config, wanted.shared and wanted.shared.lora_A)
    done[i] = wanted.layer
  end
  local ok, raised = pcall(function()
    local layers = {}
    for name, module in model:named_modules() do layers[name] = module end
    for _, tokens in ipairs(saved and saved.tokens or {}) do
      attach_tokens(who, model, { layer = tokens.layer, indices = tokens.indices, loaded = chosen[1].loaded }, layers)
    end
    freeze(who, model, train, saved or { parts = {} }, tied)
  end)
  if not ok then
    remove.layers(done, model)
    error(raised, 0)
  end
  rawset(model, "_single_rank", nil) -- what it computed before has no adapters
end

return attach
