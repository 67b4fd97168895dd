-- Conversations of JSON lines, one a line, in the forms that published datasets have:
--
--   { "messages": [ { "role": "user", "content": "..." }, { "role": "assistant", "content": "..." } ] }
--   { "conversations": [ { "from": "human", "value": "..." }, { "from": "gpt", "value": "..." } ] }
--   { "prompt": "...", "completion": "..." }                       each can also be a list of messages
--   { "instruction": "...", "input": "...", "output": "..." }      input may be missing or empty
--
-- The content of a message can be a list of parts, { "type": "text", "text": "..." }, which are joined. Each line can
-- have `system`, a first message; the last two `history`, pairs of earlier questions and answers. Messages can
-- say whether they are trained on: `train` (or `training`), true or false, overrides the role; `weight` 0 leaves one
-- out.
-- What else a line has is checked (line_fields.lua). Pairs of answers (preferences.lua) are read here, too.

local errors = require("moonshard.base.error")
local json_lines = require("moonshard.data.files.json_lines")
local line_fields = require("moonshard.data.conversations.line_fields")
local options = require("moonshard.base.checks.options")

local conversations = {}

---@class moonshard.ChatMessage
---@field role string
---@field content string
---@field trained boolean

---@class moonshard.ConversationReader
---@field trains string the role whose messages are trained on, "all", or "none": flags of messages are refused then
---@field ignored string[] names of fields that are taken for absent

---A field that must be a text.
---@param where string for messages
---@param row table
---@param field string
---@return string
function conversations.text(where, row, field)
  local value = row[field]
  if value == nil then errors.invalid("%s: %s is missing, or null: it must be a text", where, field) end
  if type(value) ~= "string" then
    errors.invalid("%s: %s must be a text, not %s", where, field, options.describe(value))
  end
  return value
end

-- ---- messages ---------------------------------------------------------------------------------------------------

-- What a message says of itself, in either of two namings.
local NAMINGS = { { role = "role", content = "content" }, { role = "from", content = "value" } }
-- What ShareGPT calls the roles.
local SHAREGPT = { human = "user", gpt = "assistant", chatgpt = "assistant" }

local function naming_of(at, message)
  local plain, other = NAMINGS[1], NAMINGS[2]
  if message[other.role] == nil and message[other.content] == nil then return plain end
  for _, name in ipairs({ plain.role, plain.content }) do
    if message[name] ~= nil then
      errors.invalid("%s: it has %s and also from or value: which is meant?", at, name)
    end
  end
  return other
end

-- The flags of a message, as one: true, false, or nil, which leaves it to the role. A weight of 1 is what others have
-- that name none.
local function flag_of(at, message)
  local flag
  for _, name in ipairs({ "train", "training" }) do
    local given = message[name]
    if given ~= nil and type(given) ~= "boolean" then
      errors.invalid("%s: %s must be true or false, not %s", at, name, options.describe(given))
    end
    if given ~= nil and flag ~= nil and given ~= flag then
      errors.invalid("%s: train and training say different things", at)
    end
    if given ~= nil then flag = given end
  end
  local weight = message.weight
  if weight ~= nil and weight ~= 0 and weight ~= 1 then
    errors.invalid("%s: weight must be 0 or 1, not %s: a message is trained on or not", at, options.describe(weight))
  end
  if flag ~= nil and weight ~= nil and flag ~= (weight == 1) then
    errors.invalid("%s: its weight is %d, but train is %s", at, weight, tostring(flag))
  end
  if weight == 0 then return false end
  return flag
end

local function is_trained(at, message, role, trains)
  local flag = flag_of(at, message)
  if flag ~= nil and trains == "none" then
    errors.invalid("%s: train and weight are not used in pairs: the last answers alone are trained on", at)
  end
  if flag ~= nil then return flag end
  return trains == "all" or role == trains
end

local PART = line_fields.new("a part of a content", "type text", "", {})

-- The text of a message, which can be in parts.
local function content_of(at, message, field, reader)
  local parts, texts = message[field], {}
  if type(parts) ~= "table" or #parts == 0 then return conversations.text(at, message, field) end
  for i, part in ipairs(parts) do
    local of_part = ("%s: part %d of %s"):format(at, i, field)
    if type(part) ~= "table" then
      errors.invalid("%s must be { type, text }, not %s", of_part, options.describe(part))
    end
    if part.type ~= "text" then
      errors.raise("MS_EUNSUPPORTED", "%s has the type %s, and texts alone are trained on: leave it out, or write what "
        .. "it says as a text", of_part, options.describe(part.type))
    end
    PART:check(of_part, part, reader.ignored)
    texts[i] = conversations.text(of_part, part, "text")
  end
  return table.concat(texts)
end

---A list of messages.
---@param where string for messages
---@param row table a line
---@param field string of the line, which has the list
---@param reader moonshard.ConversationReader
---@return moonshard.ChatMessage[]
function conversations.messages(where, row, field, reader)
  local list = row[field]
  if type(list) ~= "table" or #list == 0 then
    errors.invalid("%s: %s must be a list of at least one { role, content }", where, field)
  end
  local messages = {}
  for i, message in ipairs(list) do
    local at = ("%s: %s %d"):format(where, field == "messages" and "message" or field .. ": message", i)
    if type(message) ~= "table" then errors.invalid("%s must be { role, content }", at) end
    line_fields.MESSAGE:check(at, message, reader.ignored)
    local names = naming_of(at, message)
    local role, content = conversations.text(at, message, names.role), content_of(at, message, names.content, reader)
    if names ~= NAMINGS[1] then role = SHAREGPT[role] or role end
    messages[i] = { role = role, content = content, trained = is_trained(at, message, role, reader.trains) }
  end
  return messages
end

---Puts the line's `system` before its messages.
---@param where string for messages
---@param row table
---@param messages moonshard.ChatMessage[]
---@param trains string
---@return moonshard.ChatMessage[] messages
function conversations.with_system(where, row, messages, trains)
  if line_fields.is_empty(row.system) then return messages end
  local text, first = conversations.text(where, row, "system"), messages[1]
  if first and first.role == "system" then
    if first.content == text then return messages end
    errors.invalid("%s: system and the first message, which is one of the system, differ: which is meant?", where)
  end
  table.insert(messages, 1, { role = "system", content = text, trained = trains == "all" or trains == "system" })
  return messages
end

-- ---- forms of lines ---------------------------------------------------------------------------------------------

local function add(messages, role, content, trains)
  messages[#messages + 1] = { role = role, content = content, trained = trains == "all" or trains == role }
end

local function add_pair(messages, asked, answered, trains)
  add(messages, "user", asked, trains)
  add(messages, "assistant", answered, trains)
  return messages
end

-- Adds a field that is a text of one role, or a list of messages.
local function add_field(messages, where, row, field, role, reader)
  if type(row[field]) ~= "table" then
    return add(messages, role, conversations.text(where, row, field), reader.trains)
  end
  for _, message in ipairs(conversations.messages(where, row, field, reader)) do messages[#messages + 1] = message end
end

local function earlier(where, row, trains)
  local messages, history = {}, row.history
  if line_fields.is_empty(history) then return messages end
  if type(history) ~= "table" then
    errors.invalid("%s: history must be a list of pairs of texts, not %s", where, options.describe(history))
  end
  for i, pair in ipairs(history) do
    if type(pair) ~= "table" or #pair ~= 2 or type(pair[1]) ~= "string" or type(pair[2]) ~= "string" then
      errors.invalid("%s: history: pair %d must be a question and its answer, two texts", where, i)
    end
    add_pair(messages, pair[1], pair[2], trains)
  end
  return messages
end

-- UltraChat and others repeat what was asked first.
local function check_prompt(where, row, messages)
  if line_fields.is_empty(row.prompt) then return end
  for _, message in ipairs(messages) do
    if message.role == "user" then
      if message.content == row.prompt then return end
      break
    end
  end
  errors.invalid("%s: prompt is not the first message of the user, so it belongs to another form: to train without it: "
    .. "ignore = { \"prompt\" }", where)
end

local function list_form(field, more)
  return {
    has = field, fields = line_fields.new("a line with " .. field, field .. " system " .. (more or ""),
      line_fields.SOURCE, line_fields.TOOLS),
    read = function(where, row, reader)
      local messages = conversations.messages(where, row, field, reader)
      check_prompt(where, row, messages)
      return messages
    end,
  }
end

-- A line has the first form of which it has a field that says something: `has`, or the answer to an empty question.
local FORMS = {
  list_form("messages", "prompt"), list_form("conversations"), list_form("conversation"),
  {
    has = "prompt", answer = "completion",
    fields = line_fields.new("a line with prompt and completion", "prompt completion system history",
      line_fields.SOURCE, line_fields.TOOLS),
    read = function(where, row, reader)
      local messages = earlier(where, row, reader.trains)
      add_field(messages, where, row, "prompt", "user", reader)
      add_field(messages, where, row, "completion", "assistant", reader)
      return messages
    end,
  },
  {
    has = "instruction", answer = "output",
    fields = line_fields.new("a line with instruction and output", "instruction input output system history",
      line_fields.SOURCE, line_fields.TOOLS),
    read = function(where, row, reader)
      local asked, more = conversations.text(where, row, "instruction"), row.input
      if not line_fields.is_empty(more) then asked = asked .. "\n\n" .. conversations.text(where, row, "input") end
      return add_pair(earlier(where, row, reader.trains), asked, conversations.text(where, row, "output"),
        reader.trains)
    end,
  },
}

local function form_of(row)
  local first
  for _, form in ipairs(FORMS) do
    if not line_fields.is_empty(row[form.has]) or form.answer and not line_fields.is_empty(row[form.answer]) then
      return form
    end
    first = first or row[form.has] ~= nil and form
  end
  return first -- says what is missing
end

local function messages_of(where, row, reader)
  local form = form_of(row)
  if form then
    form.fields:check(where, row, reader.ignored)
    return conversations.with_system(where, row, form.read(where, row, reader), reader.trains)
  end
  errors.invalid("%s: a conversation has messages, or conversations, or prompt and completion, or instruction and "
    .. "output", where)
end

---Reads the conversations of a file in order.
---@param path string
---@param reader moonshard.ConversationReader
---@param visit fun(messages: moonshard.ChatMessage[], where: string) takes a conversation, and where it is
function conversations.each(path, reader, visit)
  json_lines.each(path, "conversations", function(row, where) visit(messages_of(where, row, reader), where) end)
end

return conversations
