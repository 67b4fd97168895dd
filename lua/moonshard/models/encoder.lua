-- What encoders share (models/bert.lua, models/vit.lua): blocks of attention in both directions and a two-layer MLP,
-- with norms before each branch, as in vision transformers, or behind its sum, as in BERT; and their options.
--
-- Initial weights: normal(0, 0.02) unless they are given another deviation, biases zero, norms one.

local attention_logits = require("moonshard.tensor.attention_logits")
local errors = require("moonshard.base.error")
local masked_attention = require("moonshard.nn.masked_attention")
local mlp = require("moonshard.models.mlp")
local module = require("moonshard.nn.module")
local nn = require("moonshard.nn")
local ops = require("moonshard.tensor.ops")
local options = require("moonshard.base.checks.options")
local parameter = require("moonshard.tensor.parameter")

local encoder = {}

---@class moonshard.EncoderOptions
---@field layers integer
---@field dim integer
---@field heads integer
---@field ffn? integer default 4 dim
---@field eps? number of norms; default 1e-12
---@field activation? "relu"|"gelu"|"gelu_tanh"|"silu" default gelu
---@field dropout? number default 0
---@field deviation? number of initial weights; default 0.02, which is little for a small dim

---@param config moonshard.EncoderOptions complete
---@return moonshard.Initializer of weights
function encoder.initializer(config) return parameter.initializers.normal(0, config.deviation) end

local Attention = module.define("Attention")

function Attention:init(config)
  local dim, has_bias, init = config.dim, config.qkv_bias ~= false, encoder.initializer(config)
  self.heads = config.heads
  self.wq = nn.linear({ dim, dim, bias = has_bias, init = init })
  self.wk = nn.linear({ dim, dim, bias = has_bias, init = init })
  self.wv = nn.linear({ dim, dim, bias = has_bias, init = init })
  self.wo = nn.linear({ dim, dim, init = init })
end

-- x [B,T,D], mask f32 [B,1,1,T]? which is added to scores -> [B,T,D]
function Attention:forward(x, mask)
  local batch, length, dim = unpack(x.shape)
  local function split(y) return y:reshape(batch, length, self.heads, dim / self.heads) end
  local q, k, v = split(self.wq(x)), split(self.wk(x)), split(self.wv(x))
  if not mask then
    attention_logits.declare(q, k, { query = { self.wq.weight, self.wq.bias }, key = { self.wk.weight, self.wk.bias },
      causal = false })
  end
  local y = mask and masked_attention(q, k, v, { causal = false, mask = mask })
    or ops.attention(q, k, v, { causal = false })
  return self.wo(y:reshape(batch, length, dim))
end

local Block = module.define("Block")

function Block:init(config, norms)
  self._behind = norms == "behind"
  self.norm1 = nn.layer_norm({ config.dim, eps = config.eps })
  self.attn = Attention(config)
  self.norm2 = nn.layer_norm({ config.dim, eps = config.eps })
  self.mlp = mlp.new(config, encoder.initializer(config), encoder.initializer(config))
  self.dropout = nn.dropout(config.dropout)
end

function Block:forward(x, mask)
  if self._behind then
    x = self.norm1(x + self.dropout(self.attn(x, mask)))
    return self.norm2(x + self.dropout(self.mlp(x)))
  end
  x = x + self.dropout(self.attn(self.norm1(x), mask))
  return x + self.dropout(self.mlp(self.norm2(x)))
end

---The blocks of an encoder.
---@param config moonshard.EncoderOptions complete
---@param norms "before"|"behind" where the norms of a branch are
---@return moonshard.Module[] each forward(x [B,T,dim], mask f32 [B,1,1,T]?) -> [B,T,dim]
function encoder.blocks(config, norms)
  local blocks = {}
  for i = 1, config.layers do blocks[i] = Block(config, norms) end
  return blocks
end

local SPECS = {
  layers = { "positive", most = 10000, required = true },
  dim = { "positive", required = true },
  heads = { "positive", required = true },
  ffn = { "positive" },
  eps = { "number", default = 1e-12 },
  activation = { "string", default = "gelu" },
  dropout = { "number", default = 0 },
  deviation = { "number", default = 0.02 },
}

---A complete description of an encoder.
---@param who string whose options they are, for messages: "ms.models.bert"
---@param given table
---@param more table<string, moonshard.OptionSpec> the options of this encoder alone
---@return table
function encoder.read(who, given, more)
  local specs = {}
  for _, source in ipairs({ SPECS, more }) do
    for name, spec in pairs(source) do specs[name] = spec end
  end
  local config = options.parse(who, given, specs)
  config.ffn = config.ffn or 4 * config.dim
  if config.dim % config.heads ~= 0 then
    errors.raise("MS_ESHAPE", "%s: dim %d must be a multiple of heads %d", who, config.dim, config.heads)
  elseif not mlp.ACTIVATIONS[config.activation] then
    errors.raise("MS_ENAME", "%s: activation must be relu, gelu, gelu_tanh or silu, not %s", who,
      options.describe(config.activation))
  end
  for _, name in ipairs({ "eps", "deviation" }) do
    if not (config[name] > 0 and config[name] < math.huge) then
      errors.invalid("%s: %s must be above 0 and finite, not %s", who, name, config[name])
    end
  end
  return config
end

return encoder
