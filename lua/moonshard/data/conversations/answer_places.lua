-- Which bytes of a conversation's text are trained on, where a Jinja template wrote it.
--
-- A template that marks answers with {% generation %} says so itself, as for Hugging Face's library. For others, a
-- message's text is what the conversation gains by it: an answer's begins behind what the template writes before an
-- answer (add_generation_prompt), and ends where the conversation up to it ends. That holds only for templates which
-- write earlier messages as they wrote them when they were the last. Some leave out the thoughts of earlier answers:
-- there the answers after the last message of the user alone can be trained on.

local errors = require("moonshard.base.error")
local line_fields = require("moonshard.data.conversations.line_fields")
local options = require("moonshard.base.checks.options")
local text_lines = require("moonshard.base.text.text_lines")

local answer_places = {}

local ANSWERS = "assistant"
local LAST = 'train_on = "last" trains on the answers after the last message of the user alone'

local function begins_with(text, beginning) return text:sub(1, #beginning) == beginning end

-- Where the whole text goes on behind the first messages. Some templates end a conversation with a token that no
-- message in the middle has.
local function end_of(self, whole, messages, conversation, i, where)
  local part = self:render(messages, conversation, i, false, where).text
  if begins_with(whole, part) then return #part end
  local ending = self.variables.eos_token
  if type(ending) == "string" and part:sub(-#ending) == ending then
    part = part:sub(1, -#ending - 1)
    if begins_with(whole, part) then return #part end
  end
  errors.raise("MS_EUNSUPPORTED", "%s: the template %s writes message %d otherwise once others follow (as where it "
    .. "leaves out thoughts), so its place in the text is not known: %s; or give a template with {%% generation %%}",
    where, self.default.name, i, LAST)
end

-- The bytes of an answer.
local function answer_range(self, whole, messages, conversation, i, where)
  local last = end_of(self, whole, messages, conversation, i, where)
  local prompt = self:render(messages, conversation, i - 1, true, where).text
  if not begins_with(whole, prompt) or #prompt > last then
    errors.raise("MS_EUNSUPPORTED", "%s: the template %s begins the answer of message %d otherwise than it asks for "
      .. "one (add_generation_prompt), so its place in the text is not known: %s; or give template_kwargs with which "
      .. "it does, or a template with {%% generation %%}", where, self.default.name, i, LAST)
  end
  return { first = #prompt + 1, last = last }
end

-- The bytes of a message that is no answer, from its content on.
local function other_range(self, whole, messages, conversation, i, where)
  local before = i > 1 and end_of(self, whole, messages, conversation, i - 1, where) or 0
  local last = end_of(self, whole, messages, conversation, i, where)
  local content = messages[i].content
  local first = type(content) == "string" and (whole:find(content, before + 1, true)
    or whole:find(text_lines.strip(content), before + 1, true))
  if not first or first > last then
    errors.raise("MS_EUNSUPPORTED", "%s: message %d of the role %s is trained on, and its content is not found in the "
      .. "text that the template %s writes: train on answers", where, i, options.describe(messages[i].role),
      self.default.name)
  end
  return { first = first, last = last }
end

-- The parts of spans within ranges; both ascend.
local function within(spans, ranges)
  local parts = {}
  for _, range in ipairs(ranges) do
    for _, span in ipairs(spans) do
      local first, last = math.max(span.first, range.first), math.min(span.last, range.last)
      if first <= last then parts[#parts + 1] = { first = first, last = last } end
    end
  end
  return parts
end

-- Whether {% generation %} alone decides: all answers are trained on, and nothing else.
local function only_answers(messages)
  for _, message in ipairs(messages) do
    if message.trained ~= (message.role == ANSWERS) then return false end
  end
  return true
end

---Leaves the answers after the last message of the user, and no others, to be trained on.
---@param messages moonshard.ChatMessage[] changed
function answer_places.keep_last(messages)
  local last_question = 0
  for i, message in ipairs(messages) do
    if message.role == "user" then last_question = i end
  end
  for i = 1, last_question do messages[i].trained = false end
end

---The bytes of a conversation that are trained on.
---@param self moonshard.JinjaChat
---@param messages moonshard.ChatMessage[]
---@param conversation table<string, any>? as of JinjaChat:render
---@param where string for messages: "chats.jsonl:3"
---@return string text
---@return { first: integer, last: integer }[] places ascending
function answer_places.find(self, messages, conversation, where)
  local rendered = self:render(messages, conversation, #messages, false, where)
  local whole, marked = rendered.text, rendered.spans
  if rendered.misplaced then
    errors.raise("MS_EUNSUPPORTED", "%s: the template %s has {%% generation %%} within a macro or a block (line %d), "
      .. "whose text has no place of its own", where, self.default.name, rendered.misplaced)
  end
  if marked[1] and only_answers(messages) then return whole, marked end
  local ranges, answers = {}, {}
  for i, message in ipairs(messages) do
    if message.trained and message.role == ANSWERS then
      answers[#answers + 1] = answer_range(self, whole, messages, conversation, i, where)
    elseif message.trained then
      ranges[#ranges + 1] = other_range(self, whole, messages, conversation, i, where)
    end
  end
  for _, range in ipairs(marked[1] and within(marked, answers) or answers) do ranges[#ranges + 1] = range end
  table.sort(ranges, function(a, b) return a.first < b.first end)
  return whole, ranges
end

-- ---- prompts --------------------------------------------------------------------------------------------------------

---The text before an answer.
---@param self moonshard.JinjaChat
---@param messages string|table[] the user's message, or a list of { role =, content = }
---@return string
function answer_places.prompt(self, messages)
  if type(messages) == "string" then messages = { { role = "user", content = messages } } end
  for i, message in ipairs(messages) do
    local where = ("%s: message %d"):format(self.who, i)
    if type(message) ~= "table" or type(message.role) ~= "string" then
      errors.invalid("%s must be { role =, content = }", where)
    end
    for name, value in pairs(message) do
      if name ~= "role" and name ~= "content" and not line_fields.is_empty(value) and not self:reads(name) then
        errors.invalid("%s: the template %s does not read the field %s: leave it out", where, self.default.name,
          tostring(name))
      end
    end
  end
  return self:render(messages, nil, #messages, true, self.who).text
end

---The text that begins an answer's message and its content, without what ends it.
---@param self moonshard.JinjaChat
---@param text string the content
---@return string
function answer_places.answer(self, text)
  local messages = { { role = "user", content = "?" }, { role = ANSWERS, content = text } }
  local prompt = self:render(messages, nil, 1, true, self.who).text
  local whole = self:render(messages, nil, 2, false, self.who).text
  local rest = begins_with(whole, prompt) and whole:sub(#prompt + 1) or ""
  local _, last = rest:find(text, 1, true)
  if not last then _, last = rest:find(text_lines.strip(text), 1, true) end
  if not last or #rest == 0 then
    errors.raise("MS_EUNSUPPORTED", "%s: the template %s does not write the answer %s behind its prompt as it is",
      self.who, self.default.name, options.describe(text))
  end
  return rest:sub(1, last)
end

return answer_places
