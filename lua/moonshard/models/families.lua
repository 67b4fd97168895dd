-- Families of decoders as models: the options that make a decoder (models/decoder.lua) one of a family. A family is a
-- row here, which makes it a field of ms.models, and for folders a row of huggingface/families.

local decoder = require("moonshard.models.decoder")
local decoder_options = require("moonshard.models.decoder_options")

local families = {}

---@class moonshard.Family
---@field name string of the class, as models print it
---@field traits table? options that all its models have
---@field usual table? options of its published models, where they are not a decoder's defaults
---@field scaled boolean? embeddings are scaled by the root of their width

local DEEPSEEK_V3 = {
  name = "DeepseekV3",
  traits = { expert_score = "sigmoid", group_score = "top2", route_bias = true, shared_gate = false },
  usual = { rope_interleaved = true, experts = 256, experts_per_token = 8, eps = 1e-6, qk_nope_head_dim = 128,
    qk_rope_head_dim = 64, v_head_dim = 128 },
}

---@type table<string, moonshard.Family>
families.rows = {
  decoder = { name = "Decoder" },
  mistral = { name = "Mistral", usual = { eps = 1e-6 } },
  ministral = { name = "Ministral", usual = { eps = 1e-6 } },
  ministral3 = { name = "Ministral3", traits = { attn_scale_layers = "all" }, usual = { rope_theta = 1e6 } },
  phi3 = { name = "Phi3" },
  qwen2 = { name = "Qwen2", traits = { qkv_bias = true }, usual = { eps = 1e-6 } },
  qwen3 = { name = "Qwen3", traits = { qk_norm = "head" }, usual = { eps = 1e-6 } },
  gemma = {
    name = "Gemma", traits = { norm_from_one = true }, scaled = true,
    usual = { activation = "gelu_tanh", tied = true, eps = 1e-6 },
  },
  gemma2 = {
    name = "Gemma2", traits = { norm_from_one = true, norms = "around" }, scaled = true,
    usual = { activation = "gelu_tanh", tied = true, eps = 1e-6, attention_softcap = 50, logit_softcap = 30 },
  },
  gemma3_text = {
    name = "Gemma3", traits = { norm_from_one = true, norms = "around", qk_norm = "head" }, scaled = true,
    usual = { activation = "gelu_tanh", tied = true, eps = 1e-6, rope_theta = 1e6 },
  },
  olmo2 = { name = "Olmo2", traits = { norms = "behind", qk_norm = "all" } },
  mixtral = {
    name = "Mixtral", traits = { renormalise = true }, usual = { experts = 8, experts_per_token = 2, rope_theta = 1e6 },
  },
  qwen2_moe = {
    name = "Qwen2Moe", traits = { qkv_bias = true },
    usual = { experts = 60, experts_per_token = 4, renormalise = false, eps = 1e-6 },
  },
  qwen3_moe = {
    name = "Qwen3Moe", traits = { qk_norm = "head" },
    usual = { experts = 128, experts_per_token = 8, renormalise = true, eps = 1e-6 },
  },
  qwen3_next = {
    name = "Qwen3Next", traits = { norm_from_one = true, qk_norm = "head", attn_output_gate = true },
    usual = { experts = 512, experts_per_token = 10, renormalise = true, eps = 1e-6, linear_num_key_heads = 16,
      linear_num_value_heads = 32 },
  },
  olmoe = {
    name = "Olmoe", traits = { qk_norm = "all" }, usual = { experts = 64, experts_per_token = 8, renormalise = false },
  },
  starcoder2 = {
    name = "Starcoder2", traits = { layer_norm = true, gated = false },
    usual = { activation = "gelu_tanh", tied = true, qkv_bias = true, out_bias = true, mlp_bias = true },
  },
  stablelm = { name = "StableLM", traits = { layer_norm = true } },
  phi = {
    name = "Phi", usual = { activation = "gelu_tanh" }, traits = {
      layer_norm = true, gated = false, parallel = "one", qkv_bias = true, out_bias = true, mlp_bias = true,
      head_bias = true,
    },
  },
  gpt_neox = {
    name = "GPTNeoX", traits = { layer_norm = true, gated = false, mlp_bias = true },
    usual = { activation = "gelu", parallel = "each", qkv_bias = true, out_bias = true },
  },
  falcon = {
    name = "Falcon", traits = { layer_norm = true, gated = false },
    usual = { activation = "gelu", tied = true, parallel = "one" },
  },
  bloom = {
    name = "Bloom", usual = { activation = "gelu_tanh", tied = true },
    traits = { layer_norm = true, gated = false, alibi = "added", embedding_norm = true, qkv_bias = true,
      out_bias = true, mlp_bias = true },
  },
  mpt = {
    name = "Mpt", usual = { activation = "gelu", tied = true },
    traits = { layer_norm = true, norm_bias = false, gated = false, alibi = "added" },
  },
  cohere = {
    name = "Cohere", usual = { tied = true },
    traits = { layer_norm = true, norm_bias = false, parallel = "one", rope_interleaved = true },
  },
  cohere2 = {
    name = "Cohere2", usual = { tied = true },
    traits = { layer_norm = true, norm_bias = false, parallel = "one", rope_interleaved = true },
  },
  llama4_text = {
    name = "Llama4", traits = {
      rope_interleaved = true, expert_score = "sigmoid", renormalise = false, score_before_experts = true,
      shared_gate = false,
    },
    usual = { experts = 16, experts_per_token = 1, qk_norm = "l2", rope_theta = 500000 },
  },
  granite = { name = "Granite", usual = { eps = 1e-6 } },
  glm = { name = "Glm", traits = { rope_interleaved = true }, usual = { qkv_bias = true, eps = 1.5625e-7 } },
  glm4 = {
    name = "Glm4", traits = { rope_interleaved = true, norms = "around" }, usual = { qkv_bias = true, eps = 1.5625e-7 },
  },
  olmo3 = { name = "Olmo3", traits = { norms = "behind", qk_norm = "all" } },
  exaone4 = { name = "Exaone4", traits = { norms = "behind", qk_norm = "head" } },
  seed_oss = { name = "SeedOss", usual = { qkv_bias = true, eps = 1e-6 } },
  deepseek_v2 = {
    name = "DeepseekV2", traits = { rope_interleaved = true, renormalise = false, shared_gate = false },
    usual = { experts = 64, experts_per_token = 6, eps = 1e-6, qk_nope_head_dim = 128, qk_rope_head_dim = 64,
      v_head_dim = 128 },
  },
  deepseek_v3 = DEEPSEEK_V3, kimi_k2 = DEEPSEEK_V3,
  glm4_moe = {
    name = "Glm4Moe",
    traits = { expert_score = "sigmoid", group_score = "top2", route_bias = true, shared_gate = false },
    usual = { experts = 128, experts_per_token = 8 },
  },
  gpt_oss = {
    name = "GptOss",
    traits = { sinks = true, expert_bias = true, expert_fused = true, activation = "swiglu_oai", qkv_bias = true,
      out_bias = true, renormalise = true },
    usual = { experts = 32, experts_per_token = 4, rope_theta = 150000 },
  },
  smollm3 = { name = "SmolLM3", usual = { tied = true, eps = 1e-6, rope_theta = 2e6 } },
}

---What all models of a family have.
---@param name string
---@return table options
function families.traits(name)
  return families.rows[name] and families.rows[name].traits or {}
end

---What published models of a family have, unless their options say otherwise.
---@param name string
---@return table options
function families.usual(name)
  return families.rows[name] and families.rows[name].usual or {}
end

local function fill(row, given)
  local filled = {}
  for _, source in ipairs({ row.traits or {}, row.usual or {}, given }) do
    for key, value in pairs(source) do filled[key] = value end
  end
  if row.scaled and filled.embedding_scale == nil and type(filled.dim) == "number" and filled.dim > 0 then
    filled.embedding_scale = math.sqrt(filled.dim)
  end
  return filled
end

---The models of a family.
---@param name string a key of families.rows; llama, which has published sizes, is in models/llama.lua
---@return fun(given: moonshard.DecoderOptions): moonshard.Module
function families.maker(name)
  local row = families.rows[name]
  local class = decoder.define(row.name, name)
  ---A decoder with the traits of this family. Its forward maps tokens i32 [batch, length] to logits
  ---[batch, length, vocab].
  ---@param given moonshard.DecoderOptions
  ---@return moonshard.Module
  return function(given)
    return class(decoder_options.read("ms.models." .. name, type(given) == "table" and fill(row, given) or given))
  end
end

return families
