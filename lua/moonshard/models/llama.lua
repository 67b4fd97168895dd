-- Llama (Touvron et al. 2023; Llama 3 of Grattafiori et al. 2024): the decoder of models/decoder.lua as it is without
-- options, and its published sizes. Since Llama 3.1, low frequencies of rotary positions are scaled down further
-- (`rope_scaling`), so that a model handles longer sequences than in pretraining.

local decoder = require("moonshard.models.decoder")
local decoder_options = require("moonshard.models.decoder_options")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")

local function scaling(factor)
  return { factor = factor, low_freq_factor = 1, high_freq_factor = 4, original_max_position_embeddings = 8192 }
end

-- Llama 2 (7B, 13B), 3.1 (8B, 70B, 405B) and 3.2 (1B, 3B). Those of 3 have 128256 tokens, theta 500000 and 131072
-- positions.
local PUBLISHED = {
  ["1B"] = { layers = 16, dim = 2048, heads = 32, kv_heads = 8, ffn = 8192, tied = true, rope_scaling = scaling(32) },
  ["3B"] = { layers = 28, dim = 3072, heads = 24, kv_heads = 8, ffn = 8192, tied = true, rope_scaling = scaling(32) },
  ["7B"] = { layers = 32, dim = 4096, heads = 32, ffn = 11008, vocab = 32000, rope_theta = 10000, seq = 4096 },
  ["8B"] = { layers = 32, dim = 4096, heads = 32, kv_heads = 8, ffn = 14336, rope_scaling = scaling(8) },
  ["13B"] = { layers = 40, dim = 5120, heads = 40, ffn = 13824, vocab = 32000, rope_theta = 10000, seq = 4096 },
  ["70B"] = { layers = 80, dim = 8192, heads = 64, kv_heads = 8, ffn = 28672, rope_scaling = scaling(8) },
  ["405B"] = { layers = 126, dim = 16384, heads = 128, kv_heads = 8, ffn = 53248, rope_scaling = scaling(8) },
}

local Llama = decoder.define("Llama", "llama")

-- Replaces the name of a size by its numbers.
local function fill(given)
  local published = type(given) == "table" and given[1]
  if not published then return given end
  if not PUBLISHED[published] then
    errors.raise("MS_ENAME", "ms.models.llama: no size %s; the sizes are 1B, 3B, 7B, 8B, 13B, 70B, 405B",
      options.describe(published))
  end
  local filled = { vocab = 128256, rope_theta = 500000, seq = 131072 }
  for key, value in pairs(PUBLISHED[published]) do filled[key] = value end
  for key, value in pairs(given) do filled[key] = value end
  return filled
end

---@class moonshard.RopeScaling without a type, as in Llama 3.1; the types are explained in models/rope.lua
---@field type? "linear"|"yarn"|"longrope"|"dynamic"
---@field factor? number required but for longrope, where it is seq / original_max_position_embeddings by default
---@field low_freq_factor? number of Llama 3.1, like the next one
---@field high_freq_factor? number
---@field original_max_position_embeddings? integer of Llama 3.1, yarn and longrope
---@field attention_factor? number queries and keys are multiplied by it (yarn, longrope); default: from factor
---@field beta_fast? number turns within the original length from which on pairs keep their frequency (yarn); default 32
---@field beta_slow? number turns up to which their frequency is divided; default 1
---@field mscale? number with mscale_all_dim: other defaults of attention_factor (yarn)
---@field mscale_all_dim? number
---@field truncate? boolean the ramp begins and ends at whole pairs (yarn); default true
---@field short_factor? number[] what each pair's frequency is divided by (longrope)
---@field long_factor? number[] the same for sequences above original_max_position_embeddings

---@class moonshard.LlamaOptions: moonshard.DecoderOptions
---@field [1] string? a published size, "8B", which sets the defaults of the other fields
---@field vocab? integer required without a published size, like layers, dim, heads, ffn and seq
---@field layers? integer
---@field dim? integer
---@field heads? integer
---@field ffn? integer
---@field seq? integer

---A Llama. Its forward maps tokens i32 [batch, length] to logits [batch, length, vocab].
---@param given moonshard.LlamaOptions
---@return moonshard.Module
return function(given) return Llama(decoder_options.read("ms.models.llama", fill(given), true)) end
