-- Ready-made models: ms.models.gpt2 { ... }, ms.models.llama { ... }, the other families of decoders, such as
-- ms.models.qwen3 { ... }, and the encoders ms.models.bert { ... } and ms.models.vit { ... }. Their sources also show
-- how to write a model.

---@class moonshard.models
---@field gpt2 fun(config: moonshard.GPT2Options): moonshard.Module
---@field llama fun(config: moonshard.LlamaOptions): moonshard.Module
---@field bert fun(config: moonshard.BertOptions): moonshard.Module a masked language model
---@field vit fun(config: moonshard.ViTOptions): moonshard.Module a classifier of images
---@field decoder fun(config: moonshard.DecoderOptions): moonshard.Module a decoder of no family
---@field cohere fun(config: moonshard.DecoderOptions): moonshard.Module this and the next: with the family's traits
---@field cohere2 fun(config: moonshard.DecoderOptions): moonshard.Module
---@field deepseek_v2 fun(config: moonshard.DecoderOptions): moonshard.Module
---@field deepseek_v3 fun(config: moonshard.DecoderOptions): moonshard.Module
---@field exaone4 fun(config: moonshard.DecoderOptions): moonshard.Module
---@field falcon fun(config: moonshard.DecoderOptions): moonshard.Module
---@field gemma fun(config: moonshard.DecoderOptions): moonshard.Module
---@field gemma2 fun(config: moonshard.DecoderOptions): moonshard.Module
---@field gemma3_text fun(config: moonshard.DecoderOptions): moonshard.Module
---@field glm fun(config: moonshard.DecoderOptions): moonshard.Module
---@field glm4 fun(config: moonshard.DecoderOptions): moonshard.Module
---@field glm4_moe fun(config: moonshard.DecoderOptions): moonshard.Module
---@field gpt_neox fun(config: moonshard.DecoderOptions): moonshard.Module
---@field gpt_oss fun(config: moonshard.DecoderOptions): moonshard.Module
---@field granite fun(config: moonshard.DecoderOptions): moonshard.Module
---@field kimi_k2 fun(config: moonshard.DecoderOptions): moonshard.Module
---@field llama4_text fun(config: moonshard.DecoderOptions): moonshard.Module
---@field ministral fun(config: moonshard.DecoderOptions): moonshard.Module
---@field ministral3 fun(config: moonshard.DecoderOptions): moonshard.Module
---@field mistral fun(config: moonshard.DecoderOptions): moonshard.Module
---@field mixtral fun(config: moonshard.DecoderOptions): moonshard.Module
---@field olmo2 fun(config: moonshard.DecoderOptions): moonshard.Module
---@field olmo3 fun(config: moonshard.DecoderOptions): moonshard.Module
---@field olmoe fun(config: moonshard.DecoderOptions): moonshard.Module
---@field phi fun(config: moonshard.DecoderOptions): moonshard.Module
---@field phi3 fun(config: moonshard.DecoderOptions): moonshard.Module
---@field qwen2 fun(config: moonshard.DecoderOptions): moonshard.Module
---@field qwen2_moe fun(config: moonshard.DecoderOptions): moonshard.Module
---@field qwen3 fun(config: moonshard.DecoderOptions): moonshard.Module
---@field qwen3_moe fun(config: moonshard.DecoderOptions): moonshard.Module
---@field seed_oss fun(config: moonshard.DecoderOptions): moonshard.Module
---@field smollm3 fun(config: moonshard.DecoderOptions): moonshard.Module
---@field stablelm fun(config: moonshard.DecoderOptions): moonshard.Module
---@field starcoder2 fun(config: moonshard.DecoderOptions): moonshard.Module

local OWN = {
  gpt2 = "moonshard.models.gpt2", llama = "moonshard.models.llama", bert = "moonshard.models.bert",
  vit = "moonshard.models.vit",
}

return setmetatable({}, {
  __index = function(self, name)
    if OWN[name] then
      self[name] = require(OWN[name])
      return self[name]
    end
    local families = require("moonshard.models.families")
    if families.rows[name] then
      self[name] = families.maker(name)
    else
      local known = {}
      for each in pairs(OWN) do known[each] = true end
      for each in pairs(families.rows) do known[each] = true end
      require("moonshard.base.checks.strict").unknown_field("ms.models", name, known)
    end
    return self[name]
  end,
})
