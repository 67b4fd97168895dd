-- Conversations of JSON lines, one a line, or of a JSON list, one an item, in the forms that published datasets have
-- (forms.lua): messages, what each says of itself (messages.lua), and what a template takes of the line besides.
-- What else a line has is refused by name (line_fields.lua).

local chat_template = require("moonshard.data.conversations.chat_template")
local forms = require("moonshard.data.conversations.forms")
local json_lines = require("moonshard.data.files.json_lines")
local line_fields = require("moonshard.data.conversations.line_fields")
local messages = require("moonshard.data.conversations.messages")

local conversations = {}

---How lines are read.
---@param who string for messages: "ms.data.chat"
---@param o { ignore: string[]?, tokens: moonshard.MessageTokens } parsed options, and what writes the messages
---@param trains string as of the reader
---@return moonshard.ConversationReader
function conversations.reader(who, o, trains)
  return { trains = trains, ignored = line_fields.ignored(who, o.ignore),
    takes = function(field) return chat_template.takes(o.tokens.template, field) end }
end

---Reads the conversations of a file in order.
---@param path string
---@param reader moonshard.ConversationReader
---@param visit fun(messages: moonshard.ChatMessage[], where: string, conversation: table<string, any>) takes the
---  messages of a conversation, where it is ("chats.jsonl:3"), and what the template takes of it besides: tools
function conversations.each(path, reader, visit)
  json_lines.each(path, "conversations", function(row, where)
    line_fields.leave_out(row, reader.ignored)
    local form = forms.of(where, row)
    form.fields:check(where, row, reader.ignored, reader.takes)
    local list = messages.with_system(where, row, form.read(where, row, reader, form), reader.trains)
    visit(list, where, forms.conversation(where, row, form.fields, reader))
  end)
end

return conversations
