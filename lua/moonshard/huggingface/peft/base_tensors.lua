-- The tensors of a base model as PEFT sees them, by modules of the reference library, and which of our parameters are
-- in each: biases, modules_to_save and trainable_token_indices are about these. A model without a layout has its own
-- modules and parameters.

local config = require("moonshard.huggingface.config")
local weights = require("moonshard.huggingface.weights")

local base_tensors = {}

---@class moonshard.BaseTensor
---@field name string with the family's prefix
---@field module string the part of the name before the last dot
---@field field string the part behind it: "weight"
---@field tensor moonshard.HuggingFaceTensor
---@field twin string? the name of a tied tensor, such as the head's, with the same values

local function entry_of(name, tensor, twin)
  return { name = name, module = name:match("^(.*)%.[^.]*$") or "", field = name:match("[^.]*$"), tensor = tensor,
    twin = twin }
end

---@param layout string|table? contents of config.json
---@param parameters { name: string, shape: integer[] }[] of a model without a layout
---@return moonshard.BaseTensor[] in the order of the model
---@return moonshard.HuggingFaceFamily? family
function base_tensors.list(layout, parameters)
  local list = {}
  if not layout then
    for i, param in ipairs(parameters) do
      local slices = { { parameter = param.name } }
      list[i] = entry_of(param.name, { name = param.name, shape = param.shape, slices = slices })
    end
    return list
  end
  local family, model = config.parse(config.noted(layout), "config.json")
  for i, tensor in ipairs(family.tensors(model)) do
    local is_embedding = tensor.slices[1].parameter == "embed.weight"
    list[i] = entry_of(weights.full_name(family, family.prefix, tensor), tensor,
      is_embedding and model.tied and family.head or nil)
  end
  return list, family
end

---The names of modules that have tensors, each once.
---@param list moonshard.BaseTensor[]
---@return string[]
function base_tensors.modules(list)
  local names, seen = {}, {}
  for _, entry in ipairs(list) do
    for _, name in ipairs({ entry.module, entry.twin and entry.twin:match("^(.*)%.[^.]*$") }) do
      if not seen[name] then names[#names + 1] = name end
      seen[name] = true
    end
  end
  return names
end

---How PEFT's files call a tensor of the base model. A module with an adapter has it one level below.
---@param name string
---@param adapted table<string, boolean> modules with adapters
---@return string
function base_tensors.stored(name, adapted)
  local module, field = name:match("^(.*)%.([^.]*)$")
  if module and adapted[module] then name = module .. ".base_layer." .. field end
  return "base_model.model." .. name
end

---Whether it is among what `bias = "all"` trains: PEFT looks for the word in the name.
---@param entry moonshard.BaseTensor
---@return boolean
function base_tensors.is_bias(entry) return entry.name:find("bias", 1, true) ~= nil end

return base_tensors
