-- Ministral 3, a row as in init.lua: Mistral with scaled frequencies, and queries that grow with the position. Both
-- stand in rope_parameters, which version 5 of the reference library reads, the only one that has the family.

local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local options = require("moonshard.base.checks.options")
local rope = require("moonshard.huggingface.rope")

local USUAL = {
  rope_type = "yarn", rope_theta = 1e6, factor = 16, original_max_position_embeddings = 16384, beta_fast = 32,
  beta_slow = 1, mscale_all_dim = 1, mscale = 1, llama_4_scaling_beta = 0.1,
}

-- Takes what positions do not read out of the object.
local function read(path, values, o)
  local given, positions = values.rope_parameters or values.rope_scaling or USUAL, {}
  for name, value in pairs(given) do positions[name] = value end
  local beta, original = given.llama_4_scaling_beta, given.original_max_position_embeddings
  if type(beta) ~= "number" or beta < 0 then
    errors.invalid("%s: rope_parameters: llama_4_scaling_beta must be a number of at least 0, not %s", path,
      options.describe(beta))
  elseif type(original) ~= "number" or original < 1 or original % 1 ~= 0 then
    errors.invalid("%s: rope_parameters: original_max_position_embeddings must be a whole number of at least 1, not %s",
      path, options.describe(original))
  end
  if beta > 0 then o.attn_scale, o.floor_scale = beta, original end
  positions.llama_4_scaling_beta, positions.max_position_embeddings = nil, nil
  values[values.rope_scaling and "rope_scaling" or "rope_parameters"] = positions
  o.window = values.sliding_window or nil
end

local function write(o, config)
  local object = rope.config(o.rope_scaling) or { rope_type = "default" }
  object.rope_theta, object.llama_4_scaling_beta = o.rope_theta, o.attn_scale or 0
  object.original_max_position_embeddings = object.original_max_position_embeddings or o.floor_scale or o.seq
  config.rope_parameters, config.rope_theta, config.rope_scaling = object, nil, nil
  config.sliding_window = o.window or json.null
end

---@type table<string, moonshard.DecoderFamily>
return { ministral3 = {
  architecture = "Ministral3ForCausalLM", optional = { num_key_value_heads = true, head_dim = true },
  defaults = {
    pad_token_id = 11,
    vocab_size = 131072, hidden_size = 4096, intermediate_size = 14336, num_hidden_layers = 34,
    num_attention_heads = 32, num_key_value_heads = 8, head_dim = 128, max_position_embeddings = 262144,
    rms_norm_eps = 1e-5, tie_word_embeddings = false, hidden_act = "silu",
  },
  known = { sliding_window = { "size|none" } },
  options = read, config = write,
} }
