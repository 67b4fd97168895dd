-- What a folder says of how its model generates: the element type.

local config = require("moonshard.huggingface.config")
local dtypes = require("moonshard.base.dtypes")
local json = require("moonshard.base.json")
local safetensors = require("moonshard.base.safetensors")

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

return generation
