-- The modules of a model as PEFT names them: which can have adapters, which layers of ours are in each, and the tensors
-- of the base model.

local adapter_names = require("moonshard.huggingface.adapter_names")
local base_tensors = require("moonshard.huggingface.peft.base_tensors")
local errors = require("moonshard.base.error")
local layouts = require("moonshard.huggingface.layout")

local base_modules = {}

---@class moonshard.BaseModules
---@field modules moonshard.AdaptedModule[] those that can have adapters, in the order of the model
---@field heads table<string, boolean> names of those that "all-linear" leaves out
---@field experts table<string, boolean> modules whose weights are parts of one parameter, and that take no adapters
---@field tensors moonshard.BaseTensor[]
---@field layers table<string, moonshard.Module> ours by name
---@field by_weight table<string, moonshard.Module> the layer whose weight is all of a module's

---@param model moonshard.Module
---@return moonshard.BaseModules
function base_modules.of(model)
  local own, linear, parameters = {}, {}, {}
  local base = { modules = {}, heads = {}, layers = {}, by_weight = {} }
  for name, module in model:named_modules() do
    base.layers[name] = module
    if module.takes_adapter and name ~= "" then
      linear[name] = true
      own[#own + 1] = { layer = name, inputs = module.weight.shape[2], outputs = module.weight.shape[1] }
    end
  end
  for name, param in model:named_parameters() do
    if not param.factor then parameters[#parameters + 1] = { name = name, shape = param.shape } end
  end
  local layout = layouts.of(model)
  local modules, family = adapter_names.modules(layout and layout.huggingface, own)
  for _, module in ipairs(modules) do
    local first = module.rows[1]
    if linear[first.layer] then table.insert(base.modules, module) end
    if first.rows == module.outputs then base.by_weight[module.name] = base.layers[first.layer] end
  end
  local head = family and family.head:match("^(.*)%.weight$")
  if head then -- which no tensor has if it is tied
    base.by_weight[head], base.heads[head] = base.layers.head, true
  end
  base.tensors, base.experts = base_tensors.list(layout and layout.huggingface, parameters), {}
  for _, entry in ipairs(base.tensors) do
    local is_matrix = entry.field == "weight" and #entry.tensor.shape == 2 -- those that are stacked are no modules
    if is_matrix and entry.tensor.slices[1].parts then base.experts[entry.module] = true end
  end
  return base
end

---Raises for adapters of an expert.
---@param path string of the file or the call that has them
---@param name string of the module
function base_modules.refuse_expert(path, name)
  errors.raise("MS_EUNSUPPORTED", "%s: %s is a matrix of an expert, and experts are one parameter here, which takes no "
    .. "adapters: choose other modules, as with exclude_modules, or merge the adapter by PEFT (merge_and_unload)", path,
    name)
end

---The layers of modules with adapters, as lora/attach.lua takes them: those of one module have one A.
---@param model moonshard.Module
---@param modules { module: moonshard.AdaptedModule, config: moonshard.Adapter }[]
---@param loaded boolean their values are from a folder
---@return { name: string, layer: moonshard.Module, config: moonshard.Adapter, shared: moonshard.Module?,
---  loaded: boolean, any_rank: boolean }[]
function base_modules.layers(model, modules, loaded)
  local by_name, list = {}, {}
  for name, module in model:named_modules() do by_name[name] = module end
  for _, found in ipairs(modules) do
    local first
    for _, place in ipairs(found.module.rows) do
      local layer = by_name[place.layer]
      list[#list + 1] = { name = place.layer, layer = layer, config = found.config, shared = first, loaded = loaded,
        any_rank = true }
      first = first or layer
    end
  end
  return list
end

return base_modules
