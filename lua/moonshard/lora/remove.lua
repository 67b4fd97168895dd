-- Takes the adapters of a model away again: when they are merged, and when a call that gave them fails.

local adapter = require("moonshard.nn.adapter")
local trainable_tokens = require("moonshard.nn.adapters.trainable_tokens")

local remove = {}

---Removes adapters of layers, and rows of embeddings that train, of a call that failed.
---@param layers moonshard.Module[] that have got them
---@param model moonshard.Module
function remove.layers(layers, model)
  for _, layer in ipairs(layers) do adapter.detach(layer) end
  for _, found in ipairs(trainable_tokens.layers(model)) do trainable_tokens.detach(found.layer) end
end

---Removes all adapters, and lets those parameters train that did before.
---@param model moonshard.Module
function remove.all(model)
  local layers = {}
  for i, found in ipairs(adapter.layers(model)) do layers[i] = found.layer end
  remove.layers(layers, model)
  for _, module in model:named_modules() do
    local noted = rawget(module, "_lora")
    for param, frozen in pairs(noted and noted.before or {}) do param.frozen = frozen end
    rawset(module, "_lora", nil)
  end
end

return remove
