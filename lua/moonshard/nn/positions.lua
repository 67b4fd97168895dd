-- Positions without parameters: sines of positions, added to embeddings (Vaswani et al. 2017), and biases of attention
-- that grow with the distance (ALiBi, Press et al. 2022). Constants of a trace; equal ones are one tensor, so that the
-- layers of a model share it. And the positions of tokens within their documents, for learned positions.

local constants = require("moonshard.tensor.constants")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local ops = require("moonshard.tensor.ops")
local tensor = require("moonshard.tensor")

local positions = {}

local function check_positive(who, what, value)
  if type(value) == "number" and value % 1 == 0 and value >= 1 then return end
  errors.invalid("%s: %s must be an integer of at least 1, not %s", who, what, options.describe(value))
end

---Sines and cosines of positions: [length, dim], sin(p / base^(2i/dim)) at 2i and the cosine at 2i + 1.
---@param length integer
---@param dim integer even
---@param base number? default 10000
---@return moonshard.Tensor f32
function positions.sinusoidal(length, dim, base)
  check_positive("ms.nn.sinusoidal", "the length", length)
  check_positive("ms.nn.sinusoidal", "the dimension", dim)
  if dim % 2 ~= 0 then errors.invalid("ms.nn.sinusoidal: the dimension must be even, not %d", dim) end
  base = base or 10000
  return constants.get(("sines %d %d %g"):format(length, dim, base), { length, dim }, function(data)
    for p = 0, length - 1 do
      for i = 0, dim / 2 - 1 do
        local angle = p / base ^ (2 * i / dim)
        data[p * dim + 2 * i], data[p * dim + 2 * i + 1] = math.sin(angle), math.cos(angle)
      end
    end
  end)
end

-- The slopes of the published models: a geometric sequence for a power of two; else that of the next smaller power,
-- and every second one of the next larger.
local function slopes_of(heads)
  local function of_power(n)
    local list = {}
    for h = 1, n do list[h] = 2 ^ (-8 * h / n) end
    return list
  end
  local power = 1
  while power * 2 <= heads do power = power * 2 end
  local list, more = of_power(power), of_power(2 * power)
  for h = power + 1, heads do list[h] = more[2 * (h - power) - 1] end
  return list
end

---Biases of scores, to be the mask of ms.nn.masked_attention: [heads, queries, keys], -slope times the distance. The
---last query is at the last key.
---@param heads integer
---@param queries integer
---@param keys integer? default: queries
---@return moonshard.Tensor f32
function positions.alibi(heads, queries, keys)
  keys = keys or queries
  check_positive("ms.nn.alibi", "the number of heads", heads)
  check_positive("ms.nn.alibi", "the number of queries", queries)
  check_positive("ms.nn.alibi", "the number of keys", keys)
  return constants.get(("alibi %d %d %d"):format(heads, queries, keys), { heads, queries, keys }, function(data)
    for h, slope in ipairs(slopes_of(heads)) do
      for q = 0, queries - 1 do
        for k = 0, keys - 1 do
          data[((h - 1) * queries + q) * keys + k] = -slope * math.abs(q + keys - queries - k)
        end
      end
    end
  end)
end

---The position of each token in its document, from 0, as a row of the document alone has it: what a table of learned
---positions is indexed with where documents share a row. Every token `start` begins a document, as in
---ms.ops.document_attention. Exact below 2^24 tokens.
---@param tokens moonshard.Tensor i32 [batch, length]
---@param start integer
---@return moonshard.Tensor i32 [batch, length]
function positions.document_positions(tokens, start)
  local who = "ms.nn.document_positions"
  if not tensor.is(tokens) or #tokens.shape ~= 2 then
    errors.raise("MS_ESHAPE", "%s: tokens must be [batch, length], not %s", who,
      tensor.is(tokens) and tensor.shape_text(tokens.shape) or options.describe(tokens))
  elseif type(start) ~= "number" or start % 1 ~= 0 then
    errors.invalid("%s: the token that begins a document must be an integer, not %s", who, options.describe(start))
  end
  local length = tokens.shape[2]
  local at = constants.get(("positions %d"):format(length), { 1, length }, function(data)
    for t = 0, length - 1 do data[t] = t end
  end)
  local begins = ops.maximum(tokens:eq(start):cast("f32"), at:eq(0):cast("f32"))
  local document = (begins:cumsum({ axis = 1 }) - 1):cast("i32") -- by number
  local first = ops.scatter_add(begins * 0, document, begins * at, { axis = 1 })
  return (at - ops.gather(first, document, { axis = 1 })):cast("i32")
end

return positions
