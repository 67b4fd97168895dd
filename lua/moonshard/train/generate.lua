-- Samples from a model: continues one prompt, or many together, by a token a pass (train/decoding.lua). Tokens are
-- bytes, or a tokenizer's.
--
-- Every rank takes part because the weights are sharded. Prompts are divided among the ranks that compute different
-- rows, and each continues by draws of its own, so a text depends on weights, prompt, settings and seed, but neither on
-- the mesh nor on the other prompts.

local byte_tokens = require("moonshard.data.byte_tokens")
local decoding = require("moonshard.train.decoding")
local errors = require("moonshard.base.error")
local hash = require("moonshard.base.hash")
local language = require("moonshard.models.language")
local options = require("moonshard.base.checks.options")
local same_run = require("moonshard.engine.agreement.same_run")
local sampling = require("moonshard.train.sampling")
local session = require("moonshard.engine.session")
local tokenizers = require("moonshard.data.tokenizer")
local tree = require("moonshard.nn.tree")

---@class moonshard.GenerateOptions
---@field prompt? string|integer[]|(string|integer[])[] a text, the list of its tokens, or a list of such; default: a
---  newline
---@field tokenizer? string|moonshard.Tokenizer a tokenizer.json, its folder, or an open one; default: tokens are bytes
---@field special? boolean put the tokens around texts that the tokenizer's files name, its BOS; default true
---@field tokens? integer number of tokens to draw; default 300
---@field bytes? integer the same, for byte-level models
---@field temperature? number default 0.8; 0: always the most likely token
---@field top_k? integer draw from this many of the most likely tokens; default 50; 0: from all
---@field top_p? number draw from the most likely tokens with this total probability; 1: from all
---@field stop? string|integer|(string|integer)[] a token that ends the text, or its id, or a list of such
---@field seed? integer default 1; prompt i of a list draws by seed + i - 1
---@field cache? boolean keep keys and values of earlier tokens; default true for the models of ms.models, which can
---@field ema? boolean use the averages of a trainer's weights; default false

-- A token as tokenizer.json writes it, a text that is one token, or an id, which the command line gives as a text.
local function stop_of(tokenizer, text)
  local ok, id = pcall(tokenizer.id, tokenizer, text)
  if ok then return id end
  local ids = tokenizer:encode(text)
  if text:find("^%d+$") and #ids ~= 1 then return tonumber(text) end
  if #ids == 1 then return ids[1] end
  errors.invalid("ms.generate: a text ends at one token: stop %s is %d (%s)", options.describe(text), #ids,
    tostring(id))
end

-- The ids of the tokens that end a text, ascending.
local function read_stops(o)
  local ids = {}
  for i, token in ipairs(type(o.stop) == "table" and o.stop or { o.stop }) do
    if type(token) == "string" then
      local id = token:find("^%d+$") and tonumber(token) -- as the command line gives one
      if not o.tokenizer and not id then errors.invalid("ms.generate: stop needs a tokenizer") end
      token = o.tokenizer and stop_of(o.tokenizer, token) or id
    elseif type(token) ~= "number" or token < 0 or token % 1 ~= 0 then
      errors.invalid("ms.generate: stop must be tokens, as texts or as their ids from 0; number %d is %s", i,
        options.describe(token))
    end
    ids[i] = token
  end
  table.sort(ids)
  return ids
end

local function parse(o)
  o = options.parse("ms.generate", o, {
    prompt = { "string|table", default = "\n" },
    tokenizer = { "string|table" },
    special = { "boolean", default = true },
    tokens = { "positive" },
    bytes = { "positive" },
    temperature = { "number", default = 0.8 },
    top_k = { "integer", default = 50 },
    top_p = { "number", default = 1 },
    stop = { "string|number|table" },
    seed = { "seed", default = 1 },
    cache = { "boolean" },
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
  o.stop = read_stops(o)
  return o
end

-- The tokens of a prompt.
local function encode(o, prompt, vocab)
  local ids = prompt
  if type(prompt) == "string" then
    if not o.tokenizer and vocab > 256 then
      errors.invalid("ms.generate: the model has %d tokens, so they are not bytes: give its tokenizer", vocab)
    end
    ids = (o.tokenizer or byte_tokens):encode(prompt, { special = o.special })
  end
  if #ids == 0 then errors.invalid("ms.generate: the prompt must contain at least one token") end
  for i, id in ipairs(ids) do
    if type(id) ~= "number" or id % 1 ~= 0 or id < 0 then
      errors.invalid("ms.generate: token %d of a prompt is %s: tokens are integers from 0", i, options.describe(id))
    elseif id >= vocab then
      errors.invalid("ms.generate: the prompt contains token %d, but the model has %d tokens: is %s its tokenizer?", id,
        vocab, o.tokenizer and o.tokenizer.path or "a vocabulary of bytes")
    end
  end
  return ids
end

-- The prompts as lists of tokens, and whether there was a list of them.
local function read_prompts(o, vocab)
  local many = type(o.prompt) == "table" and type(o.prompt[1]) ~= "number"
  if many and #o.prompt == 0 then
    errors.invalid("ms.generate: prompt must be a text, a list of tokens, or a list of such; this list is empty")
  end
  local lists = {}
  for i, prompt in ipairs(many and o.prompt or { o.prompt }) do
    if type(prompt) ~= "string" and type(prompt) ~= "table" then
      errors.invalid("ms.generate: prompt %d must be a text or a list of tokens, not %s", i, options.describe(prompt))
    end
    lists[i] = encode(o, prompt, vocab)
  end
  return lists, many
end

local function check_model(model, o)
  language.require_causal("ms.generate", model)
  local config = rawget(model, "config")
  if type(config) ~= "table" or not config.seq or not config.vocab then
    errors.invalid("ms.generate: a %s has no config.seq and config.vocab, the length of its input and its vocabulary; "
      .. "the models of ms.models have them", getmetatable(model).name)
  end
  if o.cache and not model.takes_cache then
    errors.raise("MS_EUNSUPPORTED", "ms.generate: a %s keeps no keys and values, which the models of ms.models do: "
      .. "leave cache out", getmetatable(model).name)
  end
end

-- The numbers of the prompts that each rank continues, in the order of running:ranks(), as many on every rank; and this
-- rank's. A rank without a prompt of its own repeats the last one.
local function divide(running, count)
  local ranks, index = running:data_ranks()
  local per, numbers = math.ceil(count / ranks), {}
  local function of(at)
    local list = {}
    for i = 1, per do list[i] = math.min(at * per + i, count) end
    return list
  end
  for place, at in ipairs(running:gather_numbers(index, "of which ranks continue which prompts")) do
    numbers[place] = of(at)
  end
  return numbers, of(index)
end

-- Draws a token after each of this rank's texts, and returns those of all: by number of the prompt.
local function draw_tokens(self, logits)
  local mine, tokens = {}, {}
  for i, draw in ipairs(self.draws) do mine[i] = sampling.choose(logits(i), self.vocab, self.o, draw) end
  for i, of_places in ipairs(self.running:gather_lists(mine, "of the next token")) do
    for place, token in ipairs(of_places) do
      local number = self.numbers[place][i]
      if token < 0 then
        errors.raise("MS_ENONFINITE", "ms.generate: the logits that continue prompt %d are NaN or infinite, so no "
          .. "token can be drawn: look for NaN or infinities in the model's weights (moonshard inspect)",
          self.group[number])
      end
      tokens[number] = tokens[number] or token
    end
  end
  return tokens
end

-- Which prompts are continued together, by number. A model that rotates long texts by other frequencies (longrope)
-- rotates all texts of a pass as the longest one: texts that become long do so together if they are equally long.
local function groups_of(model, lists, count)
  local limit = model.long_above and model:long_above() or math.huge
  local groups, of_kind = {}, {}
  for number, ids in ipairs(lists) do
    local kind = #ids > limit and "long" or #ids + count - 1 <= limit and "short" or #ids
    if not of_kind[kind] then
      of_kind[kind] = {}
      groups[#groups + 1] = of_kind[kind]
    end
    table.insert(of_kind[kind], number)
  end
  return groups
end

-- The tokens that each prompt is continued with.
local function continue_all(self, lists, count)
  local made, ended, left, longest = {}, {}, #lists, 0
  for number, ids in ipairs(lists) do made[number], longest = {}, math.max(longest, #ids) end
  for _ = 1, count do
    local tokens = draw_tokens(self, self.passes:next(longest))
    for number, token in ipairs(tokens) do
      if not ended[number] and self.stops[token] then ended[number], left = true, left - 1 end
      if not ended[number] then table.insert(made[number], token) end
    end
    if left == 0 then break end
    for number, ids in ipairs(lists) do longest = math.max(longest, #ids + #made[number]) end
    for i, text in ipairs(self.passes.texts) do
      local number = self.mine[i]
      if not ended[number] then table.insert(text.ids, tokens[number]) end
    end
  end
  return made
end

local function copy_of(ids)
  local copy = {}
  for i, id in ipairs(ids) do copy[i] = id end
  return copy
end

local function set_of(ids)
  local set = {}
  for _, id in ipairs(ids) do set[id] = true end
  return set
end

local COMPARED = {
  { name = "prompt", of = function(o) return ("%d texts with hash %x"):format(o.texts, o.hash) end },
  { name = "stop", of = function(o) return table.concat(o.stop, ", ") end },
  { name = "tokens" }, { name = "temperature" }, { name = "top_k" }, { name = "top_p" }, { name = "seed" },
  { name = "cache" },
}

-- Ranks that continue other prompts, or by other settings, would mix their texts.
local function require_same(running, o, lists, count)
  local parts, compared = {}, setmetatable({ tokens = count, texts = #lists }, { __index = o })
  for i, ids in ipairs(lists) do parts[i] = table.concat(ids, " ") end
  compared.hash = hash.of_text(table.concat(parts, "\n"))
  same_run.new("ms.generate", same_run.options(COMPARED, compared, "%s"), {})
    :require(running, "of what is generated")
end

-- seed + number - 1; after the largest seed comes 0.
local function seed_of(seed, number)
  return seed + number - 1 < 2 ^ 53 and seed + number - 1 or seed - 2 ^ 53 + number - 1
end

-- Continues the prompts of a group together. Draws depend on a prompt's number among all.
local function continue_group(running, o, group, lists, count)
  local prompts, own, draws, model = {}, {}, {}, running.model
  for i, number in ipairs(group) do prompts[i] = lists[number] end
  local numbers, mine = divide(running, #prompts)
  for i, number in ipairs(mine) do
    own[i], draws[i] = copy_of(prompts[number]), sampling.random(seed_of(o.seed, group[number]))
  end
  return continue_all({
    running = running, vocab = model.config.vocab, o = o, group = group, numbers = numbers, mine = mine, draws = draws,
    stops = set_of(o.stop),
    passes = decoding.new(running, own, o.cache ~= false and model.takes_cache == true),
  }, prompts, count)
end

local function continue(model, o)
  check_model(model, o)
  local running, config, count = session.of(model), model.config, o.tokens or o.bytes or 300
  for _, id in ipairs(o.stop) do
    if id >= config.vocab then
      errors.invalid("ms.generate: stop has token %d, but the model has %d tokens, so no text would end there", id,
        config.vocab)
    end
  end
  local lists, many = read_prompts(o, config.vocab)
  require_same(running, o, lists, count)
  local made = {}
  for _, group in ipairs(groups_of(model, lists, count)) do
    for i, tokens in ipairs(continue_group(running, o, group, lists, count)) do made[group[i]] = tokens end
  end
  local texts = {}
  for number, tokens in ipairs(made) do texts[number] = (o.tokenizer or byte_tokens):decode(tokens) end
  if many then return texts, made end
  return texts[1], made[1]
end

---Continues a prompt, or a list of prompts together. Collective.
---@param trainer moonshard.Trainer|moonshard.Module
---@param o moonshard.GenerateOptions?
---@return string|string[] the continuation, without the prompt; of a list of prompts: a list
---@return integer[]|integer[][] its tokens
local function generate(trainer, o)
  o = parse(o)
  local model = type(trainer) == "table" and trainer.with_ema and trainer.model or trainer
  if not tree.is_module(model) then
    errors.invalid("ms.generate: give a model or a trainer first, not %s", options.describe(trainer))
  end
  if not o.ema then return continue(model, o) end
  if not trainer.with_ema then errors.invalid("ms.generate: ema needs the trainer, which has the averages") end
  return trainer:with_ema(continue, model, o)
end

return generate
