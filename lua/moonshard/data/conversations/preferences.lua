-- Pairs of answers, one preferred to the other, for losses such as ms.loss.dpo: JSON lines and a template.
--
--   { "prompt": "...", "chosen": "...", "rejected": "..." }           prompt may also be a list of messages
--   { "chosen": [ messages ], "rejected": [ messages ] }              whole conversations, which end with an answer
--
-- The prompt has other names in some data (PROMPTS). A line can have both: conversations that have the prompt, after a
-- message of the system or as their last question, are taken as they are. Either can have `system`, a first message of
-- both, and fields that the template writes.
--
-- Rows of a batch are chosen and rejected in turn, so ranks and micro-batches never separate a pair. Only answers have
-- targets. All ranks read all files and keep the tokens in memory, 8 bytes each, twice that while rows are joined.

local conversations = require("moonshard.data.conversations.conversations")
local errors = require("moonshard.base.error")
local files = require("moonshard.data.files.files")
local forms = require("moonshard.data.conversations.forms")
local json = require("moonshard.base.text.json")
local json_lines = require("moonshard.data.files.json_lines")
local line_fields = require("moonshard.data.conversations.line_fields")
local message_tokens = require("moonshard.data.conversations.message_tokens")
local messages_of = require("moonshard.data.conversations.messages")
local options = require("moonshard.base.checks.options")
local packing = require("moonshard.data.packing")
local windows = require("moonshard.data.windows")
local world = require("moonshard.distributed.world")

local WHO = "ms.data.preferences"

---@class moonshard.PreferenceOptions
---@field files string|string[] paths, patterns or folders of JSON lines or lists (.jsonl, .json)
---@field ignore? string[] fields of lines and of messages to train without; default none
---@field tokenizer? moonshard.Tokenizer default: a token is a byte
---@field template? string|moonshard.ChatTemplate as of ms.data.chat; default "chatml"; with template_kwargs, tools, now
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

---@class moonshard.PairPrompt
---@field has string the field that has what both answers answer
---@field more string? texts, of which a line can have one, that follow it
---@field of_messages boolean? whether it is a prompt only of answers that are one message each

---@type moonshard.PairPrompt[]
local PROMPTS = {
  { has = "prompt" }, { has = "question" }, { has = "instruction", more = forms.MORE }, { has = "conversations" },
  { has = "messages", of_messages = true }, -- of whole conversations they repeat the chosen one
}

local FIELDS = line_fields.new("a pair", "prompt question instruction conversations chosen rejected messages "
  .. forms.MORE .. "  chat_template_kwargs " .. table.concat(messages_of.SYSTEM, " "), line_fields.SOURCE
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

local function is_message(value)
  return type(value) == "table" and (value.role ~= nil or value.from ~= nil)
end

-- Which field is the prompt.
local function prompt_field(where, row)
  local found
  for _, prompt in ipairs(PROMPTS) do
    if not line_fields.is_empty(row[prompt.has]) and (is_message(row.chosen) or not prompt.of_messages) then
      if found then
        errors.invalid("%s: the line has %s and %s: which is the prompt? To train without one: ignore = { %s }", where,
          found.has, prompt.has, options.describe(prompt.has))
      end
      found = prompt
    end
  end
  for name in forms.MORE:gmatch("%S+") do
    if not line_fields.is_empty(row[name]) and not (found and found.more) then
      errors.invalid("%s: the field %s belongs to an instruction, which the line lacks: to train without it: "
        .. "ignore = { %s }", where, options.describe(name), options.describe(name))
    end
  end
  return found or PROMPTS[1]
end

-- An empty prompt of whole conversations says nothing.
local function prompt_of(where, row, field, reader)
  local prompt = prompt_field(where, row)
  local given = row[prompt.has]
  local whole = type(row[field]) == "table"
  if given == nil or given == json.null or whole and line_fields.is_empty(given) then return {} end
  if type(given) == "table" and not prompt.more then return messages_of.list(where, row, prompt.has, reader) end
  return { { role = "user", content = forms.asked(where, row, prompt.has, prompt.more), trained = false } }
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
  local list = is_message(row[field]) and { [field] = { row[field] } } or row
  if type(list[field]) == "table" and list[field] ~= json.null then
    answer = messages_of.list(where, list, field, reader)
  elseif prompt[1] then
    answer = { { role = "assistant", content = line_fields.text(where, row, field) } }
  else
    errors.invalid("%s: a pair has prompt (or question, or instruction), chosen and rejected; or chosen and rejected "
      .. "that are lists of messages", where)
  end
  if answer[#answer].role ~= "assistant" then
    errors.invalid("%s: the last message of %s has the role %s, not \"assistant\"", where, field,
      options.describe(answer[#answer].role))
  end
  local of_prompt, asked = split_system(prompt)
  local of_answer, answered = split_system(answer)
  local messages, before, whole = join(where, field, asked, answered)
  for i, message in ipairs(messages) do message.trained = i > before and message.role == "assistant" end
  local of_line = messages_of.system_of(where, row)
  return with_system(where, {
    { field = field, text = of_answer }, { field = "prompt", text = of_prompt }, { field = "system", text = of_line },
  }, messages), whole
end

-- UltraFeedback repeats the chosen conversation.
local function check_messages(where, row, chosen, reader)
  if line_fields.is_empty(row.messages) or is_message(row.chosen) then return end
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
  local reader = conversations.reader(WHO, o, "none")
  for _, path in ipairs(files.find(o.files, json_lines.is_file, ".jsonl")) do
    json_lines.each(path, "pairs of answers", function(row, where)
      FIELDS:check(where, row, reader.ignored, reader.takes)
      local preferred, is_whole = conversation(where, row, "chosen", reader)
      local other, other_is_whole = conversation(where, row, "rejected", reader)
      check_messages(where, row, preferred, reader)
      check_pair(where, preferred, other, is_whole or other_is_whole)
      local taken = forms.conversation(where, row, FIELDS, reader)
      local chosen, of_chosen = o.tokens:of(preferred, where, taken)
      local rejected, of_rejected = o.tokens:of(other, where, taken)
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
    template = { "string|table", default = "chatml" }, template_kwargs = message_tokens.OPTIONS.template_kwargs,
    tools = message_tokens.OPTIONS.tools, now = message_tokens.OPTIONS.now,
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
  data.read_from = ("%d pairs"):format(data.pairs)
  return data
end

return preferences
