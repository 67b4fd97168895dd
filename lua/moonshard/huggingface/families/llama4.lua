-- The text of Llama 4, a row as in init.lua. Three of four layers have rotary positions and attend in chunks; the
-- others have neither, and a temperature. All experts' matrices of a layer are one tensor, and routers weigh what
-- experts read.

local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local layer_kinds = require("moonshard.huggingface.families.layer_kinds")
local options = require("moonshard.base.checks.options")

local KINDS = { full_attention = false, chunked_attention = true }

local function is_on(value) return value == true or type(value) == "number" and value ~= 0 end

-- A list for layers, or nil where it holds for all of them.
local function unless_all(list)
  for _, value in ipairs(list) do
    if not value then return list end
  end
  return nil
end

-- Which layers have rotary positions: those with 1 in no_rope_layers, or all but every so many.
local function rotates_of(path, values, layers)
  local given, rotates = values.no_rope_layers, {}
  if given and given[1] == nil then given = nil end -- as the class reads it
  for i = 1, layers do
    local value = given and given[i]
    if given and value ~= 0 and value ~= 1 then
      errors.invalid("%s: no_rope_layers of layer %d is %s; it must be 1 for a layer with rotary positions, or 0", path,
        i, options.describe(value))
    end
    rotates[i] = value == 1 or not given and i % values.no_rope_layer_interval ~= 0
  end
  return rotates
end

-- Which attend in chunks: as layer_types says, or those with rotary positions.
local function chunked_of(path, values, rotates)
  local types, chunked = values.layer_types, {}
  for i = 1, #rotates do
    if types and KINDS[types[i]] == nil then
      errors.raise("MS_EUNSUPPORTED", "%s: layer_types of layer %d is %s; Llama 4 has full_attention and "
        .. "chunked_attention, for each of the %d layers", path, i, options.describe(types[i]), #rotates)
    end
    if types then chunked[i] = KINDS[types[i]] else chunked[i] = rotates[i] and values.attention_chunk_size ~= false end
    if chunked[i] and not values.attention_chunk_size then
      errors.invalid("%s: layer %d has chunked_attention, and attention_chunk_size is null: give the length of a chunk",
        path, i)
    end
  end
  return chunked
end

-- Which have experts: those listed, from 0, or every so many.
local function sparse_of(path, values, layers)
  local sparse, listed = {}, values.moe_layers
  for i = 1, layers do sparse[i] = not listed and i % values.interleave_moe_layer_step == 0 end
  for _, i in ipairs(listed or {}) do
    if i >= layers then errors.invalid("%s: moe_layers has %d, and the last layer is %d", path, i, layers - 1) end
    sparse[i + 1] = true
  end
  return sparse
end

local function read(path, values, o)
  local rotates = rotates_of(path, values, o.layers)
  local chunked = chunked_of(path, values, rotates)
  o.rotates = unless_all(rotates)
  if layer_kinds.any(chunked) then
    o.attention_chunk_size, o.chunked = values.attention_chunk_size, unless_all(chunked)
  end
  if is_on(values.attn_temperature_tuning) then o.attn_scale, o.floor_scale = values.attn_scale, values.floor_scale end
  o.qk_norm = values.use_qk_norm and "l2"
  o.experts, o.experts_per_token = values.num_local_experts, values.num_experts_per_tok
  o.expert_ffn, o.shared_ffn, o.ffn = values.intermediate_size, values.intermediate_size, values.intermediate_size_mlp
  if o.experts_per_token > o.experts then
    errors.invalid("%s: num_experts_per_tok is %d, and there are %d experts", path, o.experts_per_token, o.experts)
  end
  o.sparse = unless_all(sparse_of(path, values, o.layers))
end

local function write(o, config)
  config.intermediate_size, config.intermediate_size_mlp = o.expert_ffn, o.ffn
  config.num_local_experts, config.num_experts_per_tok = o.experts, o.experts_per_token
  config.use_qk_norm, config.attention_chunk_size = o.qk_norm == "l2", o.attention_chunk_size or json.null
  config.attn_temperature_tuning = o.attn_scale ~= nil
  config.attn_scale, config.floor_scale = o.attn_scale, o.floor_scale
  config.no_rope_layers, config.layer_types, config.moe_layers = {}, {}, json.list({})
  for i = 1, o.layers do
    local chunked = o.attention_chunk_size and (not o.chunked or o.chunked[i])
    config.no_rope_layers[i] = (not o.rotates or o.rotates[i]) and 1 or 0
    config.layer_types[i] = chunked and "chunked_attention" or "full_attention"
    if not o.sparse or o.sparse[i] then table.insert(config.moe_layers, i - 1) end
  end
end

---@type table<string, moonshard.DecoderFamily>
return { llama4_text = {
  architecture = "Llama4ForCausalLM", base = "Llama4TextModel", theta = 500000,
  optional = { num_key_value_heads = true, head_dim = true },
  names = {
    ["mlp.w1"] = "feed_forward.gate_proj", ["mlp.w3"] = "feed_forward.up_proj",
    ["mlp.w2"] = "feed_forward.down_proj",
  },
  experts = {
    block = "feed_forward", stacked = true, w1 = "gate_proj", w2 = "down_proj", w3 = "up_proj",
  },
  defaults = {
    vocab_size = 202048, hidden_size = 5120, intermediate_size = 8192, num_hidden_layers = 48,
    num_attention_heads = 40, num_key_value_heads = 8, head_dim = 128, max_position_embeddings = 131072,
    rms_norm_eps = 1e-5, tie_word_embeddings = false, hidden_act = "silu", attention_bias = false,
  },
  limits = { {
    option = "shared_ffn", field = "intermediate_size", broken = function(o) return o.shared_ffn ~= o.expert_ffn end,
    why = "a shared expert as wide as the others",
  } },
  known = {
    intermediate_size_mlp = { "size", 16384 }, num_local_experts = { "size", 16 }, num_experts_per_tok = { "size", 1 },
    moe_layers = { "indices", null = true }, interleave_moe_layer_step = { "size", 1 },
    use_qk_norm = { "boolean", true }, no_rope_layers = { "list", null = true }, no_rope_layer_interval = { "size", 4 },
    attention_chunk_size = { "size|none", 8192 }, layer_types = { "list", null = true },
    attn_temperature_tuning = { nil, true }, attn_scale = { "positive", 0.1 }, floor_scale = { "size", 8192 },
  },
  options = read, config = write,
} }
