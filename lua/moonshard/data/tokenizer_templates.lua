-- The chat templates of a tokenizer's folder, where Hugging Face's library looks for them: chat_template.jinja and
-- additional_chat_templates/NAME.jinja; without these, the field chat_template of tokenizer_config.json, or of
-- chat_template.json.

local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.files.input_file")
local json = require("moonshard.base.text.json")
local listing = require("moonshard.data.files.listing")
local options = require("moonshard.base.checks.options")
local tokenizer_config = require("moonshard.data.tokenizer_config")

local tokenizer_templates = {}

---@class moonshard.TemplateSource
---@field source string
---@field name string its file, for messages

---@class moonshard.TokenizerTemplates
---@field folder string
---@field sources table<string, moonshard.TemplateSource> by name; the one without a name is "default"
---@field tokens table<string, string> bos_token and the like

local NEEDED = "a chat template of the tokenizer's folder"

local function add_file(sources, name, path)
  if input_file.exists(path) then sources[name] = { source = input_file.read(path, NEEDED), name = path } end
end

-- Adds what the field chat_template has: a text, or a list of { name, template }.
local function add_field(sources, field, path)
  if type(field) == "string" then
    sources.default = { source = field, name = path }
  elseif field ~= nil then
    for i, item in ipairs(type(field) == "table" and field or { field }) do
      if type(item) ~= "table" or type(item.name) ~= "string" or type(item.template) ~= "string" then
        errors.invalid("%s: chat_template: item %d must be { name, template }, two texts, not %s", path, i,
          options.describe(item))
      end
      sources[item.name] = { source = item.template, name = ("%s (%s)"):format(path, item.name) }
    end
  end
end

-- The file that the library's processors have.
local function add_json(sources, path)
  if not input_file.exists(path) then return end
  local fields, why = json.decode_strictly(input_file.read(path, NEEDED))
  if type(fields) ~= "table" then errors.invalid("%s: not a JSON object: %s", path, why or "it is another value") end
  add_field(sources, fields.chat_template, path)
end

---Reads them.
---@param path string of a tokenizer.json, or of its folder
---@return moonshard.TokenizerTemplates
function tokenizer_templates.read(path)
  local folder, sources = tokenizer_config.folder(path), {}
  local tokens, field, file = tokenizer_config.for_templates(folder)
  add_file(sources, "default", folder .. "/chat_template.jinja")
  local more = listing.literal(folder) .. "/additional_chat_templates/*.jinja"
  for _, found in ipairs(listing.match(more)) do add_file(sources, found:match("([^/]+)%.jinja$"), found) end
  if not next(sources) then add_field(sources, field, file) end
  if not next(sources) then add_json(sources, folder .. "/chat_template.json") end
  return { folder = folder, sources = sources, tokens = tokens }
end

return tokenizer_templates
