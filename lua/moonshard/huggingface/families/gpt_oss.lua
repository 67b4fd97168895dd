-- gpt-oss, a row as in init.lua: attention sinks, layers that slide by turns, and mixtures of experts with biases. The
-- matrices of all experts are one tensor [E,inputs,outputs].

local errors = require("moonshard.base.error")
local layer_kinds = require("moonshard.huggingface.families.layer_kinds")
local json = require("moonshard.base.text.json")
local routers = require("moonshard.huggingface.families.routers")

-- The scaling of a config.json that says nothing of one.
local YARN = {
  type = "yarn", factor = 32, beta_fast = 32, beta_slow = 1, truncate = false, original_max_position_embeddings = 4096,
}

local known = {
  sliding_window = { "size", 128 }, layer_types = { "list", null = true }, num_local_experts = { "size", 128 },
  experts_per_token = { "size", null = true },
  swiglu_alpha = { only = 1.702, why = "the slope of the gate's sigmoid is built as 1.702" },
  swiglu_limit = { only = 7, why = "the limit of gates and ups is built as 7" },
}
for name, field in pairs(routers.KNOWN) do known[name] = field end
known.num_experts_per_tok, known.router_aux_loss_coef = { "size", 4 }, { "factor", 0.001 }

---@type table<string, moonshard.DecoderFamily>
return {
  gpt_oss = {
    architecture = "GptOssForCausalLM", theta = 150000, experts = { block = "mlp" },
    optional = { num_key_value_heads = true, head_dim = true },
    defaults = {
      vocab_size = 201088, hidden_size = 2880, intermediate_size = 2880, num_hidden_layers = 36,
      num_attention_heads = 64, num_key_value_heads = 8, head_dim = 64, max_position_embeddings = 131072,
      rms_norm_eps = 1e-5, tie_word_embeddings = false, hidden_act = "silu", attention_bias = true,
    },
    known = known,
    options = function(path, values, o)
      o.activation, o.expert_ffn = "swiglu_oai", o.ffn
      o.qkv_bias, o.out_bias = values.attention_bias, values.attention_bias
      o.experts, o.experts_per_token = values.num_local_experts, values.num_experts_per_tok
      if values.experts_per_token and values.experts_per_token ~= o.experts_per_token then
        errors.invalid("%s: num_experts_per_tok is %d and experts_per_token %d, but they mean the same: keep one of "
          .. "them", path, o.experts_per_token, values.experts_per_token)
      end
      routers.read(path, values, o, "num_local_experts")
      layer_kinds.set_window(o, values.sliding_window, layer_kinds.slides(path, values, o.layers, function(i)
        return i % 2 == 1
      end))
      if values.rope_scaling == false and not values.rope_parameters then
        errors.invalid("%s: rope_scaling is null: version 4 of the reference library then does not scale positions, "
          .. "version 5 scales them as the published models do; leave the field out for the latter, or add "
          .. "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": %s} for the former", path,
          tostring(values.rope_theta or 150000))
      end
      if not (values.rope_scaling or values.rope_parameters) then
        o.rope_theta, o.rope_scaling = values.rope_theta or 150000, YARN
      end
    end,
    config = function(o, config)
      config.num_local_experts, config.hidden_act, config.swiglu_limit = o.experts, "silu", 7
      config.sliding_window, config.layer_types = o.window or o.seq, layer_kinds.types(o)
      if not config.rope_scaling then -- both versions of the reference library then have no scaling
        config.rope_scaling = json.null
        config.rope_parameters = { rope_type = "default", rope_theta = o.rope_theta }
      end
      routers.write(o, config)
    end,
  },
}
