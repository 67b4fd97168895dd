-- Temperature tuning: queries grow with the logarithm of the position, so that attention over long texts stays as
-- sharp as over short ones. At position p, from 0, the factor is 1 + attn_scale log(1 + floor((p + 1) / floor_scale))
-- in the layers without positions of Llama 4 ("nope"), and with p in place of p + 1 in all layers of Ministral 3
-- ("all").

local constants = require("moonshard.tensor.constants")
local nn = require("moonshard.nn")
local ops = require("moonshard.tensor.ops")

local temperature = {}

-- The factors of the first positions, f32 [length,1].
local function factors(config, length)
  local scale, floor, first = config.attn_scale, config.floor_scale, config.attn_scale_layers == "all" and 0 or 1
  local key = ("temperatures %.17g %d %d %d"):format(scale, floor, first, length)
  return constants.get(key, { length, 1 }, function(data)
    for p = 0, length - 1 do data[p] = 1 + scale * math.log(1 + math.floor((p + first) / floor)) end
  end)
end

-- Positions are those in documents where these share a row, so that a document has the same logits as alone.
local function factors_of(config, tokens, cache)
  local batch, length = unpack(tokens.shape)
  if cache and not cache.is_first then
    local rows = cache.inputs["keys 1"].shape[3] + 1
    return ops.embedding(factors(config, rows), cache.inputs.positions_in_documents):reshape(batch, length, 1, 1)
  elseif config.document_start then
    local positions = nn.document_positions(tokens, config.document_start)
    return ops.embedding(factors(config, length), positions):reshape(batch, length, 1, 1)
  end
  return factors(config, length):reshape(1, length, 1, 1)
end

---Whether the queries of a layer are scaled.
---@param config moonshard.DecoderConfig
---@param rotates boolean the layer's
---@return boolean
function temperature.is_on(config, rotates)
  return config.attn_scale ~= nil and (config.attn_scale_layers == "all" or not rotates)
end

---Scales queries, in f32.
---@param config moonshard.DecoderConfig
---@param q moonshard.Tensor [B,T,H,D]
---@param tokens moonshard.Tensor i32 [B,T]
---@param cache moonshard.KVCache?
---@return moonshard.Tensor
function temperature.scale(config, q, tokens, cache)
  local longest = cache and not cache.is_first and cache.inputs["keys 1"].shape[3] + 1 or tokens.shape[2]
  if longest < config.floor_scale then return q end -- all factors are 1
  return (q:cast("f32") * factors_of(config, tokens, cache)):cast(q.dtype)
end

return temperature
