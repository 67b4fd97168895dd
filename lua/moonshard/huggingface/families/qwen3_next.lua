-- Qwen3-Next, a row as in init.lua: linear attention in all layers but every fourth, whose attention has a gate, and
-- mixtures of experts with a shared one.

local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local options = require("moonshard.base.checks.options")
local routers = require("moonshard.huggingface.families.routers")

local KINDS = { linear_attention = true, full_attention = false }

-- Options that are fields of the same name.
local SAME = { "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
  "linear_conv_kernel_dim" }

local known = {
  linear_num_key_heads = { "size", 16 }, linear_num_value_heads = { "size", 32 },
  linear_key_head_dim = { "size", 128 }, linear_value_head_dim = { "size", 128 },
  linear_conv_kernel_dim = { "size", 4 },
  layer_types = { "list", null = true }, full_attention_interval = { "size", 4 },
  decoder_sparse_step = { "size", 1 }, mlp_only_layers = { "indices", null = true },
  num_experts = { "size", 512 }, moe_intermediate_size = { "size", 512 },
  shared_expert_intermediate_size = { "size", 512 }, norm_topk_prob = { "boolean", true },
}
for name, field in pairs(routers.KNOWN) do known[name] = field end
known.num_experts_per_tok = { "size", 10 }

-- Which layers have linear attention.
local function linear_of(path, values, layers)
  local linear = {}
  for i = 1, layers do
    local kind = values.layer_types and values.layer_types[i]
    if values.layer_types and KINDS[kind] == nil then
      errors.raise("MS_EUNSUPPORTED", "%s: layer_types of layer %d is %s; supported: linear_attention and "
        .. "full_attention, for each of the %d layers", path, i, options.describe(kind), layers)
    end
    if kind then linear[i] = KINDS[kind] else linear[i] = i % values.full_attention_interval ~= 0 end
  end
  return linear
end

---@type table<string, moonshard.DecoderFamily>
return {
  qwen3_next = {
    architecture = "Qwen3NextForCausalLM", partial = "partial_rotary_factor",
    experts = { block = "mlp", w1 = "gate_proj", w2 = "down_proj", w3 = "up_proj" },
    defaults = {
      vocab_size = 151936, hidden_size = 2048, intermediate_size = 5632, num_hidden_layers = 48,
      num_attention_heads = 16, num_key_value_heads = 2, head_dim = 256, max_position_embeddings = 32768,
      rms_norm_eps = 1e-6, tie_word_embeddings = false, hidden_act = "silu", attention_bias = false,
      partial_rotary_factor = 0.25,
    },
    known = known,
    options = function(path, values, o)
      for _, name in ipairs(SAME) do o[name] = values[name] end
      if o.linear_num_value_heads % o.linear_num_key_heads ~= 0 then
        errors.invalid("%s: linear_num_value_heads %d must be a multiple of linear_num_key_heads %d", path,
          o.linear_num_value_heads, o.linear_num_key_heads)
      end
      o.linear_attention = linear_of(path, values, o.layers)
      o.experts, o.experts_per_token = values.num_experts, values.num_experts_per_tok
      o.expert_ffn, o.shared_ffn = values.moe_intermediate_size, values.shared_expert_intermediate_size
      o.renormalise, o.sparse = values.norm_topk_prob, routers.sparse_of(values, o.layers)
      routers.read(path, values, o, "num_experts")
    end,
    skipped = function()
      return { "^mtp%." }, "mtp: layers that predict further tokens are not built, here as in the reference library, "
        .. "so %d tensors of these are not read, and not saved"
    end,
    config = function(o, config)
      for _, name in ipairs(SAME) do config[name] = o[name] end
      config.layer_types = {}
      for i = 1, o.layers do
        local is_linear = not o.linear_attention or o.linear_attention[i]
        config.layer_types[i] = is_linear and "linear_attention" or "full_attention"
      end
      config.num_experts, config.moe_intermediate_size, config.norm_topk_prob = o.experts, o.expert_ffn, o.renormalise
      config.shared_expert_intermediate_size = o.shared_ffn or json.null
      routers.write_sparse(o, config)
      routers.write(o, config)
    end,
  },
}
