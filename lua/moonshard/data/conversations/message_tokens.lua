-- Conversations as tokens: a template writes the text, a tokenizer or the bytes give the tokens, and each token says
-- whether it is trained on.
--
-- Each piece of a text by name or table is encoded for itself, in conversations as in prompts, so that no token crosses
-- the border of a message and the tokens of a prompt are those that begin the conversation. What a Jinja template
-- writes is encoded whole, as Hugging Face's library does, and a token with a byte that is trained on is trained on.

local answer_places = require("moonshard.data.conversations.answer_places")
local byte_tokens = require("moonshard.data.byte_tokens")
local chat_template = require("moonshard.data.conversations.chat_template")
local errors = require("moonshard.base.error")
local jinja_chat = require("moonshard.data.conversations.jinja_chat")
local options = require("moonshard.base.checks.options")
local token_places = require("moonshard.data.conversations.token_places")
local tokenizers = require("moonshard.data.tokenizer")

local message_tokens = {
  OPTIONS = jinja_chat.OPTIONS, -- of all that write conversations: what Jinja templates are given besides
  refuse_options = jinja_chat.refuse_options, -- where there is no template
}

---@class moonshard.MessageTokens
---@field document_start integer? the token before each conversation
---@field whole table<string, boolean> texts of the template whose tokens the tokenizer has
---@field places moonshard.TokenPlaces? of a Jinja template
local MessageTokens = {}
MessageTokens.__index = MessageTokens

local function check(who, o)
  if o.tokenizer ~= nil and not (type(o.tokenizer) == "table" and o.tokenizer.encode) then
    tokenizers.refuse(who, o.tokenizer)
  end
  for _, name in ipairs({ "document_start", "padding" }) do
    if type(o[name]) == "number" and o[name] < 0 then
      errors.invalid("%s: %s must be a token, at least 0, not %d", who, name, o[name])
    end
  end
end

local function start_of(who, o)
  local start = o.document_start
  if type(start) ~= "string" then return start end
  if not o.tokenizer then
    errors.invalid("%s: document_start %s is a text, whose token a tokenizer has: give tokenizer, or a number", who,
      options.describe(start))
  end
  return o.tokenizer:id(start)
end

---How conversations become tokens, by the options that data of conversations have in common.
---@param who string for messages: "ms.data.chat"
---@param o { tokenizer: moonshard.Tokenizer?, template: string|moonshard.ChatTemplate, document_start: integer|string?,
---  padding: integer?, template_kwargs: table?, tools: string|table?, now: string? } parsed options
---@return moonshard.MessageTokens
function message_tokens.new(who, o)
  check(who, o)
  local tokenizer, template = o.tokenizer or byte_tokens, chat_template.find(who, o.template, o)
  return setmetatable({
    who = who, document_start = start_of(who, o), template = template, tokenizer = tokenizer, whole = {},
    places = jinja_chat.is(template) and token_places.new(tokenizer) or nil,
  }, MessageTokens)
end

-- A tokenizer that cuts a template's tokens into pieces is another model's: what it gives means nothing to a model that
-- was trained with them. Bytes have no tokens to know.
local function check_token(self, token)
  if self.whole[token] or self.tokenizer.of_bytes then return end
  local pieces = #self.tokenizer:encode(token)
  if pieces ~= 1 then
    errors.raise("MS_EUNSUPPORTED", "%s: the template has the token %s, which %s cuts into %d pieces: give the "
      .. "template of this tokenizer's model, or one of your own, or add the token to the tokenizer", self.who, token,
      self.tokenizer.path or "the tokenizer", pieces)
  end
  self.whole[token] = true
end

local function check_template(self, text)
  if self.whole[text] then return end
  for _, token in ipairs(chat_template.tokens_in(self.template, text)) do check_token(self, token) end
  self.whole[text] = true
end

-- Adds the ids of a text to tokens. A template can begin with document_start itself.
local function add(self, tokens, trained, text, ids, is_trained)
  local start = self.document_start
  for i, id in ipairs(ids) do
    if id == start and #tokens > 0 then
      errors.invalid("%s: the token document_start (%d) is in the text %s: documents would begin there", self.who,
        start, options.describe(text:sub(1, 40)))
    end
    if start and #tokens == 0 and id ~= start then tokens[1], trained[1] = start, false end
    tokens[#tokens + 1], trained[#tokens + 1] = id, is_trained(i)
  end
end

local function encode(self, pieces)
  local tokens, trained = {}, {}
  for _, piece in ipairs(pieces) do
    check_template(self, piece.of_template)
    add(self, tokens, trained, piece.text, self.tokenizer:encode(piece.text), function() return piece.trained end)
  end
  return tokens, trained
end

-- ---- of Jinja templates -------------------------------------------------------------------------------------------

-- The tokens that a Jinja template writes: what looks like one in the text, and is not in what the messages say. Those
-- of the tokenizer's own template are as they are meant to be.
local function check_written(self, text, messages)
  if self.template.of_tokenizer then return end
  for token in text:gmatch("<|[^<>%s]+|>") do
    if not self.whole[token] then
      local said = false
      for _, message in ipairs(messages) do
        said = said or type(message.content) == "string" and message.content:find(token, 1, true) ~= nil
      end
      if not said then check_token(self, token) end
    end
  end
end

-- A whole text, and whether each of its tokens has a byte of the places, which ascend.
local function encode_whole(self, text, places, where)
  local tokens, trained, ids = {}, {}, self.tokenizer:encode(text)
  local firsts, lasts = {}, {}
  if places[1] then firsts, lasts = self.places:of(text, ids, where) end
  local at = 1
  add(self, tokens, trained, text, ids, function(i)
    while places[at] and places[at].last < firsts[i] do at = at + 1 end
    return places[at] ~= nil and lasts[i] >= places[at].first
  end)
  return tokens, trained
end

-- ---- both kinds ---------------------------------------------------------------------------------------------------

---The tokens of a conversation, and which are trained on.
---@param messages moonshard.ChatMessage[]
---@param where string for messages: "chats.jsonl:3"
---@param conversation table<string, any>? what else the line gives a Jinja template: tools, documents, its variables
---@return integer[] tokens
---@return boolean[] trained
function MessageTokens:of(messages, where, conversation)
  if not self.places then return encode(self, chat_template.render(self.template, messages, where)) end
  local text, places = answer_places.find(self.template, messages, conversation, where)
  check_written(self, text, messages)
  return encode_whole(self, text, places, where)
end

---The tokens before an answer.
---@param messages string|moonshard.ChatMessage[] the user's message, or a list of { role =, content = }
---@return integer[]
function MessageTokens:before_answer(messages)
  if not self.places then return (encode(self, chat_template.before_answer(self.who, self.template, messages))) end
  chat_template.check_messages(self.who, messages)
  local text = answer_places.prompt(self.template, messages)
  check_written(self, text, type(messages) == "table" and messages or { { content = messages } })
  return (encode_whole(self, text, {}, self.who))
end

---The tokens of an answer's content, without what ends it.
---@param text string
---@return integer[]
function MessageTokens:answer(text)
  if self.places then return self.tokenizer:encode(answer_places.answer(self.template, text)) end
  return self.tokenizer:encode(chat_template.content(self.template, text))
end

---@class moonshard.ChatPromptOptions the same as of the data
---@field template? string|moonshard.ChatTemplate default "chatml"
---@field tokenizer? moonshard.Tokenizer default: a token is a byte
---@field document_start? integer|string
---@field template_kwargs? table<string, any> variables of a Jinja template: { enable_thinking = false }
---@field tools? string|table[] definitions of tools for a Jinja template: a list, or a JSON file of one
---@field now? string the day that a Jinja template writes as today's: "2024-07-26"

---The tokens before an answer, as conversations of ms.data.chat have them: for ms.generate.
---@param messages string|moonshard.ChatMessage[] the user's message, or a list of { role =, content = }
---@param given moonshard.ChatPromptOptions?
---@return integer[]
function message_tokens.prompt(messages, given)
  local who = "ms.data.chat_prompt"
  if type(given) == "string" then
    errors.invalid("%s takes a table of options behind the messages: { template = %q }, not %q", who, given, given)
  end
  local specs = {
    template = { "string|table", default = "chatml" }, tokenizer = { "any" }, document_start = { "integer|string" },
  }
  for name, spec in pairs(message_tokens.OPTIONS) do specs[name] = spec end
  local o = options.parse(who, given, specs)
  return message_tokens.new(who, o):before_answer(messages)
end

return message_tokens
