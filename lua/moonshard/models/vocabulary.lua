-- Vocabularies padded to a multiple, for kernels and for shards of equal size. Nothing outside of a model sees it:
-- logits have the true size, so padded tokens get no probability, their rows no gradient, and files that are saved
-- leave them out.

local nn = require("moonshard.nn")

local vocabulary = {}

---Rows of the embedding and of the head.
---@param config { vocab: integer, pad_vocab_to_multiple_of: integer }
---@return integer
function vocabulary.padded(config)
  return math.ceil(config.vocab / config.pad_vocab_to_multiple_of) * config.pad_vocab_to_multiple_of
end

---Makes `embed` and `head` of a model.
---@param model moonshard.Module
---@param config { vocab: integer, dim: integer, tied: boolean, pad_vocab_to_multiple_of: integer }
function vocabulary.add_embedding(model, config)
  model.embed = nn.embedding({ vocabulary.padded(config), config.dim, init = "gpt2", used_rows = config.vocab })
end

---@param model moonshard.Module
---@param config { vocab: integer, dim: integer, tied: boolean, pad_vocab_to_multiple_of: integer }
function vocabulary.add_head(model, config)
  model.head = nn.linear({ config.dim, vocabulary.padded(config), bias = false, init = "gpt2" })
  if config.tied then model.head.weight = model.embed.weight end
end

---@param model moonshard.Module
---@param x moonshard.Tensor [..., dim]
---@return moonshard.Tensor logits [..., vocab]
function vocabulary.logits(model, x)
  local logits = model.head(x)
  local vocab = model.config.vocab
  if logits:size(-1) == vocab then return logits end
  return logits:slice(-1, 0, vocab)
end

return vocabulary
