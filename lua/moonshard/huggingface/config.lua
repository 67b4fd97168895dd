-- A folder's config.json: the model family, and the equivalent options of our model.

local config_text = require("moonshard.huggingface.config.text")
local errors = require("moonshard.base.error")
local faults = require("moonshard.huggingface.folder.faults")
local file_status = require("moonshard.base.files.file_status")
local input_file = require("moonshard.base.files.input_file")
local options = require("moonshard.base.checks.options")
local outer = require("moonshard.huggingface.folder.outer")

local config = {}

---@class moonshard.HuggingFaceSlice a parameter of ours: all of a tensor, or some of its columns (elements of a vector)
---@field parameter string
---@field column integer?
---@field columns integer?
---@field transposed boolean? stored as [columns, rows]
---@field matrix integer? the transposed matrix of this number, from 0, of a tensor [matrices, inputs, outputs]:
---  `columns` of its outputs, from `column` on
---@field first integer? element of the parameter with which a tensor that has a part of it begins
---@field parts integer? so many slices of equal size make up the parameter
---@field blocks integer? in so many equal blocks of its rows, `columns` of each from `column` on

---@class moonshard.HuggingFaceTensor a stored tensor and the parameters in it
---@field name string without the family's prefix
---@field shape integer[]
---@field outside boolean? its name has no prefix
---@field exact boolean? it is saved in f32 whatever the dtype
---@field tied_to string? full name of a tensor that is tied to it: a folder that has both must have equal values
---@field vocabulary boolean? a vector of a number for each token
---@field slices moonshard.HuggingFaceSlice[]

---@class moonshard.HuggingFaceFamily
---@field prefix string of its names, except the head's
---@field head string name of the head's weight
---@field architecture string
---@field transposed boolean? whether its linear layers are stored as [in, out]
---@field buffers string[] patterns of names to skip
---@field skipped (fun(config: table, options: table): string[], string)? as in moonshard.DecoderFamily
---@field renamed table<string, string>? endings of names in old files, by those of today
---@field fields table<string, table> those that it reads, as for fields.read
---@field options fun(path: string, config: table): table
---@field config fun(options: table): table
---@field tensors fun(options: table): moonshard.HuggingFaceTensor[]

local made = {}

-- GPT-2 has a file; the others are decoders or encoders, a row each, and models around a decoder.
local function decoders() return require("moonshard.huggingface.families") end
local function encoders() return require("moonshard.huggingface.encoders") end

local function names()
  local all = { gpt2 = true }
  for _, rows in ipairs({ decoders(), encoders(), outer.rows }) do
    for name in pairs(rows) do all[name] = true end
  end
  return all
end

---@param name string a model_type
---@return moonshard.HuggingFaceFamily? nil also for a model around a decoder, whose family its config says
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

---The family whose class an architecture is; of several, the first by name.
---@param architecture any "LlamaForCausalLM"
---@return string? model_type
function config.of_architecture(architecture)
  local found
  for name in pairs(names()) do
    local is_it = (outer.rows[name] or config.family(name)).architecture == architecture
    if is_it and not (found and found < name) then found = name end
  end
  return found
end

---The families that have a layout: "gemma, ..., phi3 and qwen3".
---@return string
function config.supported()
  local list = {}
  for name in pairs(names()) do list[#list + 1] = name end
  table.sort(list)
  return table.concat(list, ", ", 1, #list - 1) .. " and " .. list[#list]
end

---The table of a config.json's text. A null is json.null.
config.of_text = config_text.read

---The text of a config.json, as huggingface/config/text.lua writes it.
config.text = config_text.write

---Reads config.json as a table.
---@param folder string
---@return table
---@return string path
function config.read(folder)
  local path = folder:gsub("/+$", "") .. "/config.json"
  if file_status.of_path(folder) == file_status.REGULAR then
    errors.invalid("%s: it is a file: give a model's folder, which has a config.json and safetensors files", folder)
  end
  local is_hub_name = folder:find("^[%w_-]+/[%w_.-]+$") ~= nil
  local text = input_file.read(path, "a Hugging Face model folder needs a config.json"
    .. (is_hub_name and ("; if %s is a name on the Hub, download it first: hf download %s --local-dir FOLDER"):format(
      folder, folder) or ""))
  if text == "" then errors.invalid("%s: it is empty: fetch it again", path) end
  faults.check_json(path, text)
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

local function refuse(path, model_type)
  local why = require("moonshard.huggingface.families.missing")[model_type]
  errors.raise("MS_EUNSUPPORTED", "%s: model_type %s is not supported%s; supported: %s", path,
    options.describe(model_type), why and ": " .. why or "", config.supported())
end

---The family and options of a config.
---@param given table as returned by config.read
---@param path string for errors
---@return moonshard.HuggingFaceFamily
---@return table options of ms.models.<model_type>, of the decoder's where the model is around one (family.text)
function config.parse(given, path)
  if given.model_type == nil then
    local name = type(given.architectures) == "table" and config.of_architecture(given.architectures[1])
    errors.invalid("%s: model_type is missing; %ssupported: %s", path,
      name and ("by its architectures it is %q: write that there; "):format(name) or "", config.supported())
  end
  local family = outer.rows[given.model_type] and outer.family(given, path, config.family, refuse)
    or config.family(given.model_type)
  if not family then refuse(path, given.model_type) end
  return family, family.options(path, given)
end

return config
