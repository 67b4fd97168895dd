-- BERT (Devlin et al. 2019) as a masked language model: learned positions, types of segments, attention in both
-- directions, norms behind each branch, and a head that shares the weights of the embedding and has a bias of its own.
--
-- A batch has the tokens, some of which are replaced, and as targets the original ones there and -100 elsewhere: loss =
-- ms.loss.cross_entropy. ms.data.masked makes such batches. If yours also have types of segments and a mask of padding:
--
--   ms.trainer { model = bert, optimizer = ..., forward = function(net, b)
--     return ms.loss.cross_entropy(net(b.tokens, b.types, b.mask), b.targets)
--   end }

local encoder = require("moonshard.models.encoder")
local errors = require("moonshard.base.error")
local language = require("moonshard.models.language")
local model_config = require("moonshard.models.config")
local module = require("moonshard.nn.module")
local nn = require("moonshard.nn")
local ops = require("moonshard.tensor.ops")
local options = require("moonshard.base.checks.options")
local tensor = require("moonshard.tensor")

-- What is added to the scores of padding. It is finite, as in the reference library, so that a row of nothing but
-- padding gives numbers.
local HIDDEN = 3.4028234663852886e38

-- From hidden states to logits: a layer with a norm, and the weights of the embedding.
local Transform = module.define("Transform")

function Transform:init(config)
  self.linear = nn.linear({ config.dim, config.dim, init = encoder.initializer(config) })
  self.norm = nn.layer_norm({ config.dim, eps = config.eps })
  self.activation = ops[config.activation]
end

function Transform:forward(x) return self.norm(self.activation(self.linear(x))) end

local Bert = module.define("Bert")
Bert.family, Bert.sees_later_tokens = "bert", true

function Bert:init(config)
  self.config = model_config.new(config)
  local init = encoder.initializer(config)
  self.embed = nn.embedding({ language.padded(config), config.dim, init = init, used_rows = config.vocab })
  self.pos = nn.embedding({ config.seq, config.dim, init = init })
  self.types = nn.embedding({ config.types, config.dim, init = init })
  self.embed_norm = nn.layer_norm({ config.dim, eps = config.eps })
  self.dropout = nn.dropout(config.dropout)
  self.layers = encoder.blocks(config, "behind")
  self.transform = Transform(config)
  self.head = nn.linear({ config.dim, language.padded(config), init = init })
  self.head.weight = self.embed.weight
end

local function describe(x) return tensor.is(x) and tensor.shape_text(x.shape) or options.describe(x) end

local function check_inputs(model, tokens, given)
  if not tensor.is(tokens) or #tokens.shape ~= 2 then
    errors.raise("MS_ESHAPE", "bert: tokens must be [batch, length], not %s", describe(tokens))
  end
  local length = tokens.shape[2]
  language.check_length(model, length)
  for name, x in pairs(given) do
    if not tensor.is(x) then
      errors.raise("MS_ESHAPE", "bert: %s must be [%d,%d], as the tokens are, or false, not %s", name, tokens.shape[1],
        length, describe(x))
    end
    local shape = x.shape
    if not (#shape == 2 and shape[1] == tokens.shape[1] and shape[2] == length) then
      errors.raise("MS_ESHAPE", "bert: %s must be [%d,%d], as the tokens are, not [%s]", name, tokens.shape[1], length,
        table.concat(shape, ","))
    end
  end
end

-- f32 [B,1,1,T], or nil where nothing is hidden.
local function mask_of(config, tokens, given)
  local seen = given and given:ne(0) or config.padding and tokens:ne(config.padding)
  if not seen then return nil end
  return ((seen:cast("f32") - 1) * HIDDEN):reshape(tokens.shape[1], 1, 1, tokens.shape[2])
end

-- tokens i32 [B,T], T at most seq; types i32 [B,T], or nil or false: all 0; mask [B,T] of any dtype, 0: padding, or nil
-- or false: tokens that are `padding` -> logits [B,T,V]
function Bert:forward(tokens, types, mask)
  local config = self.config
  check_inputs(self, tokens, { types = types or nil, mask = mask or nil })
  local length = tokens.shape[2]
  local of_types = types and self.types(types) or self.types.weight:slice(0, 0, 1)
  local x = language.embed(self, tokens) + of_types + self.pos.weight:slice(0, 0, length)
  x = self.dropout(self.embed_norm(x))
  mask = mask_of(config, tokens, mask)
  for _, layer in ipairs(self.layers) do x = layer(x, mask) end
  return language.logits(self, self.transform(x))
end

Bert.describe = language.describe

---@class moonshard.BertOptions: moonshard.EncoderOptions
---@field vocab integer
---@field seq integer maximum sequence length
---@field types? integer kinds of segments; default 2
---@field padding? integer the token of padding, to which no token attends; default: none
---@field pad_vocab_to_multiple_of? integer default 1

---A BERT. Its forward maps tokens i32 [batch, length], and if given types and a mask of the same shape, to logits
---[batch, length, vocab].
---@param given moonshard.BertOptions
---@return moonshard.Module
return function(given)
  local config = encoder.read("ms.models.bert", given, {
    vocab = { "positive", required = true },
    seq = { "positive", required = true },
    types = { "positive", default = 2 },
    padding = { "integer" },
    pad_vocab_to_multiple_of = { "positive", default = 1 },
  })
  language.check_tokens("ms.models.bert", config)
  return Bert(config)
end
