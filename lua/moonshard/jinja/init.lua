-- Jinja templates as chat templates of published models use them: the language with the settings of Hugging Face's
-- library (trim_blocks, lstrip_blocks, break and continue, {% generation %}, its tojson), evaluated as Python would,
-- within limits.
--
--   local template = jinja.compile(source, "tokenizer_config.json")
--   local text, spans = template:render({ messages = messages, add_generation_prompt = true })
--
-- What is not supported is an error with its line: other templates (extends, include, import), filters for web pages,
-- integers beyond 2^53 in calculations, methods that change values, as the library's sandbox refuses them too. The
-- filter safe changes nothing, since nothing is escaped.

local faults = require("moonshard.jinja.faults")
local filters = require("moonshard.jinja.filters")
local given = require("moonshard.jinja.given")
local globals = require("moonshard.jinja.globals")
local limits = require("moonshard.jinja.limits")
local render = require("moonshard.jinja.evaluate.statements").render
local statements = require("moonshard.jinja.statements")
local tests = require("moonshard.jinja.tests")
local text_lines = require("moonshard.base.text.text_lines")

local jinja = {}

---@class moonshard.JinjaTemplate
---@field name string for messages
---@field body table[]
---@field mentioned table<string, boolean>
local Template = {}
Template.__index = Template
Template.__name = "a Jinja template"

---@class moonshard.JinjaRenderOptions
---@field now? integer seconds since 1970, for strftime_now; without it a template that writes the date is an error
---@field where? string what is rendered, for messages: "chats.jsonl:3"
---@field limits? moonshard.jinja.Limits

---Reads a template. What is wrong with it is an error that begins with its name and line.
---@param source string UTF-8
---@param name string for messages: the file
---@return moonshard.JinjaTemplate
function jinja.compile(source, name)
  local place = { line = 1 }
  local wrong = text_lines.not_utf8(source)
  local body, mentioned = faults.translate(name, place, function()
    if wrong then faults.raise("byte %d of the template is not UTF-8", wrong) end
    return statements.read(source, place)
  end)
  return setmetatable({ name = name, body = body, mentioned = mentioned }, Template)
end

---Renders the template.
---@param variables table<string, any> texts, numbers, booleans, json.null, and tables of these; objects that
---  were read from JSON keep the order of their keys, as json.written says
---@param o moonshard.JinjaRenderOptions?
---@return string text
---@return { first: integer, last: integer }[] spans the bytes, from 1, that {% generation %} wrote
---@return integer? misplaced the line of a {% generation %} in a macro or a block, whose text has no known place
function Template:render(variables, o)
  o = o or {}
  local place = { line = 1, where = o.where }
  return faults.translate(self.name, place, function()
    limits.begin(o.limits)
    return render(self.body, {
      variables = given.variables(variables), globals = globals.at(o.now), filters = filters.ALL, tests = tests.ALL,
      place = place,
    })
  end)
end

---Whether the template mentions a variable, an attribute or an item of this name.
---@param name string
---@return boolean
function Template:reads(name) return self.mentioned[name] or false end

return jinja
