-- Attention with keys and values from a latent vector (DeepSeek-V2's MLA): a token has a narrow vector, of which one
-- product makes the keys and values of all heads. A key's first part is of its head and has no position; its second
-- part is rotated, and the same for all heads. Queries have both parts, and can come from a latent vector, too. Values
-- can have another width than keys. Names of layers are those of the published inference code.

local language = require("moonshard.models.language")
local module = require("moonshard.nn.module")
local nn = require("moonshard.nn")
local ops = require("moonshard.tensor.ops")
local rope = require("moonshard.models.rope")

-- The norms of latent vectors have this one, whatever a model's others have, as in the reference library.
local EPS = 1e-6

local LatentAttention = module.define("LatentAttention")

local function linear(inputs, outputs, bias, init)
  return nn.linear({ inputs, outputs, bias = bias, init = init or "gpt2" })
end

local function norm(dim) return nn.rms_norm({ dim, eps = EPS }) end

function LatentAttention:init(config, slides, rotates, out_init)
  local heads, head_dim = config.heads, config.head_dim
  self._config, self._window, self._rotates = config, slides and config.window or nil, rotates
  self._theta = slides and config.window_rope_theta or config.rope_theta
  self._scaling = not (slides and config.window_rope_theta) and config.rope_scaling
  if config.q_lora_rank then
    self.wq_a = linear(config.dim, config.q_lora_rank, config.qkv_bias)
    self.q_norm = norm(config.q_lora_rank)
    self.wq_b = linear(config.q_lora_rank, heads * head_dim, false)
  else
    self.wq = linear(config.dim, heads * head_dim, false)
  end
  self.wkv_a = linear(config.dim, config.kv_lora_rank + config.qk_rope_head_dim, config.qkv_bias)
  self.kv_norm = norm(config.kv_lora_rank)
  self.wkv_b = linear(config.kv_lora_rank, heads * (config.qk_nope_head_dim + config.v_head_dim), false)
  self.wo = linear(heads * config.v_head_dim, config.dim, config.out_bias, out_init)
end

-- The two parts of the last axis, of which the first has `width` elements.
local function parts(x, width) return x:slice(-1, 0, width), x:slice(-1, width, x.shape[#x.shape]) end

local function rotate(self, x, cache)
  if not self._rotates then return x end
  local config = self._config
  local is_long = rope.is_long(config, cache and cache.longest or x.shape[2])
  local rotation = rope.rotation(config, self._theta, self._scaling, is_long)
  return cache and cache:rotate(x, rotation) or rope.rotate(x, rotation)
end

-- x [B,T,D] -> queries [B,T,H,C]
local function queries_of(self, x, cache)
  local config = self._config
  local q = self.wq and self.wq(x) or self.wq_b(self.q_norm(self.wq_a(x)))
  q = q:reshape(x.shape[1], x.shape[2], config.heads, config.head_dim)
  local plain, turned = parts(q, config.qk_nope_head_dim)
  return ops.concat(plain, rotate(self, turned, cache), { axis = -1 })
end

-- x [B,T,D] -> keys [B,T,H,C], values [B,T,H,E]
local function keys_and_values_of(self, x, cache)
  local config, batch, length = self._config, x.shape[1], x.shape[2]
  local heads, plain_dim, turned_dim = config.heads, config.qk_nope_head_dim, config.qk_rope_head_dim
  local latent, turned = parts(self.wkv_a(x), config.kv_lora_rank)
  turned = rotate(self, turned:reshape(batch, length, 1, turned_dim), cache)
  local both = self.wkv_b(self.kv_norm(latent)):reshape(batch, length, heads, plain_dim + config.v_head_dim)
  local plain, values = parts(both, plain_dim)
  return ops.concat(plain, turned:expand(batch, length, heads, turned_dim), { axis = -1 }), values
end

-- x [B,T,D], tokens i32 [B,T] -> [B,T,D]
function LatentAttention:forward(x, tokens, cache)
  local config, window = self._config, self._window
  local q = queries_of(self, x, cache)
  local k, v = keys_and_values_of(self, x, cache)
  local plain, query = config.qk_nope_head_dim, self.wq or self.wq_b
  -- The rotated part of a key is that of all heads, so its queries are scaled by all of the factor.
  local projections = {
    query = { { query.weight, rows = { 0, plain }, whole = { plain, config.head_dim } } },
    key = { { self.wkv_b.weight, rows = { 0, plain } } },
  }
  local function whole()
    return language.attend(config, q, k, v, tokens, window and window < x.shape[2] and window or nil, nil, projections)
  end
  local y = cache and cache:attend(q, k, v, { window = window, softcap = config.attention_softcap,
    scale = config.attention_scale }, whole) or whole()
  return self.wo(y:reshape(x.shape[1], x.shape[2], config.heads * config.v_head_dim))
end

---@param config moonshard.DecoderConfig with kv_lora_rank
---@param slides boolean whether it has the config's window
---@param rotates boolean
---@param out_init moonshard.Initializer of the weight of its output
---@return moonshard.Module
return function(config, slides, rotates, out_init) return LatentAttention(config, slides, rotates, out_init) end
