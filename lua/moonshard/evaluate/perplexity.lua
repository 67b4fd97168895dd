-- Perplexity of a text: windows of the model's length, a stride apart, of which only what no earlier window has scored
-- counts. With a stride below the length, tokens at the beginning of a window have context, too.

local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.files.input_file")
local json_texts = require("moonshard.data.files.json_texts")
local options = require("moonshard.base.checks.options")
local score = require("moonshard.evaluate.score")
local text_files = require("moonshard.data.files.text_files")
local world = require("moonshard.distributed.world")

local WHO = "ms.evaluate.perplexity"

---@class moonshard.PerplexityOptions
---@field files? string|string[] paths, folders or patterns of texts, which follow one another: what ms.data.text reads
---@field field? string the field of JSON lines and lists that has the texts, as of ms.data.text
---@field separator? string what follows each text of JSON; "\n"
---@field raw? boolean take the bytes of any file, also of JSON and of other formats; false
---@field text? string instead of files
---@field tokens? integer[] instead of files or text
---@field tokenizer? string|moonshard.Tokenizer default: a token is a byte
---@field special? boolean put the tokens around the text that the tokenizer's files name, its BOS; default true
---@field seq? integer tokens of a window; default: the model's
---@field stride? integer from a window to the next, at most seq; default seq: windows do not overlap
---@field batch? integer windows of a rank at a time; default 8
---@field ema? boolean use the averages of a trainer's weights; default false

---@class moonshard.Perplexity
---@field perplexity number exp of nll
---@field nll number mean of -log p over the tokens, nats
---@field tokens integer that were scored: all but the first, which has no context
---@field bits_per_byte number? of the text after its first token; nil for tokens
---@field windows integer

local function read_text(o)
  local given = (o.files and 1 or 0) + (o.text and 1 or 0) + (o.tokens and 1 or 0)
  if given ~= 1 then errors.invalid("%s: give one of files, text and tokens", WHO) end
  local json = json_texts.of_options(WHO, o)
  if not o.files then
    json.check_used()
    return o.text
  end
  local parts = {}
  for i, path in ipairs((text_files.find(o.files, o.raw, json))) do
    parts[i] = input_file.read(path, "its perplexity is wanted")
  end
  json.check_used()
  return table.concat(parts)
end

local function tokens_of(o, text, subject)
  if text then return subject.tokenizer:encode(text, { special = o.special }) end
  for i, id in ipairs(o.tokens) do
    if type(id) ~= "number" or id % 1 ~= 0 or id < 0 or id >= subject.vocab then
      errors.invalid("%s: token %d is %s; the model has tokens 0 to %d", WHO, i, options.describe(id),
        subject.vocab - 1)
    end
  end
  return o.tokens
end

-- The bytes of the text that have a score: those of the first token, if it is of the text, have none.
local function scored_bytes(text, tokens, subject)
  local first = subject.tokenizer:decode({ tokens[1] })
  return #text - (text:sub(1, #first) == first and #first or 0)
end

-- Each target is in the first window that reaches it.
local function windows_of(tokens, seq, stride)
  local rows, first, scored = {}, 1, 0
  while scored < #tokens - 1 do
    local count = math.min(seq, #tokens - first)
    local reached = first + count - 1 -- targets are tokens 2 to reached + 1
    rows[#rows + 1] = { tokens = tokens, first = first, count = count, scored = reached - scored }
    first, scored = first + stride, reached
  end
  return rows
end

---Perplexity of a text. Meshes of replicas and shards give the same bits, `tensor` and `context` others in the last
---places. Collective: all ranks call it with the same text.
---@param model moonshard.Module|moonshard.Trainer
---@param o moonshard.PerplexityOptions
---@return moonshard.Perplexity
return function(model, o)
  local specs = {
    files = { "string|table" }, text = { "string" }, tokens = { "table" }, stride = { "positive" },
    raw = { "boolean" }, field = { "string" }, separator = { "string" },
  }
  for name, spec in pairs(score.OPTIONS) do specs[name] = spec end
  o = options.parse(WHO, o, specs)
  local subject = score.subject(WHO, model, o)
  local stride = o.stride or subject.seq
  if stride > subject.seq then
    errors.invalid("%s: stride=%d is more than seq=%d, so tokens between windows would not count", WHO, stride,
      subject.seq)
  end
  local nan = 0 / 0
  if world.plan_only then return { perplexity = nan, nll = nan, bits_per_byte = nan, tokens = 0, windows = 0 } end
  local text = read_text(o)
  local tokens = tokens_of(o, text, subject)
  if #tokens < 2 then
    errors.invalid("%s: the text has %d tokens, of which the first has no context: give at least 2", WHO, #tokens)
  end
  local facts = { { "stride", stride }, { "bytes", text and #text or "unknown" }, { "tokens", #tokens } }
  local rows, sum = windows_of(tokens, subject.seq, stride), 0
  for _, value in ipairs(score.rows(subject, rows, o.batch, facts)) do sum = sum - value end
  local count = #tokens - 1
  return {
    perplexity = math.exp(sum / count), nll = sum / count, tokens = count, windows = #rows,
    bits_per_byte = text and sum / math.log(2) / scored_bytes(text, tokens, subject) or nil,
  }
end
