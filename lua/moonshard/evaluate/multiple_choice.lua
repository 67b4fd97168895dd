-- Questions with several answers: the model's answer is the one to which it gives the largest likelihood after the
-- question, in total or per character. As in EleutherAI's lm-evaluation-harness, whose acc and acc_norm these are.
--
--   { "context": "The capital of France is", "choices": ["Paris", "Rome"], "label": 0 }       one a line; labels from 0

local errors = require("moonshard.base.error")
local files = require("moonshard.data.files.files")
local hash = require("moonshard.base.hash")
local json_lines = require("moonshard.data.files.json_lines")
local line_fields = require("moonshard.data.conversations.line_fields")
local message_tokens = require("moonshard.data.conversations.message_tokens")
local options = require("moonshard.base.checks.options")
local score = require("moonshard.evaluate.score")
local world = require("moonshard.distributed.world")

local WHO = "ms.evaluate.multiple_choice"

---@class moonshard.MultipleChoiceOptions
---@field files string|string[] paths, folders or patterns of JSON lines or lists (.jsonl, .json)
---@field ignore? string[] fields of lines that do not matter; default none
---@field tokenizer? string|moonshard.Tokenizer default: a token is a byte
---@field special? boolean begin contexts without a template with the tokens that the tokenizer's files put before a
---  text, its BOS; default true
---@field template? string|moonshard.ChatTemplate makes a context the user's message of a conversation, as of
---  ms.data.chat, and the answers what follows
---@field template_kwargs? table<string, any> as of ms.data.chat, for a Jinja template; and so `tools` and `now`
---@field tools? string|table[]
---@field now? string
---@field delimiter? string between a context and an answer; default a blank, or nothing with a template
---@field seq? integer tokens of a row; default: the model's; of a longer text the end is used
---@field batch? integer answers of a rank at a time; default 8
---@field ema? boolean use the averages of a trainer's weights; default false

---@class moonshard.MultipleChoice
---@field acc number share of the questions whose right answer has the largest log-likelihood
---@field acc_norm number share whose right answer has the largest log-likelihood per character
---@field acc_stderr number standard error of acc, as the harness has it
---@field acc_norm_stderr number
---@field questions integer
---@field cut integer answers whose context did not fit a row whole
---@field log_likelihoods number[][] of each question's answers

-- ---- questions --------------------------------------------------------------------------------------------------

---@class moonshard.Question
---@field context string
---@field asked integer[]? with a template: the tokens before an answer
---@field choices string[]
---@field label integer from 0
---@field where string "arc.jsonl:3"

local FIELDS = line_fields.new("a question", "context choices label", line_fields.SOURCE, {})

local function question_of(o, row, where)
  local context, choices, label = line_fields.text(where, row, "context"), row.choices, row.label
  if choices == nil then errors.invalid("%s: choices is missing: it must be a list of at least 2 texts", where) end
  if label == nil then
    errors.invalid("%s: label is missing: it must be the number of the right choice, from 0", where)
  end
  if type(choices) ~= "table" or #choices < 2 then
    errors.invalid("%s: choices must be a list of at least 2 texts, not %s", where, options.describe(choices))
  end
  for i, choice in ipairs(choices) do
    if type(choice) ~= "string" or choice == "" then
      errors.invalid("%s: choice %d must be a text that is not empty, not %s", where, i - 1, options.describe(choice))
    end
  end
  if type(label) ~= "number" or label % 1 ~= 0 or label < 0 or label >= #choices then
    errors.invalid("%s: label must be the number of a choice, 0 to %d, not %s", where, #choices - 1,
      options.describe(label))
  end
  local asked = o.asks and o.asks:before_answer(context)
  return { context = context, asked = asked, choices = choices, label = label, where = where }
end

local function read_questions(o)
  local questions = {}
  local ignored = line_fields.ignored(WHO, o.ignore)
  for _, path in ipairs(files.find(o.files, json_lines.is_file, ".jsonl")) do
    json_lines.each(path, "questions", function(row, where)
      FIELDS:check(where, row, ignored)
      questions[#questions + 1] = question_of(o, row, where)
    end)
  end
  if not questions[1] then
    errors.invalid("%s: files=%s have no question: give files with lines of JSON that have context, choices and label",
      WHO, files.show(o.files))
  end
  return questions
end

-- The tokens of a context, and of it with an answer after it. Blanks at the end of a context are tokenized with the
-- answer, and the answer's tokens are those after the context's own: the two together can have other tokens than each
-- alone. In a conversation each is encoded for itself, as in training.
local function encode(question, choice, o, subject)
  if question.asked then
    local whole = {}
    for i, id in ipairs(question.asked) do whole[i] = id end -- a context is longer than a call has room for arguments
    for _, id in ipairs(o.asks:answer(o.delimiter .. choice)) do whole[#whole + 1] = id end
    return question.asked, whole
  end
  local context = question.context:gsub("%s+$", "")
  local before = subject.tokenizer:encode(context)
  local whole = subject.tokenizer:encode(context .. question.context:sub(#context + 1) .. o.delimiter .. choice)
  if not o.special then return before, whole end
  return subject.tokenizer:begun(before), subject.tokenizer:begun(whole)
end

-- An answer after its context, as one row.
local function row_of(question, choice, o, subject)
  local before, whole = encode(question, choice, o, subject)
  local answer = #whole - #before
  if #before == 0 then
    errors.invalid("%s: the context is empty, so the first token of an answer has nothing before it: give it a text, "
      .. "or a template that begins with one", question.where)
  elseif answer < 1 then
    errors.invalid("%s: the answer %s adds no token to those of its context, so it has no likelihood: give another "
      .. "delimiter than %s, or a template", question.where, options.describe(choice:sub(1, 40)),
      options.describe(o.delimiter))
  elseif answer > subject.seq then
    errors.invalid("%s: the answer %s has %d tokens after its context, more than a row of %d: give a larger seq, or a "
      .. "shorter answer", question.where, options.describe(choice:sub(1, 40)), answer, subject.seq)
  end
  local count = math.min(#whole - 1, subject.seq)
  return { tokens = whole, first = #whole - count, count = count, scored = answer }, count < #whole - 1
end

-- ---- accuracies -------------------------------------------------------------------------------------------------

local function characters(text) return select(2, text:gsub("[^\128-\191]", "")) end

-- The first of the largest, from 0.
local function best(list)
  local at = 1
  for i = 2, #list do
    if list[i] > list[at] then at = i end
  end
  return at - 1
end

local function stderr_of(share, n) return n > 1 and math.sqrt(share * (1 - share) / (n - 1)) or 0 / 0 end

local function summarize(questions, values)
  local right, right_by_length, lists, at = 0, 0, {}, 0
  for q, question in ipairs(questions) do
    local each, per_character = {}, {}
    for i, choice in ipairs(question.choices) do
      at = at + 1
      if values[at] ~= values[at] then
        errors.raise("MS_ENONFINITE", "%s: the log-likelihood of choice %d is not a number: the model's weights have "
          .. "diverged: evaluate an earlier checkpoint", question.where, i - 1)
      end
      each[i], per_character[i] = values[at], values[at] / characters(choice)
    end
    lists[q] = each
    if best(each) == question.label then right = right + 1 end
    if best(per_character) == question.label then right_by_length = right_by_length + 1 end
  end
  local n = #questions
  local acc, acc_norm = right / n, right_by_length / n
  return {
    acc = acc, acc_norm = acc_norm, acc_stderr = stderr_of(acc, n), acc_norm_stderr = stderr_of(acc_norm, n),
    questions = n, log_likelihoods = lists,
  }
end

-- What decides which answers are right, apart from the tokens of the rows.
local function scoring_of(questions)
  local labels, lengths = {}, {}
  for i, question in ipairs(questions) do
    labels[i] = ("%d of %d"):format(question.label, #question.choices)
    for _, choice in ipairs(question.choices) do lengths[#lengths + 1] = characters(choice) end
  end
  return {
    { "the number of questions", #questions },
    { "the hash of their labels", ("%.0f"):format(hash.of_text(table.concat(labels, "\n"))) },
    { "the hash of the lengths of choices", ("%.0f"):format(hash.of_text(table.concat(lengths, " "))) },
  }
end

---How many questions a model answers rightly. Meshes of replicas and shards give the same bits; `tensor` and `context`
---sum in another order, which can decide between answers that are equally likely. Collective: all ranks call it with
---the same files.
---@param model moonshard.Module|moonshard.Trainer
---@param o moonshard.MultipleChoiceOptions
---@return moonshard.MultipleChoice
return function(model, o)
  local specs = {
    files = { "string|table", required = true }, delimiter = { "string" }, template = { "string|table" },
    ignore = { "table" },
  }
  for name, spec in pairs(score.OPTIONS) do specs[name] = spec end
  for name, spec in pairs(message_tokens.OPTIONS) do specs[name] = spec end
  o = options.parse(WHO, o, specs)
  o.delimiter = o.delimiter or (o.template and "" or " ")
  local subject = score.subject(WHO, model, o)
  if o.template then
    o.asks = message_tokens.new(WHO, {
      tokenizer = subject.tokenizer, template = o.template, template_kwargs = o.template_kwargs, tools = o.tools,
      now = o.now,
    })
  else
    message_tokens.refuse_options(WHO, o)
  end
  if world.plan_only then
    return { acc = 0 / 0, acc_norm = 0 / 0, acc_stderr = 0 / 0, acc_norm_stderr = 0 / 0, questions = 0, cut = 0,
      log_likelihoods = {} }
  end
  local questions, rows, cut = read_questions(o), {}, 0
  for _, question in ipairs(questions) do
    for _, choice in ipairs(question.choices) do
      local row, was_cut = row_of(question, choice, o, subject)
      rows[#rows + 1], cut = row, cut + (was_cut and 1 or 0)
    end
  end
  local result = summarize(questions, score.rows(subject, rows, o.batch, scoring_of(questions)))
  result.cut = cut
  return result
end
