-- A folder's config.json: the model family, and the equivalent options of our model.

local errors = require("moonshard.base.error")
local fields = require("moonshard.huggingface.fields")
local input_file = require("moonshard.base.input_file")
local json = require("moonshard.base.json")
local options = require("moonshard.base.options")

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

-- "gemma, ..., phi3 and qwen3"
local function supported()
  local names = { "gpt2" }
  for _, rows in ipairs({ decoders(), encoders() }) do
    for name in pairs(rows) do names[#names + 1] = name end
  end
  table.sort(names)
  return table.concat(names, ", ", 1, #names - 1) .. " and " .. names[#names]
end

-- Fields whose null means something else than their absence, which is a default: null is false here.
local NULLS = { "sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "bos_token_id", "eos_token_id",
  "pad_token_id" }

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
  local decoded, problem = json.decode(text)
  if type(decoded) ~= "table" or decoded[1] ~= nil then
    errors.invalid("%s: %s", path, problem or "it must be an object")
  end
  for _, name in ipairs(NULLS) do
    if decoded[name] == nil and fields.is_null(text, name) then decoded[name] = false end
  end
  return decoded, path
end

---The family and options of a config.
---@param given table as returned by config.read
---@param path string for errors
---@return moonshard.HuggingFaceFamily
---@return table options of ms.models.<model_type>
function config.parse(given, path)
  if given.model_type == nil then
    errors.invalid("%s: model_type is missing; supported: %s", path, supported())
  end
  local family = config.family(given.model_type)
  if not family then
    errors.raise("MS_EUNSUPPORTED", "%s: model_type %s is not supported; supported: %s", path,
      options.describe(given.model_type), supported())
  end
  return family, family.options(path, given)
end

-- Fields whose numbers need a decimal point for the reference library.
local REAL = {
  factor = true, low_freq_factor = true, high_freq_factor = true, rope_theta = true, resid_pdrop = true,
  embd_pdrop = true, attn_pdrop = true, rope_local_base_freq = true, attn_logit_softcapping = true,
  final_logit_softcapping = true, hidden_dropout_prob = true, attention_probs_dropout_prob = true,
}

local IS_NULL = {}
for _, name in ipairs(NULLS) do IS_NULL[name] = true end

local function lines(object, indent)
  local keys, parts = {}, {}
  for key in pairs(object) do keys[#keys + 1] = key end
  table.sort(keys)
  for i, key in ipairs(keys) do
    local value = object[key]
    local text
    if type(value) == "table" and value[1] == nil and next(value) then
      text = lines(value, indent .. "  ")
    elseif value == false and IS_NULL[key] then
      text = "null"
    elseif REAL[key] and type(value) == "number" and value % 1 == 0 then
      text = ("%.1f"):format(value)
    else
      text = json.encode(value)
    end
    parts[i] = ("%s  %s: %s"):format(indent, json.encode(key), text)
  end
  return "{\n" .. table.concat(parts, ",\n") .. "\n" .. indent .. "}"
end

---The text of a config.json: sorted keys, one per line.
---@param object table
---@return string
function config.text(object)
  return lines(object, "") .. "\n"
end

return config
