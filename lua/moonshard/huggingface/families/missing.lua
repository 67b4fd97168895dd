-- Model types that people have folders of, but that are not read: what they have that is not built.

local AXES = "rotary positions along several axes, of images, are not built"
local HEAD = "whether logits have the factor of their decoder depends on the reference library's version"

---@type table<string, string>
return {
  minicpm3 = "factors by the number of layers and the width are not built",
  aya_vision = HEAD, cohere2_vision = HEAD, qwen2_vl = AXES, qwen2_5_vl = AXES, qwen3_vl = AXES, qwen3_vl_moe = AXES,
  mllama = "layers that attend to an image are not built", paligemma = "attention to later tokens is not built",
  mamba = "state space layers are not built", mamba2 = "state space layers are not built",
  jamba = "state space layers are not built", granitemoehybrid = "state space layers are not built",
  kimi_linear = "linear attention with a decay for each channel is not built",
  deepseek_v32 = "an indexer that chooses keys (sparse attention) is not built",
  t5 = "models of an encoder and a decoder are not built",
}
