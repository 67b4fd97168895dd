-- Samples from a model: one forward pass per token over a window of the model's sequence length. Tokens are bytes, or a
-- tokenizer's.
--
-- Every rank takes part because the weights are sharded. All compute the same logits and use the token that rank 0
-- draws, so the text depends on weights, prompt, settings and seed but not on the mesh.

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local ops = require("moonshard.tensor.ops")
local options = require("moonshard.base.options")
local sampling = require("moonshard.train.sampling")
local session = require("moonshard.engine.session")
local tokenizers = require("moonshard.data.tokenizer")
local ffi = engine.ffi

-- Bytes as tokens, as in ms.data.text.
local bytes = {
  encode = function(_, text) return { text:byte(1, -1) } end,
  decode = function(_, ids)
    local list = {}
    for i, id in ipairs(ids) do list[i] = string.char(id) end
    return table.concat(list)
  end,
}

---@class moonshard.GenerateOptions
---@field prompt? string default: a newline
---@field tokenizer? string|moonshard.Tokenizer a tokenizer.json, its folder, or an open one; default: tokens are bytes
---@field tokens? integer number of tokens to draw; default 300
---@field bytes? integer the same, for byte-level models
---@field temperature? number default 0.8; 0: always the most likely token
---@field top_k? integer draw from this many of the most likely tokens; default 50; 0: from all
---@field top_p? number draw from the most likely tokens with this total probability; 1: from all
---@field stop? string a token that ends the text
---@field seed? integer default 1
---@field ema? boolean use the averages of a trainer's weights; default false

local function parse(o)
  o = options.parse("ms.generate", o, {
    prompt = { "string", default = "\n" },
    tokenizer = { "string|table" },
    tokens = { "positive" },
    bytes = { "positive" },
    temperature = { "number", default = 0.8 },
    top_k = { "integer", default = 50 },
    top_p = { "number", default = 1 },
    stop = { "string" },
    seed = { "seed", default = 1 },
    ema = { "boolean", default = false },
  })
  if o.temperature < 0 then
    errors.invalid("ms.generate: temperature=%g must not be negative; 0 takes the most likely token", o.temperature)
  end
  if o.top_k < 0 then errors.invalid("ms.generate: top_k=%d must not be negative; 0 allows all tokens", o.top_k) end
  if not (o.top_p > 0 and o.top_p <= 1) then
    errors.invalid("ms.generate: top_p=%g must be above 0 and at most 1", o.top_p)
  end
  if o.tokens and o.bytes then errors.invalid("ms.generate: give tokens or bytes, not both") end
  if type(o.tokenizer) == "string" then o.tokenizer = tokenizers.open(o.tokenizer) end
  if o.stop and not o.tokenizer then errors.invalid("ms.generate: stop needs a tokenizer") end
  return o
end

-- The ids of the prompt, with space for the continuation.
local function encode_prompt(o, vocab)
  if not o.tokenizer and vocab > 256 then
    errors.invalid("ms.generate: the model has %d tokens, so they are not bytes: give its tokenizer", vocab)
  end
  local ids = (o.tokenizer or bytes):encode(o.prompt)
  if #ids == 0 then errors.invalid("ms.generate: the prompt must contain at least one token") end
  for _, id in ipairs(ids) do
    if id >= vocab then
      errors.invalid("ms.generate: the prompt contains token %d, but the model has %d tokens: is %s its tokenizer?", id,
        vocab, o.tokenizer and o.tokenizer.path or "a vocabulary of bytes")
    end
  end
  return ids
end

local function continue(model, o)
  local config = rawget(model, "config")
  if type(config) ~= "table" or not config.seq or not config.vocab then
    errors.invalid("ms.generate: a %s has no config.seq and config.vocab, the length of its input and its vocabulary; "
      .. "the models of ms.models have them", getmetatable(model).name)
  end
  local window, vocab = config.seq, config.vocab
  local ids = encode_prompt(o, vocab)
  local stop = o.stop and o.tokenizer:id(o.stop)
  local spec = { name = "tokens", dtype = "i32", shape = { 1, window } }
  local running = session.of(model)
  local exec = running:exec("generate", { spec }, function(inputs)
    return { outputs = { logits = ops.cast(model(inputs.tokens), { out_dtype = "f32" }) } }
  end, { train = false })
  local tokens = ffi.new("int32_t[?]", window)
  local array = { data = tokens, dtype = "i32", shape = spec.shape }
  local draw, made = sampling.random(o.seed), {}
  for i = 1, o.tokens or o.bytes or 300 do
    local used = math.min(#ids, window)
    for t = 0, window - 1 do tokens[t] = t < used and ids[#ids - used + t + 1] or 0 end
    exec:write("tokens", array, 0, window)
    exec:run("evaluate")
    local logits = exec:output("logits", "f32") + (used - 1) * vocab
    local token = running:gather_numbers(sampling.choose(logits, vocab, o, draw), "of the next token")[1]
    if token == stop then break end
    made[i], ids[#ids + 1] = token, token
  end
  return (o.tokenizer or bytes):decode(made), made
end

---Continues a prompt. Collective.
---@param trainer moonshard.Trainer|moonshard.Module
---@param o moonshard.GenerateOptions?
---@return string the continuation, without the prompt
---@return integer[] its tokens
local function generate(trainer, o)
  o = parse(o)
  local model = trainer.model or trainer
  if not o.ema then return continue(model, o) end
  if not trainer.with_ema then errors.invalid("ms.generate: ema needs the trainer, which has the averages") end
  return trainer:with_ema(continue, model, o)
end

return generate
