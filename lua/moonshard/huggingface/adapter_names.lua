-- Adapters as PEFT names them: which module of the reference library an adapted layer is, and how the adapters of
-- several layers make that of one module.
--
-- GPT-2's queries, keys and values are columns of one module, c_attn, which has one A and one B in a file. Layers with
-- one A (ms.lora.load makes them from such a file) are rows of that B. Layers with an A each are blocks: their A stand
-- below one another, and B has the columns of each in its own rows and zeros elsewhere.

local adapter = require("moonshard.nn.adapter")
local config = require("moonshard.huggingface.config")
local errors = require("moonshard.base.error")
local weights = require("moonshard.huggingface.weights")

local adapter_names = {}

---@class moonshard.AdaptedModule a module of the reference library, and the layers in it
---@field name string with the family's prefix
---@field short string without it
---@field inputs integer
---@field outputs integer
---@field rows { layer: string, row: integer, rows: integer }[] all layers in it: rows of B, without padding
---@field by_head boolean? these rows are apart, those of each head with each other

---The modules of a layout that can have adapters, by the names of their layers. A model without a layout has its own.
---@param layout string|table? contents of config.json
---@param own { layer: string, inputs: integer, outputs: integer }[] linear layers of a model without a layout
---@return moonshard.AdaptedModule[] in the order of the model
---@return moonshard.HuggingFaceFamily? family
function adapter_names.modules(layout, own)
  local list = {}
  if not layout then
    for i, layer in ipairs(own) do
      list[i] = { name = layer.layer, short = layer.layer, inputs = layer.inputs, outputs = layer.outputs,
        rows = { { layer = layer.layer, row = 0, rows = layer.outputs } } }
    end
    return list
  end
  local family, model = config.parse(config.noted(layout), "config.json")
  for _, tensor in ipairs(family.tensors(model)) do
    local short, slices = tensor.name:match("^(.*)%.weight$"), tensor.slices
    if short and #tensor.shape == 2 and not slices[1].parts then -- experts are one parameter, and no layers
      local transposed = slices[1].transposed
      local module = { short = short, rows = {}, inputs = tensor.shape[transposed and 1 or 2],
        outputs = tensor.shape[transposed and 2 or 1] }
      module.name = weights.full_name(family, family.prefix, tensor):match("^(.*)%.weight$")
      for i, slice in ipairs(slices) do
        module.rows[i] = { layer = slice.parameter:match("^(.*)%.weight$"), row = slice.column or 0,
          rows = slice.columns or module.outputs }
        module.by_head = module.by_head or slice.blocks ~= nil
      end
      list[#list + 1] = module
    end
  end
  return list, family
end

---Where the adapters of a module's layers are in its A and B.
---@param module moonshard.AdaptedModule
---@param records table<string, moonshard.AdapterRecord> by layer
---@return { record: moonshard.AdapterRecord, row: integer, rows: integer, column: integer, first: boolean }[] parts
---  column: of B, and row of A; first: no earlier part has this A
---@return integer rank of the module
function adapter_names.parts(module, records)
  local parts, column_of, rank = {}, {}, 0
  for _, place in ipairs(module.rows) do
    local record = records[place.layer]
    if record and module.by_head then
      errors.raise("MS_EUNSUPPORTED", "adapters of layer %s: the reference library has queries, keys and values of "
        .. "each head next to each other in one module, %s, whose adapters are neither read nor saved: adapt other "
        .. "layers", place.layer, module.name)
    elseif record then
      local column = column_of[record.down]
      parts[#parts + 1] = { record = record, row = place.row, rows = place.rows, column = column or rank,
        first = not column }
      if not column then column_of[record.down], rank = rank, rank + record.rank end
    end
  end
  return parts, rank
end

---The name of a part of an adapter in a file.
---@param module string
---@param part moonshard.AdapterPart
---@return string
function adapter_names.tensor(module, part) return ("base_model.model.%s.%s"):format(module, part.stored) end

---The module and the part of an adapter that a tensor is; nil for other tensors.
---@param tensor string
---@return string? module
---@return moonshard.AdapterPart?
function adapter_names.split(tensor)
  for _, part in ipairs(adapter.PARTS) do
    local ending = "." .. part.stored
    if tensor:sub(1, 17) == "base_model.model." and tensor:sub(-#ending) == ending then
      return tensor:sub(18, -#ending - 1), part
    end
  end
end

return adapter_names
