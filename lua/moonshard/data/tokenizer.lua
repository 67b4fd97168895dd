-- Tokenizers of a Hugging Face tokenizer.json (BPE, Unigram, WordPiece, WordLevel): text to ids and back.

local arguments = require("moonshard.base.checks.arguments")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local files = require("moonshard.data.files.files")
local nearest = require("moonshard.base.names.nearest")
local notes = require("moonshard.distributed.notes")
local options = require("moonshard.base.checks.options")
local text_lines = require("moonshard.base.text.text_lines")
local tokenizer_config = require("moonshard.data.tokenizer_config")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

---@class moonshard.Tokenizer
---@field path string
---@field vocab integer the largest id + 1
---@field model string "byte-level BPE", "BPE", "Unigram", "WordPiece" or "WordLevel"
---@field before integer[] what the post_processor puts before a text: its BOS
---@field behind integer[] what it puts behind it
---@field handle ffi.cdata* for the engine
---@field untold string[]? what the files say of these otherwise, until it has been told
local Tokenizer = {}
Tokenizer.__index = Tokenizer

local tokenizer = {}

-- What to do with a model whose tokenizer is not read.
local function with_advice(message)
  return message .. ": write token files with Hugging Face's tokenizers library, and train on these with ms.data.tokens"
end

local function list_of(ids, count)
  local list = {}
  for i = 1, tonumber(count) do list[i] = ids[i - 1] end
  return list
end

-- The id of a token; and, if it is found in a text before that is cut into pieces, its flags.
local function finder(handle, info)
  local flags = {}
  for i, id in ipairs(list_of(info.added, info.n_added)) do
    local bits = info.added_flags[i - 1]
    flags[id] = {
      lstrip = bit.band(bits, C.MS_ADDED_LSTRIP) ~= 0, rstrip = bit.band(bits, C.MS_ADDED_RSTRIP) ~= 0,
      single_word = bit.band(bits, C.MS_ADDED_SINGLE_WORD) ~= 0,
    }
  end
  return function(token)
    local id = C.ms_tokenizer_find(handle, token)
    return id, flags[id]
  end
end

---Reads a tokenizer.json, or the one in a folder. MS_EUNSUPPORTED names a field that asks for what is not supported, or
---what the files next to it change; MS_EINVAL one that is wrong.
---@param path string
---@return moonshard.Tokenizer
function tokenizer.open(path)
  if type(path) ~= "string" then errors.invalid("ms.tokenizer: give a path, not %s", tostring(path)) end
  local out = ffi.new("ms_tokenizer *[1]")
  local status = C.ms_tokenizer_open(path, out)
  if status ~= 0 and not files.exists(path) then
    local message = ffi.string(C.ms_error_message())
    C.ms_error_clear()
    errors.invalid('%s: take the tokenizer.json of a model, or train one (recipes/guides/bring_your_data.md)', message)
  end
  check(status, status == C.MS_EUNSUPPORTED and with_advice or nil)
  notes.print()
  local handle = ffi.gc(out[0], C.ms_free)
  local info = ffi.new("ms_tokenizer_info")
  check(C.ms_tokenizer_describe(handle, info, ffi.sizeof(info)))
  local before, behind = list_of(info.before, info.n_before), list_of(info.behind, info.n_behind)
  local self = setmetatable({
    path = path, handle = handle, vocab = info.vocab, model = ffi.string(info.model), before = before, behind = behind,
  }, Tokenizer)
  self.untold = tokenizer_config.read(self, finder(handle, info))
  return self
end

---@param value any
---@return boolean
function tokenizer.is(value) return getmetatable(value) == Tokenizer end

---Raises for an option `tokenizer` that is none.
---@param who string for messages
---@param given any
function tokenizer.refuse(who, given)
  errors.invalid("%s: tokenizer must be one that ms.tokenizer(path) returns, not %s", who, options.describe(given))
end

-- Whether a list has these tokens from place `at` on.
local function has_at(list, at, tokens)
  for i, token in ipairs(tokens) do
    if list[at + i - 1] ~= token then return false end
  end
  return true
end

-- Says, where the tokens around a text are first asked for, what other ones the folder's files ask for.
local function tell(self)
  for _, line in ipairs(world.rank == 0 and self.untold or {}) do
    io.stderr:write("moonshard: warning: ", text_lines.escape(line), "\n")
  end
  self.untold = nil
end

---A copy of tokens behind those that the post_processor puts before a text, unless they begin with them.
---@param ids integer[]
---@return integer[]
function Tokenizer:begun(ids)
  tell(self)
  local list = {}
  for i, id in ipairs(has_at(ids, 1, self.before) and {} or self.before) do list[i] = id end
  for _, id in ipairs(ids) do list[#list + 1] = id end
  return list
end

---@class moonshard.EncodeOptions
---@field special? boolean put the tokens around the text that the post_processor names, at each end that lacks them;
---  default false

---The ids of a text. Added tokens in the text ("<|endoftext|>") are recognised.
---@param text string UTF-8
---@param o moonshard.EncodeOptions?
---@return integer[]
function Tokenizer:encode(text, o)
  o = options.parse("tokenizer:encode", o, { special = { "boolean", default = false } })
  local ids, count = ffi.new("const int32_t *[1]"), ffi.new("int64_t[1]")
  check(C.ms_tokenizer_encode(self.handle, text, #text, ids, count))
  local list = list_of(ids[0], count[0])
  if not o.special then return list end
  tell(self)
  local ended = #list >= #self.behind and has_at(list, #list - #self.behind + 1, self.behind)
  list = self:begun(list)
  for _, id in ipairs(ended and {} or self.behind) do list[#list + 1] = id end
  return list
end

---The text of ids, including special tokens. It can end within a character.
---@param ids integer[]
---@return string
function Tokenizer:decode(ids)
  local text, bytes = ffi.new("const char *[1]"), ffi.new("int64_t[1]")
  check(C.ms_tokenizer_decode(self.handle, ffi.new("int32_t[?]", #ids + 1, ids), #ids, text, bytes))
  return ffi.string(text[0], bytes[0])
end

-- Those that begin or end texts, for messages.
local USUAL_TOKENS = { "<|endoftext|>", "<|end_of_text|>", "<|begin_of_text|>", "<|im_end|>", "</s>", "<eos>" }

---The id of a token as tokenizer.json writes it.
---@param token string "<|endoftext|>"
---@return integer
function Tokenizer:id(token)
  local id = C.ms_tokenizer_find(self.handle, token)
  if id < 0 then
    local known = {}
    for _, usual in ipairs(USUAL_TOKENS) do
      if C.ms_tokenizer_find(self.handle, usual) >= 0 then known[usual] = true end
    end
    errors.raise("MS_ENAME", "%s: it has no token %s%s", self.path, token,
      next(known) and ": " .. nearest.advice(token, known) or "")
  end
  return id
end

---@class moonshard.TokenizeOptions
---@field begin? string token before each document
---@field finish? string token after each document
---@field threads? integer default: all cores
---@field replace_invalid? boolean replace invalid UTF-8 by U+FFFD; by default it is an error
---@field documents? boolean a file has several, each ended by a byte 0xff; default: a file is one

---Tokenizes text files into one token file, which appears when it is complete.
---@param paths string[]
---@param out string
---@param o moonshard.TokenizeOptions?
---@return { bytes: number, tokens: number, width: integer }
function Tokenizer:tokenize_files(paths, out, o)
  o = o or {}
  local names, config = ffi.new("const char *[?]", #paths + 1), ffi.new("ms_tokenize_config")
  for i, path in ipairs(paths) do names[i - 1] = path end
  check(C.ms_config_default("ms_tokenize_config", config, ffi.sizeof(config)))
  if o.begin then config.begin = self:id(o.begin) end
  -- `end` is a keyword.
  if o.finish then config["end"] = self:id(o.finish) end
  config.threads, config.replace = o.threads or 0, o.replace_invalid and 1 or 0
  config.documents = o.documents and 1 or 0
  local counts, width = ffi.new("int64_t[2]"), ffi.new("int[1]")
  check(C.ms_tokenize_files(self.handle, #paths, names, out, config, counts, counts + 1, width))
  return { bytes = tonumber(counts[0]), tokens = tonumber(counts[1]), width = width[0] }
end

arguments.exact_all("tokenizer", Tokenizer)

return tokenizer
