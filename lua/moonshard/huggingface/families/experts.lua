-- The families of decoders with mixtures of experts, rows as in init.lua: Mixtral, OLMoE, and Qwen's of
-- versions 2 and 3.

local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local options = require("moonshard.base.checks.options")
local routers = require("moonshard.huggingface.families.routers")

local function with(first, second)
  local all = {}
  for _, source in ipairs({ first, second }) do
    for name, value in pairs(source) do all[name] = value end
  end
  return all
end

---@type table<string, moonshard.DecoderFamily>
local families = {}

families.mixtral = {
  architecture = "MixtralForCausalLM", theta = 1e6,
  experts = { block = "block_sparse_moe", w1 = "w1", w2 = "w2", w3 = "w3" },
  defaults = {
    vocab_size = 32000, hidden_size = 4096, intermediate_size = 14336, num_hidden_layers = 32,
    num_attention_heads = 32, num_key_value_heads = 8, max_position_embeddings = 131072, rms_norm_eps = 1e-5,
    tie_word_embeddings = false, hidden_act = "silu",
  },
  known = with(routers.KNOWN, {
    sliding_window = { "size|none" }, num_local_experts = { "size", 8 }, num_experts_per_tok = { "size", 2 },
    router_jitter_noise = { only = 0, why = "noise on what routers read is not built" },
  }),
  options = function(path, values, o)
    o.window = values.sliding_window or nil
    o.experts, o.experts_per_token, o.expert_ffn = values.num_local_experts, values.num_experts_per_tok, o.ffn
    routers.read(path, values, o, "num_local_experts")
  end,
  config = function(o, config)
    config.sliding_window, config.num_local_experts = o.window or json.null, o.experts
    routers.write(o, config)
  end,
}

-- All queries and all keys have norms, and an expert the width of intermediate_size.
families.olmoe = {
  architecture = "OlmoeForCausalLM",
  experts = { block = "mlp", w1 = "gate_proj", w2 = "down_proj", w3 = "up_proj" },
  defaults = {
    pad_token_id = 1,
    vocab_size = 50304, hidden_size = 2048, intermediate_size = 2048, num_hidden_layers = 16,
    num_attention_heads = 16, max_position_embeddings = 4096, rms_norm_eps = 1e-5, tie_word_embeddings = false,
    hidden_act = "silu", attention_bias = false,
  },
  known = with(routers.KNOWN, {
    num_experts = { "size", 64 }, num_experts_per_tok = { "size", 8 }, norm_topk_prob = { "boolean", false },
    router_aux_loss_coef = { "factor", 0.01 },
    clip_qkv = { only = false, why = "queries, keys and values cut to a range are not built" },
  }),
  options = function(path, values, o)
    o.experts, o.experts_per_token, o.expert_ffn = values.num_experts, values.num_experts_per_tok, o.ffn
    o.renormalise = values.norm_topk_prob
    routers.read(path, values, o, "num_experts")
  end,
  config = function(o, config)
    config.num_experts, config.norm_topk_prob = o.experts, o.renormalise
    routers.write(o, config)
  end,
}

-- ---- Qwen -------------------------------------------------------------------------------------------------------

local NAMES = { block = "mlp", w1 = "gate_proj", w2 = "down_proj", w3 = "up_proj" }
local QWEN = with(routers.KNOWN, {
  decoder_sparse_step = { "size", 1 }, mlp_only_layers = { "indices", null = true },
  norm_topk_prob = { "boolean", false },
  num_experts = { "size" }, num_local_experts = { "size", null = true },
  sliding_window = { "number|none" }, max_window_layers = { "number" }, layer_types = { "list", null = true },
})

local function read_qwen(path, values, o, experts)
  for i, kind in ipairs(values.layer_types or {}) do
    if kind ~= "full_attention" then
      errors.raise("MS_EUNSUPPORTED", "%s: layer_types of layer %d is %s; with experts, Qwen's layers are built with "
        .. "full_attention", path, i, options.describe(kind))
    end
  end
  if values.num_experts and values.num_local_experts and values.num_experts ~= values.num_local_experts then
    errors.invalid("%s: num_experts is %d and num_local_experts %d, but they mean the same: keep one of them", path,
      values.num_experts, values.num_local_experts)
  end
  o.experts = values.num_local_experts or values.num_experts or experts
  o.experts_per_token, o.expert_ffn = values.num_experts_per_tok, values.moe_intermediate_size
  routers.read(path, values, o, "num_experts")
  o.renormalise, o.sparse = values.norm_topk_prob, routers.sparse_of(values, o.layers)
end

local function write_qwen(o, config)
  config.num_experts, config.moe_intermediate_size, config.norm_topk_prob = o.experts, o.expert_ffn, o.renormalise
  config.use_sliding_window, config.sliding_window = false, json.null
  routers.write_sparse(o, config)
  routers.write(o, config)
end

local SIZES = {
  vocab_size = 151936, hidden_size = 2048, num_hidden_layers = 24, hidden_act = "silu",
  max_position_embeddings = 32768, rms_norm_eps = 1e-6, tie_word_embeddings = false,
}

families.qwen2_moe = {
  architecture = "Qwen2MoeForCausalLM", experts = NAMES,
  defaults = with(SIZES, { intermediate_size = 5632, num_attention_heads = 16, num_key_value_heads = 16 }),
  known = with(QWEN, {
    moe_intermediate_size = { "size", 1408 }, shared_expert_intermediate_size = { "size", 5632 },
    num_experts_per_tok = { "size", 4 }, qkv_bias = { "boolean", true },
  }),
  options = function(path, values, o)
    read_qwen(path, values, o, 60)
    o.shared_ffn, o.qkv_bias = values.shared_expert_intermediate_size, values.qkv_bias
  end,
  config = function(o, config)
    write_qwen(o, config)
    config.shared_expert_intermediate_size, config.qkv_bias = o.shared_ffn, o.qkv_bias
  end,
}

families.qwen3_moe = {
  architecture = "Qwen3MoeForCausalLM", experts = NAMES,
  defaults = with(SIZES, {
    intermediate_size = 6144, num_attention_heads = 32, num_key_value_heads = 4, attention_bias = false,
  }),
  known = with(QWEN, { moe_intermediate_size = { "size", 768 }, num_experts_per_tok = { "size", 8 } }),
  options = function(path, values, o) read_qwen(path, values, o, 128) end,
  config = write_qwen,
}

return families
