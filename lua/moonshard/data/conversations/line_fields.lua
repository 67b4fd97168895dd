-- Which fields of a JSON line, and of the messages in it, mean what. A field is used, written by the template, known
-- to have no effect, or refused by name: a mask, a system text or calls of tools left out would change what a model
-- learns.
--
-- A recipe names in `ignore` what it wants to train without. A field that is null is there, as json.null: templates
-- tell it from one that is absent, and from an empty one. Where a text is needed, null is none.

local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
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

---Why calls of tools are refused where the template has no place for them.
line_fields.CALLS = "the template writes no calls of tools: write the call into content, as the model is to write it"
local CALLS = line_fields.CALLS
local TOOLS = "the template writes no definitions of tools: write them into a system message, as the model is to read "
  .. "them"
local THOUGHT = "the template writes no thoughts: write them into content, as the model is to write them"
local MASK = "in some data it means trained on, in other data left out: name the field train or weight"
local PARTLY = "a message is trained on or not: divide it into several"

---Fields of a message; those of FLAGS and `weight` choose what is trained on.
line_fields.FLAGS = { "train", "training", "trainable", "loss" }
line_fields.MESSAGE = line_fields.new("a message", "role content from value weight "
  .. table.concat(line_fields.FLAGS, " "), "id message_id index timestamp created_at token_count", {
    tool_calls = CALLS, function_call = CALLS, tools = TOOLS, functions = TOOLS,
    tool_call_id = "the template writes no ids of calls: write it into content, if the model is to read it",
    name = "the template writes no names: write it into content, if the model is to read it",
    reasoning_content = THOUGHT, reasoning = THOUGHT, thinking = THOUGHT, thought = THOUGHT,
    images = "texts alone are trained on", audio = "texts alone are trained on",
    refusal = "write it into content", mask = MASK, masked = MASK, loss_mask = MASK, train_detail = PARTLY,
    training_detail = PARTLY,
  })

---Fields of a line; see forms.lua for the forms of lines.
line_fields.TOOLS = { tools = TOOLS, functions = TOOLS }

---Whether a field is missing or says nothing, as null, "" and an empty list or object do.
---@param value any
---@return boolean
function line_fields.is_empty(value)
  return value == nil or value == "" or type(value) == "table" and next(value) == nil
end

---A field that must be a text.
---@param where string for messages
---@param row table
---@param field string
---@return string
function line_fields.text(where, row, field)
  local value = row[field]
  if value == nil then errors.invalid("%s: %s is missing: it must be a text", where, field) end
  if type(value) ~= "string" then
    errors.invalid("%s: %s must be a text, not %s", where, field, options.describe(value))
  end
  return value
end

---Raises for a list with a null, which would be left out or misread.
---@param where string for messages
---@param list table
---@param field string
function line_fields.check_list(where, list, field)
  for i, item in ipairs(list) do
    if item == json.null then errors.invalid("%s: %s: item %d of a list is null: leave it out", where, field, i) end
  end
end

---Takes away the fields that are ignored.
---@param object table
---@param ignored string[]
function line_fields.leave_out(object, ignored)
  for _, name in ipairs(ignored) do object[name] = nil end
end

---Checks the fields of an object, and takes away those that are ignored.
---@param where string for messages: "chats.jsonl:3"
---@param object table
---@param ignored string[]
---@param takes (fun(field: string): boolean)? whether the template writes a field; default: none
function Fields:check(where, object, ignored, takes)
  line_fields.leave_out(object, ignored)
  local names = {}
  for name in pairs(object) do names[#names + 1] = tostring(name) end
  table.sort(names) -- the same message on every rank
  for _, name in ipairs(names) do
    local known = self.used[name] or self.silent[name] or line_fields.is_empty(object[name]) or takes and takes(name)
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
