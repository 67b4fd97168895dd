-- Ready-made models: ms.models.gpt2 { ... }, ms.models.llama { ... }, and the other families of decoders, such as
-- ms.models.qwen3 { ... }. Their sources also show how to write a model.

---@class moonshard.models
---@field gpt2 fun(config: moonshard.GPT2Options): moonshard.Module
---@field llama fun(config: moonshard.LlamaOptions): moonshard.Module
---@field decoder fun(config: moonshard.DecoderOptions): moonshard.Module a decoder of no family
---@field gemma fun(config: moonshard.DecoderOptions): moonshard.Module this and the next: with the family's traits
---@field gemma2 fun(config: moonshard.DecoderOptions): moonshard.Module
---@field gemma3_text fun(config: moonshard.DecoderOptions): moonshard.Module
---@field mistral fun(config: moonshard.DecoderOptions): moonshard.Module
---@field olmo2 fun(config: moonshard.DecoderOptions): moonshard.Module
---@field phi3 fun(config: moonshard.DecoderOptions): moonshard.Module
---@field qwen2 fun(config: moonshard.DecoderOptions): moonshard.Module
---@field qwen3 fun(config: moonshard.DecoderOptions): moonshard.Module

local OWN = { gpt2 = "moonshard.models.gpt2", llama = "moonshard.models.llama" }
local DECODERS = { decoder = true, gemma = true, gemma2 = true, gemma3_text = true, mistral = true, olmo2 = true,
  phi3 = true, qwen2 = true, qwen3 = true }

return setmetatable({}, {
  __index = function(self, name)
    if OWN[name] then
      self[name] = require(OWN[name])
    elseif DECODERS[name] then
      self[name] = require("moonshard.models.families").maker(name)
    else
      local known = {}
      for each in pairs(OWN) do known[each] = true end
      for each in pairs(DECODERS) do known[each] = true end
      require("moonshard.base.strict").unknown_field("ms.models", name, known)
    end
    return self[name]
  end,
})
