-- Conversations as text by a Jinja template: a published model's own. What the template is given is what Hugging Face's
-- library gives it: messages, tools, documents, add_generation_prompt, the tokenizer's tokens by their names, and what
-- the recipe adds.

local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.files.input_file")
local json = require("moonshard.base.text.json")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")
local tokenizer_templates = require("moonshard.data.tokenizer_templates")

local jinja_chat = {}

---@class moonshard.JinjaChat
---@field who string for messages
---@field default moonshard.JinjaTemplate
---@field with_tools moonshard.JinjaTemplate? for conversations with tools, where a folder has one of its own for these
---@field of_tokenizer boolean whether it comes with the tokenizer, which then has its tokens
---@field variables table<string, any> what every conversation has
---@field now integer? seconds since 1970, for strftime_now
local JinjaChat = {}
JinjaChat.__index = JinjaChat

---@param value any
---@return boolean
function jinja_chat.is(value) return getmetatable(value) == JinjaChat end

-- ---- where a template comes from ----------------------------------------------------------------------------------

-- The template for conversations with tools, where a folder has several.
local WITH_TOOLS = "tool_use"

-- Loads the language with the first template.
local function compile(source, name) return require("moonshard.jinja").compile(source, name) end

local function of_tokenizer(who, name, tokenizer)
  local path = tokenizer and tokenizer.path
  if not path then
    errors.invalid("%s: template %s is the one of the tokenizer's folder: give tokenizer, or another template", who,
      options.describe("tokenizer"))
  end
  local found = tokenizer_templates.read(path)
  local source = found.sources[name or "default"]
  if not source then
    errors.raise("MS_ENAME", "%s: %s has no chat template%s%s: %s", who, found.folder, name and " named " or "",
      name or "", next(found.sources) and nearest.advice(name or "", found.sources)
      .. ', as in template = "tokenizer:NAME"' or "give a template by name, a .jinja file, or a table of texts")
  end
  local with_tools = not name and found.sources[WITH_TOOLS]
  return {
    of_tokenizer = true, default = compile(source.source, source.name),
    with_tools = with_tools and compile(with_tools.source, with_tools.name) or nil,
  }
end

local function of_file(who, path)
  local source = input_file.read(path, who .. ": template is a file")
  return { of_tokenizer = false, default = compile(source, path) }
end

local function of_source(who, given)
  for key in pairs(given) do
    if key ~= "jinja" then errors.invalid("%s: template: next to jinja there is no %s", who, tostring(key)) end
  end
  if type(given.jinja) ~= "string" then
    errors.invalid("%s: template: jinja must be the source of a template, not %s", who, options.describe(given.jinja))
  end
  return { of_tokenizer = false, default = compile(given.jinja, "{ jinja }") }
end

-- ---- what a recipe adds -------------------------------------------------------------------------------------------

---What recipes give a template, in the options of all that write conversations.
---@type table<string, moonshard.OptionSpec>
jinja_chat.OPTIONS = {
  template_kwargs = { "table", example = 'template_kwargs = { enable_thinking = false }' },
  tools = { "string|table", example = 'tools = "tools.json"' },
  now = { "string", example = 'now = "2024-07-26"' },
}

---Refuses what only Jinja templates take.
---@param who string for messages
---@param o table parsed options
function jinja_chat.refuse_options(who, o)
  for name in pairs(jinja_chat.OPTIONS) do
    if o[name] ~= nil then
      errors.invalid("%s: %s is for Jinja templates (template = \"tokenizer\" or a .jinja file), and this template "
        .. "takes none", who, name)
    end
  end
end

-- Variables that are given in other ways.
local GIVEN = {
  messages = "are those of the data", tools = "are an option of their own",
  add_generation_prompt = "is true of prompts, and false of conversations",
}

-- Tools as a list: of a recipe, or a JSON file, whose objects keep the order of their keys.
local function tools_of(who, given)
  if type(given) == "string" then
    local text = input_file.read(given, who .. ": tools is a file of JSON, a list of definitions of tools")
    local list, why = json.decode(text, true)
    if type(list) ~= "table" or not json.is_list(list) then
      errors.invalid("%s: %s: tools must be a JSON list%s", who, given, why and ": " .. why or "")
    end
    return list
  end
  if given and not json.is_list(given) and next(given) then
    errors.invalid("%s: tools must be a list of definitions, not a table with names", who)
  end
  return given and json.list(given)
end

-- Noon, or the given time, of a day.
local function moment_of(who, given)
  if not given then return nil end
  local year, month, day, rest = given:match("^(%d%d%d%d)%-(%d%d)%-(%d%d)(.*)$")
  local hour, minute = (rest or ""):match("^[ T](%d%d):(%d%d)$")
  if not year or rest ~= "" and not hour then
    errors.invalid("%s: now must be a day like \"2024-07-26\", or one with a time, \"2024-07-26 18:30\", not %s", who,
      options.describe(given))
  end
  return os.time { year = year, month = month, day = day, hour = hour or 12, min = minute or 0 }
end

local TOKENS = { "bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token" }

local function check_reads(self, what, name)
  if self:reads(name) then return end
  local names = {}
  for mentioned in pairs(self.default.mentioned) do
    if mentioned:find("^[%a_][%w_]*$") then names[#names + 1] = mentioned end
  end
  local near = nearest.name(name, names)
  errors.raise("MS_ENAME", "%s: %s: the template %s reads no %s%s", self.who, what, self.default.name, name,
    near and (": did you mean %s?"):format(near) or ", so it has no effect: leave it out")
end

-- The tokens of the tokenizer's folder that the template writes. One that is not known would be left out in silence.
local function tokens_of(self, tokenizer, given)
  local known = tokenizer and tokenizer.path and tokenizer_templates.read(tokenizer.path).tokens or {}
  local tokens = {}
  for _, name in ipairs(TOKENS) do
    tokens[name] = known[name]
    if self:reads(name) and not known[name] and given[name] == nil then
      errors.invalid("%s: the template %s writes %s, which %s does not name: give "
        .. "template_kwargs = { %s = \"...\" }, or \"\" to leave it out", self.who, self.default.name, name,
        tokenizer and tokenizer.path or "a tokenizer of bytes", name)
    end
  end
  return tokens
end

---A Jinja template of a recipe, with what the recipe gives it.
---@param who string for messages: "ms.data.chat"
---@param given string|table "tokenizer", "tokenizer:NAME", a path that ends with .jinja, or { jinja = source }
---@param o { tokenizer: moonshard.Tokenizer?, template_kwargs: table?, tools: string|table?, now: string? }
---@return moonshard.JinjaChat? nil: it is another kind of template
function jinja_chat.find(who, given, o)
  local found
  if type(given) == "table" then
    found = given.jinja ~= nil and of_source(who, given)
  elseif given == "tokenizer" or given:find("^tokenizer:") then
    found = of_tokenizer(who, given:match(":(.+)$"), o.tokenizer)
  elseif given:find("%.jinja$") then
    found = of_file(who, given)
  end
  if not found then return nil end
  local self = setmetatable(found, JinjaChat)
  local kwargs = o.template_kwargs or {}
  self.who, self.now = who, moment_of(who, o.now)
  if o.now then check_reads(self, "now", "strftime_now") end
  if o.tools then check_reads(self, "tools", "tools") end
  self.variables = tokens_of(self, o.tokenizer, kwargs)
  for name, value in pairs(kwargs) do
    if GIVEN[name] then errors.invalid("%s: template_kwargs: %s %s", who, name, GIVEN[name]) end
    check_reads(self, "template_kwargs", tostring(name))
    self.variables[name] = value
  end
  self.variables.tools = tools_of(who, o.tools) or json.null
  if self.variables.documents == nil then self.variables.documents = json.null end
  return self
end

-- ---- rendering ------------------------------------------------------------------------------------------------------

---Whether the template mentions a variable, or a field of messages, of this name.
---@param name string
---@return boolean
function JinjaChat:reads(name)
  return self.default:reads(name) or self.with_tools ~= nil and self.with_tools:reads(name)
end

-- The first messages, as templates get them.
local function first_messages(messages, count)
  local list = json.list {}
  for i = 1, count do
    list[i] = {}
    for name, value in pairs(messages[i]) do
      if name ~= "trained" then list[i][name] = value end
    end
  end
  return list
end

---@class moonshard.RenderedChat
---@field text string
---@field spans { first: integer, last: integer }[] bytes that {% generation %} wrote
---@field misplaced integer? the line of a {% generation %} whose text has no known place

---The text of the first messages of a conversation.
---@param messages moonshard.ChatMessage[]
---@param conversation table<string, any>? what a line has besides: tools, documents, variables of the template
---@param count integer
---@param with_prompt boolean whether what begins an answer follows
---@param where string for messages: "chats.jsonl:3"
---@return moonshard.RenderedChat
function JinjaChat:render(messages, conversation, count, with_prompt, where)
  local variables = {}
  for name, value in pairs(self.variables) do variables[name] = value end
  for name, value in pairs(conversation or {}) do variables[name] = value end
  variables.messages, variables.add_generation_prompt = first_messages(messages, count), with_prompt
  local template = variables.tools ~= json.null and self.with_tools or self.default
  local text, spans, misplaced = template:render(variables, { now = self.now, where = where })
  return { text = text, spans = spans, misplaced = misplaced }
end

return jinja_chat
