-- Model types that people have folders of, but that are not read: what they have that is not built.

local IMAGES = "it is the config of a model that also reads images, and the text's is inside of it, in text_config"
local LATENT = "keys and values that are projected from a latent vector (MLA) are not built"

---@type table<string, string>
return {
  deepseek_v2 = LATENT, deepseek_v3 = LATENT, kimi_k2 = LATENT, minicpm3 = LATENT,
  gpt_oss = "attention sinks, a logit of each head that no key has, are not built, nor biases of experts",
  gemma3 = IMAGES, mistral3 = IMAGES, llava = IMAGES, qwen2_vl = IMAGES, qwen2_5_vl = IMAGES, mllama = IMAGES,
  llama4 = IMAGES,
  bloom = "biases of attention that grow with the distance (ALiBi) are not built into its decoder",
  mpt = "biases of attention that grow with the distance (ALiBi) are not built into its decoder",
  mamba = "state space layers are not built", mamba2 = "state space layers are not built",
  jamba = "state space layers are not built", granitemoehybrid = "state space layers are not built",
  t5 = "models of an encoder and a decoder are not built",
}
