-- Llama (Touvron et al. 2023; Llama 3 of Grattafiori et al. 2024): RMS norms, rotary positions, grouped queries,
-- SwiGLU.
--
-- Rotary positions pair element d with d + D/2, as Hugging Face's weights expect. Since Llama 3.1, low frequencies are
-- scaled down further (`rope_scaling`), so that a model handles longer sequences than in pretraining. Initial weights:
-- normal(0, 0.02), the projections into the residual stream scaled by 1/sqrt(2 layers).

local errors = require("moonshard.base.error")
local language = require("moonshard.models.language")
local module = require("moonshard.nn.module")
local nn = require("moonshard.nn")
local ops = require("moonshard.tensor.ops")
local options = require("moonshard.base.options")
local parameter = require("moonshard.tensor.parameter")

local initializers = parameter.initializers

local function scaling(factor)
  return { factor = factor, low_freq_factor = 1, high_freq_factor = 4, original_max_position_embeddings = 8192 }
end

-- Llama 2 (7B, 13B), 3.1 (8B, 70B, 405B) and 3.2 (1B, 3B). Those of 3 have 128256 tokens, theta 500000 and 131072
-- positions.
local PUBLISHED = {
  ["1B"] = { layers = 16, dim = 2048, heads = 32, kv_heads = 8, ffn = 8192, tied = true, rope_scaling = scaling(32) },
  ["3B"] = { layers = 28, dim = 3072, heads = 24, kv_heads = 8, ffn = 8192, tied = true, rope_scaling = scaling(32) },
  ["7B"] = { layers = 32, dim = 4096, heads = 32, ffn = 11008, vocab = 32000, rope_theta = 10000, seq = 4096 },
  ["8B"] = { layers = 32, dim = 4096, heads = 32, kv_heads = 8, ffn = 14336, rope_scaling = scaling(8) },
  ["13B"] = { layers = 40, dim = 5120, heads = 40, ffn = 13824, vocab = 32000, rope_theta = 10000, seq = 4096 },
  ["70B"] = { layers = 80, dim = 8192, heads = 64, kv_heads = 8, ffn = 28672, rope_scaling = scaling(8) },
  ["405B"] = { layers = 126, dim = 16384, heads = 128, kv_heads = 8, ffn = 53248, rope_scaling = scaling(8) },
}

local function linear(inputs, outputs, init)
  return nn.linear({ inputs, outputs, bias = false, init = init or "gpt2" })
end

local function residual_law(config)
  return initializers.normal(0, 0.02 / math.sqrt(2 * config.layers))
end

-- Attributes of the op `rope`.
local function rope_of(config)
  local scaled = config.rope_scaling
  if not scaled then return { theta = config.rope_theta } end
  return {
    theta = config.rope_theta, factor = scaled.factor, low = scaled.low_freq_factor, high = scaled.high_freq_factor,
    original = scaled.original_max_position_embeddings,
  }
end

local Attention = module.define("Attention")

function Attention:init(config)
  self._config = config
  local head_dim = config.head_dim
  self.heads, self.kv_heads, self.head_dim, self._rope = config.heads, config.kv_heads, head_dim, rope_of(config)
  self.wq = linear(config.dim, config.heads * head_dim)
  self.wk = linear(config.dim, config.kv_heads * head_dim)
  self.wv = linear(config.dim, config.kv_heads * head_dim)
  self.wo = linear(config.heads * head_dim, config.dim, residual_law(config))
end

-- x [B,T,D], tokens i32 [B,T] -> [B,T,D]
function Attention:forward(x, tokens)
  local batch, length = unpack(x.shape)
  local q = self.wq(x):reshape(batch, length, self.heads, self.head_dim)
  local k = self.wk(x):reshape(batch, length, self.kv_heads, self.head_dim)
  local v = self.wv(x):reshape(batch, length, self.kv_heads, self.head_dim)
  local y = language.attend(self._config, q:rope(self._rope), k:rope(self._rope), v, tokens)
  return self.wo(y:reshape(batch, length, self.heads * self.head_dim))
end

local MLP = module.define("MLP")

function MLP:init(config)
  self.w1 = linear(config.dim, config.ffn)
  self.w3 = linear(config.dim, config.ffn)
  self.w2 = linear(config.ffn, config.dim, residual_law(config))
end

function MLP:forward(x)
  return self.w2(ops.swiglu(self.w1(x), self.w3(x)))
end

local Block = module.define("Block")

function Block:init(config)
  self.attn_norm = nn.rms_norm({ config.dim, eps = config.eps })
  self.attn = Attention(config)
  self.ffn_norm = nn.rms_norm({ config.dim, eps = config.eps })
  self.mlp = MLP(config)
end

function Block:forward(x, tokens)
  x = x + self.attn(self.attn_norm(x), tokens)
  return x + self.mlp(self.ffn_norm(x))
end

local Llama = module.define("Llama")
Llama.family = "llama"

function Llama:init(config)
  self.config = setmetatable(config, {})
  language.add_embedding(self, config)
  self.layers = {}
  for i = 1, config.layers do self.layers[i] = Block(config) end
  self.norm = nn.rms_norm({ config.dim, eps = config.eps })
  language.add_head(self, config)
end

-- tokens i32 [B,T] -> logits [B,T,V]
function Llama:forward(tokens)
  if tokens.shape[2] > self.config.seq then
    errors.raise("MS_ESHAPE", "llama: a sequence of %d tokens, but the model has seq=%d: raise seq", tokens.shape[2],
      self.config.seq)
  end
  local x = self.embed(tokens)
  for _, layer in ipairs(self.layers) do x = layer(x, tokens) end
  return language.logits(self, self.norm(x))
end

function Llama:describe()
  local config = self.config
  return ("%d layers, dim %d, %d heads, %d kv heads, ffn %d, vocab %d"):format(config.layers, config.dim, config.heads,
    config.kv_heads, config.ffn, config.vocab)
end

local SPECS = {
  { "string" }, -- a published size: "8B"
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
  eps = { "number", default = 1e-5 },
  tied = { "boolean", default = false },
  pad_vocab_to_multiple_of = { "positive", default = 1 },
}

local SCALING = {
  factor = { "number", required = true }, low_freq_factor = { "number", required = true },
  high_freq_factor = { "number", required = true }, original_max_position_embeddings = { "positive", required = true },
}

local function read_scaling(given)
  if not given then return false end
  local scaled = options.parse("ms.models.llama: rope_scaling", given ~= true and given or nil, SCALING)
  if not (scaled.factor > 0 and scaled.low_freq_factor > 0 and scaled.high_freq_factor > scaled.low_freq_factor) then
    errors.invalid("ms.models.llama: rope_scaling: factor %g, low_freq_factor %g and high_freq_factor %g must be "
      .. "positive, and the high one above the low one", scaled.factor, scaled.low_freq_factor, scaled.high_freq_factor)
  end
  return scaled
end

local function check_heads(config)
  if config.dim % config.heads ~= 0 and not config.head_dim or config.heads % config.kv_heads ~= 0 then
    errors.raise("MS_ESHAPE", "ms.models.llama: dim %d must be a multiple of heads %d, and heads of kv_heads %d",
      config.dim, config.heads, config.kv_heads)
  end
  config.head_dim = config.head_dim or config.dim / config.heads
  if config.head_dim % 2 ~= 0 then
    errors.raise("MS_ESHAPE", "ms.models.llama: heads of %d must be even, since pairs of elements are rotated",
      config.head_dim)
  end
end

local function read(given)
  local published = type(given) == "table" and given[1]
  if published then
    if not PUBLISHED[published] then
      errors.raise("MS_ENAME", "ms.models.llama: no size %s; the sizes are 1B, 3B, 7B, 8B, 13B, 70B, 405B",
        options.describe(published))
    end
    local filled = { vocab = 128256, rope_theta = 500000, seq = 131072 }
    for key, value in pairs(PUBLISHED[published]) do filled[key] = value end
    for key, value in pairs(given) do filled[key] = value end
    given = filled
  end
  local config = options.parse("ms.models.llama", given, SPECS)
  config.kv_heads = config.kv_heads or config.heads
  config.rope_scaling = read_scaling(config.rope_scaling)
  check_heads(config)
  return config
end

---@class moonshard.RopeScaling
---@field factor number
---@field low_freq_factor number
---@field high_freq_factor number
---@field original_max_position_embeddings integer

---@class moonshard.LlamaOptions
---@field [1] string? a published size, "8B", which sets the defaults of the other fields
---@field vocab? integer required without a published size, like layers, dim, heads, ffn and seq
---@field layers? integer
---@field dim? integer
---@field heads? integer
---@field kv_heads? integer default heads
---@field head_dim? integer default dim / heads
---@field ffn? integer
---@field seq? integer maximum sequence length
---@field document_start? integer token that begins a document: attention does not cross it
---@field rope_theta? number default 10000
---@field rope_scaling? moonshard.RopeScaling|false default false
---@field eps? number default 1e-5
---@field tied? boolean share the weights of embedding and head; default false
---@field pad_vocab_to_multiple_of? integer default 1

---A Llama. Its forward maps tokens i32 [batch, length] to logits [batch, length, vocab].
---@param config moonshard.LlamaOptions
---@return moonshard.Module
return function(config) return Llama(read(config)) end
