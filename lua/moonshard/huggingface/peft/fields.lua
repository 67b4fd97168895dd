-- The fields of PEFT's LoraConfig, to version 0.21: which are read, which have no effect on a model here and why, and
-- which ask for something else than LoRA as it is here. A field that is in no row is an error, unless it is off.

local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")

local fields = {}

---@class moonshard.PeftField
---@field [1] "read"|"without effect"|"refused"
---@field [2] string what it says, why it has no effect, or what is not here
---@field kind? string of its value: a key of KINDS; nil: any
---@field values? table<any, boolean> those that are read; others are refused

local MERGE = "merge the adapter into its model by PEFT (merge_and_unload), and read that folder"
local CHANGED = "it changes the weights of the base model: let PEFT convert the adapter to plain LoRA "
  .. "(path_initial_model_for_weight_conversion)"

---@type table<string, moonshard.PeftField>
fields.ROWS = {
  -- Which kind of file it is.
  peft_type = { "read", "LORA", kind = "string" },
  task_type = { "without effect", "the class of PEFT's model, which has the same adapters" },
  auto_mapping = { "without effect", "the class of PEFT's model, which has the same adapters" },
  peft_version = { "without effect", "the version that wrote the file: fields tell what it means" },
  base_model_name_or_path = { "read", "a note says so if the model is from a folder of another name", kind = "string" },
  revision = { "without effect", "that of the base model, which the caller has chosen" },
  inference_mode = { "without effect", "adapters that are loaded can train" },
  runtime_config = { "without effect", "where PEFT computes initial values" },
  -- The adapters.
  r = { "read", "the rank" }, lora_alpha = { "read", "the scale, times r" },
  lora_dropout = { "read", "of the adapters' inputs" },
  use_rslora = { "read", "the scale is lora_alpha / sqrt(r)", kind = "boolean" },
  use_dora = { "read", "lengths of the merged weights' rows", kind = "boolean" },
  lora_bias = { "read", "a bias of each adapter", kind = "boolean" },
  rank_pattern = { "read", "ranks by module", kind = "numbers" },
  alpha_pattern = { "read", "alphas by module", kind = "numbers" },
  fan_in_fan_out = { "without effect", "the family says how its weights are stored", kind = "boolean" },
  -- The modules.
  target_modules = { "read", "those that have adapters", kind = "names" },
  exclude_modules = { "read", "those that have none", kind = "names" },
  layers_to_transform = { "read", "numbers of layers", kind = "indices" },
  layers_pattern = { "read", "how lists of layers are called", kind = "names" },
  -- What trains besides.
  bias = { "read", "none, all or lora_only", values = { none = true, all = true, lora_only = true } },
  modules_to_save = { "read", "modules that train as a whole", kind = "list" },
  ensure_weight_tying = { "read", "a tied embedding of modules_to_save stays tied", kind = "boolean" },
  trainable_token_indices = { "read", "rows of an embedding that train", kind = "tokens" },
  -- Initial values; a folder has them in its tensors.
  init_lora_weights = { "read", "initial values; where they change the base model, refused" },
  eva_config = { "without effect", "the folder has the values" },
  loftq_config = { "without effect", "init_lora_weights is not loftq" },
  corda_config = { "without effect", "init_lora_weights is not corda" },
  lora_ga_config = { "without effect", "init_lora_weights is not lora_ga" },
  megatron_core = { "without effect", "there is no megatron_config" },
  qalora_group_size = { "without effect", "there is no use_qalora" },
  -- What is not here.
  target_parameters = { "refused", "it has adapters of parameters that are no linear layers' weights, such as stacked "
    .. "experts" },
  layer_replication = { "refused", "it repeats layers of the model" },
  alora_invocation_tokens = { "refused", "its adapters begin behind some tokens of a text" },
  arrow_config = { "refused", "it chooses between adapters for each token" },
  megatron_config = { "refused", "its layers are Megatron's" },
  use_qalora = { "refused", "its adapters see means of groups of inputs" },
  use_bdlora = { "refused", "its matrices are block-diagonal" },
  velora_config = { "refused", "its gradients are those of compressed inputs" },
  monteclora_config = { "refused", "its adapters are samples of a distribution" },
  kasa_config = { "refused", "it removes singular values from the weights and adds others" },
}

-- init_lora_weights by name: whether the base model stays as it is, and whether new adapters can begin so.
---@type table<string, { new: boolean, why: string? }>
fields.INITIAL = {
  gaussian = { new = true },
  eva = { new = false, why = "it begins with singular vectors of inputs, which PEFT computes from data" },
  orthogonal = { new = false, why = "it begins with a QR decomposition of random numbers of torch" },
}

fields.CHANGES_BASE = CHANGED

local function is_off(value) return value == nil or value == false or type(value) == "table" and next(value) == nil end
fields.is_off = is_off

-- Whether all of a list are of a kind.
local function is_list(value, test)
  if type(value) ~= "table" then return false end
  for key, item in pairs(value) do
    if type(key) ~= "number" or not test(item) then return false end
  end
  return true
end

local function is_text(value) return type(value) == "string" end
local function is_index(value) return type(value) == "number" and value % 1 == 0 and value >= 0 end

local function is_tokens(value)
  if is_list(value, is_index) then return true end
  if type(value) ~= "table" then return false end
  for name, list in pairs(value) do
    if not is_text(name) or not is_list(list, is_index) then return false end
  end
  return true
end

-- Kinds of values: what a message says, and the test.
local KINDS = {
  string = { "a text", is_text },
  boolean = { "true or false", function(value) return type(value) == "boolean" end },
  numbers = { "an object of numbers", function(value) return type(value) == "table" end },
  names = { "a text or a list of names of modules", function(value)
    return is_text(value) or is_list(value, is_text)
  end },
  list = { "a list of names of modules", function(value) return is_list(value, is_text) end },
  indices = { "a number or a list of numbers of layers", function(value)
    return is_index(value) or is_list(value, is_index)
  end },
  tokens = { "a list of tokens, or an object of such lists by embedding", is_tokens },
}

-- What is wrong within a value, for a list that has something else in it.
local function wrong_part(value)
  for _, item in pairs(type(value) == "table" and value or {}) do
    if type(item) == "boolean" or type(item) == "number" then return "with " .. options.describe(item) end
  end
  return options.describe(value)
end

local function check_field(path, name, value)
  local row = fields.ROWS[name]
  if not row or row[1] == "refused" or row.values and not row.values[value] then
    local why = row and (row[1] == "refused" and row[2] or "it is " .. row[2]) or "it is not known what it changes"
    errors.raise("MS_EUNSUPPORTED", "%s: %s is %s, which is not supported: %s: %s", path, name, options.describe(value),
      why, MERGE)
  end
  local kind = row.kind and KINDS[row.kind]
  if kind and not kind[2](value) then
    errors.invalid("%s: %s must be %s, not %s", path, name, kind[1], wrong_part(value))
  end
end

-- Fields that PEFT refuses together, and so does this.
local function check_together(path, given)
  local function refuse(a, b, why) errors.invalid("%s: %s and %s exclude each other: %s", path, a, b, why) end
  if type(given.target_modules) == "string" then
    for _, name in ipairs({ "layers_to_transform", "layers_pattern" }) do
      if not is_off(given[name]) then refuse("target_modules", name, "a text names the layers itself") end
    end
  end
  if not is_off(given.layers_pattern) and given.layers_to_transform == nil then
    errors.invalid("%s: layers_pattern needs layers_to_transform", path)
  end
  if given.lora_bias and given.use_dora then refuse("lora_bias", "use_dora", "PEFT has no such adapters") end
end

---Refuses fields of an adapter_config.json, or of a table of the same fields, that ask for what is not here.
---@param path string for messages
---@param given table<string, any> without nulls
function fields.check(path, given)
  if given.peft_type ~= "LORA" then
    errors.raise("MS_EUNSUPPORTED", "%s: peft_type %s is not supported; supported: LORA: %s", path,
      options.describe(given.peft_type), MERGE)
  end
  local names = {}
  for name in pairs(given) do names[#names + 1] = name end
  table.sort(names) -- so that ranks name the same one
  for _, name in ipairs(names) do
    local row = fields.ROWS[name]
    local read = row and row[1] == "read"
    if read or not is_off(given[name]) then check_field(path, name, given[name]) end
  end
  check_together(path, given)
  local initial = given.init_lora_weights
  if type(initial) == "string" and not fields.INITIAL[initial:lower()] then
    errors.raise("MS_EUNSUPPORTED", "%s: init_lora_weights %q: %s", path, initial, CHANGED)
  end
end

return fields
