-- Reads the fields of a config.json: checks types, and refuses unsupported values and unknown fields. A field that was
-- silently ignored could give a different model than the one requested.

local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")

local fields = {
  ---The activations of two-layer MLPs, by their names.
  ACTIVATIONS = {
    gelu_new = "gelu_tanh", gelu_pytorch_tanh = "gelu_tanh", gelu_fast = "gelu_tanh", gelu = "gelu", relu = "relu",
    silu = "silu", swish = "silu",
  },
  ---And their names, by ours.
  ACTIVATION_NAMES = { gelu_tanh = "gelu_new", gelu = "gelu", relu = "relu", silu = "silu" },
}

-- Fields of any config that do not affect the forward pass of a language model: tokens, generation, provenance, what
-- other programs noted, and dropout, which is a training setting.
local WITHOUT_PART = {}
for name in ([[
  _flash_attn_2_enabled _num_labels is_llama_config max_sequence_length model_max_length n_special neftune_noise_alpha
  num_labels predict_special_tokens transformers.js_config unsloth_fixed unsloth_version use_bfloat16 xla_device
  _attn_implementation _attn_implementation_autoset _commit_hash _name_or_path architectures attention_dropout
  attn_implementation attn_pdrop auto_map bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward
  cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dtype early_stopping embd_pdrop
  encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task forced_bos_token_id
  forced_eos_token_id gradient_checkpointing id2label initializer_range is_decoder label2id length_penalty max_length
  min_length model_type n_ctx name_or_path no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
  output_attentions output_hidden_states output_past output_scores pad_token_id prefix problem_type
  remove_invalid_values repetition_penalty resid_pdrop return_dict return_dict_in_generate sep_token_id
  summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj suppress_tokens
  task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p torch_dtype torchscript
  transformers_version typical_p unk_token_id use_cache
]]):gmatch("%S+") do WITHOUT_PART[name] = true end

local KINDS = {
  size = { "a whole number of at least 1", function(v) return type(v) == "number" and v % 1 == 0 and v >= 1 end },
  positive = { "a number above 0", function(v) return type(v) == "number" and v > 0 end },
  boolean = { "true or false", function(v) return type(v) == "boolean" end },
  text = { "a text", function(v) return type(v) == "string" end },
  number = { "a number", function(v) return type(v) == "number" end },
  ["index|none"] = { "a whole number of at least 0, or null", function(v)
    return v == false or type(v) == "number" and v % 1 == 0 and v >= 0
  end },
  object = { "an object", function(v) return type(v) == "table" end },
  list = { "a list", function(v) return type(v) == "table" and (v[1] ~= nil or next(v) == nil) end },
  indices = { "a list of whole numbers from 0", function(v)
    if type(v) ~= "table" or v[1] == nil and next(v) ~= nil then return false end
    for _, i in ipairs(v) do
      if type(i) ~= "number" or i % 1 ~= 0 or i < 0 then return false end
    end
    return true
  end },
  factor = { "a number of at least 0", function(v) return type(v) == "number" and v >= 0 and v < math.huge end },
  ["number|none"] = { "a number, or null", function(v) return v == false or type(v) == "number" end },
  ["size|none"] = { "a whole number of at least 1, or null", function(v)
    return v == false or type(v) == "number" and v % 1 == 0 and v >= 1
  end },
  ["positive|none"] = { "a number above 0, or null", function(v)
    return v == false or type(v) == "number" and v > 0
  end },
}

local function unknown(path, name, known)
  local names = {}
  for key in pairs(known) do names[#names + 1] = key end
  local near = nearest.name(name, names)
  errors.raise("MS_EUNSUPPORTED", "%s: field %s is unknown, and so is its effect on the results%s; "
    .. "if it has none, give ignore = { %q }", path, name,
      near and (" (did you mean %s?)"):format(near)
    or "", name)
end

---Reads a config by a table of fields.
---@param path string the file's, for errors
---@param config table decoded JSON; a null is json.null
---@param known table<string, table> by name: { kind, default } returns a value, the default where the field is absent,
---  and false for a null, where `null` or a kind with "|none" allows one; { only = value, why } must have
---  that value if present, and can be null where that is false or `null` allows it
---@return table<string, any> values by name
function fields.read(path, config, known)
  local values, nulls = {}, {}
  for name, value in pairs(config) do
    local field = known[name]
    if not field and not WITHOUT_PART[name] then unknown(path, name, known) end
    if field and value == json.null then value, nulls[name] = false, true end
    if nulls[name] and field[1] and not (field.null or field[1]:find("|none", 1, true)) then
      errors.invalid("%s: %s is null, and must be %s: leave the field out for its default%s", path, name,
        KINDS[field[1]][1], field[2] ~= nil and ", " .. options.describe(field[2]) or "")
    end
    if field and field.only ~= nil and value ~= field.only and not (nulls[name] and field.null) then
      local given = options.describe(nulls[name] and json.null or value)
      errors.raise("MS_EUNSUPPORTED", "%s: %s is %s: %s", path, name, given, field.why)
    end
    if field and field[1] and not nulls[name] and not KINDS[field[1]][2](value) then
      errors.invalid("%s: %s must be %s, not %s", path, name, KINDS[field[1]][1], options.describe(value))
    end
  end
  for name, field in pairs(known) do
    local value = config[name]
    if nulls[name] then value = false end
    if value == nil then value = field[2] end
    if value == nil and field.required then errors.invalid("%s: %s is missing", path, name) end
    values[name] = value
  end
  return values
end

---The value for a name; raises an error that lists the valid names.
---@param path string
---@param field string
---@param value string
---@param choices table<string, any>
---@return any
function fields.choose(path, field, value, choices)
  if choices[value] ~= nil then return choices[value] end
  local names = {}
  for name in pairs(choices) do names[#names + 1] = name end
  table.sort(names)
  errors.raise("MS_EUNSUPPORTED", "%s: %s %s is not supported; supported: %s", path, field,
    options.describe(value), table.concat(names, ", "))
end

return fields
