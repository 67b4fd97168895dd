-- The forms that lines of conversations have in published datasets: one row a form, with the fields that identify it,
-- those that it can have besides, and how they become messages. A further form is a row in FORMS.
--
-- A line must be of exactly one form: it has all fields that identify it, and they are not null or empty. Where no form
-- has all, an empty question is one, as in { "prompt": "", "completion": "..." }. Fields of a second form are refused
-- by name, and so is a line that two forms claim: which of them is meant decides what a model learns.

local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local line_fields = require("moonshard.data.conversations.line_fields")
local messages = require("moonshard.data.conversations.messages")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")

local forms = {
  MORE = "input context", -- texts that follow an instruction
}

---@class moonshard.ConversationForm
---@field has string the fields that identify it, separated by blanks, in the order of what they say
---@field more string? texts, of which a line can have one, that follow the question after a blank line
---@field uses string? further fields, separated by blanks
---@field lists boolean? whether its texts can also be lists of messages
---@field read fun(where: string, row: table, reader: moonshard.ConversationReader, form: moonshard.ConversationForm):
---  moonshard.ChatMessage[]
---@field instead string? of lines that are no conversations: what reads them
---@field names string[]? those of `has`
---@field what string? "a line with prompt and completion", for messages
---@field fields moonshard.LineFields? the fields of such a line

local is_empty = line_fields.is_empty

-- ---- readers ----------------------------------------------------------------------------------------------------

local function add(list, role, content, trains)
  list[#list + 1] = { role = role, content = content, trained = trains == "all" or trains == role }
end

---What is asked: a text, and after a blank line one that some forms have for it.
---@param where string for messages
---@param row table
---@param field string
---@param more string? the names of those, of which the line can have one
---@return string
function forms.asked(where, row, field, more)
  local asked, by = line_fields.text(where, row, field), nil
  for name in (more or ""):gmatch("%S+") do
    if not is_empty(row[name]) then
      if by then errors.invalid("%s: it has %s and %s: which is meant?", where, by, name) end
      asked, by = asked .. "\n\n" .. line_fields.text(where, row, name), name
    end
  end
  return asked
end

local function add_history(list, where, row, trains)
  local history = row.history
  if is_empty(history) then return end
  if type(history) ~= "table" then
    errors.invalid("%s: history must be a list of pairs of texts, not %s", where, options.describe(history))
  end
  line_fields.check_list(where, history, "history")
  for i, pair in ipairs(history) do
    if type(pair) ~= "table" or #pair ~= 2 or type(pair[1]) ~= "string" or type(pair[2]) ~= "string" then
      errors.invalid("%s: history: pair %d must be a question and its answer, two texts", where, i)
    end
    add(list, "user", pair[1], trains)
    add(list, "assistant", pair[2], trains)
  end
end

-- Adds a list of messages, which a field can have in place of a text.
local function add_list(list, where, row, field, reader)
  for _, message in ipairs(messages.list(where, row, field, reader)) do list[#list + 1] = message end
end

-- Answers that a prompt repeats are not trained on, unless they say so: the completion is what is to be learned.
local function of_prompt(reader)
  if reader.trains ~= "assistant" then return reader end
  return setmetatable({ trains = false }, { __index = reader })
end

local function is_list(value) return type(value) == "table" and value ~= json.null end

-- A question and its answer.
local function read_pair(where, row, reader, form)
  local list, asked, answered = {}, form.names[1], form.names[2]
  add_history(list, where, row, reader.trains)
  if form.lists and is_list(row[asked]) then
    add_list(list, where, row, asked, of_prompt(reader))
  else
    add(list, "user", forms.asked(where, row, asked, form.more), reader.trains)
  end
  if form.lists and is_list(row[answered]) then
    add_list(list, where, row, answered, reader)
  else
    add(list, "assistant", line_fields.text(where, row, answered), reader.trains)
  end
  return list
end

-- UltraChat and others repeat what was asked first.
local function check_prompt(where, row, list)
  if is_empty(row.prompt) then return end
  for _, message in ipairs(list) do
    if message.role == "user" then
      if message.content == row.prompt then return end
      break
    end
  end
  errors.invalid("%s: prompt is not the first message of the user, so it belongs to another form: to train without it: "
    .. "ignore = { \"prompt\" }", where)
end

local function read_list(where, row, reader, form)
  local list = messages.list(where, row, form.names[1], reader)
  check_prompt(where, row, list)
  return list
end

-- ---- the table --------------------------------------------------------------------------------------------------

---@type moonshard.ConversationForm[]
local FORMS = {
  { has = "messages", uses = "prompt", read = read_list },
  { has = "conversations", read = read_list },
  { has = "conversation", read = read_list },
  { has = "prompt completion", uses = "history", lists = true, read = read_pair },
  { has = "prompt response", uses = "history", lists = true, read = read_pair },
  { has = "instruction output", more = forms.MORE, uses = "history", read = read_pair }, -- Alpaca
  { has = "instruction response", more = forms.MORE, uses = "history", read = read_pair }, -- Dolly
  { has = "question answer", uses = "history", read = read_pair }, -- gsm8k
  { has = "question response", uses = "history", read = read_pair }, -- OpenOrca
  { has = "query response", uses = "history", read = read_pair }, -- MetaMath
  { has = "chosen rejected", instead = "pairs of answers are read by ms.data.preferences" },
  { has = "context choices", instead = "questions are read by ms.evaluate.multiple_choice" },
  { has = "text", instead = "texts without roles are read by ms.data.text and `moonshard tokenize`, which train "
    .. "on every token; or write questions and answers into fields of their own, prompt and completion" },
}

local IN_EVERY = " chat_template_kwargs " .. table.concat(messages.SYSTEM, " ")
for _, form in ipairs(FORMS) do
  form.names = {}
  for name in form.has:gmatch("%S+") do form.names[#form.names + 1] = name end
  form.what = "a line with " .. table.concat(form.names, " and ")
  form.fields = line_fields.new(form.what, ("%s %s %s"):format(form.has, form.more or "", form.uses or "") .. IN_EVERY,
    line_fields.SOURCE, line_fields.TOOLS)
end

-- ---- which form a line has --------------------------------------------------------------------------------------

local ALL, ALL_THERE, SOME, NAMED = 4, 3, 2, 1

-- How much of a form a line has: all fields say something; all are there, and one says something; some say something;
-- some are there. nil: none is.
local function fit(form, row)
  local there, say = 0, 0
  for _, name in ipairs(form.names) do
    if row[name] ~= nil then there = there + 1 end
    if not is_empty(row[name]) then say = say + 1 end
  end
  if say == #form.names then return ALL end
  if there == #form.names and say > 0 then return ALL_THERE end
  return say > 0 and SOME or there > 0 and NAMED or nil
end

-- The forms of which a line has the most, and how much that is.
local function nearest_forms(row)
  local best, found = 0, {}
  for _, form in ipairs(FORMS) do
    local much = fit(form, row)
    -- What is no conversation counts where nothing else does: published lines repeat theirs as a text.
    if much and form.instead and (much < ALL or best >= ALL_THERE) then much = nil end
    if much and much > best then best, found = much, {} end
    if much and much == best then found[#found + 1] = form end
  end
  return found, best
end

local function names_of(row)
  local names = {}
  for name in pairs(row) do names[#names + 1] = name end
  table.sort(names) -- the same message on every rank
  return names
end

local function refuse_unknown(where, row)
  if row.role ~= nil and row.content ~= nil or row.from ~= nil and row.value ~= nil then
    errors.invalid("%s: it is one message: write those of a conversation into one line, "
      .. "{ \"messages\": [ ... ] }", where)
  end
  local known, names = {}, {}
  for _, form in ipairs(FORMS) do
    if not form.instead then names[#names + 1] = table.concat(form.names, " and ") end
    for _, name in ipairs(form.names) do known[name] = true end
  end
  local advice = ""
  for _, name in ipairs(names_of(row)) do
    local near = nearest.name(name, names_of(known))
    if near then advice = (" (%s: did you mean %s?)"):format(name, near) break end
  end
  errors.invalid("%s: the line has %s, and a conversation has %s%s", where,
    next(row) and "the fields " .. table.concat(names_of(row), ", ") or "no fields", table.concat(names, ", or "),
    advice)
end

-- A field that a form has and another one lacks.
local function own_field(form, other)
  for _, name in ipairs(form.names) do
    local shared = false
    for _, theirs in ipairs(other.names) do shared = shared or theirs == name end
    if not shared then return name end
  end
end

local function refuse_two(where, first, second)
  errors.invalid("%s: the line is of two forms, %s and %s: which is meant? To train without one: ignore = { %s }",
    where, table.concat(first.names, " with "), table.concat(second.names, " with "),
    options.describe(own_field(second, first) or second.names[1]))
end

-- A question without an answer, or the reverse, that several forms could have.
local function refuse_part(where, row, found)
  local there, lacking = {}, {}
  for _, form in ipairs(found) do
    for _, name in ipairs(form.names) do
      if is_empty(row[name]) then lacking[name .. (row[name] == nil and "" or " (empty or null)")] = true
      else there[name] = true end
    end
  end
  errors.invalid("%s: the line has %s, but lacks %s", where, table.concat(names_of(there), ", "),
    table.concat(names_of(lacking), " or "))
end

---The form of a line.
---@param where string for messages: "chats.jsonl:3"
---@param row table a line, without the fields that are ignored
---@return moonshard.ConversationForm
function forms.of(where, row)
  local found, much = nearest_forms(row)
  if not found[1] then refuse_unknown(where, row) end
  if found[1].instead then
    errors.invalid("%s: %s is no conversation: %s", where, found[1].what, found[1].instead)
  end
  if much >= ALL_THERE and found[2] then refuse_two(where, found[1], found[2]) end
  if much == SOME and found[2] then refuse_part(where, row, found) end
  return found[1]
end

---Whether a line has all fields that identify a form of conversations, pairs of answers or questions.
---@param row table
---@return string? what "a line with messages"
function forms.claims(row)
  for _, form in ipairs(FORMS) do
    if form.names[1] ~= "text" and fit(form, row) == ALL then return form.what end
  end
end

-- ---- what a template takes of the line --------------------------------------------------------------------------

-- Published lines often have the definitions of tools as the text of a JSON list.
local function tools_of(where, given)
  if type(given) ~= "string" then return given end
  local list, problem = json.decode(given, true)
  if type(list) == "table" and json.is_list(list) then return list end
  errors.invalid("%s: tools must be a list, or the text of one as JSON%s", where, problem and ": " .. problem or "")
end

---What a template takes of a line besides its messages: tools, documents and variables of its own, which a line can
---also have in `chat_template_kwargs`. Null and empty values are kept.
---@param where string for messages
---@param row table
---@param fields moonshard.LineFields by which it was checked
---@param reader moonshard.ConversationReader
---@return table<string, any>
function forms.conversation(where, row, fields, reader)
  local taken = {}
  for name, value in pairs(row) do
    if not fields.used[name] and not fields.silent[name] and reader.takes(name) then
      taken[name] = name == "tools" and value ~= "" and tools_of(where, value) or value
    end
  end
  local more = row.chat_template_kwargs
  if is_empty(more) then return taken end
  if type(more) ~= "table" or json.is_list(more) then
    errors.invalid("%s: chat_template_kwargs must be an object, not %s", where, options.describe(more))
  end
  for _, name in ipairs(names_of(more)) do
    if not reader.takes(name) then
      errors.invalid("%s: chat_template_kwargs: the template has no variable %s: leave it out; to train without all: "
        .. "ignore = { \"chat_template_kwargs\" }", where, name)
    end
    if taken[name] ~= nil then
      errors.invalid("%s: chat_template_kwargs and the line both have %s: which is meant?", where, name)
    end
    taken[name] = more[name]
  end
  return taken
end

return forms
