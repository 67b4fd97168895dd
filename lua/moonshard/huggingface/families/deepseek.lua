-- DeepSeek V2 and V3, and Kimi K2, which is V3's class under a model_type of its own, rows as in init.lua: keys and
-- values from a latent vector, and mixtures of experts in groups, with shared experts, in all layers but the first. And
-- GLM 4.5, which has V3's mixtures.

local errors = require("moonshard.base.error")
local fields = require("moonshard.huggingface.fields")
local json = require("moonshard.base.text.json")
local routers = require("moonshard.huggingface.families.routers")

-- Of mixtures of experts, and of latent keys and values.
local EXPERTS_KNOWN = {
  n_shared_experts = { "size", 1 }, first_k_dense_replace = { "index|none" }, moe_layer_freq = { "size", 1 },
}
local LATENT_KNOWN = {
  kv_lora_rank = { "size", 512 }, q_lora_rank = { "size", 1536, null = true },
  qk_nope_head_dim = { "size", 128 }, qk_rope_head_dim = { "size", 64 }, v_head_dim = { "size", 128 },
  head_dim = { "size", null = true }, qk_head_dim = { "size", null = true },
}

local function with(...)
  local all = {}
  for _, source in ipairs({ ... }) do
    for name, value in pairs(source) do all[name] = value end
  end
  return all
end

-- Fields that follow from others.
local FOLLOWING = {
  head_dim = { fields = "qk_rope_head_dim", value = function(o) return o.qk_rope_head_dim end },
  qk_head_dim = { fields = "qk_nope_head_dim and qk_rope_head_dim", value = function(o) return o.head_dim end },
  num_key_value_heads = { fields = "num_attention_heads", value = function(o) return o.heads end },
}

local function read_latent(path, values, o)
  o.kv_lora_rank, o.q_lora_rank = values.kv_lora_rank, values.q_lora_rank or nil
  o.qk_nope_head_dim, o.qk_rope_head_dim = values.qk_nope_head_dim, values.qk_rope_head_dim
  o.v_head_dim = values.v_head_dim
  o.head_dim, o.rotary_dim = o.qk_nope_head_dim + o.qk_rope_head_dim, o.qk_rope_head_dim
  for name, of in pairs(FOLLOWING) do
    local value = of.value(o)
    if values[name] and values[name] ~= value then
      errors.invalid("%s: %s is %d, and by %s it is %d: correct one of them, or leave %s out", path, name, values[name],
        of.fields, value, name)
    end
  end
end

-- The first layers are dense, and of the others every so many have experts.
local function sparse_of(values, layers)
  local sparse, all = {}, true
  for i = 0, layers - 1 do
    local has_experts = i >= (values.first_k_dense_replace or 0) and i % values.moe_layer_freq == 0
    sparse[i + 1], all = has_experts, all and has_experts
  end
  return not all and sparse or nil
end

local function read_experts(path, values, o)
  o.experts, o.experts_per_token = values.n_routed_experts, values.num_experts_per_tok
  if not o.experts_per_token then
    errors.invalid("%s: num_experts_per_tok, how many experts a token has, is missing", path)
  end
  routers.check(path, o, "n_routed_experts")
  o.expert_ffn, o.route_scale = values.moe_intermediate_size, values.routed_scaling_factor
  o.shared_ffn = values.n_shared_experts and values.n_shared_experts * o.expert_ffn or nil
  o.sparse = sparse_of(values, o.layers)
end

local function write_latent(o, config)
  config.kv_lora_rank, config.q_lora_rank = o.kv_lora_rank, o.q_lora_rank or json.null
  config.qk_nope_head_dim, config.qk_rope_head_dim = o.qk_nope_head_dim, o.qk_rope_head_dim
  config.v_head_dim, config.head_dim = o.v_head_dim, o.qk_rope_head_dim
end

local function write_experts(o, config)
  config.n_routed_experts, config.num_experts_per_tok = o.experts, o.experts_per_token
  config.moe_intermediate_size, config.routed_scaling_factor = o.expert_ffn, o.route_scale or 1
  config.n_shared_experts = o.shared_ffn and o.shared_ffn / o.expert_ffn or json.null
  config.moe_layer_freq, config.first_k_dense_replace = 1, 0
  while o.sparse and o.sparse[config.first_k_dense_replace + 1] == false do
    config.first_k_dense_replace = config.first_k_dense_replace + 1
  end
end

-- The layers after the last one predict further tokens, in training and to draft texts. Their weights have the names of
-- layers; the reference library has no such layers, and drops them.
local function skipped(config, o)
  local patterns, more = {}, config.num_nextn_predict_layers or config.num_mtp_layers
  for i = 1, type(more) == "number" and more or 0 do
    patterns[i] = ("^layers%%.%d%%."):format(o.layers + i - 1)
  end
  return patterns, "num_nextn_predict_layers: layers that predict further tokens are not built, here as in the "
    .. "reference library, so %d tensors of these are not read, and not saved"
end

local LIMITS = {
  { option = "shared_ffn", field = "n_shared_experts", broken = function(o)
    return o.shared_ffn ~= nil and o.shared_ffn % o.expert_ffn ~= 0
  end, why = "shared experts of a whole number of widths of one expert" },
}
local WHOLE_HEADS = {
  option = "heads", field = "hidden_size", broken = function(o) return o.dim % o.heads ~= 0 end,
  why = "a width that is a multiple of the number of heads alone",
}
local EXPERTS = { block = "mlp", w1 = "gate_proj", w2 = "down_proj", w3 = "up_proj", shared = "shared_experts" }
local NAMES = { ["attn.q_norm"] = "self_attn.q_a_layernorm" }

---@type table<string, moonshard.DecoderFamily>
local families = {}

local METHODS = { greedy = false, group_limited_greedy = true }

families.deepseek_v2 = {
  architecture = "DeepseekV2ForCausalLM", names = NAMES, experts = EXPERTS, limits = { WHOLE_HEADS, unpack(LIMITS) },
  skipped = skipped, optional = { num_key_value_heads = true },
  defaults = {
    vocab_size = 102400, hidden_size = 4096, intermediate_size = 11008, num_hidden_layers = 32,
    num_attention_heads = 32, max_position_embeddings = 2048, rms_norm_eps = 1e-6, tie_word_embeddings = false,
    hidden_act = "silu", attention_bias = false,
  },
  known = with(LATENT_KNOWN, EXPERTS_KNOWN, {
    n_routed_experts = { "size", 64 }, num_experts_per_tok = { "size" }, moe_intermediate_size = { "size", 1407 },
    n_shared_experts = { "size", 2 }, n_group = { "size", null = true }, topk_group = { "size", null = true },
    topk_method = { "text", "greedy" }, routed_scaling_factor = { "positive", 1 },
    norm_topk_prob = { only = false, why = "the reference library does not normalise the weights of this family" },
    scoring_func = { only = "softmax", why = "the reference library scores by softmax in this family" },
  }),
  options = function(path, values, o)
    read_latent(path, values, o)
    read_experts(path, values, o)
    local limited = fields.choose(path, "topk_method", values.topk_method, METHODS)
    if limited and not (values.n_group and values.topk_group) then
      errors.invalid("%s: topk_method is %s, which needs n_group and topk_group", path, values.topk_method)
    end
    o.n_group, o.topk_group = limited and values.n_group or 1, limited and values.topk_group or 1
  end,
  config = function(o, config)
    write_latent(o, config)
    write_experts(o, config)
    config.n_group, config.topk_group = o.n_group or 1, o.topk_group or 1
    config.topk_method = config.topk_group < config.n_group and "group_limited_greedy" or "greedy"
    config.norm_topk_prob = false
  end,
}

-- V3's router.
local function read_router(values, o)
  o.n_group, o.topk_group, o.renormalise = values.n_group, values.topk_group, values.norm_topk_prob
end

local function write_router(o, config)
  config.n_group, config.topk_group, config.norm_topk_prob = o.n_group or 1, o.topk_group or 1, o.renormalise
end

local BIASED = with(EXPERTS, { bias = "gate.e_score_correction_bias" })

families.deepseek_v3 = {
  architecture = "DeepseekV3ForCausalLM", names = NAMES, limits = LIMITS, skipped = skipped,
  experts = BIASED, optional = { num_key_value_heads = true },
  defaults = {
    vocab_size = 129280, hidden_size = 7168, intermediate_size = 18432, num_hidden_layers = 61,
    num_attention_heads = 128, max_position_embeddings = 4096, rms_norm_eps = 1e-6, tie_word_embeddings = false,
    hidden_act = "silu", attention_bias = false,
  },
  known = with(LATENT_KNOWN, EXPERTS_KNOWN, {
    n_routed_experts = { "size", 256 }, num_experts_per_tok = { "size", 8 }, moe_intermediate_size = { "size", 2048 },
    n_group = { "size", 8 }, topk_group = { "size", 4 },
    first_k_dense_replace = { "index|none", 3 }, routed_scaling_factor = { "positive", 2.5 },
    norm_topk_prob = { "boolean", true }, rope_interleave = { "boolean", true },
    topk_method = { only = "noaux_tc", why = "the reference library chooses by noaux_tc in this family" },
    scoring_func = { only = "sigmoid", why = "the reference library scores by sigmoid in this family" },
  }),
  options = function(path, values, o)
    read_latent(path, values, o)
    read_experts(path, values, o)
    read_router(values, o)
    o.rope_interleaved = values.rope_interleave
  end,
  config = function(o, config)
    write_latent(o, config)
    write_experts(o, config)
    write_router(o, config)
    config.topk_method, config.scoring_func, config.rope_interleave = "noaux_tc", "sigmoid", o.rope_interleaved
  end,
}

families.kimi_k2 = with(families.deepseek_v3)

families.glm4_moe = {
  architecture = "Glm4MoeForCausalLM", partial = "partial_rotary_factor", limits = LIMITS, skipped = skipped,
  experts = BIASED,
  defaults = {
    vocab_size = 151552, hidden_size = 4096, intermediate_size = 10944, num_hidden_layers = 46,
    num_attention_heads = 96, num_key_value_heads = 8, max_position_embeddings = 131072, rms_norm_eps = 1e-5,
    tie_word_embeddings = false, hidden_act = "silu", attention_bias = false, partial_rotary_factor = 0.5,
  },
  known = with(EXPERTS_KNOWN, {
    n_routed_experts = { "size", 128 }, num_experts_per_tok = { "size", 8 }, moe_intermediate_size = { "size", 1408 },
    n_group = { "size", 1 }, topk_group = { "size", 1 }, first_k_dense_replace = { "index|none", 1 },
    routed_scaling_factor = { "positive", 1 }, norm_topk_prob = { "boolean", true },
    use_qk_norm = { "boolean", false },
  }),
  options = function(path, values, o)
    read_experts(path, values, o)
    read_router(values, o)
    o.out_bias, o.qk_norm = false, values.use_qk_norm and "head"
  end,
  config = function(o, config)
    write_experts(o, config)
    write_router(o, config)
    config.use_qk_norm = o.qk_norm == "head"
  end,
}

return families
