-- Log-likelihoods of rows of tokens, divided over the ranks that have rows of their own: the common part of
-- evaluations.
--
-- Every batch has the same shape, so one plan computes all, and a row's number does not depend on the rank that has it.
-- All ranks get all numbers, in the order of the rows, and sum them in that order.

local byte_tokens = require("moonshard.data.byte_tokens")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local hash = require("moonshard.base.hash")
local language = require("moonshard.models.language")
local options = require("moonshard.base.checks.options")
local preference_loss = require("moonshard.nn.preference_loss")
local same_run = require("moonshard.engine.agreement.same_run")
local session = require("moonshard.engine.session")
local tokenizers = require("moonshard.data.tokenizer")
local tree = require("moonshard.nn.tree")
local world = require("moonshard.distributed.world")
local ffi = engine.ffi

local IGNORED = -100

local score = {}

---@class moonshard.ScoredRow tokens and what is to be predicted; the rest of a row is padding
---@field tokens integer[] of any list; the row's are tokens[first], tokens[first + 1], ...
---@field first integer from 1
---@field count integer of inputs; their targets are the tokens that follow them
---@field scored integer the last so many targets count

---Options that all evaluations have.
score.OPTIONS = {
  tokenizer = { "string|table" },
  seq = { "positive" },
  batch = { "positive", default = 8 },
  special = { "boolean", default = true },
  ema = { "boolean", default = false },
}

---@class moonshard.EvaluatedModel
---@field who string for messages
---@field model moonshard.Module
---@field trainer moonshard.Trainer?
---@field seq integer tokens of a row
---@field vocab integer
---@field tokenizer moonshard.EvaluatedTokenizer

---@class moonshard.EvaluatedTokenizer
---@field encode fun(self: table, text: string, o: moonshard.EncodeOptions?): integer[]
---@field begun fun(self: table, ids: integer[]): integer[] the tokens after those that begin a text
---@field of_bytes boolean?
---@field path string?

local function length_of(who, model, seq)
  local config = rawget(model, "config")
  if type(config) ~= "table" or not config.seq or not config.vocab then
    errors.invalid("%s: a %s has no config.seq and config.vocab, the length of its input and its vocabulary; the "
      .. "models of ms.models have them", who, getmetatable(model).name)
  end
  if seq and seq > config.seq then
    errors.invalid("%s: seq=%d, but the model's inputs have at most %d tokens", who, seq, config.seq)
  end
  return seq or config.seq, config.vocab
end

-- The tokenizer, which also refuses tokens that the model does not have. needed: texts are given, and not tokens.
local function checked_tokenizer(who, tokenizer, vocab, needed)
  if type(tokenizer) == "string" then tokenizer = tokenizers.open(tokenizer) end
  if tokenizer and not tokenizer.encode then
    errors.invalid("%s: tokenizer must be one that ms.tokenizer(path) returns, or its path, not %s", who,
      options.describe(tokenizer))
  end
  if not tokenizer and vocab > 256 and needed then
    errors.invalid("%s: the model has %d tokens, so they are not bytes: give its tokenizer", who, vocab)
  end
  local used = tokenizer or byte_tokens
  return {
    of_bytes = used.of_bytes, path = used.path,
    decode = function(_, ids) return used:decode(ids) end,
    begun = function(_, ids) return used.begun and used:begun(ids) or ids end,
    encode = function(_, text, o)
      local ids = used:encode(text, o)
      for _, id in ipairs(ids) do
        if id >= vocab then
          errors.invalid("%s: the text contains token %d, but the model has %d tokens: is %s its tokenizer?", who, id,
            vocab, used.path or "a vocabulary of bytes")
        end
      end
      return ids
    end,
  }
end

---What an evaluation needs of a model or a trainer, and of its options.
---@param who string for messages: "ms.evaluate.perplexity"
---@param given moonshard.Trainer|moonshard.Module
---@param o table parsed options
---@return moonshard.EvaluatedModel
function score.subject(who, given, o)
  local trainer = type(given) == "table" and given.with_ema and given or nil
  local model = trainer and trainer.model or given
  if not tree.is_module(model) then
    errors.invalid("%s: give a model or a trainer first, not %s", who, options.describe(given))
  end
  language.require_causal(who, model)
  if o.ema and not trainer then errors.invalid("%s: ema needs the trainer, which has the averages", who) end
  local seq, vocab = length_of(who, model, o.seq)
  return {
    who = who, model = model, trainer = o.ema and trainer or nil, seq = seq, vocab = vocab,
    tokenizer = checked_tokenizer(who, o.tokenizer, vocab, o.tokens == nil),
  }
end

-- ---- batches ----------------------------------------------------------------------------------------------------

-- A row beyond the last has no targets.
local function fill(row, seq, tokens, targets)
  for i = 0, seq - 1 do tokens[i], targets[i] = 0, IGNORED end
  if not row then return end
  for i = 0, row.count - 1 do
    tokens[i] = row.tokens[row.first + i]
    if i >= row.count - row.scored then targets[i] = row.tokens[row.first + i + 1] end
  end
end

-- Ranks that evaluate other rows, or count them otherwise, would report numbers of neither.
local function require_same(subject, rows, batch, more)
  local parts = {}
  for i, row in ipairs(rows) do
    local tokens = ffi.new("int32_t[?]", row.count + 1)
    for t = 0, row.count do tokens[t] = row.tokens[row.first + t] end
    parts[i] = ("%d %x"):format(row.scored, hash.of_bytes(tokens, 4 * (row.count + 1)))
  end
  local advice = "all ranks need the same files and settings"
  local facts = {
    { "ema", subject.trainer ~= nil, advice }, { "batch", batch, advice }, { "seq", subject.seq, advice },
    { "the number of rows", #rows, advice },
    { "the hash of their tokens", ("%.0f"):format(hash.of_text(table.concat(parts, "\n"))), advice },
  }
  for _, fact in ipairs(more) do facts[#facts + 1] = { fact[1], fact[2], advice } end
  same_run.new(subject.who, facts, {}):require(session.around(subject.model), "of what is evaluated")
end

-- Runs the rows from `first` on, `batch` for each rank, and puts their numbers into `found`.
local function run_batch(running, exec, shape, rows, first, found)
  local ranks, index = running:data_ranks()
  local batch, seq = shape[1], shape[2]
  local tokens, targets = ffi.new("int32_t[?]", batch * seq), ffi.new("int32_t[?]", batch * seq)
  for i = 0, batch - 1 do fill(rows[first + index * batch + i], seq, tokens + i * seq, targets + i * seq) end
  exec:write("tokens", { data = tokens, dtype = "i32" }, 0, batch * seq)
  exec:write("targets", { data = targets, dtype = "i32" }, 0, batch * seq)
  exec:run("evaluate")
  local values, mine = exec:output("log_likelihood", "f32"), { index }
  for i = 1, batch do mine[i + 1] = values[i - 1] end
  local lists = running:gather_lists(mine, "of log-likelihoods")
  for place, of_rank in ipairs(lists[1]) do
    for i = 1, batch do
      local at = first + of_rank * batch + i - 1
      if rows[at] then found[at] = lists[i + 1][place] end
    end
  end
  return ranks * batch
end

-- Runs rows that are padded to `length`.
local function run_padded(model, rows, batch, length)
  local running = session.around(model)
  batch = math.min(batch, math.max(1, math.ceil(#rows / (running:data_ranks()))))
  local shape, found = { batch, length }, {}
  local exec = running:exec("score", {
    { name = "tokens", dtype = "i32", shape = shape, rows = batch },
    { name = "targets", dtype = "i32", shape = shape, rows = batch },
  }, function(inputs)
    return { outputs = { log_likelihood = preference_loss.log_likelihood(model(inputs.tokens), inputs.targets) } }
  end, { train = false, owner = "score", who = "ms.evaluate" })
  local at = 1
  while at <= #rows do
    world.check_interrupt()
    at = at + run_batch(running, exec, shape, rows, at, found)
  end
  return found
end

-- The rows by the length that they are padded to. A model that rotates long texts by other frequencies (longrope) would
-- take a short row with much padding for a long one.
local function by_length(subject, rows)
  local model, seq = subject.model, subject.seq
  local limit = model.long_above and model:long_above() or seq
  local short, long = { length = math.min(seq, limit) }, { length = seq }
  for i, row in ipairs(rows) do table.insert(row.count <= short.length and short or long, i) end
  return short[1] and long[1] and { short, long } or { short[1] and short or long }
end

local function run(subject, rows, batch)
  local found = {}
  for _, numbers in ipairs(by_length(subject, rows)) do
    local part = {}
    for i, number in ipairs(numbers) do part[i] = rows[number] end
    for i, value in ipairs(run_padded(subject.model, part, batch, numbers.length)) do found[numbers[i]] = value end
  end
  return found
end

---The log-likelihood of the scored targets of each row. Collective.
---@param subject moonshard.EvaluatedModel
---@param rows moonshard.ScoredRow[]
---@param batch integer rows of a rank at a time
---@param more [string, any][] what else ranks must agree on: names and values
---@return number[]
function score.rows(subject, rows, batch, more)
  require_same(subject, rows, batch, more)
  if subject.trainer then return subject.trainer:with_ema(run, subject, rows, batch) end
  return run(subject, rows, batch)
end

return score
