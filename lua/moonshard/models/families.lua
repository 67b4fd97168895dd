-- Families of decoders as models: the options that make a decoder (models/decoder.lua) one of a family. Folders of
-- these families are read by huggingface/families.lua.

local decoder = require("moonshard.models.decoder")
local decoder_options = require("moonshard.models.decoder_options")

local families = {}

---What all models of a family have.
---@type table<string, table>
families.traits = {
  decoder = {}, llama = {}, mistral = {}, phi3 = {},
  qwen2 = { qkv_bias = true },
  qwen3 = { qk_norm = "head" },
  gemma = { norm_from_one = true },
  gemma2 = { norm_from_one = true, norms = "around" },
  gemma3_text = { norm_from_one = true, norms = "around", qk_norm = "head" },
  olmo2 = { norms = "behind", qk_norm = "all" },
}

local NAMES = {
  decoder = "Decoder", mistral = "Mistral", phi3 = "Phi3", qwen2 = "Qwen2", qwen3 = "Qwen3", gemma = "Gemma",
  gemma2 = "Gemma2", gemma3_text = "Gemma3", olmo2 = "Olmo2",
}

-- What their published models have, where it is not a decoder's default. Gemma scales embeddings by the root of their
-- width.
local USUAL = {
  mistral = { eps = 1e-6 }, qwen2 = { eps = 1e-6 }, qwen3 = { eps = 1e-6 },
  gemma = { activation = "gelu_tanh", tied = true, eps = 1e-6 },
  gemma2 = { activation = "gelu_tanh", tied = true, eps = 1e-6, attention_softcap = 50, logit_softcap = 30 },
  gemma3_text = { activation = "gelu_tanh", tied = true, eps = 1e-6, rope_theta = 1e6 },
}
local SCALED = { gemma = true, gemma2 = true, gemma3_text = true }

local function fill(name, given)
  local filled = {}
  for _, source in ipairs({ families.traits[name], USUAL[name] or {}, given }) do
    for key, value in pairs(source) do filled[key] = value end
  end
  if SCALED[name] and filled.embedding_scale == nil and type(filled.dim) == "number" and filled.dim > 0 then
    filled.embedding_scale = math.sqrt(filled.dim)
  end
  return filled
end

---The models of a family.
---@param name string a key of families.traits, except llama, which has published sizes (models/llama.lua)
---@return fun(given: moonshard.DecoderOptions): moonshard.Module
function families.maker(name)
  local class = decoder.define(NAMES[name], name)
  return function(given)
    return class(decoder_options.read("ms.models." .. name, type(given) == "table" and fill(name, given) or given))
  end
end

return families
