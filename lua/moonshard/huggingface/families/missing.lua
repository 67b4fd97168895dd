-- Model types that people have folders of, but that are not read: what they have that is not built.

local IMAGES = "it is the config of a model that also reads images, and the text's is inside of it, in text_config"

---@type table<string, string>
return {
  minicpm3 = "factors by the number of layers and the width are not built",
  gemma3 = IMAGES, mistral3 = IMAGES, llava = IMAGES, qwen2_vl = IMAGES, qwen2_5_vl = IMAGES, mllama = IMAGES,
  llama4 = IMAGES,
  bloom = "biases of attention that grow with the distance (ALiBi) are not built into its decoder",
  mpt = "biases of attention that grow with the distance (ALiBi) are not built into its decoder",
  mamba = "state space layers are not built", mamba2 = "state space layers are not built",
  jamba = "state space layers are not built", granitemoehybrid = "state space layers are not built",
  qwen3_next = "layers of a gated delta rule (linear attention) are not built",
  kimi_linear = "layers of a gated delta rule (linear attention) are not built",
  deepseek_v32 = "an indexer that chooses keys (sparse attention) is not built",
  t5 = "models of an encoder and a decoder are not built",
}
