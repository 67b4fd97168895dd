-- Batches for masked language models (Devlin et al. 2019), from those of other data: some tokens are chosen, and become
-- targets; of these 80 % are replaced by the token of the mask, 10 % by any token, and 10 % stay.
--
--   ms.data.masked { ms.data.text { seq = 128 }, mask = 256, vocab = 256 }
--
-- What happens to a token depends on the seed, on the position of its sample in the run, and on its place in it: so it
-- is the same on every mesh and after a resume, and differs between epochs. Validation has the same masks each time.

local arguments = require("moonshard.base.checks.arguments")
local errors = require("moonshard.base.error")
local hash = require("moonshard.base.hash")
local loader = require("moonshard.data.loader")
local options = require("moonshard.base.checks.options")
local permutation = require("moonshard.base.permutation")
local saved = require("moonshard.data.saved")
local sealed = require("moonshard.base.checks.sealed")
local strict = require("moonshard.base.checks.strict")
local tokenizers = require("moonshard.data.tokenizer")

local WHO = "ms.data.masked"
local IGNORED = -100
local TO_MASK, TO_ANY = 0.8, 0.9 -- up to which share of the chosen tokens

---@class moonshard.MaskedOptions
---@field [1] moonshard.Loader data of ms.data.text, tokens or mix
---@field mask integer|string the token that replaces others, or its text in the tokenizer
---@field vocab? integer tokens that replace others by chance are below it; default: that of the tokenizer
---@field tokenizer? moonshard.Tokenizer
---@field fraction? number of the tokens that are chosen; default 0.15
---@field special? integer[] tokens that are never chosen, such as those that begin and end documents; it and all of
---  these options are part of a state
---@field seed? integer default 0

---@class moonshard.MaskedData
---@field data moonshard.Loader
---@field valid moonshard.MaskedData? the validation data
local Masked = { __name = "masked data" }

function Masked:__index(name)
  if name == "valid" then return self.data.valid end -- its data has none: a mix says so
  return Masked[name]
end

strict.refuse_loops(Masked, "for step, batch in data:batches(steps) do")
loader.seal_class(Masked)

function Masked:__tostring()
  return ("%s; masked: %g %% by token %d, seed %d"):format(tostring(self.data), 100 * self.fraction, self.mask,
    self.seed)
end

-- Uniform in [0, 1) from 32 bits.
local function uniform(key) return permutation.mix(key) % 2 ^ 32 / 2 ^ 32 end

-- Replaces tokens of a row, and writes its targets.
local function mask_row(self, position, tokens, targets, length)
  local key = permutation.key(self.seed, position, math.floor(position / 2 ^ 32))
  for i = 0, length - 1 do
    local token = tokens[i]
    targets[i] = IGNORED
    if uniform(key + 3 * i + 1) < self.fraction and not self.is_special[token] then
      local chance = uniform(key + 3 * i + 2)
      targets[i] = token
      if chance < TO_MASK then
        tokens[i] = self.mask
      elseif chance < TO_ANY then
        tokens[i] = math.floor(self.vocab * uniform(key + 3 * i + 3))
      end
    end
  end
end

local function mask_batch(self, position, batch)
  local rows, length = unpack(batch.tokens.shape)
  local first = position + self.data.share.index * rows
  for row = 0, (batch.counted_rows or rows) - 1 do -- padding has no targets
    local at = row * length
    mask_row(self, first + row, batch.tokens.data + at, batch.targets.data + at, length)
  end
  batch.predicts = "masked"
  if batch.source then
    batch.source = ("%s; %.6g masked by %d of %d but %013x, seed %d"):format(batch.source, self.fraction, self.mask,
      self.vocab, self.special, self.seed)
  end
  return batch
end

---Iterates over `steps` batches, as those of its data, with tokens replaced; targets are the original tokens where
---tokens were chosen, and -100 elsewhere.
---@param steps integer|{ total: integer }|{ more: integer }|nil as of its data
---@return fun(): integer?, table? step, and its batch
function Masked:batches(steps)
  local following = self.data:batches(steps)
  return function()
    local step, batch, position = following()
    if step then return step, mask_batch(self, position, batch) end
  end
end

---As of its data.
---@param step integer
function Masked:count_from(step) self.data:count_from(step) end

local function own(self)
  return {
    mask = self.mask, mask_fraction = self.fraction, mask_seed = self.seed, mask_vocab = self.vocab,
    mask_special = self.special,
  }
end

---The position of the run: the state of the data, and what chooses tokens.
---@return table
function Masked:state()
  local state = own(self)
  for name, value in pairs(self.data:state()) do state[name] = value end
  return state
end

---Restores a state of the same data and masks.
---@param state table
function Masked:load_state(state)
  local mine, of_data = own(self), {}
  saved.check("data:load_state", state, mine, nil, "the same mask, fraction, seed, vocab and special tokens")
  for name, value in pairs(state) do
    if mine[name] == nil then of_data[name] = value end
  end
  self.data:load_state(of_data)
end

-- Whether data has targets that are not the next tokens of all: masks would replace them.
local function has_own_targets(data)
  for _, source in ipairs(data.sources or { data }) do
    if source.own_targets then return true end
  end
  return false
end

local function check(o)
  local data = o[1]
  if type(data) ~= "table" or not (data.batches and data.position and data.share) then
    errors.invalid("%s: give data of ms.data.text, tokens or mix first, not %s", WHO, options.describe(data))
  elseif (data.rows or 1) > 1 then
    errors.invalid("%s: pairs of answers have no tokens to predict: give data of ms.data.text, tokens or mix", WHO)
  elseif has_own_targets(data) then
    errors.invalid("%s: conversations of ms.data.chat say which of their tokens are trained on, which masks would "
      .. "replace, and have rows with padding: give data of ms.data.text, tokens or a mix of these", WHO)
  elseif o.tokenizer and not tokenizers.is(o.tokenizer) then
    tokenizers.refuse(WHO, o.tokenizer)
  elseif type(o.mask) == "string" and not o.tokenizer then
    errors.invalid("%s: mask %s is a text, whose token a tokenizer has: give tokenizer, or a number", WHO,
      options.describe(o.mask))
  elseif not (o.vocab or o.tokenizer) then
    errors.invalid("%s: give vocab, below which tokens are that replace others by chance, or tokenizer", WHO)
  elseif not (o.fraction > 0 and o.fraction < 1) then
    errors.invalid("%s: fraction must be above 0 and below 1, not %s", WHO, options.describe(o.fraction))
  end
end

local function check_token(o, what, token)
  if type(token) == "number" and token % 1 == 0 and token >= 0 and token < (o.tokenizer and o.tokenizer.vocab or 2 ^ 31)
  then return end
  errors.invalid("%s: %s must be a token, %s, not %s", WHO, what,
    o.tokenizer and ("0 to %d in %s"):format(o.tokenizer.vocab - 1, o.tokenizer.path)
    or "a whole number of at least 0 and below 2^31", options.describe(token))
end

-- The tokens that are never chosen, as a set, and a hash of them.
local function read_special(o)
  local set, sorted = { [o.mask] = true }, {}
  for key, token in pairs(o.special) do
    if type(key) ~= "number" then
      errors.invalid("%s: special must be a list of tokens, { 101, 102 }, but it has %s = %s", WHO, tostring(key),
        options.describe(token))
    end
    check_token(o, ("special: number %d"):format(key), token)
    set[token] = true
  end
  for token in pairs(set) do sorted[#sorted + 1] = token end
  table.sort(sorted)
  return set, hash.of_text(table.concat(sorted, " "))
end

local function new(o, data)
  local valid = rawget(sealed.fields(data), "valid")
  return sealed.seal(setmetatable({
    data = data, valid = valid and new(o, valid) or nil, mask = o.mask, vocab = o.vocab,
    fraction = o.fraction, seed = o.seed, is_special = o.is_special, special = o.special,
  }, Masked))
end

---Data for masked language models: BERT's (ms.models.bert).
---@param given moonshard.MaskedOptions
---@return moonshard.MaskedData
local function masked(given)
  local o = options.parse(WHO, given, {
    { "any", required = "data" }, mask = { "integer|string", required = true }, vocab = { "positive" },
    tokenizer = { "table" }, fraction = { "number", default = 0.15 }, special = { "table", default = {} },
    seed = { "seed", default = 0 },
  })
  check(o)
  if type(o.mask) == "string" then o.mask = o.tokenizer:id(o.mask) end
  check_token(o, "mask", o.mask)
  o.vocab = o.vocab or o.tokenizer.vocab
  o.is_special, o.special = read_special(o)
  return new(o, o[1])
end

arguments.exact_all("data", Masked)

return masked
