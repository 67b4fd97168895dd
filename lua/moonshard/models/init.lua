-- Ready-made models: ms.models.gpt2 { ... } and ms.models.llama { ... }. Their sources also show how to
-- write a model.

---@class moonshard.models
---@field gpt2 fun(config: moonshard.GPT2Options): moonshard.Module
---@field llama fun(config: moonshard.LlamaOptions): moonshard.Module

return setmetatable({}, {
  __index = function(self, name)
    local known = { gpt2 = "moonshard.models.gpt2", llama = "moonshard.models.llama" }
    if not known[name] then require("moonshard.base.strict").unknown_field("ms.models", name, known) end
    self[name] = require(known[name])
    return self[name]
  end,
})
