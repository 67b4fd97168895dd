-- How conversations become text: what is written before and after each message, by role. The texts are those of the
-- templates that the models named here were published with, also in whether they cut off the space around contents,
-- except that no system message is added, which some have by default; a recipe can have its own, in the same form. A
-- model's own Jinja template is the other kind (jinja_chat.lua).
--
-- A message's content and what ends it can be trained on; what begins it never is.

local errors = require("moonshard.base.error")
local jinja_chat = require("moonshard.data.conversations.jinja_chat")
local line_fields = require("moonshard.data.conversations.line_fields")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")
local text_lines = require("moonshard.base.text.text_lines")

local chat_template = {}

---@class moonshard.ChatTemplate
---@field begin string? before each conversation
---@field trim boolean? whether contents are written without the space around them
---@field [string] { [1]: string, [2]: string } by role: the texts before and after a message; `default`: of roles that
---  have none; ROLE in the text before is replaced by the role's name

---@type table<string, moonshard.ChatTemplate>
local NAMED = {
  chatml = { default = { "<|im_start|>ROLE\n", "<|im_end|>\n" } },
  llama3 = {
    begin = "<|begin_of_text|>", trim = true,
    default = { "<|start_header_id|>ROLE<|end_header_id|>\n\n", "<|eot_id|>" },
  },
  gemma = {
    begin = "<bos>", trim = true, user = { "<start_of_turn>user\n", "<end_of_turn>\n" },
    assistant = { "<start_of_turn>model\n", "<end_of_turn>\n" },
  },
  phi3 = { default = { "<|ROLE|>\n", "<|end|>\n" } },
  plain = { default = { "ROLE: ", "\n" } },
}

-- The roles for which the templates above have texts. Another role is a slip (Assistant, gpt), whose messages would not
-- be trained on.
local ROLES = {
  system = true, developer = true, user = true, assistant = true, tool = true, ["function"] = true, ipython = true,
}
local is_named = {}
for _, template in pairs(NAMED) do is_named[template] = true end

-- What a template has that is no role's: its kind, and what messages call that.
local OF_ALL = { begin = { "string", "a text" }, trim = { "boolean", "true or false" } }

local function is_role(name) return not OF_ALL[name] and name ~= "default" end

---A template by its name, or one of a recipe's own, checked.
---@param who string for messages
---@param given string|moonshard.ChatTemplate|{ jinja: string } a name, "tokenizer", a path of a .jinja file, or a table
---@param o { tokenizer: moonshard.Tokenizer?, template_kwargs: table?, tools: string|table?, now: string? } parsed
---  options: what a Jinja template is given
---@return moonshard.ChatTemplate|moonshard.JinjaChat
function chat_template.find(who, given, o)
  local of_jinja = jinja_chat.find(who, given, o)
  if of_jinja then return of_jinja end
  jinja_chat.refuse_options(who, o)
  if type(given) == "string" then
    if NAMED[given] then return NAMED[given] end
    errors.raise("MS_ENAME", "%s: no template named %s: %s; or give \"tokenizer\" for the one of its folder, the path "
      .. "of a .jinja file, or { begin = text, ROLE = { before, after } }", who, given, nearest.advice(given, NAMED))
  end
  for role, texts in pairs(given) do
    local of_all = OF_ALL[role]
    local right = of_all and type(texts) == of_all[1]
      or not of_all and type(texts) == "table" and type(texts[1]) == "string" and type(texts[2]) == "string"
      and #texts == 2
    if not right then
      errors.invalid("%s: template: %s must be %s, not %s", who, tostring(role),
        of_all and of_all[2] or "{ before, after }, two texts", options.describe(texts))
    end
  end
  return given
end

-- What those templates write of a message.
local WRITTEN = { role = true, content = true }

---Whether a template writes a field of messages or of lines ("tool_calls", "tools"), so that it is not lost.
---@param template moonshard.ChatTemplate|moonshard.JinjaChat
---@param field string
---@return boolean
function chat_template.takes(template, field)
  if jinja_chat.is(template) then return template:reads(field) end
  return WRITTEN[field] or false
end

---@class moonshard.ChatPiece
---@field text string
---@field trained boolean
---@field of_template string what of the text the template wrote

local function roles_of(template)
  local roles = {}
  for role in pairs(is_named[template] and template.default and ROLES or template) do
    if is_role(role) then roles[role] = true end
  end
  return roles
end

-- The texts before and after a message of a role.
local function texts_of(template, role, where)
  local texts = template[role]
  if not texts and (ROLES[role] or not is_named[template]) then texts = template.default end
  if texts and is_role(role) then return texts end
  errors.raise("MS_ENAME", "%s: the template has no role %s: %s; leave such messages out, or give a template that has "
    .. "texts for it", where, options.describe(role), nearest.advice(role, roles_of(template)))
end

---A message's content as a template writes it.
---@param template moonshard.ChatTemplate
---@param text string
---@return string
function chat_template.content(template, text)
  return template.trim and text_lines.strip(text) or text
end

---A conversation as pieces of text.
---@param template moonshard.ChatTemplate
---@param messages moonshard.ChatMessage[]
---@param where string for messages: "chats.jsonl:3"
---@return moonshard.ChatPiece[]
function chat_template.render(template, messages, where)
  local pieces = {}
  local begin = template.begin
  if begin then pieces[1] = { text = begin, trained = false, of_template = begin } end
  for _, message in ipairs(messages) do
    local texts = texts_of(template, message.role, where)
    local before = texts[1]:gsub("ROLE", (message.role:gsub("%%", "%%%%")))
    pieces[#pieces + 1] = { text = before, trained = false, of_template = before }
    pieces[#pieces + 1] = {
      text = chat_template.content(template, message.content) .. texts[2], trained = message.trained,
      of_template = texts[2],
    }
  end
  return pieces
end

---What a template writes as tokens of their own: "<|im_start|>" in any template, "<bos>" in those that have a name.
---@param template moonshard.ChatTemplate
---@param text string of the template
---@return string[]
function chat_template.tokens_in(template, text)
  local tokens = {}
  for token in text:gmatch("<[^<>%s]+>") do
    if is_named[template] or token:find("^<|.+|>$") then tokens[#tokens + 1] = token end
  end
  return tokens
end

---Refuses what is neither a text nor a list of messages.
---@param who string for messages: "ms.data.chat_prompt"
---@param messages any
function chat_template.check_messages(who, messages)
  if type(messages) == "string" then return end
  local what
  if type(messages) ~= "table" then
    what = options.describe(messages)
  elseif messages.role ~= nil then
    what = "one message: put it into a list, { { role =, content = } }"
  elseif next(messages) == nil then
    what = "an empty list"
  end
  for key in pairs(what and {} or messages) do
    if type(key) ~= "number" then what = "a table with " .. tostring(key) end
  end
  if what then errors.invalid("%s: give a text, or a list of { role =, content = }, not %s", who, what) end
end

---The pieces before an answer.
---@param who string for messages: "ms.data.chat_prompt"
---@param template moonshard.ChatTemplate
---@param messages string|moonshard.ChatMessage[] the user's message, or a list of { role =, content = }
---@return moonshard.ChatPiece[]
function chat_template.before_answer(who, template, messages)
  chat_template.check_messages(who, messages)
  if type(messages) == "string" then messages = { { role = "user", content = messages } } end
  local begun = { { role = "assistant", content = "" } }
  for i, message in ipairs(messages) do
    if type(message) ~= "table" or type(message.role) ~= "string" or type(message.content) ~= "string" then
      errors.invalid("%s: message %d must be { role =, content = }, two texts", who, i)
    end
    line_fields.MESSAGE:check(("%s: message %d"):format(who, i), message, {})
    begun[i], begun[i + 1] = message, { role = "assistant", content = "" }
  end
  local pieces = chat_template.render(template, begun, who)
  pieces[#pieces] = nil -- what ends the answer
  return pieces
end

return chat_template
