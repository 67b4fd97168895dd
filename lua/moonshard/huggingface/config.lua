-- A folder's config.json: the model family, and the equivalent options of our model.

local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.files.input_file")
local json = require("moonshard.base.text.json")
local options = require("moonshard.base.checks.options")

local config = {}

---@class moonshard.HuggingFaceTensor a stored tensor and the parameters in it
---@field name string without the family's prefix
---@field shape integer[]
---@field outside boolean? its name has no prefix
---@field tied_to string? full name of a tensor that is tied to it: a folder that has both must have equal values
---@field vocabulary boolean? a vector of a number for each token
---@field slices { parameter: string, column: integer?, columns: integer?, transposed: boolean? }[] our parameters: all
---  of the tensor, or some of its columns (elements of a vector); transposed: stored as [columns, rows]

---@class moonshard.HuggingFaceFamily
---@field prefix string of its names, except the head's
---@field head string name of the head's weight
---@field architecture string
---@field transposed boolean? whether its linear layers are stored as [in, out]
---@field buffers string[] patterns of names to skip
---@field renamed table<string, string>? endings of names in old files, by those of today
---@field options fun(path: string, config: table): table
---@field config fun(options: table): table
---@field tensors fun(options: table): moonshard.HuggingFaceTensor[]

local made = {}

-- GPT-2 has a file; the others are decoders or encoders, a row each.
local function decoders() return require("moonshard.huggingface.families") end
local function encoders() return require("moonshard.huggingface.encoders") end

---@param name string a model_type
---@return moonshard.HuggingFaceFamily?
function config.family(name)
  if name == "gpt2" then return require("moonshard.huggingface.gpt2") end
  if name == nil then return nil end
  if not made[name] and decoders()[name] then
    made[name] = require("moonshard.huggingface.decoder").family(decoders()[name])
  elseif not made[name] and encoders()[name] then
    made[name] = require("moonshard.huggingface.encoder").family(encoders()[name])
  end
  return made[name]
end

---The families that have a layout: "gemma, ..., phi3 and qwen3".
---@return string
function config.supported()
  local names = { "gpt2" }
  for _, rows in ipairs({ decoders(), encoders() }) do
    for name in pairs(rows) do names[#names + 1] = name end
  end
  table.sort(names)
  return table.concat(names, ", ", 1, #names - 1) .. " and " .. names[#names]
end

-- A config that was read keeps its text, and is written from it: fields that did not change keep their types, digits,
-- nulls and order.
---The table of a config.json's text. A null is json.null.
---@param text string
---@return table? given nil if the text is no JSON object
---@return string? why
function config.of_text(text)
  local members, why = json.fields(text)
  if not members then return nil, why end
  local given = {}
  for _, member in ipairs(members) do given[member.name] = member.value end
  return setmetatable(given, { members = members })
end

---Reads config.json as a table.
---@param folder string
---@return table
---@return string path
function config.read(folder)
  local path = folder:gsub("/+$", "") .. "/config.json"
  local is_hub_name = folder:find("^[%w_-]+/[%w_.-]+$") ~= nil
  local text = input_file.read(path, "a Hugging Face model folder needs a config.json"
    .. (is_hub_name and ("; if %s is a name on the Hub, download it first: hf download %s --local-dir FOLDER"):format(
      folder, folder) or ""))
  if text == "" then errors.invalid("%s: it is empty", path) end
  local given, problem = config.of_text(text)
  if not given then errors.invalid("%s: %s", path, problem) end
  return given, path
end

---The table of a config that a checkpoint has: its text, or the table that older versions wrote.
---@param noted string|table
---@return table
function config.noted(noted)
  if type(noted) == "table" then return noted end
  return assert(config.of_text(noted))
end

---The family and options of a config.
---@param given table as returned by config.read
---@param path string for errors
---@return moonshard.HuggingFaceFamily
---@return table options of ms.models.<model_type>
function config.parse(given, path)
  if given.model_type == nil then
    errors.invalid("%s: model_type is missing; supported: %s", path, config.supported())
  end
  local family = config.family(given.model_type)
  if not family then
    errors.raise("MS_EUNSUPPORTED", "%s: model_type %s is not supported; supported: %s", path,
      options.describe(given.model_type), config.supported())
  end
  return family, family.options(path, given)
end

-- Fields whose numbers need a decimal point for the reference library.
local REAL = {
  factor = true, low_freq_factor = true, high_freq_factor = true, rope_theta = true, resid_pdrop = true,
  embd_pdrop = true, attn_pdrop = true, rope_local_base_freq = true, attn_logit_softcapping = true,
  final_logit_softcapping = true, hidden_dropout_prob = true, attention_probs_dropout_prob = true,
}

local function value_text(key, value, indent)
  if type(value) == "table" and value ~= json.null and json.encode(value):sub(1, 1) == "{" and next(value) then
    local keys, parts = {}, {}
    for name in pairs(value) do keys[#keys + 1] = name end
    table.sort(keys)
    for i, name in ipairs(keys) do
      parts[i] = ("%s    %s: %s"):format(indent, json.encode(name), value_text(name, value[name], indent .. "  "))
    end
    return "{\n" .. table.concat(parts, ",\n") .. "\n" .. indent .. "  }"
  end
  if REAL[key] and type(value) == "number" and value % 1 == 0 then return ("%.1f"):format(value) end
  return json.encode(value)
end

---The text of a config.json, a field a line: those that were read in their order and as they were, then others, sorted.
---@param object table
---@param read table? the config that it was made from, if that was read from a file
---@return string
function config.text(object, read)
  local meta = getmetatable(read or object)
  local parts, written, rest = {}, {}, {}
  for _, member in ipairs(meta and meta.members or {}) do
    local value = rawget(object, member.name)
    if value ~= nil then
      local text = value == member.value and member.text or value_text(member.name, value, "")
      parts[#parts + 1], written[member.name] = ("  %s: %s"):format(json.encode(member.name), text), true
    end
  end
  for key in pairs(object) do
    if not written[key] then rest[#rest + 1] = key end
  end
  table.sort(rest)
  for _, key in ipairs(rest) do
    parts[#parts + 1] = ("  %s: %s"):format(json.encode(key), value_text(key, object[key], ""))
  end
  return "{\n" .. table.concat(parts, ",\n") .. "\n}\n"
end

return config
