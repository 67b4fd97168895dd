-- What PEFT trains and saves besides adapters: biases (bias), whole modules (modules_to_save) and rows of embeddings
-- (trainable_token_indices). Here: from the fields of a config to our parameters, and back from the parameters that
-- were trained to fields and tensors.

local base_tensors = require("moonshard.huggingface.peft.base_tensors")
local errors = require("moonshard.base.error")
local fields = require("moonshard.huggingface.peft.fields")
local matching = require("moonshard.huggingface.peft.matching")
local nearest = require("moonshard.base.names.nearest")

local saved_parts = {}

---@class moonshard.SavedPart a tensor of the base model that a folder has or gets
---@field stored string its name in the file
---@field twin string? the name of a tied one with the same values
---@field entry moonshard.BaseTensor
---@field optional boolean? PEFT trains it and does not save it

---@class moonshard.SavedTokens
---@field stored string name of the rows in the file
---@field layer string ours
---@field indices integer[]

---@class moonshard.SavedParts
---@field parts moonshard.SavedPart[]
---@field tokens moonshard.SavedTokens[]

-- ---- from fields ------------------------------------------------------------------------------------------------

-- The modules of a tied weight that PEFT keeps tied, by the last part of their names.
local STAY_TIED = { embed_tokens = true, lm_head = true }

local function last(name) return name:match("[^.]*$") end

-- PEFT trains a copy of a tied weight, and the other module keeps the base model's, unless it is to tie the copy.
local function check_tied(path, item, entry, ensured)
  if ensured and STAY_TIED[item] and STAY_TIED[last(entry.module)] then return end
  errors.raise("MS_EUNSUPPORTED", "%s: modules_to_save has %s, whose weight is tied to %s, and PEFT trains a copy of "
    .. "it alone: %s, or make the model without tied weights", path, item, entry.twin, STAY_TIED[last(entry.module)]
      and "with ensure_weight_tying = true and the item \"embed_tokens\" both train as one"
      or "give it trainable_token_indices")
end

local function biases(given, list, adapted, parts)
  if given.bias ~= "all" and given.bias ~= "lora_only" then return end
  for _, entry in ipairs(list) do
    local is_own = adapted[entry.module] and entry.field == "bias"
    if given.bias == "all" and base_tensors.is_bias(entry) or is_own then
      -- PEFT looks for the biases of lora_only under names without base_layer, and so saves none.
      parts[#parts + 1] = { stored = base_tensors.stored(entry.name, adapted), entry = entry,
        optional = given.bias == "lora_only" }
    end
  end
end

local function whole_modules(config, list, adapted, parts)
  local path, wanted = config.path, config.given.modules_to_save or {}
  local names, by_name = base_tensors.modules(list), {}
  local chosen, unused = matching.to_save(wanted, names)
  for _, name in ipairs(names) do by_name[name] = true end
  local missing = next(unused)
  if missing then
    errors.raise("MS_EMISMATCH", "%s: modules_to_save has %s, which no module of the model ends with: %s", path,
      missing, nearest.advice(missing, by_name))
  end
  for _, entry in ipairs(list) do
    local item = chosen[entry.module]
    local twin_item = entry.twin and chosen[entry.twin:match("^(.*)%.[^.]*$")]
    if item or twin_item then
      if entry.twin then check_tied(path, item or twin_item, entry, config.given.ensure_weight_tying) end
      if adapted[entry.module] then
        errors.invalid("%s: %s has an adapter and is in modules_to_save: give it one of them", path, entry.module)
      elseif entry.tensor.slices[1].parts then
        errors.raise("MS_EUNSUPPORTED", "%s: modules_to_save has %s, an expert, and experts are one parameter here: "
          .. "let all of the model train, or leave experts as they are", path, entry.module)
      end
      parts[#parts + 1] = { stored = base_tensors.stored(entry.name, adapted), entry = entry,
        twin = entry.twin and base_tensors.stored(entry.twin, adapted) }
    end
  end
end

-- Whether a name of an embedding in trainable_token_indices means a module: by its end, as PEFT looks.
local function ends_with(name, ending) return name:sub(-#ending) == ending end

local function rows(config, list)
  local given, found = config.given.trainable_token_indices, {}
  if fields.is_off(given) then return found end
  local by_layer = #given > 0 and { [false] = given } or given
  for name, indices in pairs(by_layer) do
    local entry
    for _, candidate in ipairs(list) do
      local is_table = candidate.field == "weight" and #candidate.tensor.shape == 2
      local parameter = candidate.tensor.slices[1].parameter
      local is_it = not name and parameter == "embed.weight"
        or name and (ends_with(candidate.module, name) or parameter == name .. ".weight")
      if is_table and is_it then entry = entry or candidate end
    end
    if not entry then
      errors.raise("MS_EMISMATCH", "%s: trainable_token_indices %s no embedding of the model", config.path,
        name and "names " .. name .. "," or "finds")
    end
    for _, token in ipairs(indices) do
      if token >= entry.tensor.shape[1] then
        errors.invalid("%s: trainable_token_indices has token %d, and %s has %d rows", config.path, token, entry.module,
          entry.tensor.shape[1])
      end
    end
    found[#found + 1] = { layer = entry.tensor.slices[1].parameter:match("^(.*)%.[^.]*$"), indices = indices,
      stored = ("base_model.model.%s.token_adapter.trainable_tokens_delta"):format(entry.module) }
  end
  table.sort(found, function(a, b) return a.layer < b.layer end)
  return found
end

---@param config moonshard.AdapterConfig
---@param list moonshard.BaseTensor[]
---@param adapted table<string, boolean> modules with adapters
---@return moonshard.SavedParts
function saved_parts.of_config(config, list, adapted)
  local parts = {}
  biases(config.given, list, adapted, parts)
  whole_modules(config, list, adapted, parts)
  return { parts = parts, tokens = rows(config, list) }
end

-- ---- to fields --------------------------------------------------------------------------------------------------

-- The parameters of tensors.
local function parameters_of(entries)
  local set = {}
  for _, entry in ipairs(entries) do
    for _, slice in ipairs(entry.tensor.slices) do set[slice.parameter] = true end
  end
  return set
end

local function includes(set, part)
  if next(part) == nil then return false end
  for name in pairs(part) do
    if not set[name] then return false end
  end
  return true
end

-- Which value of bias trains biases that were trained.
local function bias_of(list, adapted, trained)
  local all, own = {}, {}
  for _, entry in ipairs(list) do
    if base_tensors.is_bias(entry) then all[#all + 1] = entry end
    if adapted[entry.module] and entry.field == "bias" then own[#own + 1] = entry end
  end
  for _, kind in ipairs({ { "all", all }, { "lora_only", own } }) do
    if includes(trained, parameters_of(kind[2])) then return kind[1], kind[2] end
  end
  return "none", {}
end

-- The names for modules_to_save: the last part where PEFT would find no other modules by it.
local function short_names(chosen, names)
  local list, seen = {}, {}
  for _, name in ipairs(names) do
    if chosen[name] then
      local short = last(name)
      for _, other in ipairs(names) do
        if ends_with(other, short) and not chosen[other] then short = name end
      end
      if not seen[short] then list[#list + 1] = short end
      seen[short] = true
    end
  end
  return list
end

---What a folder of adapters has besides them.
---@param list moonshard.BaseTensor[]
---@param adapted table<string, boolean> modules with adapters
---@param trained string[] names of the parameters that were trained, without those of adapters
---@param tokens moonshard.TokensRecord[]
---@return moonshard.SavedParts
---@return table<string, any> fields of its config
---@return string[] left_out what was trained and is in no such part
function saved_parts.of_trained(list, adapted, trained, tokens)
  local left, parts, config = {}, {}, {}
  for _, name in ipairs(trained) do left[name] = true end
  local kind, entries = bias_of(list, adapted, left)
  if kind ~= "none" then config.bias = kind end
  for _, entry in ipairs(entries) do
    parts[#parts + 1] = { stored = base_tensors.stored(entry.name, adapted), entry = entry }
  end
  for name in pairs(parameters_of(entries)) do left[name] = nil end
  local chosen = {}
  for _, entry in ipairs(list) do
    for _, slice in ipairs(entry.tensor.slices) do
      local can = left[slice.parameter] and not adapted[entry.module] and not slice.parts and entry.module ~= ""
        and (not entry.twin or STAY_TIED[last(entry.module)])
      if can then chosen[entry.module] = true end
    end
  end
  for _, entry in ipairs(list) do
    if chosen[entry.module] then
      for _, slice in ipairs(entry.tensor.slices) do left[slice.parameter] = nil end
      local known = kind == "all" and base_tensors.is_bias(entry)
      if not known then
        parts[#parts + 1] = { stored = base_tensors.stored(entry.name, adapted), entry = entry,
          twin = entry.twin and base_tensors.stored(entry.twin, adapted) }
      end
      config.ensure_weight_tying = config.ensure_weight_tying or entry.twin ~= nil or nil
    end
  end
  if next(chosen) then config.modules_to_save = short_names(chosen, base_tensors.modules(list)) end
  local saved = {}
  for _, record in ipairs(tokens) do
    for _, entry in ipairs(list) do
      if entry.tensor.slices[1].parameter == record.weight then
        saved[#saved + 1] = { layer = record.layer, indices = record.indices, record = record,
          stored = ("base_model.model.%s.token_adapter.trainable_tokens_delta"):format(entry.module) }
        config.trainable_token_indices = config.trainable_token_indices or {}
        config.trainable_token_indices[last(entry.module)] = record.indices
      end
    end
  end
  if #saved == 1 and saved[1].record.weight == "embed.weight" then
    config.trainable_token_indices = saved[1].indices
  end
  local left_out = {}
  for _, name in ipairs(trained) do
    if left[name] then left_out[#left_out + 1] = name end
  end
  return { parts = parts, tokens = saved }, config, left_out
end

return saved_parts
