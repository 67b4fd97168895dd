-- Checks the options of a decoder (models/decoder.lua), and fills in what follows from others.

local alibi = require("moonshard.models.alibi")
local errors = require("moonshard.base.error")
local language = require("moonshard.models.language")
local options = require("moonshard.base.checks.options")
local rope = require("moonshard.models.rope")

local decoder_options = {}

local SPECS = {
  vocab = { "positive", required = true },
  layers = { "positive", most = 10000, required = true },
  dim = { "positive", required = true },
  heads = { "positive", required = true },
  kv_heads = { "positive" },
  head_dim = { "positive" },
  ffn = { "positive", required = true },
  seq = { "positive", required = true },
  document_start = { "integer" },
  rope_theta = { "number", default = 10000 },
  rope_scaling = { "table|boolean", default = false },
  rotary_dim = { "positive" },
  rope_interleaved = { "boolean", default = false },
  eps = { "number", default = 1e-5 },
  tied = { "boolean", default = false },
  pad_vocab_to_multiple_of = { "positive", default = 1 },
  padding = { "integer" },
  activation = { "string", default = "silu" },
  gated = { "boolean", default = true },
  head_bias = { "boolean", default = false },
  qkv_bias = { "boolean", default = false },
  out_bias = { "boolean", default = false },
  mlp_bias = { "boolean", default = false },
  qk_norm = { "string|boolean", default = false },
  norms = { "string", default = "before" },
  layer_norm = { "boolean", default = false },
  norm_bias = { "boolean" },
  parallel = { "string|boolean", default = false },
  norm_from_one = { "boolean", default = false },
  embedding_scale = { "number" },
  residual_scale = { "number" },
  logit_scale = { "number" },
  attention_scale = { "number" },
  attention_softcap = { "number|boolean" },
  logit_softcap = { "number|boolean" },
  window = { "positive" },
  slides = { "table" },
  window_rope_theta = { "number" },
  rotates = { "table" },
  alibi = { "string|boolean", default = false },
  embedding_norm = { "boolean", default = false },
  sinks = { "boolean", default = false },
  attention_chunk_size = { "positive" },
  chunked = { "table" },
  attn_scale = { "number" },
  floor_scale = { "positive" },
  attn_scale_layers = { "string" },
  experts = { "positive" },
  experts_per_token = { "positive" },
  expert_ffn = { "positive" },
  expert_score = { "string" },
  expert_bias = { "boolean" },
  expert_fused = { "boolean" },
  renormalise = { "boolean" },
  route_scale = { "number" },
  n_group = { "positive" },
  topk_group = { "positive" },
  group_score = { "string" },
  route_bias = { "boolean" },
  score_before_experts = { "boolean" },
  shared_ffn = { "positive" },
  shared_gate = { "boolean" },
  aux_loss = { "number" },
  bias_rate = { "number" },
  sparse = { "table" },
  kv_lora_rank = { "positive" },
  q_lora_rank = { "positive" },
  qk_nope_head_dim = { "positive" },
  qk_rope_head_dim = { "positive" },
  v_head_dim = { "positive" },
  attn_output_gate = { "boolean", default = false },
  linear_attention = { "table" },
  linear_num_key_heads = { "positive" },
  linear_num_value_heads = { "positive" },
  linear_key_head_dim = { "positive" },
  linear_value_head_dim = { "positive" },
  linear_conv_kernel_dim = { "positive" },
}

local WITH_SIZES = { { "string" } }
for name, spec in pairs(SPECS) do WITH_SIZES[name] = spec end

-- What options that name a choice can be.
local CHOICES = {
  activation = { "silu", "gelu_tanh", "gelu", "relu", "swiglu_oai" },
  alibi = { "added", "scaled", false },
  parallel = { "each", "one", false },
  qk_norm = { "head", "each", "all", "l2", false },
  norms = { "before", "behind", "around" },
}

-- Options of attention with latent keys and values, which all models with one have but q_lora_rank; other attention has
-- none of them. Heads are of both parts, and their second part is what is rotated.
local OF_LATENT = { "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim" }

local function read_latent(who, config)
  local latent = config.kv_lora_rank ~= nil
  for _, name in ipairs(OF_LATENT) do
    if not latent and config[name] then
      errors.invalid("%s: %s says something of attention with latent keys and values: give kv_lora_rank", who, name)
    elseif latent and not config[name] and name ~= "q_lora_rank" then
      errors.invalid("%s: kv_lora_rank is given, so %s must be, too", who, name)
    end
  end
  if not latent then return end
  local head_dim, turned = config.qk_nope_head_dim + config.qk_rope_head_dim, config.qk_rope_head_dim
  for name, value in pairs({ head_dim = head_dim, rotary_dim = turned, kv_heads = config.heads, qk_norm = false,
    sinks = false }) do
    if config[name] and config[name] ~= value then
      errors.invalid("%s: %s is %s, but with latent keys and values (kv_lora_rank) it is %s: leave it out", who, name,
        options.describe(config[name]), options.describe(value))
    end
  end
  config.head_dim, config.rotary_dim = head_dim, turned
end

-- Options of layers with linear attention; the last ones have defaults.
local OF_LINEAR = { "linear_attention", "linear_num_key_heads", "linear_key_head_dim", "linear_value_head_dim",
  "linear_conv_kernel_dim" }

local function read_linear(who, config)
  local heads = config.linear_num_value_heads
  for _, name in ipairs(OF_LINEAR) do
    if not heads and config[name] then
      errors.invalid("%s: %s says something of linear attention: give linear_num_value_heads", who, name)
    end
  end
  if config.attn_output_gate and config.kv_lora_rank then
    errors.invalid("%s: attn_output_gate is not built with latent keys and values, kv_lora_rank", who)
  end
  if not heads then return end
  config.linear_num_key_heads = config.linear_num_key_heads or heads
  config.linear_key_head_dim = config.linear_key_head_dim or 128
  config.linear_value_head_dim = config.linear_value_head_dim or config.linear_key_head_dim
  config.linear_conv_kernel_dim = config.linear_conv_kernel_dim or 4
  if heads % config.linear_num_key_heads ~= 0 then
    errors.raise("MS_ESHAPE", "%s: linear_num_value_heads %d must be a multiple of linear_num_key_heads %d: as many "
      .. "heads share each of these", who, heads, config.linear_num_key_heads)
  end
end

local function check_heads(who, config)
  if config.dim % config.heads ~= 0 and not config.head_dim then
    errors.raise("MS_ESHAPE", "%s: dim %d must be a multiple of heads %d: change one of them, or give head_dim, the "
      .. "elements of a head", who, config.dim, config.heads)
  elseif config.heads % config.kv_heads ~= 0 then
    errors.raise("MS_ESHAPE", "%s: heads %d must be a multiple of kv_heads %d: as many heads share each of these", who,
      config.heads, config.kv_heads)
  end
  local given = config.head_dim and "" or " (dim / heads)"
  config.head_dim = config.head_dim or config.dim / config.heads
  if config.head_dim % 2 ~= 0 and not config.kv_lora_rank then
    errors.raise("MS_ESHAPE", "%s: head_dim %d%s must be even, since pairs of elements are rotated", who,
      config.head_dim, given)
  end
  local turned = config.rotary_dim
  if turned and (turned % 2 ~= 0 or turned > config.head_dim) then
    errors.raise("MS_ESHAPE", "%s: rotary_dim %d must be even, since pairs of elements are rotated, and at most "
      .. "head_dim %d", who, turned, config.head_dim)
  end
  if turned == config.head_dim then config.rotary_dim = nil end -- the same model
end

-- Where the norms are, and which they are.
local function check_norms(who, config)
  if not config.layer_norm and config.norm_bias ~= nil then
    errors.invalid("%s: norm_bias says something of layer norms: give layer_norm = true", who)
  elseif config.layer_norm and config.norm_from_one then
    errors.invalid("%s: norm_from_one says something of RMS norms, and layer_norm is true", who)
  end
  if config.layer_norm and config.norm_bias == nil then config.norm_bias = true end
  if config.qk_norm == "each" and config.norm_from_one then
    errors.invalid("%s: norm_from_one is not built for qk_norm = \"each\"", who)
  end
  if config.parallel and config.norms ~= "before" then
    errors.invalid("%s: parallel = %s is built with norms = \"before\", not %s", who,
      options.describe(config.parallel), options.describe(config.norms))
  end
end

local function check_choices(who, config)
  for name, choices in pairs(CHOICES) do
    local texts, found = {}, false
    for i, choice in ipairs(choices) do
      texts[i], found = options.describe(choice), found or choice == config[name]
    end
    if not found then
      errors.raise("MS_ENAME", "%s: %s must be %s, not %s", who, name, table.concat(texts, " or "),
        options.describe(config[name]))
    end
  end
end

local function check_numbers(who, config)
  for _, name in ipairs({ "attention_softcap", "logit_softcap" }) do
    if config[name] == true then errors.invalid("%s: %s must be a number above 0, or false, not true", who, name) end
    config[name] = config[name] or nil
  end
  if (config.attn_scale ~= nil) ~= (config.floor_scale ~= nil) then
    errors.invalid("%s: attn_scale and floor_scale say together how queries grow: give both or none", who)
  end
  local layers = config.attn_scale_layers
  if layers and layers ~= "nope" and layers ~= "all" then
    errors.raise("MS_ENAME", '%s: attn_scale_layers must be "nope" or "all", not %s', who, options.describe(layers))
  end
  for _, name in ipairs({ "attention_scale", "attention_softcap", "logit_softcap", "embedding_scale", "residual_scale",
    "logit_scale", "attn_scale", "eps", "rope_theta", "window_rope_theta" }) do
    if config[name] and config[name] <= 0 then
      errors.invalid("%s: %s must be above 0, not %s", who, name, options.describe(config[name]))
    end
  end
end

local function check_window(who, config)
  for _, name in ipairs({ "slides", "window_rope_theta" }) do
    if config[name] and not config.window then
      errors.invalid("%s: %s says something of layers with a sliding window: give window, its length", who, name)
    end
  end
  if config.chunked and not config.attention_chunk_size then
    errors.invalid("%s: chunked says which layers attend in chunks: give attention_chunk_size, their length", who)
  elseif config.kv_lora_rank and (config.attention_chunk_size or config.attn_scale) then
    errors.invalid("%s: attention_chunk_size and attn_scale are not built with latent keys and values, kv_lora_rank",
      who)
  elseif config.attention_chunk_size and config.window then
    errors.invalid("%s: attention_chunk_size and window say both which keys a query sees: give one of them", who)
  end
end

-- Options of mixtures of experts, and what they are if they are not given.
local OF_EXPERTS = {
  experts_per_token = 2, expert_ffn = false, expert_score = "softmax", expert_bias = false, expert_fused = false,
  renormalise = true, route_scale = false, n_group = false, topk_group = false, group_score = false,
  route_bias = false, score_before_experts = false, shared_ffn = false, shared_gate = true,
  aux_loss = 0, bias_rate = 0, sparse = false,
}

-- The same as without them; checkpoints of models without groups do not name them.
local SAME_AS_NONE = { route_scale = 1, n_group = 1, topk_group = 1, group_score = "max" }

local function read_experts(who, config)
  for name, default in pairs(OF_EXPERTS) do
    if not config.experts and config[name] ~= nil then
      errors.invalid("%s: %s says something of experts: give experts, their number", who, name)
    end
    if config.experts and config[name] == nil and default ~= false then config[name] = default end
  end
  for name, value in pairs(SAME_AS_NONE) do
    if config[name] == value then config[name] = nil end
  end
  if config.experts and not config.gated then
    errors.invalid("%s: gated = false: mixtures of experts are built of gated MLPs alone", who)
  end
  if config.activation == "swiglu_oai" and not config.gated then
    errors.invalid('%s: activation "swiglu_oai" is of gated MLPs, and gated is false', who)
  end
  if config.experts then config.expert_ffn = config.expert_ffn or config.ffn end
end

-- Options that have true or false for each layer.
local function check_by_layer(who, config)
  for _, name in ipairs({ "slides", "rotates", "chunked", "sparse", "linear_attention" }) do
    for i = 1, config[name] and config.layers or 0 do
      if type(config[name][i]) ~= "boolean" then
        errors.invalid("%s: %s must have true or false for each of the %d layers; that of layer %d is %s", who, name,
          config.layers, i, options.describe(config[name][i]))
      end
    end
  end
end

---@class moonshard.DecoderOptions
---@field vocab integer
---@field layers integer
---@field dim integer
---@field heads integer
---@field kv_heads? integer default heads
---@field head_dim? integer default dim / heads
---@field ffn integer
---@field seq integer maximum sequence length
---@field document_start? integer token that begins a document: attention does not cross it
---@field rope_theta? number default 10000
---@field rope_scaling? moonshard.RopeScaling|false default false
---@field rotary_dim? integer the first elements of a head, which are rotated; default: head_dim
---@field rope_interleaved? boolean a pair is two neighbouring elements, not one of each half; default false
---@field eps? number default 1e-5
---@field tied? boolean share the weights of embedding and head; default false
---@field pad_vocab_to_multiple_of? integer default 1
---@field padding? integer token whose lookups give the embedding no gradient; default: none
---@field activation? "silu"|"gelu_tanh"|"gelu"|"relu"|"swiglu_oai" of the MLP's gate, or its only one; default "silu"
---@field gated? boolean the MLP is w2 (act(w1 x) * w3 x), or w2 act(w1 x); default true
---@field head_bias? boolean default false
---@field qkv_bias? boolean default false
---@field out_bias? boolean of the attention's output; default false
---@field mlp_bias? boolean default false
---@field qk_norm? "head"|"each"|"all"|"l2"|false norms of queries and keys: of each head, with weights that all heads
---  share or with its own (and without biases), or of all heads together; "l2": of each head, without weights, behind
---  the rotation, in the layers that have one; default false
---@field norms? "before"|"behind"|"around" where the norms of a branch are; default "before"
---@field norm_from_one? boolean factors of norms are 1 + weight; default false
---@field layer_norm? boolean norms are layer norms instead of RMS norms; default false
---@field norm_bias? boolean of layer norms; default true
---@field parallel? "each"|"one"|false attention and MLP of a layer both read its input, through a norm each or through
---  one; default false: the MLP reads what attention added to
---@field embedding_scale? number factor of embedded tokens
---@field residual_scale? number factor of what each branch adds
---@field logit_scale? number factor of logits
---@field attention_scale? number of scores; default 1 / sqrt(head_dim)
---@field attention_softcap? number|false scores s become c tanh(s / c); false: not, also where the family usually does
---@field logit_softcap? number|false so do logits
---@field window? integer a query sees so many keys, itself included, in the layers that slide
---@field slides? boolean[] which layers do; default: all
---@field rotates? boolean[] which layers have rotary positions; default: all
---@field alibi? "added"|"scaled"|false biases that grow with the distance (models/alibi.lua) in place of rotary
---  positions, added to scores after their factor or before it; default false
---@field embedding_norm? boolean a norm of embedded tokens; default false
---@field sinks? boolean a number of each head takes part in its softmax (nn/sink.lua); default false
---@field attention_chunk_size? integer a query sees the keys before it of its own chunk alone, which has so many
---  tokens, in the layers that `chunked` marks
---@field chunked? boolean[] which layers do; default: all
---@field attn_scale? number queries grow with the position (models/temperature.lua)
---@field floor_scale? integer in steps of so many tokens
---@field attn_scale_layers? "nope"|"all" in layers without rotary positions, or in all; default "nope"
---@field experts? integer in place of an MLP, layers have so many experts (nn/mixture_of_experts.lua)
---@field experts_per_token? integer default 2
---@field expert_ffn? integer width of an expert; default ffn
---@field expert_score? "softmax"|"sigmoid" default "softmax"
---@field expert_bias? boolean of the router's and the experts' products; default false
---@field expert_fused? boolean an expert's first two matrices are one (nn/mixture_of_experts.lua); default false
---@field renormalise? boolean the weights of a token's experts add up to 1; default true
---@field route_scale? number factor of these weights; default 1
---@field n_group? integer groups of the experts, of which a token's are in topk_group; default 1
---@field topk_group? integer default 1
---@field group_score? "max"|"top2" a group's score: its best expert's, or the sum of its two best; default "max"
---@field route_bias? boolean biases choose experts with the scores; they move by bias_rate, and with 0 stay as they
---  are; default: whether bias_rate is above 0
---@field score_before_experts? boolean weights multiply what experts read, and not what they return; default false
---@field shared_ffn? integer width of a shared expert; default: none
---@field shared_gate? boolean a sigmoid weighs the shared expert; default true
---@field aux_loss? number factor of the routers' auxiliary loss; default 0
---@field bias_rate? number step of balanced biases of the routers; default 0: none
---@field sparse? boolean[] which layers have experts; default: all
---@field kv_lora_rank? integer width of the latent vector of keys and values (models/latent_attention.lua); default:
---  none. With it, head_dim follows from the next ones:
---@field q_lora_rank? integer width of the latent vector of queries; default: they have none
---@field qk_nope_head_dim? integer elements of a head's queries and keys without positions
---@field qk_rope_head_dim? integer and those that are rotated
---@field v_head_dim? integer of its values
---@field attn_output_gate? boolean the sigmoid of a product of the layer's input weighs the attention's result; default
---  false
---@field linear_num_value_heads? integer layers have linear attention with so many heads (models/gated_delta_net.lua);
---  default: none. With it:
---@field linear_attention? boolean[] which layers do; default: all
---@field linear_num_key_heads? integer default linear_num_value_heads
---@field linear_key_head_dim? integer default 128
---@field linear_value_head_dim? integer default linear_key_head_dim
---@field linear_conv_kernel_dim? integer positions that a convolution reads; default 4
---@field window_rope_theta? number theta of the layers that slide, which then have no scaling

---@class moonshard.DecoderConfig: moonshard.DecoderOptions with all defaults filled in

---A complete description of a decoder.
---@param who string whose options they are, for messages: "ms.models.decoder"
---@param given table
---@param has_sizes boolean? its first argument can be the name of a published size, which has been filled in
---@return moonshard.DecoderConfig
function decoder_options.read(who, given, has_sizes)
  local config = options.parse(who, given, has_sizes and WITH_SIZES or SPECS)
  config.kv_heads = config.kv_heads or config.heads
  read_latent(who, config)
  read_linear(who, config)
  check_heads(who, config)
  config.rope_scaling = rope.read_scaling(who .. ": rope_scaling", config.rope_scaling,
    (config.rotary_dim or config.head_dim) / 2)
  if config.kv_lora_rank and not config.attention_scale then
    config.attention_scale = rope.score_scale(config.rope_scaling, config.head_dim)
  end
  check_choices(who, config)
  check_norms(who, config)
  check_numbers(who, config)
  check_window(who, config)
  alibi.read(who, config)
  read_experts(who, config)
  check_by_layer(who, config)
  language.check_tokens(who, config)
  return config
end

return decoder_options
