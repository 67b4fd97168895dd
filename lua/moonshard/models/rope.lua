-- The rotary positions of a decoder: which elements of a head are rotated, and the frequency of each pair. Frequencies
-- are those of theta, or scaled for texts that are longer than the original training's:
--
--   linear     all divided by `factor`
--   (none)     Llama 3.1: low frequencies divided, high ones kept
--   yarn       Peng et al. 2023: a ramp over the pairs between both; queries and keys also grow
--   longrope   Ding et al. 2024: each divided by a factor of its own, others for sequences above the original length
--   dynamic    theta grows with sequences above `seq`, which no sequence of the model is: as without a scaling
--
-- The op rope computes those of the first two itself. For the others, and for heads that are rotated in part, it is
-- given a table, with the roundings of the reference library (single precision).

local constants = require("moonshard.tensor.constants")
local errors = require("moonshard.base.error")
local ffi = require("ffi")
local ops = require("moonshard.tensor.ops")
local options = require("moonshard.base.checks.options")

local rope = {}

local f32_cell = ffi.new("float[1]")
local function f32(x)
  f32_cell[0] = x
  return f32_cell[0]
end

-- ---- options ----------------------------------------------------------------------------------------------------

local NUMBER, LENGTH = { "number" }, { "positive", required = true }
local FACTOR, LIST = { "number", required = true }, { "table", required = true }
local TYPE = { "string" }

-- The fields of each type; "llama3": of none.
local FIELDS = {
  llama3 = {
    type = TYPE, factor = FACTOR, low_freq_factor = FACTOR, high_freq_factor = FACTOR,
    original_max_position_embeddings = LENGTH,
  },
  linear = { type = TYPE, factor = FACTOR },
  dynamic = { type = TYPE, factor = FACTOR },
  yarn = {
    type = TYPE, factor = FACTOR, original_max_position_embeddings = LENGTH, attention_factor = NUMBER,
    beta_fast = NUMBER, beta_slow = NUMBER, mscale = NUMBER, mscale_all_dim = NUMBER, truncate = { "boolean" },
  },
  longrope = {
    type = TYPE, short_factor = LIST, long_factor = LIST, original_max_position_embeddings = LENGTH, factor = NUMBER,
    attention_factor = NUMBER,
  },
}

local function check_list(name, field, list, pairs_rotated)
  for i = 1, math.max(pairs_rotated, #list) do
    local value = list[i]
    if i > pairs_rotated or type(value) ~= "number" or value <= 0 then
      errors.invalid("%s: %s must have a number above 0 for each of %d pairs of elements, and item %d is %s", name,
        field, pairs_rotated, i, options.describe(value))
    end
  end
end

---Checks an option rope_scaling.
---@param name string for messages
---@param given table|boolean
---@param pairs_rotated integer pairs of elements of a head that are rotated
---@return moonshard.RopeScaling|false
function rope.read_scaling(name, given, pairs_rotated)
  if not given then return false end
  local kind = type(given) == "table" and given.type or "llama3"
  local known = FIELDS[kind]
  if not known or type(given) == "table" and given.type == "llama3" then
    errors.raise("MS_ENAME", "%s: type must be \"linear\", \"yarn\", \"longrope\" or \"dynamic\", or left out for the "
      .. "scaling of Llama 3.1, not %s", name, options.describe(kind))
  end
  local scaled = options.parse(name, given ~= true and given or nil, known)
  for field, spec in pairs(known) do
    local value = scaled[field]
    if value and spec == LIST then check_list(name, field, value, pairs_rotated) end
    if type(value) == "number" and not (value > 0 and value < math.huge) then
      errors.invalid("%s: %s %g must be above 0", name, field, value)
    end
  end
  if kind == "llama3" and scaled.high_freq_factor < scaled.low_freq_factor then
    errors.invalid("%s: low_freq_factor %g and high_freq_factor %g: the high one must be at least the low one", name,
      scaled.low_freq_factor, scaled.high_freq_factor)
  end
  return given
end

-- ---- frequencies of pairs ---------------------------------------------------------------------------------------

local function period(theta, p, n) return f32(f32(theta) ^ f32(f32(2 * p) / f32(2 * n))) end

-- As kernels/rope_frequencies.h, for heads that are rotated in part.
local function llama3_frequency(frequency, scaled)
  local original, low, high = scaled.original_max_position_embeddings, scaled.low_freq_factor, scaled.high_freq_factor
  local wave = f32(f32(2 * math.pi) / frequency)
  if wave > f32(original / low) then return f32(frequency / scaled.factor) end
  if wave < f32(original / high) or high == low then return frequency end
  local share = f32(f32(f32(original / wave) - low) / f32(high - low))
  return f32(f32(f32(f32(1 - share) * frequency) / scaled.factor) + f32(share * frequency))
end

-- The pair, not rounded, that turns so many times within the original length.
local function yarn_pair(turns, theta, n, original)
  return 2 * n * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))
end

-- A function of p: the frequency between that of theta and the one divided by factor.
local function yarn_frequencies(theta, scaled, n)
  local original = scaled.original_max_position_embeddings
  local low = yarn_pair(scaled.beta_fast or 32, theta, n, original)
  local high = yarn_pair(scaled.beta_slow or 1, theta, n, original)
  if scaled.truncate ~= false then low, high = math.floor(low), math.ceil(high) end
  low, high = math.max(low, 0), math.min(high, 2 * n - 1)
  if low == high then high = high + 0.001 end
  return function(p)
    local ramp = math.min(math.max(f32(f32(p - f32(low)) / f32(high - low)), 0), 1)
    local kept, each = f32(1 - ramp), period(theta, p, n)
    local divided = f32(1 / f32(f32(scaled.factor) * each))
    return f32(f32(divided * f32(1 - kept)) + f32(f32(1 / each) * kept))
  end
end

local function yarn_growth(factor, times)
  return factor <= 1 and 1 or 0.1 * times * math.log(factor) + 1
end

---The factor of scores of attention with latent keys and values, where the growth of queries and keys by
---mscale_all_dim is in the scores, since only a part of each is rotated.
---@param scaled moonshard.RopeScaling|false
---@param head_dim integer
---@return number
function rope.score_scale(scaled, head_dim)
  local all = scaled and scaled.mscale_all_dim
  local growth = all and yarn_growth(scaled.factor, all) or 1
  return head_dim ^ -0.5 * growth * growth
end

-- What queries and keys are multiplied by.
local function attention_factor(scaled, seq)
  if scaled and scaled.attention_factor then return scaled.attention_factor end
  if scaled and scaled.type == "yarn" then
    local some, all = scaled.mscale, scaled.mscale_all_dim
    if some and all then return yarn_growth(scaled.factor, some) / yarn_growth(scaled.factor, all) end
    return yarn_growth(scaled.factor, 1)
  elseif scaled and scaled.type == "longrope" then
    local original = scaled.original_max_position_embeddings
    local factor = scaled.factor or seq / original
    return factor <= 1 and 1 or math.sqrt(1 + math.log(factor) / math.log(original))
  end
  return 1
end

-- A function of p, from 0.
local function frequencies_of(theta, scaled, n, is_long)
  local kind = scaled and (scaled.type or "llama3")
  if kind == "yarn" then return yarn_frequencies(theta, scaled, n) end
  local list = kind == "longrope" and (is_long and scaled.long_factor or scaled.short_factor)
  return function(p)
    local each = period(theta, p, n)
    if list then return f32(1 / f32(f32(list[p + 1]) * each)) end
    local frequency = f32(1 / each)
    if kind == "linear" then return f32(frequency / scaled.factor) end
    return kind == "llama3" and llama3_frequency(frequency, scaled) or frequency
  end
end

-- The second input of the op rope, f32 [2,n].
local function turns_of(config, theta, scaled, is_long)
  local n = (config.rotary_dim or config.head_dim) / 2
  local frequency, growth = frequencies_of(theta, scaled, n, is_long), f32(attention_factor(scaled, config.seq))
  local values, texts = {}, {}
  for p = 0, n - 1 do
    values[p], values[n + p] = frequency(p), growth
    texts[p + 1] = ("%.9g"):format(values[p])
  end
  return constants.get(("turns %.9g: %s"):format(growth, table.concat(texts, " ")), { 2, n }, function(data)
    for i = 0, 2 * n - 1 do data[i] = values[i] end
  end)
end

-- ---- what a layer rotates with ----------------------------------------------------------------------------------

---@class moonshard.Rotation
---@field attributes table of the op rope
---@field turns moonshard.Tensor? its second input, f32 [2,P]
---@field pairs integer P, of a head
---@field interleaved boolean

-- Attributes that say it all, for whole heads with scalings that the op knows.
local function attributes_of(theta, scaled)
  if not scaled or scaled.type == "dynamic" then return { theta = theta } end
  -- Every wavelength is above one position, so all frequencies are divided.
  if scaled.type == "linear" then return { theta = theta, factor = scaled.factor, low = 1, high = 2, original = 1 } end
  return {
    theta = theta, factor = scaled.factor, low = scaled.low_freq_factor, high = scaled.high_freq_factor,
    original = scaled.original_max_position_embeddings,
  }
end

local IN_OP = { llama3 = true, linear = true, dynamic = true, none = true }

---Whether sequences of this length have the factors for long ones.
---@param config moonshard.DecoderConfig
---@param length integer
---@return boolean
function rope.is_long(config, length)
  local scaled = config.rope_scaling
  return scaled and scaled.type == "longrope" and length > scaled.original_max_position_embeddings
end

---@param config moonshard.DecoderConfig
---@param theta number
---@param scaled moonshard.RopeScaling|false
---@param is_long boolean sequences are longer than the original training's
---@return moonshard.Rotation
function rope.rotation(config, theta, scaled, is_long)
  local kind = scaled and (scaled.type or "llama3") or "none"
  local rotation = { pairs = (config.rotary_dim or config.head_dim) / 2, interleaved = config.rope_interleaved }
  if not config.rotary_dim and IN_OP[kind] then
    rotation.attributes = attributes_of(theta, scaled)
  else
    rotation.attributes, rotation.turns = {}, turns_of(config, theta, scaled, is_long)
  end
  if config.rope_interleaved then rotation.attributes.interleaved = 1 end
  return rotation
end

---Rotates heads by their positions.
---@param x moonshard.Tensor [B,T,H,D]
---@param rotation moonshard.Rotation
---@return moonshard.Tensor
function rope.rotate(x, rotation)
  if rotation.turns then return ops.rope(x, rotation.turns, rotation.attributes) end
  return ops.rope(x, rotation.attributes)
end

return rope
