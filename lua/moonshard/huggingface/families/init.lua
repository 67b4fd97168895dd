-- The families of decoders that Hugging Face's library and we have: one row each, of what its config.json says besides
-- the fields that all have. Defaults are those of its config class. What all models of a family have, whatever their
-- config says, is in models/families.lua.
--
-- A new family of this kind is a row here and there, and a fixture (tests/fixtures/huggingface/make.py).

local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local layer_kinds = require("moonshard.huggingface.families.layer_kinds")
local options = require("moonshard.base.checks.options")
local rope_by_kind = require("moonshard.huggingface.families.rope_by_kind")

-- Qwen's fields of windows: layers from max_window_layers on have one, if it is used.
local QWEN = {
  use_sliding_window = { "boolean", false }, sliding_window = { "size|none", 4096 },
  max_window_layers = { "number", 28 }, layer_types = { "list", null = true },
}

local function read_qwen(path, values, o)
  local slides = layer_kinds.slides(path, values, o.layers, function(i) return i > values.max_window_layers end)
  if values.use_sliding_window then layer_kinds.set_window(o, values.sliding_window, slides) end
end

local function write_qwen(o, config)
  config.use_sliding_window = o.window ~= nil
  config.sliding_window = o.window or json.null
  if o.window then config.layer_types = layer_kinds.types(o) end
end

-- A window of all layers.
local function read_window(_, values, o)
  o.window = values.sliding_window or nil
end

local function write_window(o, config)
  config.sliding_window = o.window or json.null
end

-- Gemma's caps, scale of scores, and embedding scaled by the root of its width.
local function read_gemma(_, values, o)
  o.embedding_scale = math.sqrt(o.dim)
  if values.query_pre_attn_scalar then o.attention_scale = values.query_pre_attn_scalar ^ -0.5 end
  o.attention_softcap = values.attn_logit_softcapping or nil
  o.logit_softcap = values.final_logit_softcapping or nil
end

local function write_gemma(o, config)
  config.query_pre_attn_scalar = o.attention_scale and math.floor(o.attention_scale ^ -2 + 0.5) or o.head_dim
  config.final_logit_softcapping = o.logit_softcap or json.null
  -- The reference library makes a mask of this length, also where no layer slides.
  config.sliding_window, config.layer_types = o.window or o.seq, layer_kinds.types(o)
end

local GEMMA_SIZES = {
  pad_token_id = 0,
  hidden_size = 2304, intermediate_size = 9216, num_hidden_layers = 26, num_attention_heads = 8,
  num_key_value_heads = 4, head_dim = 256, max_position_embeddings = 8192, rms_norm_eps = 1e-6,
  tie_word_embeddings = true, attention_bias = false, hidden_activation = "gelu_pytorch_tanh",
}

-- None: as many as num_attention_heads.
local KV_HEADS = { num_key_value_heads = true }

local QWEN_SIZES = {
  vocab_size = 151936, hidden_size = 4096, intermediate_size = 22016, num_hidden_layers = 32,
  num_attention_heads = 32, num_key_value_heads = 32, hidden_act = "silu", max_position_embeddings = 32768,
  rms_norm_eps = 1e-6, tie_word_embeddings = false,
}

local function with(defaults, more)
  local all = {}
  for name, value in pairs(defaults) do all[name] = value end
  for name, value in pairs(more) do all[name] = value end
  return all
end

-- Some classes compare these, also if head_dim is given.
local WHOLE_HEADS = {
  option = "heads", field = "hidden_size", broken = function(o) return o.dim % o.heads ~= 0 end,
  why = "a width that is a multiple of the number of heads alone",
}

---@type table<string, moonshard.DecoderFamily>
local families = {}

families.llama = {
  architecture = "LlamaForCausalLM",
  defaults = {
    vocab_size = 32000, hidden_size = 4096, intermediate_size = 11008, num_hidden_layers = 32,
    num_attention_heads = 32, max_position_embeddings = 2048, rms_norm_eps = 1e-6, tie_word_embeddings = false,
    hidden_act = "silu", attention_bias = false, mlp_bias = false,
  },
  limits = { WHOLE_HEADS },
}

families.mistral = {
  architecture = "MistralForCausalLM",
  defaults = {
    vocab_size = 32000, hidden_size = 4096, intermediate_size = 14336, num_hidden_layers = 32,
    num_attention_heads = 32, num_key_value_heads = 8, max_position_embeddings = 131072, rms_norm_eps = 1e-6,
    tie_word_embeddings = false, hidden_act = "silu",
  },
  known = { sliding_window = { "size|none", 4096 } },
  options = read_window, config = write_window,
}

-- As Mistral, but only some layers may have a window.
families.ministral = {
  architecture = "MinistralForCausalLM",
  defaults = families.mistral.defaults,
  known = { sliding_window = { "size|none", 4096 }, layer_types = { "list", null = true } },
  options = function(path, values, o)
    local slides = layer_kinds.slides(path, values, o.layers, function() return values.sliding_window ~= false end)
    layer_kinds.set_window(o, values.sliding_window, slides)
  end,
  config = function(o, config)
    config.sliding_window, config.layer_types = o.window or json.null, layer_kinds.types(o)
  end,
}

families.qwen2 = {
  architecture = "Qwen2ForCausalLM", defaults = QWEN_SIZES, optional = KV_HEADS,
  known = QWEN, options = read_qwen, config = write_qwen,
}

families.qwen3 = {
  architecture = "Qwen3ForCausalLM", optional = KV_HEADS,
  defaults = with(QWEN_SIZES, { head_dim = 128, attention_bias = false }),
  known = QWEN, options = read_qwen, config = write_qwen,
}

families.gemma = {
  architecture = "GemmaForCausalLM",
  defaults = with(GEMMA_SIZES, {
    vocab_size = 256000, hidden_size = 3072, intermediate_size = 24576, num_hidden_layers = 28,
    num_attention_heads = 16, num_key_value_heads = 16, hidden_act = "gelu_pytorch_tanh",
  }),
  known = { hidden_activation = { "text", null = true } },
  options = function(path, values, o)
    read_gemma(path, values, o)
    -- Its first configs say "gelu" and mean the approximation with tanh.
    if o.activation == "gelu" then o.activation = "gelu_tanh" end
  end,
}

families.gemma2 = {
  architecture = "Gemma2ForCausalLM", activation = "hidden_activation", limits = { WHOLE_HEADS },
  defaults = with(GEMMA_SIZES, { vocab_size = 256000 }),
  known = {
    query_pre_attn_scalar = { "positive", 256 }, sliding_window = { "size", 4096 },
    layer_types = { "list", null = true }, attn_logit_softcapping = { "positive|none", 50 },
    final_logit_softcapping = { "positive|none", 30 },
  },
  options = function(path, values, o)
    read_gemma(path, values, o)
    local slides = layer_kinds.slides(path, values, o.layers, function(i) return i % 2 == 1 end)
    layer_kinds.set_window(o, values.sliding_window, slides)
  end,
  config = function(o, config)
    write_gemma(o, config)
    config.attn_logit_softcapping = o.attention_softcap or json.null
  end,
}

families.gemma3_text = {
  architecture = "Gemma3ForCausalLM", base = "Gemma3TextModel", activation = "hidden_activation",
  defaults = with(GEMMA_SIZES, { vocab_size = 262208, max_position_embeddings = 131072 }),
  known = {
    query_pre_attn_scalar = { "positive", 256 }, sliding_window = { "size", 4096 },
    layer_types = { "list", null = true }, final_logit_softcapping = { "positive|none" },
    rope_local_base_freq = { "positive" }, sliding_window_pattern = { "size", 6 },
    _sliding_window_pattern = { "size" },
    attn_logit_softcapping = { only = false, why = "the reference library does not cap the scores of Gemma 3" },
  },
  options = function(path, values, o)
    read_gemma(path, values, o)
    layer_kinds.set_window(o, values.sliding_window, layer_kinds.slides(path, values, o.layers, function(i)
      return i % values.sliding_window_pattern ~= 0
    end))
    rope_by_kind.read(path, values, o, 1e6, values.rope_local_base_freq or 10000)
  end,
  config = function(o, config)
    write_gemma(o, config)
    local same = o.window and not o.rope_scaling and o.rope_theta or nil
    config.rope_local_base_freq = o.window_rope_theta or same
  end,
}

families.phi3 = {
  architecture = "Phi3ForCausalLM", partial = "partial_rotary_factor", original = 4096,
  fused = { qkv = "self_attn.qkv_proj", gate_up = "mlp.gate_up_proj" },
  defaults = {
    pad_token_id = 32000,
    vocab_size = 32064, hidden_size = 3072, intermediate_size = 8192, num_hidden_layers = 32,
    num_attention_heads = 32, max_position_embeddings = 4096, rms_norm_eps = 1e-5, tie_word_embeddings = false,
    hidden_act = "silu", partial_rotary_factor = 1,
  },
  known = { sliding_window = { "size|none" }, original_max_position_embeddings = { "size" } },
  limits = {
    { option = "rope_scaling", field = "rope_scaling", broken = function(o)
      local scaled = o.rope_scaling
      return scaled and (scaled.type ~= "longrope" or scaled.attention_factor
        or scaled.factor and scaled.factor ~= o.seq / scaled.original_max_position_embeddings) or false
    end, why = "frequencies without a scaling, or of the type longrope with the lists and lengths alone" },
  },
  options = read_window,
  config = function(o, config)
    write_window(o, config)
    local scaled = o.rope_scaling
    if not scaled then return end
    -- Its config class takes these three fields alone.
    config.rope_scaling = { type = "longrope", short_factor = scaled.short_factor, long_factor = scaled.long_factor }
    config.original_max_position_embeddings = scaled.original_max_position_embeddings
  end,
}

families.olmo2 = {
  architecture = "Olmo2ForCausalLM",
  defaults = {
    pad_token_id = 1,
    vocab_size = 50304, hidden_size = 4096, intermediate_size = 11008, num_hidden_layers = 32,
    num_attention_heads = 32, max_position_embeddings = 2048, rms_norm_eps = 1e-5, tie_word_embeddings = false,
    hidden_act = "silu", attention_bias = false,
  },
}

-- Layers without rotary positions: those with 0 in no_rope_layers, or every so many.
families.smollm3 = {
  architecture = "SmolLM3ForCausalLM", theta = 2e6, optional = KV_HEADS,
  defaults = {
    pad_token_id = 128004,
    vocab_size = 128256, hidden_size = 2048, intermediate_size = 11008, num_hidden_layers = 36,
    num_attention_heads = 16, num_key_value_heads = 4, max_position_embeddings = 32768, rms_norm_eps = 1e-6,
    tie_word_embeddings = true, hidden_act = "silu", attention_bias = false, mlp_bias = false,
  },
  known = {
    no_rope_layers = { "list", null = true }, no_rope_layer_interval = { "size", 4 },
    layer_types = { "list", null = true },
    use_sliding_window = { "boolean", false }, sliding_window = { "size|none" },
  },
  options = function(path, values, o)
    if values.use_sliding_window and values.sliding_window then
      errors.raise("MS_EUNSUPPORTED", "%s: sliding_window is %s: SmolLM3 with windows is not built", path,
        options.describe(values.sliding_window))
    end
    for i, kind in ipairs(values.layer_types or {}) do
      if kind ~= "full_attention" then
        errors.raise("MS_EUNSUPPORTED", "%s: layer_types of layer %d is %s; SmolLM3's are built with full_attention",
          path, i, options.describe(kind))
      end
    end
    local rotates, all = {}, true
    for i = 1, o.layers do
      local given = i % values.no_rope_layer_interval ~= 0 and 1 or 0
      if values.no_rope_layers then given = values.no_rope_layers[i] end
      if given ~= 0 and given ~= 1 then
        errors.invalid("%s: no_rope_layers of layer %d is %s; it must be 0 or 1", path, i, options.describe(given))
      end
      rotates[i], all = given == 1, all and given == 1
    end
    o.rotates = not all and rotates or nil
  end,
  config = function(o, config)
    config.no_rope_layers = {}
    for i = 1, o.layers do config.no_rope_layers[i] = (not o.rotates or o.rotates[i]) and 1 or 0 end
  end,
}

for _, name in ipairs({ "alibi", "deepseek", "experts", "gpt_oss", "later", "layer_norm", "llama4", "ministral3",
  "qwen3_next" }) do
  for model_type, row in pairs(require("moonshard.huggingface.families." .. name)) do families[model_type] = row end
end
for model_type, row in pairs(families) do row.model_type = model_type end

return families
