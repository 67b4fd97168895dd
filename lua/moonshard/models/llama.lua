-- Llama (Touvron et al. 2023; Llama 3 of Grattafiori et al. 2024): RMS norms, rotary positions, grouped queries,
-- SwiGLU.
--
-- Rotary positions pair element d with d + D/2, as Hugging Face's weights expect. Initial weights: normal(0, 0.02), the
-- projections into the residual stream scaled by 1/sqrt(2 layers).

local errors = require("moonshard.error")
local module = require("moonshard.module")
local nn = require("moonshard.nn")
local ops = require("moonshard.ops")
local options = require("moonshard.options")
local parameter = require("moonshard.parameter")

local laws = parameter.laws

-- The published sizes of Llama 3; all have 128256 tokens and theta 500000.
local PUBLISHED = {
  ["1B"] = { layers = 16, dim = 2048, heads = 32, kv_heads = 8, ffn = 8192, tied = true },
  ["3B"] = { layers = 28, dim = 3072, heads = 24, kv_heads = 8, ffn = 8192, tied = true },
  ["8B"] = { layers = 32, dim = 4096, heads = 32, kv_heads = 8, ffn = 14336 },
  ["70B"] = { layers = 80, dim = 8192, heads = 64, kv_heads = 8, ffn = 28672 },
  ["405B"] = { layers = 126, dim = 16384, heads = 128, kv_heads = 8, ffn = 53248 },
}

local function linear(inputs, outputs, init)
  return nn.linear({ inputs, outputs, bias = false, init = init or "gpt2" })
end

local function residual_law(config)
  return laws.normal(0, 0.02 / math.sqrt(2 * config.layers))
end

local Attention = module.define("Attention")

function Attention:init(config)
  local head_dim = config.dim / config.heads
  self.heads, self.kv_heads, self.head_dim, self.theta = config.heads, config.kv_heads, head_dim, config.rope_theta
  self.wq = linear(config.dim, config.heads * head_dim)
  self.wk = linear(config.dim, config.kv_heads * head_dim)
  self.wv = linear(config.dim, config.kv_heads * head_dim)
  self.wo = linear(config.heads * head_dim, config.dim, residual_law(config))
end

-- x [B,T,D] -> [B,T,D]
function Attention:forward(x)
  local batch, length, dim = unpack(x.shape)
  local q = self.wq(x):reshape(batch, length, self.heads, self.head_dim)
  local k = self.wk(x):reshape(batch, length, self.kv_heads, self.head_dim)
  local v = self.wv(x):reshape(batch, length, self.kv_heads, self.head_dim)
  local y = ops.attention(q:rope({ theta = self.theta }), k:rope({ theta = self.theta }), v, { causal = true })
  return self.wo(y:reshape(batch, length, dim))
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

function Block:forward(x)
  x = x + self.attn(self.attn_norm(x))
  return x + self.mlp(self.ffn_norm(x))
end

local Llama = module.define("Llama")

function Llama:init(config)
  self.config = setmetatable(config, {})
  self.embed = nn.embedding({ config.vocab, config.dim, init = "gpt2" })
  self.layers = {}
  for i = 1, config.layers do self.layers[i] = Block(config) end
  self.norm = nn.rms_norm({ config.dim, eps = config.eps })
  self.head = linear(config.dim, config.vocab)
  if config.tied then self.head.weight = self.embed.weight end
end

-- tokens i32 [B,T] -> logits [B,T,V]
function Llama:forward(tokens)
  if tokens.shape[2] > self.config.seq then
    errors.raise("MS_ESHAPE", "llama: %d tokens in a row, but the model is made for %d: raise seq", tokens.shape[2],
      self.config.seq)
  end
  local x = self.embed(tokens)
  for _, layer in ipairs(self.layers) do x = layer(x) end
  return self.head(self.norm(x))
end

function Llama:describe()
  local config = self.config
  return ("%d layers, dim %d, %d heads, %d kv heads, ffn %d, vocab %d"):format(config.layers, config.dim, config.heads,
    config.kv_heads, config.ffn, config.vocab)
end

local SPECS = {
  { "string" }, -- a published size: "8B"
  vocab = { "positive", required = true },
  layers = { "positive", required = true },
  dim = { "positive", required = true },
  heads = { "positive", required = true },
  kv_heads = { "positive" },
  ffn = { "positive", required = true },
  seq = { "positive", required = true },
  rope_theta = { "number", default = 10000 },
  eps = { "number", default = 1e-5 },
  tied = { "boolean", default = false },
}

local function read(given)
  local published = type(given) == "table" and given[1]
  if published then
    if not PUBLISHED[published] then
      errors.raise("MS_ENAME", "ms.models.llama: no size %s; there are 1B, 3B, 8B, 70B, 405B",
        options.describe(published))
    end
    local filled = { vocab = 128256, rope_theta = 500000, seq = 8192 }
    for key, value in pairs(PUBLISHED[published]) do filled[key] = value end
    for key, value in pairs(given) do filled[key] = value end
    given = filled
  end
  local config = options.parse("ms.models.llama", given, SPECS)
  config.kv_heads = config.kv_heads or config.heads
  if config.dim % config.heads ~= 0 or config.heads % config.kv_heads ~= 0 then
    errors.raise("MS_ESHAPE", "ms.models.llama: dim %d must be a multiple of heads %d, and heads of kv_heads %d",
      config.dim, config.heads, config.kv_heads)
  end
  return config
end

---A Llama. Called with tokens i32 [batch, length] it gives logits [batch, length, vocab].
---@param config table { vocab, layers, dim, heads, kv_heads = heads, ffn, seq, rope_theta = 10000, eps = 1e-5,
---  tied = false }, or a published size and what to change: { "8B", seq = 4096 }
---@return moonshard.Module
return function(config) return Llama(read(config)) end
