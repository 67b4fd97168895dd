-- PEFT's adapter_config.json: which modules have adapters, and what each of them is. peft/fields.lua has all fields,
-- peft/matching.lua the rules by which they choose modules.

local adapter = require("moonshard.nn.adapter")
local errors = require("moonshard.base.error")
local faults = require("moonshard.huggingface.folder.faults")
local fields = require("moonshard.huggingface.peft.fields")
local input_file = require("moonshard.base.files.input_file")
local json = require("moonshard.base.text.json")
local matching = require("moonshard.huggingface.peft.matching")
local options = require("moonshard.base.checks.options")

local adapter_config = { NAME = "adapter_config.json", WEIGHTS = "adapter_model.safetensors" }
adapter_config.FILES = { adapter_config.WEIGHTS, adapter_config.NAME }

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

---@class moonshard.AdapterConfig
---@field path string
---@field given table<string, any>
---@field patterns table<string, { name: string, value: any }[]> rank_pattern and alpha_pattern, in their order
---@field is_new boolean? it is of adapters that begin, and not of a folder

---Reads a folder's adapter_config.json, and refuses what is not here.
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
  fields.check(path, given)
  return { path = path, given = given, patterns = patterns }
end

---The fields of a table in place of a file's.
---@param path string for messages
---@param given table<string, any> patterns are objects, or lists of { key, value } where the order matters
---@return moonshard.AdapterConfig
function adapter_config.of_table(path, given)
  local copy, patterns = {}, {}
  for name, value in pairs(given) do copy[name] = value end
  copy.peft_type = copy.peft_type or "LORA"
  for _, field in ipairs({ "rank_pattern", "alpha_pattern" }) do
    local members = {}
    for key, value in pairs(type(copy[field]) == "table" and copy[field] or {}) do
      local is_pair = type(key) == "number" and type(value) == "table"
      members[#members + 1] = { name = is_pair and value[1] or key, value = is_pair and value[2] or value, at = key }
      if type(members[#members].name) ~= "string" then
        errors.invalid("%s: %s must be an object of numbers, or a list of { key, number }", path, field)
      end
    end
    table.sort(members, function(a, b)
      if type(a.at) ~= type(b.at) then return type(a.at) == "number" end
      return a.at < b.at
    end)
    patterns[field] = members
  end
  fields.check(path, copy)
  return { path = path, given = copy, patterns = patterns, is_new = true }
end

---Why modules have no adapter, by name: the field that leaves each out.
---@param config moonshard.AdapterConfig
---@param names string[] of all modules that can have adapters
---@param heads table<string, boolean>? those that "all-linear" leaves out
---@return table<string, string>
function adapter_config.left_out(config, names, heads)
  return matching.left_out(config.path, config.given, names, heads or {})
end

---The modules that a config names and of which its folder has no tensors: PEFT trained adapters of these, so a file may
---be cut off.
---@param config moonshard.AdapterConfig
---@param names string[] of all modules that can have adapters
---@param present table<string, boolean> those that have them in the file
---@param heads table<string, boolean>
---@return string[]
function adapter_config.lacking(config, names, present, heads)
  local lacking = {}
  if config.given.target_modules == nil then return lacking end
  local left_out = adapter_config.left_out(config, names, heads)
  for _, name in ipairs(names) do
    if not left_out[name] and not present[name] then lacking[#lacking + 1] = name end
  end
  return lacking
end

local function check_chosen(config, names, heads)
  local left_out = adapter_config.left_out(config, names, heads)
  for _, name in ipairs(names) do
    if left_out[name] then
      errors.raise("MS_EMISMATCH", "%s: %s leaves out %s, of which the folder has tensors: PEFT would pass these over, "
        .. "so correct the field, or remove them", config.path, left_out[name], name)
    end
  end
end

-- How new adapters begin.
local function initial_of(path, value)
  local key = type(value) == "string" and value:lower() or value
  if key == nil then return true end
  if adapter.INITIAL[key] then return key end
  local row = fields.INITIAL[key]
  errors.raise("MS_EUNSUPPORTED", "%s: init_lora_weights %s begins new adapters otherwise than here: %s: let PEFT save "
    .. "the adapter before it trains, and load that folder", path, options.describe(value),
    row and row.why or "it is none of true, false and \"gaussian\"")
end

---What a config says of the adapters of modules.
---@param config moonshard.AdapterConfig
---@param names string[] of the modules that have adapters in the file, as in the reference library
---@param heads table<string, boolean>? those that "all-linear" leaves out
---@return table<string, moonshard.Adapter> by these names; alpha is that of alpha / rank, also with use_rslora
function adapter_config.of_modules(config, names, heads)
  local path, given = config.path, config.given
  check_chosen(config, names, heads)
  local rank, alpha = number(path, given, "r", 1, 8), number(path, given, "lora_alpha", 0, 8)
  local dropout = number(path, given, "lora_dropout", 0, 0)
  if dropout >= 1 then errors.invalid("%s: lora_dropout must be below 1, not %g", path, dropout) end
  local ranks = matching.pattern_values(path, "rank_pattern", config.patterns.rank_pattern or {}, names)
  local alphas = matching.pattern_values(path, "alpha_pattern", config.patterns.alpha_pattern or {}, names)
  local found, initial = {}, nil -- of a folder they are in the tensors
  if config.is_new then initial = initial_of(path, given.init_lora_weights) end
  for _, name in ipairs(names) do
    local of = {
      rank = ranks[name] or rank, alpha = alphas[name] or alpha, dropout = dropout, use_dora = given.use_dora or nil,
      lora_bias = given.lora_bias or nil, init_lora_weights = initial,
    }
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
---@field use_dora boolean
---@field lora_bias boolean

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
---@param o { transposed: boolean, base: string?, generates: boolean, more: table<string, any> } transposed: whether the
---  library stores weights as [in, out]; generates: the model predicts the next token; more: the fields of what trains
---  besides adapters (peft/saved_parts.lua)
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
  local config = {
    peft_type = "LORA", task_type = o.generates and "CAUSAL_LM" or nil, base_model_name_or_path = o.base,
    r = first.rank, lora_alpha = first.alpha, lora_dropout = dropout, target_modules = targets(written, modules),
    bias = "none", fan_in_fan_out = o.transposed, inference_mode = true, init_lora_weights = true, use_rslora = false,
    use_dora = first.use_dora, lora_bias = first.lora_bias, rank_pattern = next(ranks) and ranks,
    alpha_pattern = next(alphas) and alphas,
  }
  for name, value in pairs(o.more) do config[name] = value end
  return require("moonshard.huggingface.config").text(config), differ and dropout or nil
end

return adapter_config
