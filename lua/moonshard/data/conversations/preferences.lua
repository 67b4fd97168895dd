-- Pairs of answers, one preferred to the other, for losses such as ms.loss.dpo: JSON lines and a template.
--
--   { "prompt": "...", "chosen": "...", "rejected": "..." }           prompt may also be a list of messages
--   { "chosen": [ messages ], "rejected": [ messages ] }              whole conversations, which end with an answer
--
-- A line can have both: conversations that have the prompt, behind a message of the system or as their last question,
-- are taken as they are. Either can have `system`, a first message of both.
--
-- Rows of a batch are chosen and rejected in turn, so ranks and micro-batches never separate a pair. Only answers have
-- targets. All ranks read all files and keep the tokens in memory, 8 bytes each, twice that while rows are joined.

local conversations = require("moonshard.data.conversations.conversations")
local errors = require("moonshard.base.error")
local files = require("moonshard.data.files.files")
local json_lines = require("moonshard.data.files.json_lines")
local line_fields = require("moonshard.data.conversations.line_fields")
local message_tokens = require("moonshard.data.conversations.message_tokens")
local options = require("moonshard.base.checks.options")
local packing = require("moonshard.data.packing")
local windows = require("moonshard.data.windows")
local world = require("moonshard.distributed.world")

local WHO = "ms.data.preferences"

---@class moonshard.PreferenceOptions
---@field files string|string[] paths, patterns or folders of .jsonl and .jsonl.zst files
---@field ignore? string[] fields of lines and of messages to train without; default none
---@field tokenizer? moonshard.Tokenizer default: a token is a byte
---@field template? string|moonshard.ChatTemplate as of ms.data.chat; default "chatml"
---@field padding? integer the token of what is left of a row; default 0
---@field seq? integer tokens per row; default 256; of a longer conversation only the beginning is used
---@field batch? integer pairs per rank and step; default 8
---@field global_batch? integer pairs per step on all ranks, instead of batch
---@field seed? integer seed of the order of pairs; default 0
---@field shuffle? boolean default true; false: in the order of the files
---@field drop_last? boolean true: the samples that do not fill an epoch's last step begin the next epoch; false: that
---  step is padded with rows without targets. Validation data is always padded, so that a pass has every sample once
---@field valid_fraction? number fraction of the pairs held out for validation; default 0
---@field mesh? moonshard.Mesh its ranks share the pairs; default: all ranks of the world

---@class moonshard.PreferenceData: moonshard.Loader
---@field pairs integer
---@field cut integer answers of which only the beginning fits a row
---@field left_out integer pairs that are not in the data: their answers begin behind the row, or differ behind it only
---@field valid moonshard.Loader? the validation data

-- ---- lines ------------------------------------------------------------------------------------------------------

local FIELDS = line_fields.new("a pair", "prompt chosen rejected system messages", line_fields.SOURCE
  .. " score_chosen score_rejected chosen_score rejected_score chosen_rating rejected_rating chosen_model "
  .. "rejected_model", {
    tools = line_fields.TOOLS.tools, functions = line_fields.TOOLS.functions,
    margin = "ms.loss.dpo knows no margins",
    history = "write earlier messages into prompt, a list of { role, content }",
  })

local function same(a, b) return a.role == b.role and a.content == b.content end

-- Whether messages behind the first `skipped` begin with others.
local function continues_with(messages, skipped, others)
  for i, message in ipairs(others) do
    if not messages[skipped + i] or not same(messages[skipped + i], message) then return false end
  end
  return true
end

-- The text of the system that a list begins with, and what follows it.
local function split_system(messages)
  if messages[1] and messages[1].role == "system" then return messages[1].content, { unpack(messages, 2) } end
  return nil, messages
end

-- An empty prompt of whole conversations says nothing.
local function prompt_of(where, row, field, reader)
  local whole = type(row[field]) == "table" and line_fields.is_empty(row.prompt)
  if row.prompt == nil or whole then return {} end
  if type(row.prompt) == "table" then return conversations.messages(where, row, "prompt", reader) end
  return { { role = "user", content = conversations.text(where, row, "prompt"), trained = false } }
end

local function describe(message) return ("%s %s"):format(message.role, options.describe(message.content)) end

-- The messages behind that of the system, how many of them come before the answer, and whether they are those of a
-- whole conversation, which has its prompt at its beginning or as what the last message answers. A list that begins
-- with an answer goes behind the prompt.
local function join(where, field, prompt, answer)
  if #prompt == 0 or continues_with(answer, 0, prompt)
    or #answer > #prompt and continues_with(answer, #answer - 1 - #prompt, prompt) then
    return answer, #answer - 1, true
  end
  if answer[1].role ~= "user" or prompt[#prompt].role ~= "user" then
    local messages = { unpack(prompt) }
    for _, message in ipairs(answer) do messages[#messages + 1] = message end
    return messages, #prompt, false
  end
  local differing = 1
  while prompt[differing + 1] and answer[differing + 1] and same(prompt[differing], answer[differing]) do
    differing = differing + 1
  end
  errors.invalid("%s: prompt is neither the beginning of %s nor its last question: it has %s, and %s has %s: give "
    .. "both the same text, or only what answers the prompt, or train without it: ignore = { \"prompt\" }", where,
    field, describe(prompt[differing]), field, describe(answer[differing]))
end

-- Puts the message of the system, which several fields can have, before others.
local function with_system(where, systems, messages)
  local first
  for _, given in ipairs(systems) do
    if first and given.text and given.text ~= first.text then
      errors.invalid("%s: the message of the system is %s by %s, and %s by %s: which is meant?", where,
        options.describe(first.text), first.field, options.describe(given.text), given.field)
    end
    first = first or given.text and given
  end
  if not first then return messages end
  return { { role = "system", content = first.text, trained = false }, unpack(messages) }
end

-- The messages of one answer behind its prompt, and whether they are those of a whole conversation.
local function conversation(where, row, field, reader)
  local prompt, answer = prompt_of(where, row, field, reader), nil
  if type(row[field]) == "table" then
    answer = conversations.messages(where, row, field, reader)
  elseif prompt[1] then
    answer = { { role = "assistant", content = conversations.text(where, row, field) } }
  else
    errors.invalid("%s: a pair has prompt, chosen and rejected; or chosen and rejected that are lists of messages",
      where)
  end
  if answer[#answer].role ~= "assistant" then
    errors.invalid("%s: the last message of %s has the role %s, not \"assistant\"", where, field,
      options.describe(answer[#answer].role))
  end
  local of_prompt, asked = split_system(prompt)
  local of_answer, answered = split_system(answer)
  local messages, before, whole = join(where, field, asked, answered)
  for i, message in ipairs(messages) do message.trained = i > before and message.role == "assistant" end
  local of_line = not line_fields.is_empty(row.system) and conversations.text(where, row, "system") or nil
  return with_system(where, {
    { field = field, text = of_answer }, { field = "prompt", text = of_prompt }, { field = "system", text = of_line },
  }, messages), whole
end

-- UltraFeedback repeats the chosen conversation.
local function check_messages(where, row, chosen, reader)
  if line_fields.is_empty(row.messages) then return end
  local given = conversation(where, row, "messages", reader)
  if #given == #chosen and continues_with(given, 0, chosen) then return end
  errors.invalid("%s: messages are not the chosen conversation, so they belong to another form: to train without them: "
    .. "ignore = { \"messages\" }", where)
end

-- A pair without a difference, or with nothing for one of its answers, teaches nothing.
local function check_pair(where, chosen, rejected, whole)
  for i, messages in ipairs({ chosen, rejected }) do
    if not messages[#messages].content:find("%S") then
      errors.invalid("%s: %s is empty: give it a text, or leave the line out", where,
        i == 1 and "chosen" or "rejected")
    end
  end
  local alike = #chosen == #rejected and continues_with(rejected, 0, { unpack(chosen, 1, #chosen - 1) })
  if whole and not alike then
    errors.invalid("%s: chosen and rejected differ before their last messages, but these alone are the answers: give "
      .. "both the same messages up to there, or a prompt and only what answers it", where)
  end
  if alike and same(chosen[#chosen], rejected[#rejected]) then
    errors.invalid("%s: chosen and rejected are the same, so neither is preferred: leave the line out", where)
  end
end

-- Whether a row has a token of the answer.
local function trains(trained, seq)
  for i = 2, math.min(#trained, seq + 1) do
    if trained[i] then return true end
  end
  return false
end

-- Whether the rows of two answers differ.
local function differ(chosen, rejected, seq)
  for i = 1, seq + 1 do
    if chosen[i] ~= rejected[i] then return true end
  end
  return false
end

local function read_pairs(o)
  local rows, left_out = packing.new(WHO, o.seq, false), 0
  local reader = { trains = "none", ignored = line_fields.ignored(WHO, o.ignore) }
  for _, path in ipairs(files.find(o.files, json_lines.is_file, ".jsonl")) do
    json_lines.each(path, "pairs of answers", function(row, where)
      FIELDS:check(where, row, reader.ignored)
      local preferred, is_whole = conversation(where, row, "chosen", reader)
      local other, other_is_whole = conversation(where, row, "rejected", reader)
      check_messages(where, row, preferred, reader)
      check_pair(where, preferred, other, is_whole or other_is_whole)
      local chosen, of_chosen = o.tokens:of(preferred, where)
      local rejected, of_rejected = o.tokens:of(other, where)
      if trains(of_chosen, o.seq) and trains(of_rejected, o.seq) and differ(chosen, rejected, o.seq) then
        rows:add(chosen, of_chosen)
        rows:add(rejected, of_rejected)
      else
        left_out = left_out + 1
      end
    end)
  end
  return rows, left_out
end

-- ---- the data ---------------------------------------------------------------------------------------------------

local function check_size(o, pairs_read, left_out)
  if pairs_read == 0 and left_out > 0 then
    errors.invalid("%s: the answers of all %d pairs begin, or first differ, behind rows of %d tokens: give a larger "
      .. "seq", WHO, left_out, o.seq)
  elseif pairs_read == 0 then
    errors.invalid("%s: files=%s have no pair of answers", WHO, files.show(o.files))
  end
  local seq = o.of_pairs.seq
  windows.require_size(o.of_pairs, pairs_read * seq + 1, function(needed)
    return ("%s: files=%s have %d pairs, but %d pairs per step%s need at least %d"):format(WHO, files.show(o.files),
      pairs_read, o.batch * o.share.ranks, o.valid_fraction > 0 and " and validation" or "", (needed - 1) / seq)
  end)
end

---Batches { tokens, targets } of pairs: i32 [2 batch, seq] each, rows chosen and rejected in turn; targets are the next
---tokens where those are of the answer, and -100 elsewhere.
---@param given moonshard.PreferenceOptions
---@return moonshard.PreferenceData
local function preferences(given)
  local o = windows.parse(WHO, given, {
    tokenizer = { "any" },
    template = { "string|table", default = "chatml" },
    ignore = { "table" },
    padding = { "integer", default = 0 },
    valid_fraction = { "number", default = 0 },
  })
  windows.share(WHO, o)
  o.tokens = message_tokens.new(WHO, o)
  o.of_pairs = {
    seq = 2 * o.seq, rows = 2, batch = o.batch, share = o.share, seed = o.seed, shuffle = o.shuffle,
    drop_last = o.drop_last, settings = o.settings, has_batch = o.has_batch,
    valid_fraction = o.valid_fraction,
  }
  if world.plan_only then return windows.loaders(o.of_pairs, nil, windows.tokens_needed(o.of_pairs)) end
  local rows, left_out = read_pairs(o)
  check_size(o, rows.documents / 2, left_out)
  local stream = rows:finish(o.padding)
  local data = windows.loaders(o.of_pairs, stream, stream.tokens + 1)
  data.pairs, data.cut, data.left_out = rows.documents / 2, rows.cut, left_out
  return data
end

return preferences
