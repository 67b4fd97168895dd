-- The decoder that today's language models share: norms, rotary positions, grouped queries, gated MLPs. A family is
-- this model under some of the options below (huggingface/families has their values):
--
--   Llama, SmolLM, Mistral, Phi-3   RMS norms before each branch; Mistral and Phi-3 with a sliding window
--   SmolLM3, EXAONE 4, Cohere 2     layers without rotary positions
--   Qwen 2, 2.5, 3                  biases of queries, keys and values (2); norms of queries and keys by head (3)
--   Gemma, Gemma 2, 3               factors 1 + weight, scaled embedding, GELU; norms around branches, caps, two
--                                   kinds of layers
--   OLMo 2, 3                       norms behind each branch, and of all queries and all keys together
--   Mixtral, OLMoE, Qwen 2, 3 MoE   mixtures of experts in place of MLPs; a shared expert (Qwen 2)
--   StarCoder 2, GPT-NeoX, Phi 2    layer norms, MLPs without a gate, biases
--   GPT-NeoX, Phi 2, Cohere         attention and MLP in parallel, with a norm each (GPT-NeoX) or one
--   StableLM, Phi 2, GLM            rotary positions in a part of each head
--   Command R+, StableLM 2 12B      norms of queries and keys with weights of each head
--   Llama 4                         attention in chunks, temperatures, experts that read weighed tokens
--   Granite, Cohere                 factors of the embedding, branches, scores and logits
--   DeepSeek V2, V3, Kimi K2        keys and values from a latent vector (latent_attention.lua)
--   gpt-oss                         attention sinks, biases of experts, a gate within limits
--   BLOOM, Falcon RW, MPT           biases that grow with the distance in place of rotary positions (alibi.lua)
--   Qwen3-Next                      linear attention (gated_delta_net.lua), gated attention in the other layers
--
-- Rotary positions pair element d with d + D/2, as Hugging Face's weights expect, or neighbours (Cohere, GLM). Initial
-- weights: normal(0, 0.02), the projections into the residual stream scaled by 1/sqrt(2 layers).

local alibi = require("moonshard.models.alibi")
local constants = require("moonshard.tensor.constants")
local gated = require("moonshard.nn.gated")
local gated_delta_net = require("moonshard.models.gated_delta_net")
local HeadNorms = require("moonshard.models.head_norms")
local language = require("moonshard.models.language")
local latent_attention = require("moonshard.models.latent_attention")
local model_config = require("moonshard.models.config")
local module = require("moonshard.nn.module")
local nn = require("moonshard.nn")
local ops = require("moonshard.tensor.ops")
local parameter = require("moonshard.tensor.parameter")
local rope = require("moonshard.models.rope")
local temperature = require("moonshard.models.temperature")

local initializers = parameter.initializers
local marks_of_chunks = require("moonshard.models.chunked_attention")
local value_of = require("moonshard.nn.layer").value_of

local decoder = {}

local function linear(inputs, outputs, bias, init)
  return nn.linear({ inputs, outputs, bias = bias, init = init or "gpt2" })
end

local function residual_law(config)
  return initializers.normal(0, 0.02 / math.sqrt(2 * config.layers))
end

local function norm(config, dim)
  if config.layer_norm then
    return nn.layer_norm({ dim or config.dim, eps = config.eps, bias = config.norm_bias })
  end
  return nn.rms_norm({ dim or config.dim, eps = config.eps, from_one = config.norm_from_one })
end

-- ---- attention --------------------------------------------------------------------------------------------------

local function norm_of_heads(config, heads)
  if config.qk_norm == "each" then return HeadNorms(config, heads) end
  return norm(config, config.qk_norm == "head" and config.head_dim or heads * config.head_dim)
end

local Attention = module.define("Attention")

function Attention:init(config, slides, rotates, chunk)
  local head_dim = config.head_dim
  self._config, self.heads, self.kv_heads, self.head_dim = config, config.heads, config.kv_heads, head_dim
  self._window, self._chunk = slides and config.window or nil, chunk
  local local_theta = slides and config.window_rope_theta
  self._theta, self._scaling = local_theta or config.rope_theta, not local_theta and config.rope_scaling
  self._rotates = rotates
  self.wq = linear(config.dim, config.heads * head_dim, config.qkv_bias)
  if config.attn_output_gate then self.wg = linear(config.dim, config.heads * head_dim, config.qkv_bias) end
  self.wk = linear(config.dim, config.kv_heads * head_dim, config.qkv_bias)
  self.wv = linear(config.dim, config.kv_heads * head_dim, config.qkv_bias)
  self.wo = linear(config.heads * head_dim, config.dim, config.out_bias, residual_law(config))
  if config.sinks then self.sinks = parameter.new({ config.heads, init = initializers.normal(0, 0.02) }) end
  if config.qk_norm and config.qk_norm ~= "l2" then
    self.q_norm, self.k_norm = norm_of_heads(config, config.heads), norm_of_heads(config, config.kv_heads)
  end
end

-- x [B,T,D] -> queries, keys or values [B,T,heads,D].
local function project(self, x, weights, heads, normalise)
  local y = weights(x)
  if normalise and self._config.qk_norm == "all" then y = normalise(y) end
  return y:reshape(x.shape[1], x.shape[2], heads, self.head_dim)
end

-- Norms behind the rotation, without weights.
local function l2_norm(config, x)
  local ones = constants.get(("filled 1 %d"):format(config.head_dim), { config.head_dim }, function(data)
    for i = 0, config.head_dim - 1 do data[i] = 1 end
  end)
  return ops.rms_norm(x, ones:cast(x.dtype), { eps = config.eps })
end

local function rotate(self, x, normalise, cache)
  local config = self._config
  if normalise and config.qk_norm ~= "all" then x = normalise(x) end
  if not self._rotates then return x end
  local is_long = rope.is_long(config, cache and cache.longest or x.shape[2])
  local rotation = rope.rotation(config, self._theta, self._scaling, is_long)
  x = cache and cache:rotate(x, rotation) or rope.rotate(x, rotation)
  return config.qk_norm == "l2" and l2_norm(config, x) or x
end

-- A window as long as the sequence hides nothing.
local function attend(self, q, k, v, tokens, sinks)
  local window, chunk = self._window, self._chunk
  if window and window >= q.shape[2] then window = nil end
  local config, start = self._config, nil
  if chunk and chunk < q.shape[2] then tokens, start = marks_of_chunks(config, chunk, tokens), 1 end
  return language.attend(config, q, k, v, tokens, window, sinks, {
    query = language.rows_of(self.wq), key = language.rows_of(self.wk),
    refused = config.alibi and "their scores have biases (ALiBi)"
      or config.qk_norm and "queries and keys are normalised" or nil,
  }, start)
end

-- x [B,T,D], tokens i32 [B,T] -> [B,T,D]
function Attention:forward(x, tokens, cache)
  local batch, length = unpack(x.shape)
  local q = project(self, x, self.wq, self.heads, self.q_norm)
  local k = project(self, x, self.wk, self.kv_heads, self.k_norm)
  local v = project(self, x, self.wv, self.kv_heads)
  q, k = rotate(self, q, self.q_norm, cache), rotate(self, k, self.k_norm, cache)
  local config = self._config
  if temperature.is_on(config, self._rotates) then q = temperature.scale(config, q, tokens, cache) end
  if config.alibi then q, k = alibi.join(config, q, k, cache) end
  local sinks = self.sinks and value_of(self, "sinks")
  local function whole() return attend(self, q, k, v, tokens, sinks) end
  local y = cache and cache:attend(q, k, v, { window = self._window, chunk = self._chunk, sinks = sinks,
    softcap = config.attention_softcap, scale = config.attention_scale }, whole) or whole()
  y = y:reshape(batch, length, self.heads * self.head_dim)
  return self.wo(self.wg and y * self.wg(x):sigmoid() or y)
end

-- ---- MLP and block ----------------------------------------------------------------------------------------------

local MLP = module.define("MLP")

function MLP:init(config, ffn)
  self._activation = config.activation
  self.w1 = linear(config.dim, ffn, config.mlp_bias)
  self.w3 = config.gated and linear(config.dim, ffn, config.mlp_bias) or nil
  self.w2 = linear(ffn, config.dim, config.mlp_bias, residual_law(config))
end

function MLP:forward(x)
  if not self.w3 then return self.w2(ops[self._activation](self.w1(x))) end
  local gate, up = self.w1(x), self.w3(x)
  return self.w2(gated[self._activation](gate, up))
end

local function experts_of(config)
  return nn.mixture_of_experts({
    config.dim, config.expert_ffn, experts = config.experts, top_k = config.experts_per_token,
    score = config.expert_score, renormalise = config.renormalise, route_scale = config.route_scale,
    n_group = config.n_group, topk_group = config.topk_group, group_score = config.group_score,
    aux_loss = config.aux_loss, route_bias = config.route_bias, bias_rate = config.bias_rate,
    activation = config.activation, bias = config.expert_bias, fused = config.expert_fused,
    score_before_experts = config.score_before_experts,
    shared = config.shared_ffn and MLP(config, config.shared_ffn) or nil,
    shared_gate = config.shared_ffn and config.shared_gate,
    init = "gpt2", down_init = residual_law(config),
  })
end

local Block = module.define("Block")

-- Attention or what a layer has in its place, and the name that the layer has it by.
local function mixer_of(config, slides, rotates, chunk, is_linear)
  if is_linear then return "linear_attn", gated_delta_net(config, residual_law(config)) end
  if config.kv_lora_rank then return "attn", latent_attention(config, slides, rotates, residual_law(config)) end
  return "attn", Attention(config, slides, rotates, chunk)
end

function Block:init(config, slides, rotates, sparse, chunk, is_linear)
  local before, behind = config.norms ~= "behind", config.norms ~= "before"
  self.attn_norm = before and norm(config) or nil
  local name, mixer = mixer_of(config, slides, rotates, chunk, is_linear)
  self[name] = mixer
  self.attn_norm_behind = behind and norm(config) or nil
  self.ffn_norm = before and config.parallel ~= "one" and norm(config) or nil
  self.mlp = sparse and experts_of(config) or MLP(config, config.ffn)
  self.ffn_norm_behind = behind and norm(config) or nil
  self._scale, self._parallel = config.residual_scale, config.parallel
end

local function through(layer, x)
  return layer and layer(x) or x
end

local function scaled(self, branch)
  return self._scale and branch * self._scale or branch
end

function Block:forward(x, tokens, cache)
  local read = through(self.attn_norm, x)
  local attended = scaled(self, through(self.attn_norm_behind, (self.attn or self.linear_attn)(read, tokens, cache)))
  if not self._parallel then
    x = x + attended
    return x + scaled(self, through(self.ffn_norm_behind, self.mlp(through(self.ffn_norm, x))))
  end
  if self._parallel == "each" then read = through(self.ffn_norm, x) end
  return x + attended + scaled(self, through(self.ffn_norm_behind, self.mlp(read)))
end

-- ---- the model --------------------------------------------------------------------------------------------------

local Decoder = module.define("Decoder")
Decoder.takes_cache, Decoder.sees_later_tokens = true, false

function Decoder:init(config)
  self.config = model_config.new(config)
  language.add_embedding(self, config)
  self.embed_norm = config.embedding_norm and norm(config) or nil
  self.layers = {}
  for i = 1, config.layers do
    local slides = config.window and (not config.slides or config.slides[i])
    local sparse = config.experts and (not config.sparse or config.sparse[i])
    local chunk = (not config.chunked or config.chunked[i]) and config.attention_chunk_size or nil
    local is_linear = config.linear_num_value_heads and (not config.linear_attention or config.linear_attention[i])
    self.layers[i] = Block(config, slides, not config.rotates or config.rotates[i], sparse, chunk, is_linear)
  end
  self.norm = norm(config)
  language.add_head(self, config)
end

-- tokens i32 [B,T], cache moonshard.KVCache? -> logits [B,T,V], or [B,1,V]
function Decoder:forward(tokens, cache)
  local config = self.config
  language.check_length(self, tokens.shape[2])
  local x = cache and self.embed(tokens) or language.embed(self, tokens)
  if config.embedding_scale then x = x * config.embedding_scale end
  x = through(self.embed_norm, x)
  for _, layer in ipairs(self.layers) do x = layer(x, tokens, cache) end
  if cache then x = cache:last(x) end
  local logits = language.logits(self, self.norm(x))
  if config.logit_scale then logits = logits * config.logit_scale end
  local cap = config.logit_softcap
  return cap and (logits * (1 / cap)):tanh() * cap or logits
end

---The length above which sequences are rotated by other frequencies; nil: all are rotated alike.
---@return integer?
function Decoder:long_above()
  local scaling = self.config.rope_scaling
  return scaling and scaling.type == "longrope" and scaling.original_max_position_embeddings or nil
end

function Decoder:describe()
  local config = self.config
  local experts = config.experts and (", %d of %d experts"):format(config.experts_per_token, config.experts) or ""
  local ffn = config.experts and config.expert_ffn or config.ffn
  return ("%d layers, dim %d, %d heads, %d kv heads, ffn %d%s, vocab %d"):format(config.layers, config.dim,
    config.heads, config.kv_heads, ffn, experts, config.vocab)
end

---A class of models.
---@param name string as it is printed: "Llama"
---@param family string Hugging Face's model_type
---@return fun(config: moonshard.DecoderConfig): moonshard.Module
function decoder.define(name, family)
  local class = module.define(name, Decoder)
  class.family = family
  return class
end

return decoder
