-- Hugging Face's Llama: maps its config.json to our options, and its tensors to our parameters. Weights are stored like
-- ours, [out, in], with the same rotary pairs.

local errors = require("moonshard.base.error")
local fields = require("moonshard.huggingface.fields")
local options = require("moonshard.base.options")

local llama = { prefix = "model.", architecture = "LlamaForCausalLM", head = "lm_head.weight" }

-- Frequencies that old versions stored with the weights.
llama.buffers = { "^layers%.%d+%.self_attn%.rotary_emb%.inv_freq$" }

-- Types and defaults as in LlamaConfig.
local KNOWN = {
  vocab_size = { "size", 32000 }, hidden_size = { "size", 4096 }, intermediate_size = { "size", 11008 },
  num_hidden_layers = { "size", 32 }, num_attention_heads = { "size", 32 }, num_key_value_heads = { "size" },
  head_dim = { "size" }, max_position_embeddings = { "size", 2048 }, rms_norm_eps = { "positive", 1e-6 },
  rope_theta = { "positive" }, rope_scaling = { "object" }, rope_parameters = { "object" },
  tie_word_embeddings = { "boolean", false },
  hidden_act = { only = "silu", why = "only silu is built" },
  attention_bias = { only = false, why = "biases in attention are not built" },
  mlp_bias = { only = false, why = "biases in the MLP are not built" },
  pretraining_tp = { only = 1, why = "products cut as in tensor-parallel pretraining are not built" },
  sliding_window = { only = false, why = "attention in a sliding window is not built" },
  use_sliding_window = { only = false, why = "attention in a sliding window is not built" },
  partial_rotary_factor = { only = 1, why = "rotary positions in a part of a head are not built" },
  is_encoder_decoder = { only = false, why = "models of an encoder and a decoder are not built" },
  quantization_config = { only = false, why = "weights that were quantised are not read" },
}

local SCALING = { "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings" }
local ROPE = { rope_theta = true, rope_type = true, type = true, partial_rotary_factor = true }
for _, name in ipairs(SCALING) do ROPE[name] = true end

-- Returns theta, and the scaling or false. Version 5 stores both in rope_parameters, earlier versions in rope_theta and
-- rope_scaling.
local function read_rope(path, values)
  local where = values.rope_parameters and "rope_parameters" or "rope_scaling"
  local given = values[where] or {}
  if values.rope_parameters and values.rope_scaling then
    errors.invalid("%s: rope_parameters and rope_scaling say the same thing: keep one of them", path)
  end
  local theta = given.rope_theta or values.rope_theta or 10000
  if type(theta) ~= "number" or theta <= 0 then
    errors.invalid("%s: %s: rope_theta must be a number above 0, not %s", path, where, options.describe(theta))
  end
  local kind = given.rope_type or given.type or "default"
  if kind ~= "default" and kind ~= "llama3" then
    errors.raise("MS_EUNSUPPORTED", "%s: %s: rope type %s is not supported; supported: default and llama3", path, where,
      options.describe(kind))
  end
  if (given.partial_rotary_factor or 1) ~= 1 then
    errors.raise("MS_EUNSUPPORTED", "%s: %s: partial_rotary_factor %s: rotary positions in a part of a head are not "
      .. "built", path, where, options.describe(given.partial_rotary_factor))
  end
  for name in pairs(given) do
    if not ROPE[name] then
      errors.raise("MS_EUNSUPPORTED", "%s: %s: field %s is unknown, and so is its effect on positions",
        path, where, name)
    end
  end
  if kind == "default" then return theta, false end
  local scaling = {}
  for _, name in ipairs(SCALING) do
    scaling[name] = given[name]
    if name == SCALING[4] then scaling[name] = scaling[name] or values.max_position_embeddings end
    if type(scaling[name]) ~= "number" or scaling[name] <= 0 then
      errors.invalid("%s: %s: %s must be a number above 0, not %s", path, where, name, options.describe(scaling[name]))
    end
  end
  return theta, scaling
end

---Options of ms.models.llama.
---@param path string of config.json
---@param config table
---@return table
function llama.options(path, config)
  local values = fields.read(path, config, KNOWN)
  local theta, scaling = read_rope(path, values)
  local heads = values.num_attention_heads
  local kv_heads = values.num_key_value_heads or heads
  if heads % kv_heads ~= 0 then
    errors.invalid("%s: num_attention_heads %d must be a multiple of num_key_value_heads %d", path, heads, kv_heads)
  end
  if not values.head_dim and values.hidden_size % heads ~= 0 then
    errors.invalid("%s: hidden_size %d must be a multiple of num_attention_heads %d if head_dim is not given", path,
      values.hidden_size, heads)
  end
  return {
    vocab = values.vocab_size, dim = values.hidden_size, layers = values.num_hidden_layers, heads = heads,
    kv_heads = kv_heads, head_dim = values.head_dim or values.hidden_size / heads, ffn = values.intermediate_size,
    seq = values.max_position_embeddings, eps = values.rms_norm_eps, rope_theta = theta, rope_scaling = scaling,
    tied = values.tie_word_embeddings,
  }
end

---The config.json for one of our models, valid for versions 4 and 5 of the reference library.
---@param o table options of ms.models.llama, complete
---@return table
function llama.config(o)
  local scaling = o.rope_scaling and { rope_type = "llama3" } or nil
  for _, name in ipairs(scaling and SCALING or {}) do scaling[name] = o.rope_scaling[name] end
  return {
    model_type = "llama", vocab_size = o.vocab, hidden_size = o.dim, intermediate_size = o.ffn,
    num_hidden_layers = o.layers, num_attention_heads = o.heads, num_key_value_heads = o.kv_heads,
    head_dim = o.head_dim, max_position_embeddings = o.seq, rms_norm_eps = o.eps, hidden_act = "silu",
    rope_theta = o.rope_theta, rope_scaling = scaling, tie_word_embeddings = o.tied, attention_bias = false,
    mlp_bias = false,
  }
end

---Every stored tensor: its name without prefix, its shape, and its parameter.
---@param o table options of ms.models.llama
---@return moonshard.HuggingFaceTensor[]
function llama.tensors(o)
  local list = {}
  local function plain(name, shape, parameter)
    list[#list + 1] = { name = name .. ".weight", shape = shape, slices = { { parameter = parameter .. ".weight" } } }
  end
  plain("embed_tokens", { o.vocab, o.dim }, "embed")
  local queries, keys = o.heads * o.head_dim, o.kv_heads * o.head_dim
  for i = 0, o.layers - 1 do
    local theirs, ours = ("layers.%d."):format(i), ("layers.%d."):format(i)
    plain(theirs .. "input_layernorm", { o.dim }, ours .. "attn_norm")
    plain(theirs .. "self_attn.q_proj", { queries, o.dim }, ours .. "attn.wq")
    plain(theirs .. "self_attn.k_proj", { keys, o.dim }, ours .. "attn.wk")
    plain(theirs .. "self_attn.v_proj", { keys, o.dim }, ours .. "attn.wv")
    plain(theirs .. "self_attn.o_proj", { o.dim, queries }, ours .. "attn.wo")
    plain(theirs .. "post_attention_layernorm", { o.dim }, ours .. "ffn_norm")
    plain(theirs .. "mlp.gate_proj", { o.ffn, o.dim }, ours .. "mlp.w1")
    plain(theirs .. "mlp.up_proj", { o.ffn, o.dim }, ours .. "mlp.w3")
    plain(theirs .. "mlp.down_proj", { o.dim, o.ffn }, ours .. "mlp.w2")
  end
  plain("norm", { o.dim }, "norm")
  if not o.tied then plain("lm_head", { o.vocab, o.dim }, "head") end
  return list
end

return llama
