-- The families of decoders with RMS norms that came after those of init.lua, rows as there: Granite, GLM 4, OLMo 3,
-- EXAONE 4 and Seed-OSS.

local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local layer_kinds = require("moonshard.huggingface.families.layer_kinds")
local options = require("moonshard.base.checks.options")
local rope_by_kind = require("moonshard.huggingface.families.rope_by_kind")

---@type table<string, moonshard.DecoderFamily>
local families = {}

-- Llama with factors: of embedded tokens, of scores, of what each branch adds, and a divisor of logits.
families.granite = {
  architecture = "GraniteForCausalLM",
  defaults = {
    vocab_size = 32000, hidden_size = 4096, intermediate_size = 11008, num_hidden_layers = 32,
    num_attention_heads = 32, max_position_embeddings = 2048, rms_norm_eps = 1e-6, tie_word_embeddings = false,
    hidden_act = "silu", attention_bias = false, mlp_bias = false,
  },
  known = {
    embedding_multiplier = { "positive", 1 }, attention_multiplier = { "positive", 1 },
    residual_multiplier = { "positive", 1 }, logits_scaling = { "positive", 1 },
  },
  options = function(_, values, o)
    o.embedding_scale, o.attention_scale = values.embedding_multiplier, values.attention_multiplier
    o.residual_scale, o.logit_scale = values.residual_multiplier, 1 / values.logits_scaling
  end,
  config = function(o, config)
    config.embedding_multiplier, config.residual_multiplier = o.embedding_scale or 1, o.residual_scale or 1
    config.attention_multiplier = o.attention_scale or o.head_dim ^ -0.5
    config.logits_scaling = 1 / (o.logit_scale or 1)
  end,
}

-- ---- GLM 4 ------------------------------------------------------------------------------------------------------

local GLM = {
  pad_token_id = 151329,
  vocab_size = 151552, hidden_size = 4096, intermediate_size = 13696, num_hidden_layers = 40,
  num_attention_heads = 32, num_key_value_heads = 2, head_dim = 128, max_position_embeddings = 131072,
  rms_norm_eps = 1.5625e-7, tie_word_embeddings = false, hidden_act = "silu", attention_bias = true,
  partial_rotary_factor = 0.5,
}

local function without_out_bias(_, _, o) o.out_bias = false end

families.glm = {
  architecture = "GlmForCausalLM", defaults = GLM, partial = "partial_rotary_factor",
  fused = { gate_up = "mlp.gate_up_proj" }, options = without_out_bias,
}

families.glm4 = {
  architecture = "Glm4ForCausalLM", defaults = GLM, partial = "partial_rotary_factor",
  fused = { gate_up = "mlp.gate_up_proj" }, options = without_out_bias,
  norms = {
    attn_norm = "input_layernorm", attn_norm_behind = "post_self_attn_layernorm",
    ffn_norm = "post_attention_layernorm", ffn_norm_behind = "post_mlp_layernorm",
  },
}

-- ---- layers of two kinds ----------------------------------------------------------------------------------------

-- Three of four layers slide; scaled frequencies are those of the others.
families.olmo3 = {
  architecture = "Olmo3ForCausalLM",
  defaults = {
    pad_token_id = 1,
    vocab_size = 50304, hidden_size = 4096, intermediate_size = 11008, num_hidden_layers = 32,
    num_attention_heads = 32, max_position_embeddings = 2048, rms_norm_eps = 1e-5, tie_word_embeddings = false,
    hidden_act = "silu", attention_bias = false,
  },
  known = { sliding_window = { "size", 4096 }, layer_types = { "list", null = true } },
  options = function(path, values, o)
    layer_kinds.set_window(o, values.sliding_window, layer_kinds.slides(path, values, o.layers, function(i)
      return i % 4 ~= 0
    end))
    rope_by_kind.read(path, values, o, 10000, values.rope_theta or 10000)
  end,
  config = function(o, config)
    config.sliding_window, config.layer_types = o.window or o.seq, layer_kinds.types(o)
    rope_by_kind.write(o, config)
  end,
}

local function exaone_slides(path, values, o)
  local pattern = values.sliding_window_pattern
  return layer_kinds.slides(path, values, o.layers, function(i)
    if not values.sliding_window then return false end
    if type(pattern) == "string" and pattern:find("^[LG]+$") then
      local at = (i - 1) % #pattern + 1
      return pattern:sub(at, at) == "L"
    elseif type(pattern) ~= "number" or pattern % 1 ~= 0 or pattern < 1 then
      errors.invalid("%s: sliding_window_pattern must be a whole number, or a text of L and G such as \"LLLG\", not %s",
        path, options.describe(pattern))
    end
    return i % pattern ~= 0
  end)
end

-- Where some layers slide, these alone are rotated.
families.exaone4 = {
  architecture = "Exaone4ForCausalLM",
  defaults = {
    vocab_size = 102400, hidden_size = 4096, intermediate_size = 16384, num_hidden_layers = 32,
    num_attention_heads = 32, num_key_value_heads = 32, max_position_embeddings = 2048, rms_norm_eps = 1e-5,
    tie_word_embeddings = false, hidden_act = "silu",
  },
  known = {
    sliding_window = { "size|none", 4096 }, sliding_window_pattern = { nil, 4, null = true },
    layer_types = { "list", null = true }, cache_implementation = { "text", null = true },
  },
  options = function(path, values, o)
    local slides = exaone_slides(path, values, o)
    layer_kinds.set_window(o, values.sliding_window, slides)
    if values.sliding_window then o.rotates = slides end
  end,
  config = function(o, config)
    config.sliding_window, config.layer_types = o.window or json.null, layer_kinds.types(o)
  end,
}

families.seed_oss = {
  architecture = "SeedOssForCausalLM",
  defaults = {
    pad_token_id = 1,
    vocab_size = 155136, hidden_size = 4096, intermediate_size = 27648, num_hidden_layers = 64,
    num_attention_heads = 80, num_key_value_heads = 8, head_dim = 128, max_position_embeddings = 524288,
    rms_norm_eps = 1e-6, tie_word_embeddings = false, hidden_act = "silu", attention_bias = true, mlp_bias = false,
  },
  known = { attention_out_bias = { "boolean", false }, residual_dropout = { "number" } },
  options = function(_, values, o) o.out_bias = values.attention_out_bias end,
  config = function(o, config) config.attention_out_bias = o.out_bias end,
}

return families
