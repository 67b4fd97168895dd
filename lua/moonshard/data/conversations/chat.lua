-- Conversations for fine-tuning: JSON lines, a template, and a loss on the answers only.
--
--   ms.data.chat { files = "chats/*.jsonl", tokenizer = ms.tokenizer("hf"), template = "chatml", seq = 1024 }
--
-- With `document_start`, a token that begins each conversation, rows are packed with as many as they have room for; a
-- model with the same document_start does not attend from one to another. All ranks read all files and keep the tokens
-- in memory, 8 bytes each, twice that while rows are joined.

local answer_places = require("moonshard.data.conversations.answer_places")
local errors = require("moonshard.base.error")
local conversations = require("moonshard.data.conversations.conversations")
local files = require("moonshard.data.files.files")
local json_lines = require("moonshard.data.files.json_lines")
local message_tokens = require("moonshard.data.conversations.message_tokens")
local options = require("moonshard.base.checks.options")
local packing = require("moonshard.data.packing")
local windows = require("moonshard.data.windows")
local world = require("moonshard.distributed.world")

local WHO = "ms.data.chat"
local LAST = "last" -- as train_on: the answers after the last message of the user

---@class moonshard.ChatOptions
---@field files string|string[] paths, patterns or folders of JSON lines or lists (.jsonl, .json)
---@field ignore? string[] fields of lines and of messages to train without; default none
---@field tokenizer? moonshard.Tokenizer default: a token is a byte
---@field template? string|moonshard.ChatTemplate "chatml" (default), "llama3", "gemma", "phi3", "plain", or a table; or
---  a Jinja template: "tokenizer" (the one of its folder), the path of a .jinja file, or { jinja = source }
---@field template_kwargs? table<string, any> variables of a Jinja template: { enable_thinking = false }
---@field tools? string|table[] definitions of tools for a Jinja template, where a line has none: a list, or a JSON file
---@field now? string the day that a Jinja template writes as today's: "2024-07-26"
---@field train_on? string the role whose messages are trained on, or "all", or "last": the answers after the last
---  message of the user; default "assistant"
---@field document_start? integer|string a token, or its text in the tokenizer, before each conversation
---@field pack? boolean several conversations in a row; default: with document_start
---@field padding? integer the token of what is left of a row; default 0
---@field seq? integer tokens per row; default 256; of a longer conversation only the beginning is used
---@field batch? integer rows per rank and step; default 8
---@field global_batch? integer rows per step on all ranks, instead of batch
---@field seed? integer seed of the order of rows; default 0
---@field shuffle? boolean default true; false: in the order of the files
---@field drop_last? boolean true: the samples that do not fill an epoch's last step begin the next epoch; false: that
---  step is padded with rows without targets. Validation data is always padded, so that a pass has every sample once
---@field valid_fraction? number fraction of the rows held out for validation; default 0
---@field mesh? moonshard.Mesh its ranks share the rows; default: all ranks of the world

---@class moonshard.ChatData: moonshard.Loader
---@field conversations integer
---@field cut integer conversations of which only the beginning fits a row
---@field trained number tokens that are trained on
---@field own_targets boolean true: some targets are -100, not the next token
---@field document_start integer? the token's id, for the model's option of this name
---@field valid moonshard.Loader? the validation data

local function pack(o)
  local packed = packing.new(WHO, o.seq, o.pack)
  local last = o.train_on == LAST
  local reader = conversations.reader(WHO, o, last and "assistant" or o.train_on)
  for _, path in ipairs(files.find(o.files, json_lines.is_file, ".jsonl")) do
    conversations.each(path, reader, function(messages, where, conversation)
      if last then answer_places.keep_last(messages) end
      packed:add(o.tokens:of(messages, where, conversation))
    end)
  end
  if packed.documents == 0 then errors.invalid("%s: files=%s have no conversation", WHO, files.show(o.files)) end
  if packed.trained == 0 then
    errors.invalid("%s: nothing is trained on: no message has the role %s, flags of messages leave all out, or all are "
      .. "behind the first %d tokens", WHO, options.describe(last and "assistant" or o.train_on), o.seq)
  end
  return packed
end

local function check_size(o, rows)
  windows.require_size(o, rows * o.seq + 1, function(needed)
    return ("%s: files=%s fill %d rows of %d tokens, but %d rows per step%s need at least %d"):format(WHO,
      files.show(o.files), rows, o.seq, o.batch * o.share.ranks, o.valid_fraction > 0 and " and validation" or "",
      (needed - 1) / o.seq)
  end)
end

---Batches { tokens, targets } of conversations: i32 [batch, seq] each; targets are the next tokens where those are
---trained on, and -100 elsewhere.
---@param given moonshard.ChatOptions
---@return moonshard.ChatData
local function chat(given)
  local o = windows.parse(WHO, given, {
    tokenizer = { "any" },
    template = { "string|table", default = "chatml" },
    template_kwargs = message_tokens.OPTIONS.template_kwargs,
    tools = message_tokens.OPTIONS.tools,
    now = message_tokens.OPTIONS.now,
    train_on = { "string", default = "assistant" },
    ignore = { "table" },
    document_start = { "integer|string" },
    pack = { "boolean" },
    padding = { "integer", default = 0 },
    valid_fraction = { "number", default = 0 },
  })
  windows.share(WHO, o)
  o.tokens = message_tokens.new(WHO, o)
  o.document_start = o.tokens.document_start
  if o.pack == nil then o.pack = o.document_start ~= nil end
  if o.pack and not o.document_start then
    errors.invalid("%s: pack needs document_start, the token that begins each conversation in a row, and a model with "
      .. "the same document_start, which keeps them apart", WHO)
  end
  if world.plan_only then
    local data = windows.loaders(o, nil, windows.tokens_needed(o))
    data.document_start, data.own_targets = o.document_start, true
    return data
  end
  local packed = pack(o)
  local stream = packed:finish(o.padding)
  check_size(o, stream.n)
  local data = windows.loaders(o, stream, stream.tokens + 1)
  data.conversations, data.cut, data.trained = packed.documents, packed.cut, packed.trained
  data.read_from = ("%d conversations"):format(packed.documents)
  data.document_start, data.own_targets = o.document_start, true
  return data
end

return chat
