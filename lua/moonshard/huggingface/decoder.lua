-- Hugging Face's decoders: maps the config.json of a family to the options of models/decoder.lua; its tensors are in
-- decoder_tensors.lua. Weights are stored like ours, [out, in], with the same rotary pairs. A family is a row of
-- huggingface/families: what its config adds to the fields that all have.

local architecture = require("moonshard.huggingface.config.architecture")
local decoder_tensors = require("moonshard.huggingface.decoder_tensors")
local errors = require("moonshard.base.error")
local families = require("moonshard.models.families")
local fields = require("moonshard.huggingface.fields")
local json = require("moonshard.base.text.json")
local model_rope = require("moonshard.models.rope")
local options = require("moonshard.base.checks.options")
local new_problems = require("moonshard.huggingface.config.problems").new
local rope = require("moonshard.huggingface.rope")

local decoder = {}

-- Fields that all families have; a family gives the defaults of its config class.
local COMMON = {
  vocab_size = "size", hidden_size = "size", intermediate_size = "size", num_hidden_layers = "size",
  num_attention_heads = "size", num_key_value_heads = "size", head_dim = "size", max_position_embeddings = "size",
  tie_word_embeddings = "boolean",
}

-- Those of them that can be None where a family gives no default: they follow from others.
local OPTIONAL = { num_key_value_heads = true, head_dim = true }

-- Fields of some: those whose defaults a family gives.
local OF_SOME = { attention_bias = "boolean", mlp_bias = "boolean" }

local ACTIVATIONS = { silu = "silu", swish = "silu", gelu_pytorch_tanh = "gelu_tanh", gelu_new = "gelu_tanh",
  gelu_fast = "gelu_tanh", gelu = "gelu", relu = "relu" }
local ACTIVATION_NAMES = { silu = "silu", gelu_tanh = "gelu_pytorch_tanh", gelu = "gelu", relu = "relu" }

---@class moonshard.DecoderFamily a row of huggingface/families
---@field model_type string
---@field architecture string
---@field base string? the class without the head; default: by the name of the architecture
---@field defaults table<string, any> of fields, as in the family's config class
---@field activation string? the field that names it; default hidden_act
---@field known table? further fields, as for fields.read
---@field theta number? default of rope_theta
---@field theta_field string? the field that names it; default rope_theta
---@field partial string? the field that says what share of a head is rotated; default: all of it, in all models
---@field original integer? default of original_max_position_embeddings; without one, it is max_position_embeddings
---@field eps string? the field of norms' eps; default rms_norm_eps
---@field prefix string? of tensors' names; default "model."
---@field head string? full name of the head's weight; default "lm_head.weight"
---@field names table<string, string>? other names of tensors than decoder_tensors.lua has, by ours
---@field norms (table<string, string>|fun(o: table): table<string, string>)? and of a layer's norms
---@field layer string? what the names of a layer's tensors begin with; default "layers.%d."
---@field buffers string[]? patterns of names to skip; default: old versions' frequencies of positions
---@field theirs table<string, string>? other names of fields that all have, by those of COMMON; both are read
---@field absent string[]? fields that all have, but not this family: dim and heads say them
---@field experts table? their names of a layer's mixture: block, w1, w3, w2; shared: default "shared_expert"; bias: of
---  the router's choices, if the family has them; stacked: all experts' matrices are one tensor
---@field skipped (fun(config: table, o: table): string[], string)? patterns of names of tensors that a folder with this
---  config can have and that are not read, and what to say of those that are there: a format that takes their number
---@field fused { qkv: string?, gate_up: string?, by_head: boolean? }? names of tensors of several products, with rows
---  below one another, or q, k and v of each key head together
---@field limits { option: string, field: string, broken: (fun(o: table): boolean), why: string }[]? options that
---  config.json could say in that field, but with which its config class in the reference library does not take it
---@field optional table<string, true>? fields of COMMON that can be null although they have a default
---@field options (fun(path: string, values: table, o: table))? adds to the options what further fields say
---@field config (fun(o: table, config: table))? adds the further fields of an options' config

local function known_of(row)
  local known = {}
  for name, field in pairs(rope.KNOWN) do known[name] = field end
  -- A field for which the config class has no default is None there, too; some classes take None besides a default.
  for name, kind in pairs(COMMON) do
    local null = row.defaults[name] == nil and OPTIONAL[name] or row.optional and row.optional[name]
    known[name] = { kind, row.defaults[name], null = null }
  end
  local eps = row.eps or "rms_norm_eps"
  known[eps] = { "positive", row.defaults[eps] }
  if row.theta_field then known[row.theta_field], known.rope_theta = known.rope_theta, nil end
  if row.partial then
    known.partial_rotary_factor = nil
    known[row.partial] = { "positive", row.defaults[row.partial] }
  end
  known.pad_token_id, known.architectures = { "number|none" }, { "list", null = true }
  for name, kind in pairs(OF_SOME) do
    if row.defaults[name] ~= nil then known[name] = { kind, row.defaults[name] } end
  end
  local activation = row.activation or "hidden_act"
  known[activation] = { "text", row.defaults[activation] }
  for name, field in pairs(row.known or {}) do known[name] = field end
  for _, name in ipairs(row.absent or {}) do known[name] = nil end
  for name, theirs in pairs(row.theirs or {}) do known[theirs] = { known[name][1] } end
  return known
end

local function check_heads(path, values)
  local heads, kv_heads = values.num_attention_heads, values.num_key_value_heads or values.num_attention_heads
  if heads % kv_heads ~= 0 then
    errors.invalid("%s: num_attention_heads %d must be a multiple of num_key_value_heads %d", path, heads, kv_heads)
  end
  if not values.head_dim and values.hidden_size % heads ~= 0 then
    errors.invalid("%s: hidden_size %d must be a multiple of num_attention_heads %d if head_dim is not given", path,
      values.hidden_size, heads)
  end
end

-- The token whose row of the embedding lookups do not train. As in the reference library it can count from the end;
-- a family's default does not hold for a smaller vocabulary.
local function padding_of(row, path, values)
  local given, vocab = values.pad_token_id, values.vocab_size
  local token = given
  if given == nil then token = row.defaults.pad_token_id end
  if not token then return nil end
  if token < 0 then token = token + vocab end
  if token % 1 == 0 and token >= 0 and token < vocab then return token end
  if given == nil then return nil end
  errors.invalid("%s: pad_token_id %g must be a token, below vocab_size %d: correct it, or null for none", path, given,
    vocab)
end

local function read_rope(row, path, values, o)
  local share
  o.rope_theta, o.rope_scaling, share = rope.read(path, values, row)
  if share ~= 1 then o.rotary_dim = math.floor(o.head_dim * share) end
  if o.rotary_dim and (o.rotary_dim < 2 or o.rotary_dim % 2 ~= 0) then
    errors.invalid("%s: %s %g of a head_dim of %d are %d rotated elements; their number must be even, and at least 2",
      path, row.partial, share, o.head_dim, o.rotary_dim)
  end
  model_rope.read_scaling(("%s: %s"):format(path, values.rope_parameters and "rope_parameters" or "rope_scaling"),
    o.rope_scaling, (o.rotary_dim or o.head_dim) / 2)
end

local function check_layer_types(path, values, o)
  local kinds = values.layer_types
  if kinds and #kinds ~= o.layers then
    errors.invalid("%s: layer_types has %d items, but num_hidden_layers is %d: give the kind of each layer", path,
      #kinds, o.layers)
  end
end

-- Options that are a field's value, by the fields' names.
local SAME = {
  vocab = "vocab_size", dim = "hidden_size", layers = "num_hidden_layers", heads = "num_attention_heads",
  kv_heads = "num_key_value_heads", head_dim = "head_dim", ffn = "intermediate_size", seq = "max_position_embeddings",
  tied = "tie_word_embeddings", qkv_bias = "attention_bias", out_bias = "attention_bias", mlp_bias = "mlp_bias",
}

-- The options that are fields' values, or follow from them where these are not given.
local function options_of(row, problems, values)
  local o, field_of = {}, { eps = row.eps or "rms_norm_eps" }
  for option, field in pairs(SAME) do field_of[option] = field end
  for option, field in pairs(field_of) do o[option] = rawget(values, field) end
  o.kv_heads, o.head_dim = o.kv_heads or o.heads, o.head_dim or o.heads and o.dim and o.dim / o.heads
  o.qkv_bias, o.out_bias, o.mlp_bias = o.qkv_bias or false, o.out_bias or false, o.mlp_bias or false
  return problems:guard(o, field_of)
end

-- Gives the values of a family's own names to those that all have.
local function rename(row, problems, config, values)
  for name, theirs in pairs(row.theirs or {}) do
    local value = config[theirs]
    if problems.faulty[theirs] then
      problems.faulty[name], values[name] = true, nil
    elseif value ~= nil and config[name] ~= nil and value ~= config[name] then
      problems:add("MS_EINVAL", theirs, "%s is %s and %s is %s, but they mean the same: keep one of them", theirs,
        options.describe(value), name, options.describe(config[name]))
    elseif value ~= nil then
      values[name] = value
    end
  end
end

local function read(row, known, path, config)
  local problems = new_problems(path)
  problems:try(architecture.check, row, path, config)
  local values = fields.read(problems, config, known)
  rename(row, problems, config, values)
  local o, activation = options_of(row, problems, values), row.activation or "hidden_act"
  problems:try(check_heads, path, values)
  problems:try(function() o.padding = padding_of(row, path, values) end)
  for name, value in pairs(families.traits(row.model_type)) do o[name] = value end
  problems:try(function() o.activation = fields.choose(path, activation, values[activation], ACTIVATIONS) end)
  if row.options then problems:try(row.options, path, values, o) end
  problems:try(check_layer_types, path, values, o)
  if rawget(o, "head_dim") and not o.rope_theta then problems:try(read_rope, row, path, values, o) end
  problems:raise()
  -- A folder says all of its model: what it lacks, the family's usual models may have.
  for name in pairs(families.usual(row.model_type)) do
    if o[name] == nil then o[name] = false end
  end
  return setmetatable(o, nil)
end

---The config.json for one of our models, valid for versions 4 and 5 of the reference library.
local function write(row, o)
  local config = {
    model_type = row.model_type, vocab_size = o.vocab, hidden_size = o.dim, intermediate_size = o.ffn,
    num_hidden_layers = o.layers, num_attention_heads = o.heads, num_key_value_heads = o.kv_heads,
    head_dim = o.head_dim, max_position_embeddings = o.seq, [row.eps or "rms_norm_eps"] = o.eps,
    [row.theta_field or "rope_theta"] = o.rope_theta, rope_scaling = rope.config(o.rope_scaling),
    tie_word_embeddings = o.tied, [row.activation or "hidden_act"] = ACTIVATION_NAMES[o.activation],
    -- null: a family's defaults can be tokens that a small vocabulary lacks
    bos_token_id = json.null, eos_token_id = json.null, pad_token_id = o.padding or json.null,
  }
  if row.defaults.attention_bias ~= nil then config.attention_bias = o.qkv_bias end
  if row.defaults.mlp_bias ~= nil then config.mlp_bias = o.mlp_bias end
  if row.partial then config[row.partial] = (o.rotary_dim or o.head_dim) / o.head_dim end
  for _, name in ipairs(row.absent or {}) do config[name] = nil end
  if row.config then row.config(o, config) end
  for name, theirs in pairs(row.theirs or {}) do config[theirs], config[name] = config[name], nil end
  return config
end

-- Options of which neither shapes nor names tell that they are lost, and what they are if they are not given. The first
-- that is lost is named: experts before what only models with experts have.
local CHECKED = {
  { "activation", "silu" }, { "qkv_bias", false }, { "out_bias", false }, { "mlp_bias", false }, { "qk_norm", false },
  { "norms", "before" }, { "norm_from_one", false }, { "embedding_scale", 1 }, { "attention_softcap", false },
  { "logit_softcap", false }, { "window", false }, { "kv_lora_rank", false }, { "sinks", false },
  { "experts", false }, { "experts_per_token", false }, { "bias_rate", 0 }, { "aux_loss", 0 },
  { "expert_ffn", false }, { "expert_score", "softmax" }, { "renormalise", true }, { "route_scale", 1 },
  { "n_group", 1 }, { "topk_group", 1 }, { "score_before_experts", false }, { "shared_ffn", false },
  { "shared_gate", true }, { "expert_bias", false }, { "expert_fused", false }, { "attention_chunk_size", false },
  { "attn_scale", false }, { "floor_scale", false }, { "attn_scale_layers", "nope" }, { "gated", true },
  { "head_bias", false }, { "alibi", false }, { "embedding_norm", false },
  { "layer_norm", false }, { "norm_bias", true }, { "parallel", false }, { "rotary_dim", false },
  { "rope_interleaved", false }, { "residual_scale", 1 }, { "logit_scale", 1 }, { "head_dim" }, { "kv_heads" },
  { "attn_output_gate", false }, { "linear_num_value_heads", false }, { "linear_num_key_heads", false },
  { "linear_key_head_dim", false }, { "linear_value_head_dim", false }, { "linear_conv_kernel_dim", false },
}

local function is_near(a, b)
  if type(a) == "number" and type(b) == "number" then return math.abs(a - b) <= 1e-6 * math.abs(a) end
  return a == b
end

local function refuse_lost(row, name)
  errors.raise("MS_EUNSUPPORTED", "config.json of %s cannot express %s of this model: leave it at the family's "
    .. "value, or save a checkpoint", row.model_type, name)
end

-- What the reference library would refuse to load: of a folder, or in one.
local function check_limits(row, o, path)
  for _, limit in ipairs(row.limits or {}) do
    if limit.broken(o) and path then
      errors.raise("MS_EUNSUPPORTED", "%s: %s: Hugging Face's library does not take this for %s: it takes %s", path,
        limit.field, row.model_type, limit.why)
    elseif limit.broken(o) then
      errors.raise("MS_EUNSUPPORTED", "config.json of %s cannot have %s of this model: Hugging Face's library takes "
        .. "%s: change it, make the model of another family, or save a checkpoint", row.model_type, limit.option,
        limit.why)
    end
  end
end

-- The options without a window that no layer has: a config.json without it is the same model.
local function without_idle_window(o)
  for i = 1, o.window and o.layers or 0 do
    if not o.slides or o.slides[i] then return o end
  end
  local rest = {}
  for name, value in pairs(o) do rest[name] = value end
  rest.window, rest.slides, rest.window_rope_theta = nil, nil, nil
  return rest
end

local function theta_of_window(o) return o.window_rope_theta or not o.rope_scaling and o.rope_theta end

-- The factor of scores.
local function scale_of(o)
  return o.attention_scale or model_rope.score_scale(o.kv_lora_rank and o.rope_scaling, o.head_dim)
end

-- Options that mark layers, default all; `of`: the option without which no layer has what they mark; `unless`: the one
-- with which they say nothing.
local BY_LAYER = {
  { "slides", of = "window" }, { "rotates", unless = "alibi" }, { "chunked", of = "attention_chunk_size" },
  { "linear_attention", of = "linear_num_value_heads" }, { "sparse" },
}

local function is_marked(o, marks, i)
  local given = o[marks[1]]
  if marks.unless and o[marks.unless] then return true end
  return not (marks.of and not o[marks.of]) and (not given or given[i])
end

-- Reads what was written: an option that a family's config.json cannot say would be lost.
local function check_written(row, known, o, config)
  local again = read(row, known, "config.json", config)
  if again.route_bias then again.bias_rate = o.bias_rate end -- it is of training: the biases are in the folder
  local function value_of(from, name, default)
    if from[name] == nil then return default end
    return from[name]
  end
  for _, checked in ipairs(CHECKED) do
    local name, default = unpack(checked)
    if not is_near(value_of(o, name, default), value_of(again, name, default)) then refuse_lost(row, name) end
  end
  if not is_near(scale_of(o), scale_of(again)) then refuse_lost(row, "attention_scale") end
  for _, marks in ipairs(BY_LAYER) do
    for i = 1, o.layers do
      if is_marked(o, marks, i) ~= is_marked(again, marks, i) then refuse_lost(row, marks[1]) end
    end
  end
  if o.window and not is_near(theta_of_window(o), theta_of_window(again)) then refuse_lost(row, "window_rope_theta") end
end

-- Old versions stored them with the weights.
local BUFFERS = { "^layers%.%d+%.self_attn%.rotary_emb%.inv_freq$" }

---The family that a row describes.
---@param row moonshard.DecoderFamily
---@return moonshard.HuggingFaceFamily
function decoder.family(row)
  local known = known_of(row)
  return {
    prefix = row.prefix or "model.", architecture = row.architecture, head = decoder_tensors.head(row), fields = known,
    buffers = row.buffers or BUFFERS, skipped = row.skipped,
    options = function(path, config)
      local o = read(row, known, path, config)
      check_limits(row, o, path)
      return o
    end,
    config = function(o)
      o = without_idle_window(o)
      check_limits(row, o)
      local config = write(row, o)
      check_written(row, known, o, config)
      return config
    end,
    tensors = function(o) return decoder_tensors.list(row, o) end,
  }
end

return decoder
