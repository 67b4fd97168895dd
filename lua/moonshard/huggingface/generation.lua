-- What a folder says of how its model generates: the element type, the tokens that end a text, and how tokens are
-- drawn.

local config = require("moonshard.huggingface.config")
local dtypes = require("moonshard.base.dtypes")
local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.files.input_file")
local json = require("moonshard.base.text.json")
local options = require("moonshard.base.checks.options")
local safetensors = require("moonshard.base.files.safetensors")
local text_lines = require("moonshard.base.text.text_lines")

local generation = {}

-- Types of two bytes and less.
local function is_short(name) return name:find("16", 1, true) ~= nil or name:find("8", 1, true) ~= nil end

-- A field of a config, or of the decoder's in it.
local function field_of(whole, name)
  local value, text = whole[name], whole.text_config
  if (value == nil or value == json.null) and type(text) == "table" then value = text[name] end
  return value
end

-- Whether any weight has more digits than bf16 and f16.
local function has_long_weights(folder)
  for _, tensor in ipairs(safetensors.open(folder).tensors) do
    if tensor.dtype:find("F", 1, true) and not is_short(tensor.dtype) then return true end
  end
  return false
end

---The element type in which a folder's model computes unless the user says otherwise: the one that config.json names,
---as Hugging Face's library takes it, or that of the tensors.
---@param folder string
---@return "f32"|"auto" dtype "auto" for bf16, f16 and f8: bf16 where the device computes in it
function generation.dtype(folder)
  local whole = config.read(folder)
  local named = field_of(whole, "dtype")
  if named == nil or named == json.null then named = field_of(whole, "torch_dtype") end
  named = dtypes.without_torch(named)
  if type(named) == "string" and named:find("float", 1, true) then return is_short(named) and "auto" or "f32" end
  return has_long_weights(folder) and "f32" or "auto"
end

local function is_id(value) return type(value) == "number" and value >= 0 and value % 1 == 0 end

local function read_end_tokens(value, path)
  if value == nil or value == json.null then return {} end
  if is_id(value) then return { value } end
  local valid = type(value) == "table" and (value[1] ~= nil or next(value) == nil)
  local wrong = value
  for _, id in ipairs(valid and value or {}) do
    if not is_id(id) then valid, wrong = false, id end
  end
  if valid then return value end
  errors.invalid("%s: eos_token_id must be the id of a token, a whole number of at least 0, or a list of such, not %s",
    path, wrong == json.null and "null" or options.describe(wrong))
end

-- generation_config.json; nil in a folder without it.
local function read_file(folder)
  local path = folder:gsub("/+$", "") .. "/generation_config.json"
  if not input_file.exists(path) then return nil, path end
  local whole, problem = config.of_text(input_file.read(path, "it says how the folder's model generates"))
  if not whole then errors.invalid("%s: %s", path, problem) end
  return whole, path
end

---The ids of the tokens that end a text: eos_token_id of generation_config.json, or of config.json in a folder without
---that file, as in Hugging Face's library. An id outside of the vocabulary is never drawn.
---@param folder string
---@return integer[]
function generation.end_tokens(folder)
  local whole, path = read_file(folder)
  if not whole then whole, path = config.read(folder) end
  return read_end_tokens(field_of(whole, "eos_token_id"), path)
end

-- ---- how tokens are drawn ---------------------------------------------------------------------------------------

-- What ms.generate has, too, with the values that it takes.
local SHARED = {
  { "temperature", "a number of at least 0", function(x) return x >= 0 and x < math.huge end },
  { "top_k", "a whole number of at least 0", function(x) return x >= 0 and x % 1 == 0 end },
  { "top_p", "above 0 and at most 1", function(x) return x > 0 and x <= 1 end },
}

-- What the reference library takes where do_sample is true and the file says no other value.
local DRAWN = { temperature = 1, top_k = 50 }

-- Fields that have no part in which token is drawn: tokens with a meaning, lengths, which --tokens says, caches, and
-- what a call returns.
local WITHOUT_PART = {}
for name in ([[
  _from_model_config assistant_confidence_threshold assistant_early_exit assistant_lookbehind bos_token_id
  cache_config cache_implementation compile_config decoder_start_token_id disable_compile do_sample early_stopping
  eos_token_id is_assistant length_penalty low_memory max_length max_matching_ngram_size max_new_tokens max_time
  num_assistant_tokens num_assistant_tokens_schedule num_return_sequences output_attentions output_hidden_states
  output_logits output_scores pad_token_id prefill_chunk_size prompt_lookup_num_tokens return_dict_in_generate
  target_lookbehind temperature token_healing top_k top_p transformers_version use_cache use_model_defaults
]]):gmatch("%S+") do WITHOUT_PART[name] = true end

-- Values with which a field of the reference library does nothing, but for null, false and an empty list.
local OFF = {
  diversity_penalty = 0, encoder_no_repeat_ngram_size = 0, encoder_repetition_penalty = 1, epsilon_cutoff = 0,
  eta_cutoff = 0, guidance_scale = 1, min_length = 0, min_new_tokens = 0, min_p = 0, no_repeat_ngram_size = 0,
  num_beam_groups = 1, num_beams = 1, penalty_alpha = 0, repetition_penalty = 1, top_h = 1, typical_p = 1,
}

-- Further fields that say how tokens are drawn, whatever their value. config.json can have all of these, which the
-- reference library takes in a folder without generation_config.json.
local OTHERS = [[
  bad_words_ids begin_suppress_tokens constraints do_sample dola_layers exponential_decay_length_penalty force_words_ids
  forced_bos_token_id forced_decoder_ids forced_eos_token_id remove_invalid_values renormalize_logits sequence_bias
  stop_strings suppress_tokens watermarking_config
]]
local IN_CONFIG = {}
for name in OTHERS:gmatch("%S+") do IN_CONFIG[name] = true end
for name in pairs(OFF) do IN_CONFIG[name] = true end
for _, row in ipairs(SHARED) do IN_CONFIG[row[1]] = true end

-- The fields of generation_config.json, or of config.json in a folder without that file.
local function read_fields(folder)
  local whole, path = read_file(folder)
  if whole then return whole, path end
  local model, model_path = config.read(folder)
  local fields = {}
  for name in pairs(IN_CONFIG) do fields[name] = field_of(model, name) end
  return fields, model_path
end

local function is_off(name, value)
  if value == nil or value == json.null or value == false or value == OFF[name] then return true end
  return type(value) == "table" and next(value) == nil
end

local function read_settings(whole, path)
  local settings = {}
  for _, row in ipairs(SHARED) do
    local name, must, fits = unpack(row)
    local value = whole[name]
    if value ~= nil and value ~= json.null then
      if type(value) ~= "number" or not fits(value) then
        errors.invalid("%s: %s must be %s, not %s", path, name, must, options.describe(value))
      end
      settings[name] = value
    end
  end
  return settings
end

---@class moonshard.FolderSampling
---@field path string of generation_config.json, or of config.json in a folder without that
---@field settings { temperature: number?, top_k: integer?, top_p: number? } for ms.generate
---@field lacking string[] other fields that say how tokens are drawn, with their values, sorted: "min_p 0.1"

---How a folder's model draws tokens. Where do_sample is false it takes the most likely one; where it is true, a
---temperature and a top_k that are not said are the reference library's, 1 and 50.
---@param folder string
---@return moonshard.FolderSampling
function generation.sampling(folder)
  local whole, path = read_fields(folder)
  local settings, lacking = read_settings(whole, path), {}
  local samples = whole.do_sample
  if samples ~= nil and samples ~= json.null and type(samples) ~= "boolean" then
    errors.invalid("%s: do_sample must be true or false, not %s", path, options.describe(samples))
  end
  for name, value in pairs(samples == true and DRAWN or {}) do settings[name] = settings[name] or value end
  if samples == false then settings = { temperature = 0 } end
  for name, value in pairs(whole) do
    if not WITHOUT_PART[name] and not is_off(name, value) then
      lacking[#lacking + 1] = ("%s %s"):format(text_lines.escape(name),
        type(value) == "table" and "(a list)" or text_lines.escape(tostring(value)))
    end
  end
  table.sort(lacking)
  return { path = path, settings = settings, lacking = lacking }
end

return generation
