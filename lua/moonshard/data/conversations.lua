-- Conversations of JSON lines, one a line, in the forms that published datasets have:
--
--   { "messages": [ { "role": "user", "content": "..." }, { "role": "assistant", "content": "..." } ] }
--   { "prompt": "...", "completion": "..." }
--   { "instruction": "...", "input": "...", "output": "..." }      input may be missing or empty
--
-- Files that end in .zst are decompressed. Pairs of answers (data/preferences.lua) are read through the same lines.

local decompressed = require("moonshard.data.decompressed")
local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.input_file")
local json = require("moonshard.base.json")
local options = require("moonshard.base.options")
local text_lines = require("moonshard.base.text_lines")
local zstd = require("moonshard.base.zstd")

local conversations = {}

---@class moonshard.ChatMessage
---@field role string
---@field content string
---@field trained boolean

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

---A list of messages.
---@param where string for messages
---@param row table a line
---@param field string of the line, which has the list
---@param trains string the role whose messages are trained on, "all", or "none"
---@return moonshard.ChatMessage[]
function conversations.messages(where, row, field, trains)
  local list = row[field]
  if type(list) ~= "table" or #list == 0 then
    errors.invalid("%s: %s must be a list of at least one { role, content }", where, field)
  end
  local messages = {}
  for i, message in ipairs(list) do
    local at = ("%s: %s %d"):format(where, field == "messages" and "message" or field .. ": message", i)
    if type(message) ~= "table" then errors.invalid("%s must be { role, content }", at) end
    local role, content = conversations.text(at, message, "role"), conversations.text(at, message, "content")
    messages[i] = { role = role, content = content, trained = trains == "all" or role == trains }
  end
  return messages
end

local function of_pair(asked, answered, trains)
  return {
    { role = "user", content = asked, trained = trains == "all" or trains == "user" },
    { role = "assistant", content = answered, trained = trains == "all" or trains == "assistant" },
  }
end

local function messages_of(where, row, trains)
  if row.messages ~= nil then return conversations.messages(where, row, "messages", trains) end
  if row.prompt ~= nil then
    return of_pair(conversations.text(where, row, "prompt"), conversations.text(where, row, "completion"), trains)
  end
  if row.instruction ~= nil then
    local asked, more = conversations.text(where, row, "instruction"), row.input
    if more ~= nil and more ~= "" then asked = asked .. "\n\n" .. conversations.text(where, row, "input") end
    return of_pair(asked, conversations.text(where, row, "output"), trains)
  end
  errors.invalid("%s: a conversation has messages, or prompt and completion, or instruction and output", where)
end

---@param path string
---@return boolean
function conversations.is_file(path)
  return path:lower():gsub("%.zst$", ""):find("%.jsonl$") ~= nil
end

-- UTF-8's byte order mark, with which some editors begin a file.
local MARK = "\239\187\191"

---Iterates over the objects of a file.
---@param path string
---@param what string for messages: "conversations"
---@return fun(): table?, string? the object, and where it is: "chats.jsonl:3"
function conversations.lines(path, what)
  decompressed.refuse_others(path)
  local text = input_file.read(path, what .. " are read from files of JSON lines")
  if path:find("%.zst$") then text = zstd.decompress(path, text) end
  if text:sub(1, #MARK) == MARK then text = text:sub(#MARK + 1) end
  local lines, number = text:gmatch("([^\n]*)\n?"), 0
  return function()
    for line in lines do
      number = number + 1
      if line:find("%S") then
        local where = ("%s:%d"):format(path, number)
        local wrong = text_lines.not_utf8(line)
        if wrong then
          errors.invalid("%s: byte %d, 0x%02x, is not UTF-8, which JSON is: convert the file (iconv -t UTF-8), or "
            .. "leave the line out", where, wrong, line:byte(wrong))
        end
        local row, problem = json.decode(line)
        if type(row) ~= "table" then errors.invalid("%s: %s", where, problem or "a line must be an object") end
        return row, where
      end
    end
  end
end

---Iterates over the conversations of a file.
---@param path string
---@param trains string the role whose messages are trained on, or "all"
---@return fun(): moonshard.ChatMessage[]?, string? messages, and where they are: "chats.jsonl:3"
function conversations.of(path, trains)
  local lines = conversations.lines(path, "conversations")
  return function()
    local row, where = lines()
    if row then return messages_of(where, row, trains), where end
  end
end

return conversations
