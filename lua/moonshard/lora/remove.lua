-- Takes the adapters of a model away again: when they are merged, and when a call that gave them fails.

local adapter = require("moonshard.nn.adapter")

---Removes adapters, and lets those parameters train that did before.
---@param model moonshard.Module
---@param layers { layer: moonshard.Module }[] that have them
return function(model, layers)
  for _, found in ipairs(layers) do adapter.detach(found.layer) end
  for _, module in model:named_modules() do
    local noted = rawget(module, "_lora")
    for param, frozen in pairs(noted and noted.before or {}) do param.frozen = frozen end
    rawset(module, "_lora", nil)
  end
end
