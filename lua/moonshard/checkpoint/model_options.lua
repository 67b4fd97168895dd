-- The options of the models and layers in a checkpoint, against those of the model that loads it: weights of the same
-- shapes can mean something else, or go on to train under other numbers, of which the log says so.

local config = require("moonshard.models.config")
local errors = require("moonshard.base.error")
local layer_options = require("moonshard.nn.layer_options")
local text_lines = require("moonshard.base.text.text_lines")

local model_options = {}

-- By name, "" for the model itself.
local function modules_of(model)
  local modules = {}
  for name, module in model:named_modules() do modules[name] = module end
  return modules
end

---The options of every model of ms.models in a model, and of every layer of ms.nn, by the name of its module: "" for
---the model itself.
---@param model moonshard.Module
---@return table<string, table<string, any>>? nil where it has none
function model_options.of(model)
  local found = {}
  for name, module in pairs(modules_of(model)) do found[name] = config.options(module) or layer_options.of(module) end
  return next(found) and found or nil
end

-- Whether an option of a model of ms.models that contains the layer says the same: its layers are made with it.
local function is_said(name, option, models)
  for within, differing in pairs(models) do
    if within == "" or name:sub(1, #within + 1) == within .. "." then
      for _, other in ipairs(differing) do
        if other.saved == option.saved and other.here == option.here then return true end
      end
    end
  end
  return false
end

local function path_of(name, option) return (name == "" and "" or text_lines.escape(name) .. ".") .. option.name end

local function refuse(path, name, option)
  errors.raise("MS_EMISMATCH", "checkpoint %s belongs to a different model: %s=%s, here %s: make the model with the "
    .. "value of the checkpoint", path, path_of(name, option), text_lines.escape(option.saved), option.here)
end

-- One text for an option that changed alike in several modules.
local function text_of(said)
  return ("%s was %s in the checkpoint, and is %s here%s"):format(path_of(said.name, said.option),
    text_lines.escape(said.option.saved), said.option.here,
    said.more == 0 and "" or (", as in %d more module%s"):format(said.more, said.more == 1 and "" or "s"))
end

-- What differs of one module.
local function differing_of(module, saved)
  local of_model = config.options(module)
  if of_model then return config.differing(saved, of_model), true end
  local of_layer = layer_options.of(module)
  if not of_layer then return {}, false end
  return config.differing(saved, of_layer, function(option)
    return layer_options.resume(module, option, saved[option])
  end), false
end

---Compares a model with the options of a checkpoint. Raises MS_EMISMATCH where its weights would mean something else.
---@param path string of the checkpoint, for messages
---@param saved table<string, table<string, any>>? by module; nil in older checkpoints
---@param model moonshard.Module
---@return string? told what else differs
function model_options.check(path, saved, model)
  local names, modules, models, told, by_change = {}, modules_of(model), {}, {}, {}
  local function tell(name, option)
    local change = ("%s %s %s"):format(option.name, option.saved, option.here)
    local said = by_change[change]
    if said then
      said.more = said.more + 1
      return
    end
    by_change[change] = { name = name, option = option, more = 0 }
    told[#told + 1] = by_change[change]
  end
  for name in pairs(saved or {}) do
    if modules[name] then names[#names + 1] = name end
  end
  table.sort(names) -- a model is before its layers
  for _, name in ipairs(names) do
    local differing, is_model = differing_of(modules[name], saved[name])
    for _, option in ipairs(differing) do
      if not option.told then refuse(path, name, option) end
      if is_model or not is_said(name, option, models) then tell(name, option) end
    end
    if is_model then models[name] = differing end
  end
  for i, said in ipairs(told) do told[i] = text_of(said) end
  return told[1] and table.concat(told, "; ") or nil
end

return model_options
