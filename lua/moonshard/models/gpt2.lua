-- GPT-2 (Radford et al. 2019): learned positions, pre-norm blocks of attention and a two-layer MLP.
--
-- Initial weights as in the original: normal(0, 0.02), the projections into the residual stream scaled by 1/sqrt(2
-- layers), biases zero, norms one. Queries, keys and values have separate weights, so that rules can name them.

local errors = require("moonshard.base.error")
local language = require("moonshard.models.language")
local mlp = require("moonshard.models.mlp")
local model_config = require("moonshard.models.config")
local module = require("moonshard.nn.module")
local nn = require("moonshard.nn")
local options = require("moonshard.base.checks.options")
local parameter = require("moonshard.tensor.parameter")

local initializers = parameter.initializers

-- layers, width, heads of the published models; all have 50257 tokens, 1024 positions and a tied head.
local PUBLISHED = {
  ["124M"] = { layers = 12, dim = 768, heads = 12 },
  ["355M"] = { layers = 24, dim = 1024, heads = 16 },
  ["774M"] = { layers = 36, dim = 1280, heads = 20 },
  ["1.5B"] = { layers = 48, dim = 1600, heads = 25 },
}

local function linear(inputs, outputs, config, init)
  return nn.linear({ inputs, outputs, bias = config.bias, init = init or "gpt2" })
end

-- Each layer adds 2 projections to the residual stream; their variance is divided by the total number.
local function residual_law(config)
  return initializers.normal(0, 0.02 / math.sqrt(2 * config.layers))
end

local function norm(config)
  return nn.layer_norm({ config.dim, eps = config.eps, bias = config.bias })
end

local Attention = module.define("Attention")

function Attention:init(config)
  self._config = config
  local dim = config.dim
  self.heads = config.heads
  self.wq = linear(dim, dim, config)
  self.wk = linear(dim, dim, config)
  self.wv = linear(dim, dim, config)
  self.wo = linear(dim, dim, config, residual_law(config))
end

-- x [B,T,D], tokens i32 [B,T] -> [B,T,D]
function Attention:forward(x, tokens, cache)
  local batch, length, dim = unpack(x.shape)
  local function split(y) return y:reshape(batch, length, self.heads, dim / self.heads) end
  local q, k, v = split(self.wq(x)), split(self.wk(x)), split(self.wv(x))
  local function whole()
    return language.attend(self._config, q, k, v, tokens, nil, nil, {
      query = language.rows_of(self.wq), key = language.rows_of(self.wk),
    })
  end
  local y = cache and cache:attend(q, k, v, {}, whole) or whole()
  return self.wo(y:reshape(batch, length, dim))
end

local Block = module.define("Block")

function Block:init(config)
  self.norm1 = norm(config)
  self.attn = Attention(config)
  self.norm2 = norm(config)
  self.mlp = mlp.new(config, "gpt2", residual_law(config))
  self.dropout = nn.dropout(config.dropout)
end

function Block:forward(x, tokens, cache)
  x = x + self.dropout(self.attn(self.norm1(x), tokens, cache))
  return x + self.dropout(self.mlp(self.norm2(x)))
end

local GPT2 = module.define("GPT2")
GPT2.family, GPT2.takes_cache, GPT2.sees_later_tokens = "gpt2", true, false

function GPT2:init(config)
  self.config = model_config.new(config)
  language.add_embedding(self, config)
  self.pos = nn.embedding({ config.seq, config.dim, init = "gpt2" })
  self.dropout = nn.dropout(config.dropout)
  self.layers = {}
  for i = 1, config.layers do self.layers[i] = Block(config) end
  self.norm = norm(config)
  language.add_head(self, config)
end

-- tokens i32 [B,T], T at most seq, cache moonshard.KVCache? -> logits [B,T,V], or [B,1,V]
function GPT2:forward(tokens, cache)
  language.check_length(self, tokens.shape[2])
  local x = self.dropout(self.embed(tokens) + language.learned_positions(self, tokens, cache))
  for _, layer in ipairs(self.layers) do x = layer(x, tokens, cache) end
  if cache then x = cache:last(x) end
  return language.logits(self, self.norm(x))
end

GPT2.describe = language.describe

local SPECS = {
  { "string" }, -- a published size: "124M"
  vocab = { "positive", required = true },
  layers = { "positive", most = 10000, required = true },
  dim = { "positive", required = true },
  heads = { "positive", required = true },
  seq = { "positive", required = true },
  document_start = { "integer" },
  mlp_ratio = { "positive", default = 4 },
  ffn = { "positive" },
  eps = { "number", default = 1e-5 },
  dropout = { "number", default = 0 },
  bias = { "boolean", default = true },
  tied = { "boolean", default = false },
  activation = { "string", default = "gelu_tanh" },
  pad_vocab_to_multiple_of = { "positive", default = 1 },
}

local function read(given)
  local published = type(given) == "table" and given[1]
  if published then
    if not PUBLISHED[published] then
      errors.raise("MS_ENAME", "ms.models.gpt2: no size %s; the sizes are 124M, 355M, 774M, 1.5B",
        options.describe(published))
    end
    local filled = { vocab = 50257, seq = 1024, tied = true }
    for key, value in pairs(PUBLISHED[published]) do filled[key] = value end
    for key, value in pairs(given) do filled[key] = value end
    given = filled
  end
  local config = options.parse("ms.models.gpt2", given, SPECS)
  config.ffn = config.ffn or config.dim * config.mlp_ratio
  if config.dim % config.heads ~= 0 then
    errors.raise("MS_ESHAPE", "ms.models.gpt2: dim %d must be a multiple of heads %d", config.dim, config.heads)
  end
  if not mlp.ACTIVATIONS[config.activation] then
    errors.raise("MS_ENAME", "ms.models.gpt2: activation must be relu, gelu, gelu_tanh or silu, not %s",
      config.activation)
  end
  language.check_tokens("ms.models.gpt2", config)
  return config
end

---@class moonshard.GPT2Options
---@field [1] string? a published size, "124M", which sets the defaults of the other fields
---@field vocab? integer required without a published size, like layers, dim, heads and seq
---@field layers? integer
---@field dim? integer
---@field heads? integer
---@field seq? integer maximum sequence length
---@field document_start? integer token that begins a document: attention does not cross it, and positions
---  restart there
---@field mlp_ratio? integer default 4
---@field ffn? integer default dim * mlp_ratio
---@field eps? number default 1e-5
---@field dropout? number default 0
---@field bias? boolean default true
---@field tied? boolean share the weights of embedding and head; default false
---@field activation? "relu"|"gelu"|"gelu_tanh"|"silu" default gelu_tanh
---@field pad_vocab_to_multiple_of? integer default 1

---A GPT-2. Its forward maps tokens i32 [batch, length] to logits [batch, length, vocab].
---@param config moonshard.GPT2Options
---@return moonshard.Module
return function(config) return GPT2(read(config)) end
