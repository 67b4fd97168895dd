-- Conversations as tokens: a template writes the text, a tokenizer or the bytes give the tokens, and each token says
-- whether it is trained on.
--
-- Each piece of the text is encoded for itself, in conversations as in prompts, so that no token crosses the border of
-- a message and the tokens of a prompt are those that begin the conversation.

local byte_tokens = require("moonshard.data.byte_tokens")
local chat_template = require("moonshard.data.conversations.chat_template")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local tokenizers = require("moonshard.data.tokenizer")

local message_tokens = {}

---@class moonshard.MessageTokens
---@field document_start integer? the token before each conversation
---@field whole table<string, boolean> texts of the template whose tokens the tokenizer has
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
---  padding: integer? } parsed options
---@return moonshard.MessageTokens
function message_tokens.new(who, o)
  check(who, o)
  return setmetatable({
    who = who, document_start = start_of(who, o), template = chat_template.find(who, o.template),
    tokenizer = o.tokenizer or byte_tokens, whole = {},
  }, MessageTokens)
end

-- A tokenizer that cuts a template's tokens into pieces is another model's: what it gives means nothing to a model that
-- was trained with them. Bytes have no tokens to know.
local function check_template(self, text)
  if self.whole[text] or self.tokenizer.of_bytes then return end
  for _, token in ipairs(chat_template.tokens_in(self.template, text)) do
    local pieces = #self.tokenizer:encode(token)
    if pieces ~= 1 then
      errors.raise("MS_EUNSUPPORTED", "%s: the template has the token %s, which %s cuts into %d pieces: give the "
        .. "template of this tokenizer's model, or one of your own, or add the token to the tokenizer", self.who, token,
        self.tokenizer.path or "the tokenizer", pieces)
    end
  end
  self.whole[text] = true
end

-- A template can begin with document_start itself.
local function encode(self, pieces)
  local tokens, trained, start = {}, {}, self.document_start
  for _, piece in ipairs(pieces) do
    check_template(self, piece.of_template)
    for _, id in ipairs(self.tokenizer:encode(piece.text)) do
      if id == start and #tokens > 0 then
        errors.invalid("%s: the token document_start (%d) is in the text %s: documents would begin there", self.who,
          start, options.describe(piece.text:sub(1, 40)))
      end
      if start and #tokens == 0 and id ~= start then tokens[1], trained[1] = start, false end
      tokens[#tokens + 1], trained[#tokens + 1] = id, piece.trained
    end
  end
  return tokens, trained
end

---The tokens of a conversation, and which are trained on.
---@param messages moonshard.ChatMessage[]
---@param where string for messages: "chats.jsonl:3"
---@return integer[] tokens
---@return boolean[] trained
function MessageTokens:of(messages, where) return encode(self, chat_template.render(self.template, messages, where)) end

---The tokens before an answer.
---@param messages string|moonshard.ChatMessage[] the user's message, or a list of { role =, content = }
---@return integer[]
function MessageTokens:before_answer(messages)
  return (encode(self, chat_template.before_answer(self.who, self.template, messages)))
end

---The tokens of an answer's content, without what ends it.
---@param text string
---@return integer[]
function MessageTokens:answer(text) return self.tokenizer:encode(chat_template.content(self.template, text)) end

---@class moonshard.ChatPromptOptions the same as of the data
---@field template? string|moonshard.ChatTemplate default "chatml"
---@field tokenizer? moonshard.Tokenizer default: a token is a byte
---@field document_start? integer|string

---The tokens before an answer, as conversations of ms.data.chat have them: for ms.generate.
---@param messages string|moonshard.ChatMessage[] the user's message, or a list of { role =, content = }
---@param given moonshard.ChatPromptOptions?
---@return integer[]
function message_tokens.prompt(messages, given)
  local who = "ms.data.chat_prompt"
  if type(given) == "string" then
    errors.invalid("%s takes a table of options behind the messages: { template = %q }, not %q", who, given, given)
  end
  local o = options.parse(who, given, {
    template = { "string|table", default = "chatml" }, tokenizer = { "any" }, document_start = { "integer|string" },
  })
  return message_tokens.new(who, o):before_answer(messages)
end

return message_tokens
