-- PEFT's adapter_config.json: what a file of adapters is multiplied by, and whether it is LoRA as this layer computes
-- it. A field that would change the numbers and is not implemented is an error, and so is an unknown one that is set.

local errors = require("moonshard.base.error")
local faults = require("moonshard.huggingface.folder.faults")
local input_file = require("moonshard.base.files.input_file")
local json = require("moonshard.base.text.json")
local options = require("moonshard.base.checks.options")
local re = require("moonshard.base.re")
local rules = require("moonshard.shard.rules")

local adapter_config = { NAME = "adapter_config.json", WEIGHTS = "adapter_model.safetensors" }
adapter_config.FILES = { adapter_config.WEIGHTS, adapter_config.NAME }

-- Fields that say nothing more than the tensors do, or nothing about them.
local WITHOUT_PART = {}
for name in ([[
  alpha_pattern auto_mapping base_model_name_or_path eva_config exclude_modules fan_in_fan_out inference_mode
  init_lora_weights layers_pattern layers_to_transform lora_alpha lora_dropout megatron_core peft_type peft_version
  qalora_group_size r rank_pattern revision runtime_config target_modules task_type use_rslora
]]):gmatch("%S+") do WITHOUT_PART[name] = true end

-- Initial values that leave the weights of the base model as they are; others change them at each start.
local INITIAL = { gaussian = true, eva = true, orthogonal = true }

local MERGE = "merge the adapter into its model by PEFT (merge_and_unload), and read that folder"

-- Fields that change what is computed, and what their adapters have that LoRA does not.
local REFUSED = {
  use_dora = "DoRA also trains the lengths of the merged weights' rows",
  lora_bias = "it gives each adapter a bias",
  bias = "with another value than \"none\" it holds biases of the model",
  modules_to_save = "it holds whole layers of the model that were trained",
  trainable_token_indices = "it holds rows of the embedding that were trained",
  layer_replication = "it repeats layers of the model",
  target_parameters = "it has adapters of parameters that are no linear layers' weights",
}

local function is_off(value) return value == nil or value == false or type(value) == "table" and next(value) == nil end

-- ---- which modules have adapters --------------------------------------------------------------------------------
--
-- The tensors say so, and so do these fields; PEFT leaves out tensors of modules that they do not choose.

-- A file with another kind of value is not PEFT's.
local function check_names(path, field, given)
  if given == nil or type(given) == "string" then return end
  local wrong = type(given) ~= "table" and given
  for key, name in pairs(type(given) == "table" and given or {}) do
    if type(key) ~= "number" then wrong = given elseif type(name) ~= "string" then wrong = name end
  end
  if wrong then
    errors.invalid("%s: %s must be a text or a list of names of modules, not %s", path, field,
      wrong == given and options.describe(given) or "with " .. options.describe(wrong))
  end
end

-- Which of the names an expression of a field chooses, as it is within another.
local function matching(path, field, expression, within, names)
  local ok, pattern = pcall(re, within:format(expression))
  if not ok then
    if not errors.is(pattern) then error(pattern, 0) end
    errors.invalid("%s: %s has %s, which is no regular expression of PCRE2 (%s): correct it, or list names of modules",
      path, field, options.describe(expression), pattern.message)
  end
  local chosen, rule = {}, { pattern, true, optional = true }
  for i, decision in ipairs((rules.policy(field, { rule }):resolve(names))) do
    chosen[names[i]] = decision.value
  end
  return chosen
end

-- The same, of a field's value: a text is an expression for whole names, and a list has names or their ends, from a dot
-- on.
local function chosen_by(path, field, value, names)
  if type(value) == "string" then return matching(path, field, value, "^(?:%s)$", names) end
  local chosen = {}
  for _, name in ipairs(names) do
    for _, part in ipairs(value) do
      chosen[name] = chosen[name] or name == part or name:sub(-#part - 1) == "." .. part
    end
  end
  return chosen
end

-- The number of the layer of which a module is a part: the last one behind a list of layers, which has one of these
-- names, or any.
local function layer_of(name, lists)
  local parts, number = {}, nil
  for part in name:gmatch("[^.]+") do parts[#parts + 1] = part end
  for i = 3, #parts - 1 do
    local known = not lists
    for _, list in ipairs(lists or {}) do known = known or parts[i - 1] == list end
    if known and parts[i]:find("^%d+$") then number = tonumber(parts[i]) end
  end
  return number
end

local function list_of(value) return type(value) == "table" and value or { value } end

local function in_layers(given, name)
  local layers, patterns = given.layers_to_transform, given.layers_pattern
  if is_off(layers) then return true end
  local number = layer_of(name, not is_off(patterns) and list_of(patterns) or nil)
  for _, layer in ipairs(list_of(layers)) do
    if layer == number then return true end
  end
  return false
end

local function check_chosen(path, given, names)
  local targets, excluded = given.target_modules, given.exclude_modules
  local chosen = targets ~= nil and targets ~= "all-linear"
    and chosen_by(path, "target_modules", targets, names)
  local left_out = not is_off(excluded) and chosen_by(path, "exclude_modules", excluded, names) or {}
  for _, name in ipairs(names) do
    local field = chosen and not chosen[name] and "target_modules" or left_out[name] and "exclude_modules"
      or not in_layers(given, name) and "layers_to_transform"
    if field then
      errors.raise("MS_EMISMATCH", "%s: %s leaves out %s, of which the folder has tensors: PEFT would pass these over, "
        .. "so correct the field, or remove them", path, field, name)
    end
  end
end

local function check_fields(path, given)
  if given.peft_type ~= "LORA" then
    errors.raise("MS_EUNSUPPORTED", "%s: peft_type %s is not supported; supported: LORA", path,
      options.describe(given.peft_type))
  end
  local names = {}
  for name in pairs(given) do names[#names + 1] = name end
  table.sort(names) -- so that ranks name the same one
  for _, name in ipairs(names) do
    local value = given[name]
    if not WITHOUT_PART[name] and not is_off(value) and not (name == "bias" and value == "none") then
      errors.raise("MS_EUNSUPPORTED", "%s: %s is %s, and plain LoRA alone is supported: %s: %s", path, name,
        options.describe(value), REFUSED[name] or "it is not known what it changes", MERGE)
    end
  end
  for _, name in ipairs({ "rank_pattern", "alpha_pattern" }) do
    if given[name] ~= nil and type(given[name]) ~= "table" then
      errors.invalid("%s: %s must be an object of numbers, not %s", path, name, options.describe(given[name]))
    end
  end
  for _, name in ipairs({ "use_rslora", "fan_in_fan_out" }) do
    if given[name] ~= nil and type(given[name]) ~= "boolean" then
      errors.invalid("%s: %s must be true or false, not %s", path, name, options.describe(given[name]))
    end
  end
  check_names(path, "target_modules", given.target_modules)
  check_names(path, "exclude_modules", given.exclude_modules)
  local initial = given.init_lora_weights
  if type(initial) == "string" and not INITIAL[initial] then
    errors.raise("MS_EUNSUPPORTED", "%s: init_lora_weights %q changes the weights of the base model: let PEFT convert "
      .. "the adapter to plain LoRA (path_initial_model_for_weight_conversion)", path, initial)
  end
end

-- Fields whose null is a mistake; that of any other field is its absence, as in PEFT.
local NUMBERS = { r = true, lora_alpha = true, lora_dropout = true }

local LARGEST = (2 - 2 ^ -23) * 2 ^ 127 -- of f32

local function number(path, given, name, least, default)
  local value = given[name]
  if value == nil then value = default end
  if type(value) ~= "number" or value < least or value == math.huge then
    errors.invalid("%s: %s must be a number of at least %g, not %s", path, name, least, options.describe(value))
  end
  return value
end

-- The values of rank_pattern or alpha_pattern by name: keys are expressions for the end of a name, from a dot on, and
-- the first in the order of the file counts.
local function pattern_values(config, field, names)
  local found, path = {}, config.path
  for _, member in ipairs(config.patterns[field] or {}) do
    local key, value = member.name, member.value
    local is_zero = field == "alpha_pattern" and value == 0 -- as lora_alpha can be
    if type(value) ~= "number" or value <= 0 and not is_zero then
      errors.invalid("%s: %s of %s must be a number %s 0, not %s", path, field, key,
        field == "alpha_pattern" and "of at least" or "above", options.describe(value))
    end
    for name in pairs(matching(path, field, key, "^(.*\\.)?(%s)$", names)) do found[name] = found[name] or value end
  end
  return found
end

---@class moonshard.AdapterConfig
---@field path string
---@field given table<string, any>
---@field patterns table<string, { name: string, value: any }[]> rank_pattern and alpha_pattern, in their order

---Reads a folder's adapter_config.json, and refuses what is not plain LoRA.
---@param folder string
---@return moonshard.AdapterConfig
function adapter_config.read(folder)
  local path = folder:gsub("(.)/+$", "%1") .. "/" .. adapter_config.NAME
  local text = input_file.read(path, "a folder of adapters needs an adapter_config.json")
  faults.check_json(path, text)
  local members, problem = json.fields(text)
  if not members then errors.invalid("%s: %s", path, problem) end
  local given, patterns = {}, {}
  for _, member in ipairs(members) do
    if member.value ~= json.null or NUMBERS[member.name] then given[member.name] = member.value end
    if member.name == "rank_pattern" or member.name == "alpha_pattern" then
      patterns[member.name] = json.fields(member.text)
    end
  end
  check_fields(path, given)
  return { path = path, given = given, patterns = patterns }
end

---The modules that a config names and of which its folder has no tensors: PEFT trained adapters of these, so a file may
---be cut off.
---@param config moonshard.AdapterConfig
---@param names string[] of all modules that can have adapters
---@param present table<string, boolean> those that have them in the file
---@return string[]
function adapter_config.lacking(config, names, present)
  local path, given, lacking = config.path, config.given, {}
  local targets, excluded = given.target_modules, given.exclude_modules
  if targets == nil or targets == "all-linear" then return lacking end
  local chosen = chosen_by(path, "target_modules", targets, names)
  local left_out = not is_off(excluded) and chosen_by(path, "exclude_modules", excluded, names) or {}
  for _, name in ipairs(names) do
    local wanted = chosen[name] and not left_out[name] and in_layers(given, name)
    if wanted and not present[name] then lacking[#lacking + 1] = name end
  end
  return lacking
end

---What a config says of the adapters of modules.
---@param config moonshard.AdapterConfig
---@param names string[] of the modules that have adapters in the file, as in the reference library
---@return table<string, moonshard.Adapter> by these names; alpha is that of alpha / rank, also with use_rslora
function adapter_config.of_modules(config, names)
  local path, given = config.path, config.given
  check_chosen(path, given, names)
  local rank, alpha = number(path, given, "r", 1, 8), number(path, given, "lora_alpha", 0, 8)
  local dropout = number(path, given, "lora_dropout", 0, 0)
  if dropout >= 1 then errors.invalid("%s: lora_dropout must be below 1, not %g", path, dropout) end
  local ranks = pattern_values(config, "rank_pattern", names)
  local alphas = pattern_values(config, "alpha_pattern", names)
  local found = {}
  for _, name in ipairs(names) do
    local of = { rank = ranks[name] or rank, alpha = alphas[name] or alpha, dropout = dropout }
    if of.rank % 1 ~= 0 then
      errors.invalid("%s: %s gives %s the rank %g, but ranks are whole numbers", path,
        ranks[name] and "rank_pattern" or "r", name, of.rank)
    end
    if given.use_rslora then of.alpha = of.alpha * math.sqrt(of.rank) end
    if of.alpha / of.rank > LARGEST then
      errors.invalid("%s: alpha of %s is %g, and f32 has no number as large as its factor", path, name, of.alpha)
    end
    found[name] = of
  end
  return found
end

-- ---- writing ----------------------------------------------------------------------------------------------------

---@class moonshard.WrittenAdapter a module of the reference library with its adapter
---@field module moonshard.AdaptedModule
---@field rank integer
---@field alpha number
---@field dropout number

-- The last part of names if all modules with this end have adapters, which is how people write target_modules, else
-- names as far as the family's prefix.
local function targets(written, modules)
  local function last(module) return module.short:match("[^.]*$") end
  local all, chosen, list, seen = {}, {}, {}, {}
  for _, module in ipairs(modules) do all[last(module)] = (all[last(module)] or 0) + 1 end
  for _, one in ipairs(written) do chosen[last(one.module)] = (chosen[last(one.module)] or 0) + 1 end
  for _, one in ipairs(written) do
    local name = last(one.module)
    if all[name] ~= chosen[name] then name = one.module.short end
    if not seen[name] then
      seen[name] = true
      list[#list + 1] = name
    end
  end
  table.sort(list)
  return list
end

local function escaped(name) return (name:gsub("%.", "\\.")) end

-- The key of a module in a pattern. Keys match the ends of names, so one that ends another name says where it begins.
local function key_of(module, modules)
  for _, other in ipairs(modules) do
    if other.short:sub(-#module.short - 1) == "." .. module.short then return "^" .. escaped(module.name) end
  end
  return escaped(module.short)
end

---The text of an adapter_config.json.
---@param written moonshard.WrittenAdapter[] not empty
---@param modules moonshard.AdaptedModule[] all of the model
---@param o { transposed: boolean, base: string?, generates: boolean } transposed: whether the library stores weights as
---  [in, out]; generates: the model predicts the next token
---@return string text
---@return number? dropout that all get, where they have different ones
function adapter_config.text(written, modules, o)
  local first, ranks, alphas, dropout, differ = written[1], {}, {}, 0, false
  for _, one in ipairs(written) do
    if one.rank ~= first.rank then ranks[key_of(one.module, modules)] = one.rank end
    if one.alpha ~= first.alpha then alphas[key_of(one.module, modules)] = one.alpha end
    differ = differ or one.dropout ~= first.dropout
    dropout = math.max(dropout, one.dropout) -- the file has one for all
  end
  return require("moonshard.huggingface.config").text({
    peft_type = "LORA", task_type = o.generates and "CAUSAL_LM" or nil, base_model_name_or_path = o.base,
    r = first.rank, lora_alpha = first.alpha, lora_dropout = dropout, target_modules = targets(written, modules),
    bias = "none",
    fan_in_fan_out = o.transposed, inference_mode = true, init_lora_weights = true, use_rslora = false,
    use_dora = false, rank_pattern = next(ranks) and ranks, alpha_pattern = next(alphas) and alphas,
  }), differ and dropout or nil
end

return adapter_config
