-- The options of the models in a checkpoint, against those of the model that loads it: weights of the same shapes can
-- mean something else, or go on to train under other numbers, of which the log says so.

local config = require("moonshard.models.config")
local errors = require("moonshard.base.error")
local text_lines = require("moonshard.base.text.text_lines")

local model_options = {}

---The options of every model of ms.models in a model, by the name of its module: "" for the model itself.
---@param model moonshard.Module
---@return table<string, table<string, any>>? nil where it has none
function model_options.of(model)
  local found = { [""] = config.options(model) }
  for name, module in model:named_modules() do found[name] = config.options(module) end
  return next(found) and found or nil
end

---Compares a model with the options of a checkpoint. Raises MS_EMISMATCH where its weights would mean something else.
---@param path string of the checkpoint, for messages
---@param saved table<string, table<string, any>>? by module; nil in older checkpoints
---@param model moonshard.Module
---@return string? told what else differs
function model_options.check(path, saved, model)
  local names, told, here = {}, {}, saved and model_options.of(model) or {}
  for name in pairs(here) do
    if saved[name] then names[#names + 1] = name end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local within = name == "" and "" or text_lines.escape(name) .. "."
    for _, option in ipairs(config.differing(saved[name], here[name])) do
      if not option.told then
        errors.raise("MS_EMISMATCH", "checkpoint %s belongs to a different model: %s%s=%s, here %s: make the model "
          .. "with the value of the checkpoint", path, within, option.name, text_lines.escape(option.saved),
          option.here)
      end
      told[#told + 1] = ("%s%s was %s in the checkpoint, and is %s here"):format(within, option.name,
        text_lines.escape(option.saved), option.here)
    end
  end
  return told[1] and table.concat(told, "; ") or nil
end

return model_options
