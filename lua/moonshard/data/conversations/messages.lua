-- Messages of lines: their roles and contents, in either of two namings, what is trained on of them, and further fields
-- that the template writes.
--
--   { "role": "user", "content": "..." }         content can be parts, { "type": "text", "text": "..." }, joined
--   { "from": "human", "value": "..." }          ShareGPT's
--
-- A message can say whether it is trained on: `train`, `training`, `trainable` or `loss`, true or false, overrides the
-- role; `weight` 0 leaves it out. Fields that the template takes (tool_calls, reasoning_content, name) are kept as they
-- are, null and empty ones too; see line_fields.lua for others.

local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local line_fields = require("moonshard.data.conversations.line_fields")
local options = require("moonshard.base.checks.options")

local messages = {}

---@class moonshard.ChatMessage
---@field role string
---@field content string|any absent or json.null as in the line, if the template takes calls of tools, and it has some
---@field trained boolean
---@field [string] any the fields that the template takes

---@class moonshard.ConversationReader
---@field trains string the role whose messages are trained on, "all", or "none": flags of messages are refused then
---@field ignored string[] names of fields that are taken for absent
---@field takes fun(field: string): boolean whether the template writes a field of messages, or of the line

-- ---- roles ------------------------------------------------------------------------------------------------------

-- What a message says of itself, in either of two namings.
local PLAIN, SHAREGPT = { role = "role", content = "content" }, { role = "from", content = "value" }

-- What ShareGPT calls the roles. Others are as they are: the template has them or refuses them.
local ROLES = { human = "user", gpt = "assistant", chatgpt = "assistant", observation = "tool" }
local CALL = "function_call" -- the role of a message whose value is a call of a tool, or a list of them, as JSON

local function naming_of(at, message)
  if message[SHAREGPT.role] == nil and message[SHAREGPT.content] == nil then return PLAIN end
  for _, name in ipairs({ PLAIN.role, PLAIN.content }) do
    if message[name] ~= nil then
      errors.invalid("%s: it has %s and also from or value: which is meant?", at, name)
    end
  end
  return SHAREGPT
end

-- ---- what is trained on -----------------------------------------------------------------------------------------

-- The flags of a message, as one: true, false, or nil, which leaves it to the role. A weight of 1 is what others have
-- that name none.
local function flag_of(at, message)
  local flag, by
  for _, name in ipairs(line_fields.FLAGS) do
    local given = message[name]
    if given == json.null then given = nil end
    if given ~= nil and type(given) ~= "boolean" then
      errors.invalid("%s: %s must be true or false, not %s", at, name, options.describe(given))
    end
    if given ~= nil and flag ~= nil and given ~= flag then
      errors.invalid("%s: %s and %s say different things", at, by, name)
    end
    if given ~= nil then flag, by = given, name end
  end
  local weight = message.weight
  if weight == json.null then weight = nil end
  if weight ~= nil and weight ~= 0 and weight ~= 1 then
    errors.invalid("%s: weight must be 0 or 1, not %s: a message is trained on or not", at, options.describe(weight))
  end
  if flag ~= nil and weight ~= nil and flag ~= (weight == 1) then
    errors.invalid("%s: its weight is %d, but %s is %s", at, weight, by, tostring(flag))
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

-- ---- contents ---------------------------------------------------------------------------------------------------

local PART = line_fields.new("a part of a content", "type text", "", {})

-- The text of a message, which can be in parts.
local function content_of(at, message, field, reader)
  local parts, texts = message[field], {}
  if type(parts) ~= "table" or #parts == 0 then return line_fields.text(at, message, field) end
  line_fields.check_list(at, parts, field)
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
    texts[i] = line_fields.text(of_part, part, "text")
  end
  return table.concat(texts)
end

local function is_call(call) return type(call) == "table" and type(call.name) == "string" end

-- ShareGPT's message of calls as the message of an assistant that has them.
local function calls_of(at, message, reader)
  if not reader.takes("tool_calls") then
    errors.invalid("%s: the role %s is not used: %s", at, options.describe(CALL), line_fields.CALLS)
  end
  local given, problem = json.decode(line_fields.text(at, message, "value"), true)
  local list, calls = is_call(given) and { given } or given, {}
  if type(list) ~= "table" or not list[1] then
    errors.invalid("%s: value must be a call of a tool as JSON, { name, arguments }, or a list of them%s", at,
      problem and (": " .. problem) or "")
  end
  for i, call in ipairs(list) do
    if not is_call(call) then errors.invalid("%s: value: call %d must be { name, arguments }", at, i) end
    calls[i] = { type = "function", ["function"] = call }
  end
  return { role = "assistant", content = "", tool_calls = json.list(calls) }
end

-- Whether a message is whole without a content: calls of tools have it absent or null.
local function has_calls(message, reader)
  return (message.content == nil or message.content == json.null) and reader.takes("tool_calls")
    and not line_fields.is_empty(message.tool_calls)
end

local function read_message(at, message, reader)
  line_fields.MESSAGE:check(at, message, reader.ignored, reader.takes)
  local names = naming_of(at, message)
  local role = line_fields.text(at, message, names.role)
  local read
  if names == SHAREGPT and role == CALL then
    read = calls_of(at, message, reader)
  else
    if names == SHAREGPT then role = ROLES[role] or role end
    local content = message.content
    if not has_calls(message, reader) then content = content_of(at, message, names.content, reader) end
    read = { role = role, content = content }
  end
  read.trained = is_trained(at, message, read.role, reader.trains)
  for name, value in pairs(message) do
    if not line_fields.MESSAGE.used[name] and reader.takes(name) then read[name] = value end
  end
  return read
end

---A list of messages.
---@param where string for messages
---@param row table a line
---@param field string of the line, which has the list
---@param reader moonshard.ConversationReader
---@return moonshard.ChatMessage[]
function messages.list(where, row, field, reader)
  local list, read = row[field], {}
  if type(list) ~= "table" or #list == 0 then
    errors.invalid("%s: %s must be a list of at least one { role, content }", where, field)
  end
  line_fields.check_list(where, list, field)
  for i, message in ipairs(list) do
    local at = ("%s: %s %d"):format(where, field == "messages" and "message" or field .. ": message", i)
    if type(message) ~= "table" then errors.invalid("%s must be { role, content }", at) end
    read[i] = read_message(at, message, reader)
  end
  return read
end

-- ---- the message of the system ----------------------------------------------------------------------------------

---Fields of lines that are a first message of the system.
messages.SYSTEM = { "system", "system_prompt" }

---The text of a line's own message of the system; nil without one.
---@param where string for messages
---@param row table
---@return string?
function messages.system_of(where, row)
  local text
  for _, field in ipairs(messages.SYSTEM) do
    if not line_fields.is_empty(row[field]) then
      local given = line_fields.text(where, row, field)
      if text and text ~= given then
        errors.invalid("%s: system and %s differ: which is meant?", where, field)
      end
      text = given
    end
  end
  return text
end

---Puts the line's own message of the system before its messages.
---@param where string for messages
---@param row table
---@param list moonshard.ChatMessage[]
---@param trains string
---@return moonshard.ChatMessage[] list
function messages.with_system(where, row, list, trains)
  local text, first = messages.system_of(where, row), list[1]
  if not text then return list end
  if first and first.role == "system" then
    if first.content == text then return list end
    errors.invalid("%s: system and the first message, which is one of the system, differ: which is meant?", where)
  end
  table.insert(list, 1, { role = "system", content = text, trained = trains == "all" or trains == "system" })
  return list
end

return messages
