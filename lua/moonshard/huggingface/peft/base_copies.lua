-- Tensors that a folder of adapters has besides what was trained: the base model's, and what was trained once more.
-- PEFT saves all that embeddings and heads hold (save_embedding_layers) where one of them has an adapter, where the
-- vocabulary has grown, or on request; and with bias = "all" every tensor with "bias" in its name, so also those of
-- whole modules that were trained, and those of these modules as they were. They must be what they are copies of.

local errors = require("moonshard.base.error")
local ffi = require("ffi")

local base_copies = {}

local FLOATS = { F32 = true, BF16 = true, F16 = true, F64 = true }
local AT_ONCE = 2 ^ 20 -- elements that are compared at a time

-- How the modules are called that PEFT puts around a layer and that hold the layer as it was, by the ends of their
-- names; and that holds the copy that was trained.
local AROUND = { "%.original_module$", "%.token_adapter%.base_layer$", "%.base_layer$" }
local TRAINED = "%.modules_to_save$"

---@class moonshard.BaseCopy
---@field tensor string
---@field layer moonshard.Module? whose weight or bias it is
---@field field string? which of them
---@field trained string? in place of a layer: the tensor of the file that it repeats

-- What was trained as a whole under a name: "model.norm.bias".
local function saved_as(saved, name)
  for _, part in ipairs(saved.parts) do
    if part.stored == "base_model.model." .. name then return part end
  end
end

-- The layer whose parameter is all of a tensor of the base model.
local function layer_of(base, entry)
  local slices = entry.tensor.slices
  return not slices[2] and base.layers[slices[1].parameter:match("^(.*)%.[^.]*$")] or nil
end

-- The rows of a tied head that PEFT saves a second time, under its name.
local function find_rows(base, saved, name)
  local module = name:match("^base_model%.model%.(.*)%.token_adapter%.trainable_tokens_delta$")
  local layer = module and base.by_weight[module]
  for _, tokens in ipairs(layer and saved.tokens or {}) do
    if base.layers[tokens.layer].weight == layer.weight then return { tensor = name, trained = tokens.stored } end
  end
end

---What a tensor of a file is a copy of; nil for a tensor that is none.
---@param base moonshard.BaseModules
---@param saved moonshard.SavedParts what was trained besides adapters
---@param name string
---@return moonshard.BaseCopy?
function base_copies.find(base, saved, name)
  local module, field = name:match("^base_model%.model%.(.*)%.([^.]+)$")
  if not module or field ~= "weight" and field ~= "bias" then return find_rows(base, saved, name) end
  local inner, count = module:gsub(TRAINED, "")
  local part = saved_as(saved, inner:gsub("%.original_module$", "") .. "." .. field)
  if count > 0 and (base.by_weight[inner] or part) then
    return { tensor = name, trained = ("base_model.model.%s.%s"):format(inner, field) }
  end
  for _, ending in ipairs(count == 0 and AROUND or {}) do
    inner, count = module:gsub(ending, "")
    if count > 0 then break end
  end
  local layer = base.by_weight[inner] or count > 0 and part and layer_of(base, part.entry)
  return layer and layer[field] and { tensor = name, layer = layer, field = field } or nil
end

-- Whether a tensor has the values of the first rows of what `read` reads, [shape].
local function equals(file, tensor, shape, read)
  if #tensor.shape ~= #shape or tensor.shape[1] > shape[1] or tensor.shape[2] ~= shape[2] then return false end
  local stored, own = ffi.new("float[?]", AT_ONCE), ffi.new("float[?]", AT_ONCE)
  for first = 0, tensor.elements - 1, AT_ONCE do
    local count = math.min(AT_ONCE, tensor.elements - first)
    file:read_f32(tensor.name, nil, first, count, stored)
    read(first, count, own)
    for i = 0, count - 1 do
      if stored[i] ~= own[i] then return false end
    end
  end
  return true
end

local function check_trained(file, copy)
  local tensor, trained = file.by_name[copy.tensor], file.by_name[copy.trained]
  local function read(first, count, out) file:read_f32(copy.trained, nil, first, count, out) end
  if trained and FLOATS[tensor.dtype] and FLOATS[trained.dtype] and equals(file, tensor, trained.shape, read) then
    return
  end
  errors.raise("MS_EMISMATCH", "%s: %s repeats %s, %s: save the adapters with PEFT again", file.path, copy.tensor,
    copy.trained, trained and "and differs from it" or "which is missing")
end

---Raises for a tensor that differs from what it is a copy of.
---@param file moonshard.Safetensors
---@param copy moonshard.BaseCopy
function base_copies.check(file, copy)
  if copy.trained then return check_trained(file, copy) end
  local param, tensor = copy.layer[copy.field], file.by_name[copy.tensor]
  local origin = param.source
  if origin and FLOATS[tensor.dtype] and equals(file, tensor, param.shape, origin.read) then return end
  errors.raise("MS_EMISMATCH", "%s: %s is a weight of the model itself, %s: load the adapters into the model that they "
    .. "were trained on; if its weight did not change, save them with PEFT's save_embedding_layers=False", file.path,
    copy.tensor, origin and "and differs from the one here"
    or "and the one here is not from a folder, so the two cannot be compared")
end

return base_copies
