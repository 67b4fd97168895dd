-- Shared by language models: causal attention, and vocabularies padded to a multiple, for kernels and for shards of
-- equal size. The padding is invisible outside the model: logits have the true size, so padded tokens get no
-- probability and their rows no gradient, and saved files omit them.

local attention_logits = require("moonshard.tensor.attention_logits")
local errors = require("moonshard.base.error")
local nn = require("moonshard.nn")
local ops = require("moonshard.tensor.ops")
local sink = require("moonshard.nn.sink")

local language = {}

---What makes queries or keys, for QK-clip: the weight and the bias of a layer.
---@param layer moonshard.Module
---@return moonshard.Parameter[]
function language.rows_of(layer) return { layer.weight, layer.bias } end

---Causal attention: over all earlier tokens, or only over those of the same document.
---@param config { document_start: integer?, attention_scale: number?, attention_softcap: number? } the first token of
---  every document, nil: no boundaries; of scores, default 1 / sqrt(D); scores s become c tanh(s / c)
---@param q moonshard.Tensor [B,T,H,D]
---@param k moonshard.Tensor [B,T,G,D]
---@param v moonshard.Tensor [B,T,G,D]
---@param tokens moonshard.Tensor i32 [B,T]
---@param window integer? of keys that a query sees, itself included
---@param sinks moonshard.Tensor? [H] see nn/sink.lua
---@param projections { query: table, key: table, refused: string? } which QK-clip scales, as of ms.nn.attention_logits
---@param start integer? the token that begins what a query sees; default config.document_start
---@return moonshard.Tensor [B,T,H,D]
function language.attend(config, q, k, v, tokens, window, sinks, projections, start)
  start = start or config.document_start
  local o = { window = window, scale = config.attention_scale, softcap = config.attention_softcap }
  attention_logits.declare(q, k, {
    query = projections.query, key = projections.key, refused = projections.refused,
    window = o.window, scale = o.scale, softcap = o.softcap, start = start, tokens = start and tokens,
  })
  if start then
    o.start = start
    return sink.document_attention(q, k, v, tokens, sinks, o)
  end
  o.causal = true
  return sink.attention(q, k, v, sinks, o)
end

---Learned positions of tokens: those in a row, or in its documents where these share rows, so that a document has the
---same logits as in a row of its own.
---@param model moonshard.Module with a table `pos`, and config.document_start
---@param tokens moonshard.Tensor i32 [B,T]
---@param cache moonshard.KVCache?
---@return moonshard.Tensor [T,D] or [B,T,D]
function language.learned_positions(model, tokens, cache)
  local start = model.config.document_start
  if cache and not cache.is_first then return model.pos(cache.inputs.positions_in_documents) end
  if start then return model.pos(nn.document_positions(tokens, start)) end
  return model.pos.weight:slice(0, 0, tokens.shape[2])
end

---Raises for a sequence that is longer than a model's positions. What to do depends on where they are from.
---@param model moonshard.Module with `family` and config.seq
---@param length integer
function language.check_length(model, length)
  local seq, folder = model.config.seq, rawget(model, "_huggingface_folder")
  if length <= seq then return end
  local shorter = ("give sequences of at most %d tokens"):format(seq)
  local advice = "raise seq"
  if folder and not model.pos then
    advice = ("%s, or raise max_position_embeddings in %s/config.json"):format(shorter, (folder:gsub("(.)/+$", "%1")))
  elseif folder then
    advice = shorter .. ", for which the folder has learned positions"
  end
  errors.raise("MS_ESHAPE", "%s: a sequence of %d tokens, but the model has seq=%d: %s", model.family or "decoder",
    length, seq, advice)
end

---Raises for a model whose outputs depend on later tokens: it does not continue a text, nor say how likely it is.
---@param who string for messages: "ms.generate"
---@param model moonshard.Module
function language.require_causal(who, model)
  if not model.sees_later_tokens then return end
  errors.raise("MS_EUNSUPPORTED", "%s: a %s attends to later tokens, so it predicts masked tokens and not the next "
    .. "one: give a decoder, such as those of ms.models.gpt2 and ms.models.llama", who, getmetatable(model).name)
end

---Number of rows of the embedding and the head.
---@param config { vocab: integer, pad_vocab_to_multiple_of: integer }
---@return integer
function language.padded(config)
  return math.ceil(config.vocab / config.pad_vocab_to_multiple_of) * config.pad_vocab_to_multiple_of
end

---Embedded tokens. Lookups of the token of padding give its row of the embedding no gradient, as `padding_idx` in the
---reference library.
---@param model moonshard.Module with `embed`, and config.padding
---@param tokens moonshard.Tensor i32 [batch, length]
---@return moonshard.Tensor [batch, length, dim]
function language.embed(model, tokens)
  local x, padding = model.embed(tokens), model.config.padding
  if not padding then return x end
  return ops.where(tokens:eq(padding):unsqueeze(-1), x:detach(), x)
end

---Raises for an option `padding` or `document_start` that is no token: no text would have it.
---@param who string for messages
---@param config { padding: integer?, document_start: integer?, vocab: integer }
function language.check_tokens(who, config)
  for _, name in ipairs({ "padding", "document_start" }) do
    local token = config[name]
    if token and not (token >= 0 and token < config.vocab) then
      errors.invalid("%s: %s must be a token, 0 to %d, not %d", who, name, config.vocab - 1, token)
    end
  end
end

---Creates `embed` and `head` of a model.
---@param model moonshard.Module
---@param config { vocab: integer, dim: integer, tied: boolean, pad_vocab_to_multiple_of: integer }
function language.add_embedding(model, config)
  model.embed = nn.embedding({ language.padded(config), config.dim, init = "gpt2", used_rows = config.vocab })
end

---@param model moonshard.Module
---@param config { vocab: integer, dim: integer, tied: boolean, head_bias: boolean?, pad_vocab_to_multiple_of: integer }
function language.add_head(model, config)
  model.head = nn.linear({ config.dim, language.padded(config), bias = config.head_bias or false, init = "gpt2" })
  if config.tied then model.head.weight = model.embed.weight end
end

---@param model moonshard.Module
---@param x moonshard.Tensor [..., dim]
---@return moonshard.Tensor logits [..., vocab]
function language.logits(model, x)
  local logits = model.head(x)
  local vocab = model.config.vocab
  if logits:size(-1) == vocab then return logits end
  return logits:slice(-1, 0, vocab)
end

---The method `describe` of models with learned positions.
---@param model moonshard.Module
---@return string sizes
function language.describe(model)
  local config = model.config
  return ("%d layers, dim %d, %d heads, seq %d, vocab %d"):format(config.layers, config.dim, config.heads,
    config.seq, config.vocab)
end

return language
