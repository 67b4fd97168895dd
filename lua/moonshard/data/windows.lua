-- Divides a stream of tokens into windows of seq tokens, for training and for validation.
--
-- Window w has tokens [w*seq, (w+1)*seq), and the same shifted by one as targets. Validation holds out blocks of up to
-- 16 adjacent windows at regular intervals, so that its data resembles the training data, but rarely continues a
-- sequence of it.

local errors = require("moonshard.base.error")
local files = require("moonshard.data.files.files")
local loader = require("moonshard.data.loader")
local options = require("moonshard.base.checks.options")

local LONGEST_BLOCK = 16
-- The validation order has a separate key.
local VALIDATION_SEED = 2 ^ 31

local windows = {}

---@class moonshard.WindowOptions
---@field seq integer
---@field batch integer samples per rank and step
---@field share moonshard.Share
---@field seed number
---@field shuffle boolean
---@field drop_last boolean
---@field valid_fraction number
---@field rows integer? rows of a batch that a window becomes; default 1
---@field settings string? of loader.settings
---@field has_batch boolean? whether the recipe gave one
---@field lacks string? what a step of the default batch lacks

local function all_of(sample) return sample end

local LONGEST_CYCLE = 20 -- blocks, of fractions that are not about 1/n

-- Blocks of a cycle, and how many of them, the last, are for validation: 1 of n where that is the fraction within 5 %,
-- and else as many of at most 20 as are nearest to it.
local function share_of(valid_fraction)
  local period, held = math.max(2, math.floor(1 / valid_fraction + 0.5)), 1
  if math.abs(period * valid_fraction - 1) < 0.0499 then return period, held end
  for blocks = 2, LONGEST_CYCLE do
    local nearest = math.max(1, math.floor(blocks * valid_fraction + 0.5))
    if math.abs(nearest / blocks - valid_fraction) < math.abs(held / period - valid_fraction) - 1e-9 then
      period, held = blocks, nearest
    end
  end
  return period, held
end

-- Divides `count` windows: the number of samples of each kind, and the window of each sample. In every cycle of
-- `period` blocks, the last ones are for validation. The windows after the last full cycle are for training.
local function divide(count, valid_fraction)
  if valid_fraction == 0 then return { train = count, valid = 0, train_window = all_of } end
  local period, held = share_of(valid_fraction)
  local cycles_wanted = held == 1 and 4 or 32 -- a longer cycle leaves more behind the last one
  local block = math.max(1, math.min(LONGEST_BLOCK, math.floor(count / (cycles_wanted * period))))
  local cycle, kept, out = block * period, block * (period - held), block * held
  local cycles = math.floor(count / cycle)
  return {
    train = count - cycles * out,
    valid = cycles * out,
    train_window = function(sample)
      local full = math.min(math.floor(sample / kept), cycles)
      return full * cycle + (sample - full * kept)
    end,
    valid_window = function(sample)
      return math.floor(sample / out) * cycle + kept + sample % out
    end,
  }
end

local function group_digits(number)
  local text = ("%d"):format(number):reverse():gsub("(%d%d%d)", "%1,"):reverse()
  return (text:gsub("^,", ""))
end

-- Samples of a step, or those that it needs where the others can be padding.
local function samples_needed(o) return o.drop_last and o.batch * o.share.ranks or 1 end

---Number of tokens needed for one step and, with validation, one validation sample.
---@param o moonshard.WindowOptions
---@return number
function windows.tokens_needed(o)
  local samples = samples_needed(o)
  if o.valid_fraction == 0 then return samples * o.seq + 1 end
  -- Of c windows at most c (period - held) / period + held * LONGEST_BLOCK are for training, and a cycle needs `period`
  -- of them: no smaller count is enough, and the least one is a few windows away.
  local period, held = share_of(o.valid_fraction)
  local count = math.max(samples, period, math.floor((samples - held * LONGEST_BLOCK) * period / (period - held)))
  while divide(count, o.valid_fraction).train < samples do count = count + 1 end
  return count * o.seq + 1
end

---Refuses data with too few tokens for one step: at once if the recipe gave a batch, and otherwise, if there is a
---sample, where batches are asked for, because a mix of it can have a smaller batch.
---@param o moonshard.WindowOptions
---@param tokens number
---@param say fun(needed: number): string the message
function windows.require_size(o, tokens, say)
  local needed = windows.tokens_needed(o)
  if tokens >= needed then return end
  local of_a_sample = setmetatable({ drop_last = false }, { __index = o })
  if o.has_batch or tokens < windows.tokens_needed(of_a_sample) then errors.invalid("%s", say(needed)) end
  o.lacks = say(needed)
end

---The same of a stream of text or tokens.
---@param who string for messages
---@param spec string|string[] the files
---@param unit string "bytes" or "tokens"
---@param tokens number
---@param o moonshard.WindowOptions
function windows.check_size(who, spec, unit, tokens, o)
  windows.require_size(o, tokens, function(needed)
    return ("%s: files=%s %s, but seq=%d and %d sequences per step need at least %s %s"):format(who, files.show(spec),
      tokens == 0 and "is empty" or ("has %s %s"):format(group_digits(tokens), unit), o.seq, samples_needed(o),
      group_digits(needed), unit)
  end)
end

---What data is read from, as runs say it.
---@param count integer files
---@param tokens number
---@param unit string "byte" or "token"
---@return string "72 files of 2,401,123 bytes"
function windows.read_from(count, tokens, unit)
  return ("%d file%s of %s %ss"):format(count, count == 1 and "" or "s", group_digits(tokens), unit)
end

---Raises if a stream of validation data has too few tokens for one sample.
---@param who string for messages
---@param spec string|string[] the files
---@param unit string "bytes" or "tokens"
---@param tokens number
---@param o moonshard.WindowOptions
function windows.check_validation(who, spec, unit, tokens, o)
  windows.check_size(who, spec, unit, tokens, { seq = o.seq, valid_fraction = 0, drop_last = false })
end

-- The options that all data in windows has, with further ones.
local function specs_with(more)
  local specs = {
    files = { "string|table", required = true },
    seq = { "positive", default = 256 },
    batch = { "positive" },
    global_batch = { "positive" },
    seed = { "seed", default = 0 },
    shuffle = { "boolean", default = true },
    drop_last = { "boolean", default = true },
    mesh = { "table" },
  }
  for name, spec in pairs(more) do specs[name] = spec end
  return specs
end

---Reads options of data in windows.
---@param who string for messages
---@param given table
---@param more table<string, moonshard.OptionSpec> those that not all data in windows has
---@return table
function windows.parse(who, given, more)
  local specs = specs_with(more)
  local o = options.parse(who, given, specs)
  o.settings = loader.settings(o, specs)
  return o
end

---Reads options common to text and token files: this rank's share of a step's samples, and the validation fraction.
---@param who string for messages
---@param o table parsed options; share and batch are set
function windows.share(who, o)
  if not (o.valid_fraction >= 0 and o.valid_fraction <= 0.5) then
    errors.invalid("%s: valid_fraction=%g must be between 0 and 0.5", who, o.valid_fraction)
  end
  o.share, o.has_batch = loader.share(who, o.mesh), (o.batch or o.global_batch) ~= nil
  o.batch = loader.batch_of_rank(who, o.share, o.batch, o.global_batch)
  loader.check_tokens(who, o.seq, o.batch)
end

-- The share of the windows in fact.
local function held_out_of(o)
  if o.valid_fraction == 0 then return 0 end
  local period, held = share_of(o.valid_fraction)
  return held / period
end

local function make_loader(o, stream, n, window, restart)
  return loader.new({
    stream = stream,
    n = n,
    first = function(sample) return window(sample) * o.seq end,
    seq = o.seq,
    batch = o.batch,
    share = o.share,
    seed = o.seed + (restart and VALIDATION_SEED or 0), given_seed = o.seed,
    shuffle = o.shuffle,
    drop_last = o.drop_last and not restart,
    restart = restart,
    rows = o.rows,
    held_out = held_out_of(o),
    settings = o.settings, lacks = not restart and o.lacks or nil,
  })
end

---A loader over the training windows of a stream; its `valid` is a loader over the validation windows, if any.
---@param o moonshard.WindowOptions
---@param stream moonshard.TokenStream? nil when only planning: nothing is read
---@param tokens number tokens in the stream
---@return moonshard.Loader
function windows.loaders(o, stream, tokens)
  local parts = divide(math.floor((tokens - 1) / o.seq), o.valid_fraction)
  local data = make_loader(o, stream, parts.train, parts.train_window, false)
  if parts.valid > 0 then data.valid = make_loader(o, stream, parts.valid, parts.valid_window, true) end
  return data
end

---A loader over all windows of a separate stream, which restarts with every call of batches.
---@param o moonshard.WindowOptions
---@param stream moonshard.TokenStream?
---@param tokens number
---@return moonshard.Loader
function windows.validation(o, stream, tokens)
  return make_loader(o, stream, math.floor((tokens - 1) / o.seq), all_of, true)
end

return windows
