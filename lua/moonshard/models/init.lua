-- Ready-made models: ms.models.gpt2 { ... } and ms.models.llama { ... }. Their sources are also the example of how a
-- model is written.

return setmetatable({}, {
  __index = function(self, name)
    local nearest = require("moonshard.nearest")
    local known = { gpt2 = "moonshard.models.gpt2", llama = "moonshard.models.llama" }
    if not known[name] then
      require("moonshard.error").raise("MS_ENAME", "ms.models.%s does not exist: %s", tostring(name),
        nearest.advice(tostring(name), known))
    end
    self[name] = require(known[name])
    return self[name]
  end,
})
