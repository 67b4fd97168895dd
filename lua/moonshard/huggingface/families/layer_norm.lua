-- The families of decoders with layer norms, rows as in init.lua: StarCoder 2, StableLM, Phi 1 to 2, GPT-NeoX, Falcon,
-- and Cohere's. In most of them attention and MLP read the same input.

local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local layer_kinds = require("moonshard.huggingface.families.layer_kinds")

-- Heads whose width the reference library computes.
local WHOLE = {
  option = "head_dim", field = "hidden_size", broken = function(o) return o.head_dim ~= o.dim / o.heads end,
  why = "the width divided by the number of heads alone",
}
local ONE_KEY_EACH = {
  option = "kv_heads", field = "num_key_value_heads", broken = function(o) return o.kv_heads ~= o.heads end,
  why = "as many as heads",
}
local function set_biases(o, value) o.qkv_bias, o.out_bias, o.mlp_bias = value, value, value end

---@type table<string, moonshard.DecoderFamily>
local families = {}

families.starcoder2 = {
  architecture = "Starcoder2ForCausalLM", eps = "norm_epsilon",
  names = { ["mlp.w1"] = "mlp.c_fc", ["mlp.w2"] = "mlp.c_proj" },
  defaults = {
    vocab_size = 49152, hidden_size = 3072, intermediate_size = 12288, num_hidden_layers = 30,
    num_attention_heads = 24, num_key_value_heads = 2, max_position_embeddings = 4096, norm_epsilon = 1e-5,
    tie_word_embeddings = true, hidden_act = "gelu_pytorch_tanh",
  },
  known = {
    use_bias = { "boolean", true }, sliding_window = { "size|none" }, residual_dropout = { "number" },
    embedding_dropout = { "number" },
    mlp_type = { only = "default", why = "MLPs of another kind are not built" },
    norm_type = { only = "layer_norm", why = "norms of another kind are not built" },
  },
  options = function(_, values, o)
    set_biases(o, values.use_bias)
    o.window = values.sliding_window or nil
  end,
  config = function(o, config)
    config.use_bias, config.sliding_window = o.qkv_bias, o.window or json.null
  end,
}

families.stablelm = {
  architecture = "StableLmForCausalLM", eps = "layer_norm_eps", partial = "partial_rotary_factor", limits = { WHOLE },
  names = {
    ["attn.q_norm"] = "self_attn.q_layernorm.norms.%d", ["attn.k_norm"] = "self_attn.k_layernorm.norms.%d",
  },
  defaults = {
    vocab_size = 50304, hidden_size = 2560, intermediate_size = 6912, num_hidden_layers = 32,
    num_attention_heads = 32, num_key_value_heads = 32, max_position_embeddings = 4096, layer_norm_eps = 1e-5,
    tie_word_embeddings = false, hidden_act = "silu", partial_rotary_factor = 0.25,
  },
  absent = { "head_dim" },
  known = {
    use_qkv_bias = { "boolean", false }, use_parallel_residual = { "boolean", false },
    qk_layernorm = { "boolean", false }, hidden_dropout = { "number" },
  },
  options = function(_, values, o)
    o.qkv_bias, o.parallel = values.use_qkv_bias, values.use_parallel_residual and "one"
    o.qk_norm = values.qk_layernorm and "each"
  end,
  config = function(o, config)
    config.use_qkv_bias, config.use_parallel_residual = o.qkv_bias, o.parallel == "one"
    config.qk_layernorm = o.qk_norm == "each"
  end,
}

families.phi = {
  architecture = "PhiForCausalLM", eps = "layer_norm_eps", partial = "partial_rotary_factor",
  names = {
    norm = "final_layernorm", ["attn.wo"] = "self_attn.dense", ["mlp.w1"] = "mlp.fc1", ["mlp.w2"] = "mlp.fc2",
    ["attn.q_norm"] = "self_attn.q_layernorm", ["attn.k_norm"] = "self_attn.k_layernorm",
  },
  defaults = {
    vocab_size = 51200, hidden_size = 2048, intermediate_size = 8192, num_hidden_layers = 24,
    num_attention_heads = 32, max_position_embeddings = 2048, layer_norm_eps = 1e-5, tie_word_embeddings = false,
    hidden_act = "gelu_new", partial_rotary_factor = 0.5,
  },
  known = { qk_layernorm = { "boolean", false } },
  options = function(_, values, o)
    set_biases(o, true)
    o.qk_norm = values.qk_layernorm and "head"
  end,
  config = function(o, config) config.qk_layernorm = o.qk_norm == "head" end,
}

families.gpt_neox = {
  architecture = "GPTNeoXForCausalLM", eps = "layer_norm_eps", theta_field = "rotary_emb_base", partial = "rotary_pct",
  prefix = "gpt_neox.", head = "embed_out.weight", limits = { WHOLE, ONE_KEY_EACH },
  fused = { qkv = "attention.query_key_value", by_head = true },
  names = {
    embed = "embed_in", norm = "final_layer_norm", ["attn.wo"] = "attention.dense",
    ["mlp.w1"] = "mlp.dense_h_to_4h", ["mlp.w2"] = "mlp.dense_4h_to_h",
  },
  buffers = {
    "^layers%.%d+%.attention%.bias$", "^layers%.%d+%.attention%.masked_bias$",
    "^layers%.%d+%.attention%.rotary_emb%.inv_freq$",
  },
  defaults = {
    vocab_size = 50432, hidden_size = 6144, intermediate_size = 24576, num_hidden_layers = 44,
    num_attention_heads = 64, max_position_embeddings = 2048, layer_norm_eps = 1e-5, tie_word_embeddings = false,
    hidden_act = "gelu", attention_bias = true, rotary_pct = 0.25,
  },
  absent = { "head_dim", "num_key_value_heads" },
  known = {
    use_parallel_residual = { "boolean", true }, hidden_dropout = { "number" }, classifier_dropout = { "number" },
  },
  options = function(_, values, o)
    o.mlp_bias, o.parallel = true, values.use_parallel_residual and "each"
  end,
  config = function(o, config) config.use_parallel_residual = o.parallel == "each" end,
}

-- With key heads that several queries share ("new architecture"), a layer's branches are in parallel, with a norm each
-- or one; before, there was one key head, or as many as heads.
families.falcon = {
  architecture = "FalconForCausalLM", eps = "layer_norm_epsilon", activation = "activation", prefix = "transformer.",
  layer = "h.%d.", limits = { WHOLE, {
    option = "parallel", field = "new_decoder_architecture", broken = function(o)
      local is_new = o.parallel == "each" or o.kv_heads ~= 1 and o.kv_heads ~= o.heads
      return is_new and not o.parallel
    end, why = "parallel branches where several heads share a key head",
  } },
  fused = { qkv = "self_attention.query_key_value", by_head = true },
  norms = function(o)
    if o.parallel == "each" then return { attn_norm = "ln_attn", ffn_norm = "ln_mlp" } end
    return { attn_norm = "input_layernorm", ffn_norm = "post_attention_layernorm" }
  end,
  names = {
    embed = "word_embeddings", norm = "ln_f", ["attn.wo"] = "self_attention.dense",
    ["mlp.w1"] = "mlp.dense_h_to_4h", ["mlp.w2"] = "mlp.dense_4h_to_h",
  },
  buffers = { "^h%.%d+%.self_attention%.rotary_emb%.inv_freq$" },
  defaults = {
    vocab_size = 65024, hidden_size = 4544, num_hidden_layers = 32, num_attention_heads = 71,
    max_position_embeddings = 2048, layer_norm_epsilon = 1e-5, tie_word_embeddings = true, activation = "gelu",
  },
  absent = { "head_dim", "num_key_value_heads", "intermediate_size" },
  known = {
    num_kv_heads = { "size", null = true }, ffn_hidden_size = { "size", null = true },
    new_decoder_architecture = { "boolean", false }, multi_query = { "boolean", true },
    parallel_attn = { "boolean", true }, num_ln_in_parallel_attn = { "size", null = true },
    bias = { "boolean", false }, hidden_dropout = { "number" },
    alibi = { "boolean", false },
    apply_residual_connection_post_layernorm = { only = false, why = "residuals behind norms are not built" },
  },
  options = function(path, values, o)
    local is_new = values.new_decoder_architecture
    o.kv_heads = (is_new or not values.multi_query) and (values.num_kv_heads or o.heads) or 1
    if not is_new and values.multi_query == false and o.kv_heads ~= o.heads or o.heads % o.kv_heads ~= 0 then
      errors.invalid("%s: num_kv_heads is %d, which does not go with %d num_attention_heads in this architecture", path,
        o.kv_heads, o.heads)
    end
    o.ffn = values.ffn_hidden_size or 4 * o.dim
    o.parallel = values.parallel_attn and "one"
    o.alibi = values.alibi and "scaled"
    if is_new and (values.num_ln_in_parallel_attn or 2) == 2 then o.parallel = "each" end
    set_biases(o, values.bias)
  end,
  config = function(o, config)
    local is_new = o.parallel == "each" or o.kv_heads ~= 1 and o.kv_heads ~= o.heads
    config.new_decoder_architecture, config.multi_query = is_new, not is_new and o.kv_heads == 1
    config.num_kv_heads, config.ffn_hidden_size, config.bias = o.kv_heads, o.ffn, o.qkv_bias
    config.parallel_attn, config.alibi = o.parallel ~= false, o.alibi == "scaled"
    if is_new then config.num_ln_in_parallel_attn = o.parallel == "each" and 2 or 1 end
  end,
}

-- ---- Cohere -----------------------------------------------------------------------------------------------------

local COHERE = {
  pad_token_id = 0,
  vocab_size = 256000, hidden_size = 8192, intermediate_size = 22528, num_hidden_layers = 40,
  num_attention_heads = 64, max_position_embeddings = 8192, layer_norm_eps = 1e-5, tie_word_embeddings = true,
  hidden_act = "silu", attention_bias = false,
}

families.cohere = {
  architecture = "CohereForCausalLM", eps = "layer_norm_eps", defaults = COHERE,
  known = { logit_scale = { "positive", 0.0625 }, use_qk_norm = { "boolean", false } },
  options = function(_, values, o)
    o.logit_scale, o.qk_norm = values.logit_scale, values.use_qk_norm and "each"
  end,
  config = function(o, config)
    config.logit_scale, config.use_qk_norm = o.logit_scale or 1, o.qk_norm == "each"
  end,
}

-- Layers that slide are rotated, and the others have no positions.
families.cohere2 = {
  architecture = "Cohere2ForCausalLM", eps = "layer_norm_eps", defaults = COHERE,
  known = {
    logit_scale = { "positive", 0.0625 }, sliding_window = { "size", 4096 }, layer_types = { "list", null = true },
    sliding_window_pattern = { "size", 4 }, _sliding_window_pattern = { "size" },
    cache_implementation = { "text", null = true },
  },
  options = function(path, values, o)
    o.logit_scale = values.logit_scale
    local slides = layer_kinds.slides(path, values, o.layers, function(i)
      return i % values.sliding_window_pattern ~= 0
    end)
    layer_kinds.set_window(o, values.sliding_window, slides)
    o.rotates = slides
  end,
  config = function(o, config)
    config.logit_scale, config.sliding_window = o.logit_scale or 1, o.window or o.seq
    config.layer_types = layer_kinds.types(o)
  end,
}

return families
