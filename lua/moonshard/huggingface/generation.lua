-- What a folder says of how its model generates: the element type, and the tokens that end a text.

local config = require("moonshard.huggingface.config")
local dtypes = require("moonshard.base.dtypes")
local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.files.input_file")
local json = require("moonshard.base.text.json")
local options = require("moonshard.base.checks.options")
local safetensors = require("moonshard.base.files.safetensors")

local generation = {}

-- Types of two bytes and less.
local function is_short(name) return name:find("16", 1, true) ~= nil or name:find("8", 1, true) ~= nil end

-- Whether any weight has more digits than bf16 and f16.
local function has_long_weights(folder)
  for _, tensor in ipairs(safetensors.open(folder).tensors) do
    if tensor.dtype:find("F", 1, true) and not is_short(tensor.dtype) then return true end
  end
  return false
end

---The element type in which a folder's model computes unless the user says otherwise: the one that config.json names,
---as Hugging Face's library takes it, or that of the tensors.
---@param folder string
---@return "f32"|"auto" dtype "auto" for bf16, f16 and f8: bf16 where the device computes in it
function generation.dtype(folder)
  local whole = config.read(folder)
  local named = whole.dtype
  if named == nil or named == json.null then named = whole.torch_dtype end
  named = dtypes.without_torch(named)
  if type(named) == "string" and named:find("float", 1, true) then return is_short(named) and "auto" or "f32" end
  return has_long_weights(folder) and "f32" or "auto"
end

local function is_id(value) return type(value) == "number" and value >= 0 and value % 1 == 0 end

local function read_end_tokens(value, path)
  if value == nil or value == json.null then return {} end
  if is_id(value) then return { value } end
  local valid = type(value) == "table" and (value[1] ~= nil or next(value) == nil)
  local wrong = value
  for _, id in ipairs(valid and value or {}) do
    if not is_id(id) then valid, wrong = false, id end
  end
  if valid then return value end
  errors.invalid("%s: eos_token_id must be the id of a token, a whole number of at least 0, or a list of such, not %s",
    path, wrong == json.null and "null" or options.describe(wrong))
end

---The ids of the tokens that end a text: eos_token_id of generation_config.json, or of config.json in a folder without
---that file, as in Hugging Face's library. An id outside of the vocabulary is never drawn.
---@param folder string
---@return integer[]
function generation.end_tokens(folder)
  local path = folder:gsub("/+$", "") .. "/generation_config.json"
  if not input_file.exists(path) then
    local whole, of_model = config.read(folder)
    return read_end_tokens(whole.eos_token_id, of_model)
  end
  local whole, problem = config.of_text(input_file.read(path, "it says how the folder's model generates"))
  if not whole then errors.invalid("%s: %s", path, problem) end
  return read_end_tokens(whole.eos_token_id, path)
end

return generation
