-- The families of decoders with biases of attention that grow with the distance (models/alibi.lua), rows as in
-- init.lua: BLOOM and MPT. Falcon's first models have them, too (layer_norm.lua).

local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local options = require("moonshard.base.checks.options")
local without_effect = require("moonshard.huggingface.config.without_effect")

---@type table<string, moonshard.DecoderFamily>
local families = {}

-- Widths that no field says.
local WIDTHS = {
  { option = "head_dim", field = "hidden_size", broken = function(o) return o.head_dim ~= o.dim / o.heads end,
    why = "the width divided by the number of heads alone" },
  { option = "kv_heads", field = "num_key_value_heads", broken = function(o) return o.kv_heads ~= o.heads end,
    why = "as many as heads" },
  { option = "ffn", field = "hidden_size", broken = function(o) return o.ffn ~= 4 * o.dim end,
    why = "MLPs of four times the width" },
}
local NO_FIELDS = {
  "head_dim", "num_key_value_heads", "intermediate_size", "rope_theta", "rope_scaling", "rope_parameters",
  "partial_rotary_factor",
}

-- Lookups of the token of padding train, unlike in other families.
local function read(_, _, o)
  o.ffn, o.padding = 4 * o.dim, nil
end

local function write(_, config)
  config.hidden_act = nil
end

families.bloom = {
  architecture = "BloomForCausalLM", prefix = "transformer.", layer = "h.%d.", eps = "layer_norm_epsilon",
  theirs = { hidden_size = "n_embed", num_hidden_layers = "n_layer", num_attention_heads = "n_head",
    max_position_embeddings = "seq_length" },
  fused = { qkv = "self_attention.query_key_value", by_head = true }, limits = WIDTHS, absent = NO_FIELDS,
  names = {
    embed = "word_embeddings", embed_norm = "word_embeddings_layernorm", norm = "ln_f",
    ["attn.wo"] = "self_attention.dense", ["mlp.w1"] = "mlp.dense_h_to_4h", ["mlp.w2"] = "mlp.dense_4h_to_h",
  },
  defaults = {
    vocab_size = 250880, hidden_size = 64, num_hidden_layers = 2, num_attention_heads = 8,
    max_position_embeddings = 2048, layer_norm_epsilon = 1e-5, tie_word_embeddings = true,
  },
  known = {
    hidden_act = { "text", "gelu_pytorch_tanh", only = "gelu_pytorch_tanh", why = "the reference library has gelu" },
    apply_residual_connection_post_layernorm = { only = false, why = "residuals after norms are not built" },
    n_inner = { only = false, null = true, why = "the reference library has MLPs of four times the width" },
  },
  options = read, config = write,
}

-- Fields of attn_config, with the values that are built. The reference library ignores those of the last two rows.
local NO_BIASES = "the reference library has ALiBi in all models of this family"
local IGNORED = "the reference library ignores it and computes as without"
local ATTENTION = {
  attn_type = { "multihead_attention", "keys that heads share are not built" },
  clip_qkv = { false, "queries, keys and values cut to a range are not built" },
  prefix_lm = { false, "attention to later tokens is not built" },
  alibi = { true, NO_BIASES }, alibi_bias_max = { 8, "slopes are built down to 2^-8, as in the reference library" },
  qk_ln = { false, IGNORED }, attn_uses_sequence_id = { false, IGNORED },
}
-- And those that are read, or without an effect: how it is computed, dropout, and what all configs have.
local FREE = { attn_impl = true, attn_pdrop = true, softmax_scale = true, tie_word_embeddings = true }

local function is_free(name, value, given)
  local row = without_effect.row("mpt", name)
  return FREE[name] or value == json.null or row ~= nil and without_effect.fits(row, value, given)
end

-- The scale of scores, or nil.
local function read_attention(path, given)
  for name, value in pairs(given) do
    local built = ATTENTION[name]
    local is_none = built and built[1] == false and value == json.null
    if not built and not is_free(name, value, given) then
      errors.raise("MS_EUNSUPPORTED", "%s: attn_config: field %s, which is %s, is unknown, and so is its effect", path,
        options.describe(name), options.describe(value))
    elseif built and value ~= built[1] and not is_none then
      errors.raise("MS_EUNSUPPORTED", "%s: attn_config: %s is %s: %s", path, name, options.describe(value), built[2])
    end
  end
  return type(given.softmax_scale) == "number" and given.softmax_scale or nil
end

families.mpt = {
  architecture = "MptForCausalLM", prefix = "transformer.", layer = "blocks.%d.", eps = "layer_norm_epsilon",
  theirs = { hidden_size = "d_model", num_hidden_layers = "n_layers", num_attention_heads = "n_heads",
    max_position_embeddings = "max_seq_len" },
  fused = { qkv = "attn.Wqkv" }, limits = WIDTHS, absent = NO_FIELDS,
  norms = { attn_norm = "norm_1", ffn_norm = "norm_2" },
  names = {
    embed = "wte", norm = "norm_f", ["attn.wo"] = "attn.out_proj", ["mlp.w1"] = "ffn.up_proj",
    ["mlp.w2"] = "ffn.down_proj",
  },
  defaults = {
    vocab_size = 50368, hidden_size = 2048, num_hidden_layers = 24, num_attention_heads = 16,
    max_position_embeddings = 2048, layer_norm_epsilon = 1e-5, tie_word_embeddings = true,
  },
  known = {
    hidden_act = { "text", "gelu", only = "gelu", why = "the reference library has gelu" },
    attn_config = { "object", null = true },
    expansion_ratio = { only = 4, why = "the reference library has MLPs of four times the width" },
    no_bias = { only = true, why = "the reference library has no biases in this family" },
    norm_type = { only = "low_precision_layernorm", why = "the reference library has layer norms" },
    logit_scale = { only = false, null = true, why = "the reference library ignores it" },
  },
  options = function(path, values, o)
    read(path, values, o)
    o.attention_scale = read_attention(path, values.attn_config or {})
  end,
  config = function(o, config)
    write(o, config)
    local usual = 1 / math.sqrt(o.head_dim)
    local is_usual = not o.attention_scale or math.abs(o.attention_scale - usual) < 1e-12 * usual
    config.attn_config = { alibi = true, softmax_scale = not is_usual and o.attention_scale or nil }
  end,
}

return families
