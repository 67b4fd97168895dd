-- Attention with linear biases (ALiBi, Press et al. 2022): a score of head h grows by slope_h for each position of its
-- key, and so, as softmax sees differences alone, falls by as much for each position between key and query.
--
-- The biases are products, too: queries get further columns with the slope, and keys with their position, and every op
-- of attention computes them with the scores, within windows, documents and caches and on every device. To be exact in
-- bf16, a slope is the sum of three of its numbers, and a position that of a multiple of 256 and the rest: six columns.
-- Positions are those in a row, also where documents share it, since only differences count.

local constants = require("moonshard.tensor.constants")
local errors = require("moonshard.base.error")
local ops = require("moonshard.tensor.ops")

local alibi = {
  ---Positions are exact below this.
  MAX_LENGTH = 65536,
}

local COLUMNS = 8 -- six, and two of zeros: kernels read widths of multiples of 8
local PARTS, BASE = 3, 256

---The slopes of a number of heads: those of the largest power of two within it, and then every second one of twice as
---many.
---@param heads integer
---@return number[]
function alibi.slopes(heads)
  local whole, slopes = 1, {}
  while 2 * whole <= heads do whole = 2 * whole end
  for h = 1, heads do
    slopes[h] = h <= whole and 2 ^ (-8 * h / whole) or 2 ^ (-4 * (2 * (h - whole) - 1) / whole)
  end
  return slopes
end

-- The nearest number of 8 bits.
local function rounded(x)
  local mantissa, exponent = math.frexp(x)
  return math.floor(mantissa * 256 + 0.5) * 2 ^ (exponent - 8)
end

-- What queries get, f32 [H,COLUMNS]: slopes, by what scores are multiplied with afterwards. Falcon's slopes ("scaled")
-- are numbers of bf16 in the reference library.
local function query_columns(config)
  local factor = config.alibi == "added" and 1 / config.attention_scale or 1
  local key = ("slopes %d %s %.17g"):format(config.heads, config.alibi, factor)
  return constants.get(key, { config.heads, COLUMNS }, function(data)
    for h, slope in ipairs(alibi.slopes(config.heads)) do
      local rest, row = (config.alibi == "scaled" and rounded(slope) or slope) * factor, data + (h - 1) * COLUMNS
      for i = 0, COLUMNS - 1 do row[i] = 0 end
      for i = 0, PARTS - 1 do
        row[i] = rounded(rest)
        row[PARTS + i], rest = row[i], rest - row[i]
      end
    end
  end)
end

-- What keys get, f32 [length,COLUMNS].
local function key_columns(length)
  return constants.get(("positions of keys %d"):format(length), { length, COLUMNS }, function(data)
    for p = 0, length - 1 do
      local row, low = data + p * COLUMNS, p % BASE
      for i = 0, COLUMNS - 1 do row[i] = i < PARTS and low or i < 2 * PARTS and p - low or 0 end
    end
  end)
end

local function positions_of(k, cache)
  local batch, length = unpack(k.shape)
  if cache and not cache.is_first then
    local rows = cache.inputs["keys 1"].shape[3] + 1
    return ops.embedding(key_columns(rows), cache.inputs.positions):reshape(batch, length, 1, COLUMNS)
  end
  return key_columns(length):reshape(1, length, 1, COLUMNS)
end

local function join(x, columns)
  local batch, length, heads = unpack(x.shape)
  return ops.concat(x, columns:cast(x.dtype):expand(batch, length, heads, COLUMNS), { axis = -1 })
end

---Queries and keys whose products have the biases.
---@param config moonshard.DecoderConfig alibi "added": to scores after their factor attention_scale; "scaled": before
---@param q moonshard.Tensor [B,T,H,D]
---@param k moonshard.Tensor [B,T,G,D]
---@param cache moonshard.KVCache?
---@return moonshard.Tensor q [B,T,H,D+8]
---@return moonshard.Tensor k [B,T,G,D+8]
function alibi.join(config, q, k, cache)
  return join(q, query_columns(config):reshape(1, 1, config.heads, COLUMNS)), join(k, positions_of(k, cache))
end

---Reads the options of a decoder with these biases, which are in place of rotary positions. The factor of scores does
---not follow from the width of queries, to which they add columns.
---@param who string for messages
---@param config table
function alibi.read(who, config)
  if not config.alibi then return end
  for _, name in ipairs({ "kv_lora_rank", "attention_softcap", "rope_scaling", "rotates" }) do
    if config[name] then
      errors.invalid("%s: alibi is in place of rotary positions, and is not built with %s: give one of them", who, name)
    end
  end
  if config.seq > alibi.MAX_LENGTH then
    errors.invalid("%s: seq is %d, and with alibi positions are exact below %d alone: give a smaller seq", who,
      config.seq, alibi.MAX_LENGTH)
  end
  config.rotates = {}
  for i = 1, config.layers do config.rotates[i] = false end
  config.attention_scale = config.attention_scale or 1 / math.sqrt(config.head_dim)
end

return alibi
