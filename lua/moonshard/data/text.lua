-- Text by bytes: the token of a byte is its value, so the vocabulary is 256 and the loss is in nats a byte.
--
-- The stream of bytes is cut into windows of seq bytes; sample w has tokens [w*seq, (w+1)*seq) and the same bytes moved
-- by one as targets. For validation, every so many windows a block of up to 16 neighbouring ones is held out, so that
-- the validation text is of the same kind as the rest, and hardly any of it continues a sentence that was trained on.

local errors = require("moonshard.error")
local files = require("moonshard.data.files")
local loader = require("moonshard.data.loader")
local options = require("moonshard.options")
local world = require("moonshard.world")

local LONGEST_BLOCK = 16
-- Validation draws its order from a key of its own.
local VALIDATION_SEED = 2 ^ 31

---@class moonshard.TextSplit windows of one purpose: training or validation
---@field stream moonshard.ByteStream?
---@field seq integer
---@field n integer
---@field window fun(sample: integer): integer
local TextSplit = {}
TextSplit.__index = TextSplit

function TextSplit:read(sample, buffers, row)
  local offset, at = self.window(sample) * self.seq, row * self.seq
  self.stream:read(offset, self.seq, buffers.tokens + at)
  self.stream:read(offset + 1, self.seq, buffers.targets + at)
end

-- How `windows` windows are divided: counts, and which window each sample is. Windows come in cycles of `period` blocks
-- of which the last is for validation; what is left after the last full cycle is for training.
local function divide(windows, valid_fraction)
  if valid_fraction == 0 then
    return { train = windows, valid = 0, train_window = function(sample) return sample end }
  end
  local period = math.max(2, math.floor(1 / valid_fraction + 0.5))
  local block = math.max(1, math.min(LONGEST_BLOCK, math.floor(windows / (4 * period))))
  local cycle, kept = block * period, block * (period - 1)
  local cycles = math.floor(windows / cycle)
  return {
    train = windows - cycles * block,
    valid = cycles * block,
    train_window = function(sample)
      local full = math.min(math.floor(sample / kept), cycles)
      return full * cycle + (sample - full * kept)
    end,
    valid_window = function(sample)
      return math.floor(sample / block) * cycle + kept + sample % block
    end,
  }
end

local function group_digits(number)
  local text = ("%d"):format(number):reverse():gsub("(%d%d%d)", "%1,"):reverse()
  return (text:gsub("^,", ""))
end

-- Bytes that hold enough windows for one step and, unless there is no validation, one validation sample.
local function bytes_needed(o, samples)
  local windows = samples
  while true do
    local parts = divide(windows, o.valid_fraction)
    if parts.train >= samples and (o.valid_fraction == 0 or parts.valid >= 1) then return windows * o.seq + 1 end
    windows = windows + 1
  end
end

local function check_size(o, stream, samples)
  local needed = bytes_needed(o, samples)
  if stream.bytes >= needed then return end
  errors.invalid("ms.data.text: files=%s %s, but seq=%d and %d sequences a step need at least %s bytes",
    type(o.files) == "table" and table.concat(o.files, ",") or o.files,
    stream.bytes == 0 and "is empty" or ("has %s bytes"):format(group_digits(stream.bytes)), o.seq, samples,
    group_digits(needed))
end

local function make_loader(o, stream, n, window, restart)
  local fields = {
    { name = "tokens", dtype = "i32", shape = { o.seq } },
    { name = "targets", dtype = "i32", shape = { o.seq } },
  }
  return loader.new({
    source = setmetatable({ stream = stream, seq = o.seq, n = n, window = window, fields = fields }, TextSplit),
    batch = o.batch,
    share = o.share,
    seed = o.seed + (restart and VALIDATION_SEED or 0),
    shuffle = o.shuffle,
    restart = restart,
  })
end

---@class moonshard.TextOptions
---@field files string|string[] paths, folders or patterns; a string may list several, separated by commas or blanks
---@field seq? integer bytes a sequence; 256
---@field batch? integer sequences a rank and step; 8
---@field global_batch? integer sequences of all ranks a step, instead of batch
---@field seed? integer of the order of samples; 0
---@field shuffle? boolean true; false: in the order of the text
---@field valid_fraction? number of the windows that are held out for validation; 0.05; 0: none, and no data.valid
---@field mesh? moonshard.Mesh whose ranks share the samples; all ranks of the world

---@class moonshard.TextData: moonshard.Loader
---@field bytes number of the text
---@field valid moonshard.Loader? the windows held out; every batches() of it begins anew with the same samples

---Batches { tokens, targets } of text: i32 [batch, seq] each, targets the tokens moved by one byte.
---@param o moonshard.TextOptions
---@return moonshard.TextData
local function text(o)
  o = options.parse("ms.data.text", o, {
    files = { "string|table", required = true },
    seq = { "positive", default = 256 },
    batch = { "positive" },
    global_batch = { "positive" },
    seed = { "integer", default = 0 },
    shuffle = { "boolean", default = true },
    valid_fraction = { "number", default = 0.05 },
    mesh = { "table" },
  })
  if not (o.valid_fraction >= 0 and o.valid_fraction <= 0.5) then
    errors.invalid("ms.data.text: valid_fraction=%g must be between 0 and 0.5", o.valid_fraction)
  end
  o.share = loader.share("ms.data.text", o.mesh)
  o.batch = loader.batch_of_rank("ms.data.text", o.share, o.batch, o.global_batch)
  local samples = o.batch * o.share.ranks
  local stream, bytes
  if world.plan_only then
    bytes = bytes_needed(o, samples)
  else
    stream = files.open(o.files)
    check_size(o, stream, samples)
    bytes = stream.bytes
  end
  local parts = divide(math.floor((bytes - 1) / o.seq), o.valid_fraction)
  local data = make_loader(o, stream, parts.train, parts.train_window, false)
  data.bytes = bytes
  if parts.valid > 0 then data.valid = make_loader(o, stream, parts.valid, parts.valid_window, true) end
  return data
end

return text
