-- Which fields of a JSON line, and of the messages in it, mean what. A field is used, known to have no effect, or
-- refused by name: a mask, a system text or calls of tools left out would change what a model learns.
--
-- A recipe names in `ignore` what it wants to train without.

local errors = require("moonshard.base.error")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")

local line_fields = {}

---@class moonshard.LineFields
---@field what string "a line of a conversation", for messages
---@field used table<string, boolean>
---@field silent table<string, boolean> without effect
---@field refused table<string, string> names, and what to do instead
local Fields = {}
Fields.__index = Fields

local function set_of(names)
  local set = {}
  for name in names:gmatch("%S+") do set[name] = true end
  return set
end

---@param what string for messages: "a message"
---@param used string names, separated by blanks
---@param silent string names of fields without effect
---@param refused table<string, string>
---@return moonshard.LineFields
function line_fields.new(what, used, silent, refused)
  return setmetatable({ what = what, used = set_of(used), silent = set_of(silent), refused = refused }, Fields)
end

---Where a line comes from and what it is about, which no loss counts.
line_fields.SOURCE = "id _id idx index uid uuid guid row_id prompt_id conversation_id conv_id session_id message_id "
  .. "sample_id source sources dataset dataset_name subset split origin url link license author annotator category "
  .. "categories topic topics domain task task_type task_name tags language lang locale country date timestamp created "
  .. "created_at updated_at model model_name generator hash num_turns num_tokens token_count"

local CALLS = "templates write no calls of tools: write the call into content, as the model is to write it"
local TOOLS = "templates write no definitions of tools: write them into a system message, as the model is to read them"
local THOUGHT = "templates write no thoughts: write them into content, as the model is to write them"

---Fields of a message; `train` and `weight` choose what is trained on.
line_fields.MESSAGE = line_fields.new("a message", "role content from value train training weight",
  "id message_id index timestamp created_at token_count", {
    tool_calls = CALLS, function_call = CALLS, tools = TOOLS, functions = TOOLS,
    tool_call_id = "templates write no ids of calls: write it into content, if the model is to read it",
    name = "templates write no names: write it into content, if the model is to read it",
    reasoning_content = THOUGHT, reasoning = THOUGHT, thinking = THOUGHT, thought = THOUGHT,
    images = "texts alone are trained on", audio = "texts alone are trained on",
    refusal = "write it into content",
  })

---Fields of a line; see conversations.lua for its forms.
line_fields.TOOLS = { tools = TOOLS, functions = TOOLS }

---Whether a field is missing or says nothing, as "" and an empty list or object do.
---@param value any
---@return boolean
function line_fields.is_empty(value)
  return value == nil or value == "" or type(value) == "table" and next(value) == nil
end

---Checks the fields of an object, and takes away those that are ignored.
---@param where string for messages: "chats.jsonl:3"
---@param object table
---@param ignored string[]
function Fields:check(where, object, ignored)
  for _, name in ipairs(ignored) do object[name] = nil end
  local names = {}
  for name in pairs(object) do names[#names + 1] = tostring(name) end
  table.sort(names) -- the same message on every rank
  for _, name in ipairs(names) do
    local known = self.used[name] or self.silent[name] or line_fields.is_empty(object[name])
    if not known then
      local reason = self.refused[name] or ("%s has no such field: %s"):format(self.what,
        nearest.advice(name, self.used))
      errors.invalid("%s: the field %s is not used: %s; to train without it: ignore = { %s }", where,
        options.describe(name), reason, options.describe(name))
    end
  end
end

---The option `ignore`, checked.
---@param who string for messages
---@param given string[]?
---@return string[]
function line_fields.ignored(who, given)
  for key, name in pairs(given or {}) do
    if type(key) ~= "number" or type(name) ~= "string" then
      errors.invalid("%s: ignore must be a list of names of fields, like { \"tools\" }", who)
    end
  end
  return given or {}
end

return line_fields
