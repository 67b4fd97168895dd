-- Gated DeltaNet (Yang et al. 2024) as Qwen3-Next has it, in place of attention: a state of fixed size for each value
-- head, which the op gated_delta_rule updates from position to position, so that work and memory grow with the length
-- alone. Queries, keys and values pass a short causal convolution of each channel, queries and keys have length 1, and
-- the result has a norm and a gate. Rows with several documents are as if each had a row of its own.
--
-- In generation a layer keeps its states, and the last inputs of its convolutions (KVCache:state).

local constants = require("moonshard.tensor.constants")
local module = require("moonshard.nn.module")
local nn = require("moonshard.nn")
local ops = require("moonshard.tensor.ops")
local parameter = require("moonshard.tensor.parameter")
local value_of = require("moonshard.nn.layer").value_of

local initializers = parameter.initializers

-- The lengths of queries and keys have this one, whatever the model's others are, as in the reference library.
local EPS = 1e-6

local GatedDeltaNet = module.define("GatedDeltaNet")

local function linear(inputs, outputs, init)
  return nn.linear({ inputs, outputs, bias = false, init = init or "gpt2" })
end

function GatedDeltaNet:init(config, out_init)
  self._config = config
  local keys = config.linear_num_key_heads * config.linear_key_head_dim
  local values, heads = config.linear_num_value_heads * config.linear_value_head_dim, config.linear_num_value_heads
  for _, product in ipairs({ { "wq", keys }, { "wk", keys }, { "wv", values }, { "wz", values }, { "wb", heads },
    { "wa", heads } }) do
    self[product[1]] = linear(config.dim, product[2])
  end
  local size = config.linear_conv_kernel_dim
  for _, part in ipairs({ { "conv_q", keys }, { "conv_k", keys }, { "conv_v", values } }) do
    self[part[1]] = parameter.new({ part[2], size, init = initializers.kaiming_uniform(size) })
  end
  self.a_log = parameter.new({ heads, init = initializers.uniform(0, math.log(16)) })
  self.dt_bias = parameter.new({ heads, init = "ones" })
  self.norm = nn.rms_norm({ config.linear_value_head_dim, eps = config.eps })
  self.wo = linear(values, config.dim, out_init)
end

-- ---- convolutions -----------------------------------------------------------------------------------------------

-- x [B,T,C] of s positions before, 0 where these are of another document.
local function earlier(x, s, places)
  local length = x.shape[2]
  if s == 0 then return x end
  local moved = ops.pad(x:slice(1, 0, length - s), { axis = 1, before = s })
  if not places then return moved end
  return ops.where(ops.less_equal(s, places):unsqueeze(-1), moved, 0)
end

-- x [B,T,C], weight [C,K], places f32 [B,T]? of positions in their documents -> silu(y), y[t] the sum over s of
-- weight[:,K-1-s] x[t-s]
local function convolve(x, weight, places)
  local length, channels, size = x.shape[2], x.shape[3], weight.shape[2]
  local sum
  for s = 0, math.min(size, length) - 1 do
    local part = earlier(x, s, places) * weight:slice(1, size - 1 - s, size - s):reshape(channels)
    sum = sum and sum + part or part
  end
  return sum:silu()
end

-- The inputs of x [B,T,C] at the last token of each text and right before it, [B,rows,C], in a first pass.
local function last_inputs(x, rows, cache)
  local batch, length, channels = unpack(x.shape)
  local padded = ops.pad(x, { axis = 1, before = rows }):reshape(batch * (length + rows), channels)
  local offsets = constants.get(("last inputs %d %d"):format(batch, rows), { batch, rows }, function(data)
    for b = 0, batch - 1 do
      for j = 0, rows - 1 do data[b * rows + j] = b * rows + j + 1 end
    end
  end)
  local at = cache.inputs.last:cast("f32"):reshape(batch, 1) + offsets
  return ops.embedding(padded, at:cast("i32"))
end

-- The convolution of what `weights` makes of x, with the inputs before it that the cache has.
local function convolved(self, name, weights, x, places, cache)
  local inputs, weight = weights(x), value_of(self, name)
  local rows = weight.shape[2] - 1
  if not cache or rows == 0 then return convolve(inputs, weight, places) end
  local before, keep = cache:state({ rows, inputs.shape[3] }, inputs.dtype)
  if cache.is_first then
    keep(last_inputs(inputs, rows, cache))
    return convolve(inputs, weight, places)
  end
  local joined = ops.concat(before, inputs, { axis = 1 })
  keep(joined:slice(1, 1, rows + 1))
  if places then places = places:expand(x.shape[1], rows + 1) end
  return convolve(joined, weight, places):slice(1, rows, rows + 1)
end

-- ---- the layer --------------------------------------------------------------------------------------------------

-- Of length 1. x [B,T,heads D] -> [B,T,heads,D]
local function unit_heads(x, heads)
  local batch, length, all = unpack(x.shape)
  local dim = all / heads
  local factors = constants.get(("filled %.17g %d"):format(dim ^ -0.5, dim), { dim }, function(data)
    for i = 0, dim - 1 do data[i] = dim ^ -0.5 end
  end)
  return ops.rms_norm(x:reshape(batch, length, heads, dim), factors:cast(x.dtype), { eps = EPS / dim })
end

-- Where the tokens of this pass are in their documents, f32 [B,T]; nil: documents have a row each.
local function places_of(config, tokens, cache)
  if not config.document_start then return nil end
  local is_later = cache and not cache.is_first
  return (is_later and cache.inputs.positions_in_documents or nn.document_positions(tokens, config.document_start))
    :cast("f32")
end

-- In a first pass texts are padded at the end, which must leave their state as it is: f32 [B,T], 0 there.
local function real_tokens(tokens, cache)
  local batch, length = unpack(tokens.shape)
  local index = constants.get(("index %d"):format(batch * length), { batch, length }, function(data)
    for i = 0, batch * length - 1 do data[i] = i end
  end)
  return ops.less_equal(index, cache.inputs.last:cast("f32"):reshape(batch, 1)):cast("f32")
end

-- Tokens with another than `start` in place of padding, which begins no document.
local function without_padding(tokens, real, start)
  return (tokens:cast("f32") * real + (1 - real) * (start + 1)):cast("i32")
end

-- Results [B,T,H,E] of the op, with the state of the cache if there is one.
local function recur(self, q, k, v, g, beta, tokens, places, cache)
  local config, start = self._config, self._config.document_start
  local before, keep
  if cache then
    before, keep = cache:state({ config.linear_num_value_heads, config.linear_key_head_dim,
      config.linear_value_head_dim }, "f32")
  end
  local out
  if before then
    if places then before = ops.where(places:eq(0):reshape(places.shape[1], 1, 1, 1), 0, before) end
    out = ops.apply("gated_delta_rule", { q, k, v, g, beta, before })
  elseif start then
    out = ops.apply("document_gated_delta_rule", { q, k, v, g, beta, tokens }, { start = start })
  else
    out = ops.apply("gated_delta_rule", { q, k, v, g, beta })
  end
  if keep then keep(out[2]) end
  return out[1]
end

-- x [B,T,D], tokens i32 [B,T], cache moonshard.KVCache? -> [B,T,D]
function GatedDeltaNet:forward(x, tokens, cache)
  local config, batch, length = self._config, x.shape[1], x.shape[2]
  local key_heads, heads = config.linear_num_key_heads, config.linear_num_value_heads
  local places = places_of(config, tokens, cache)
  local q = unit_heads(convolved(self, "conv_q", self.wq, x, places, cache), key_heads)
  local k = unit_heads(convolved(self, "conv_k", self.wk, x, places, cache), key_heads)
  local v = convolved(self, "conv_v", self.wv, x, places, cache):reshape(batch, length, heads,
    config.linear_value_head_dim)
  local beta = self.wb(x):sigmoid()
  local decay = value_of(self, "a_log"):cast("f32"):exp()
  local g = (self.wa(x):cast("f32") + value_of(self, "dt_bias"):cast("f32")):softplus() * decay * -1
  if cache and cache.is_first then
    local real = real_tokens(tokens, cache)
    g, beta = g * real:unsqueeze(-1), beta * real:unsqueeze(-1):cast(beta.dtype)
    if config.document_start then tokens = without_padding(tokens, real, config.document_start) end
  end
  local y = self.norm(recur(self, q, k, v, g, beta, tokens, places, cache))
  local gate = self.wz(x):reshape(batch, length, heads, config.linear_value_head_dim)
  return self.wo(ops.swiglu(gate, y):reshape(batch, length, heads * config.linear_value_head_dim))
end

function GatedDeltaNet:describe()
  local config = self._config
  return ("%d key heads of %d, %d value heads of %d"):format(config.linear_num_key_heads, config.linear_key_head_dim,
    config.linear_num_value_heads, config.linear_value_head_dim)
end

---@param config moonshard.DecoderConfig with linear_num_value_heads
---@param out_init moonshard.Initializer of the weight of its output
---@return moonshard.Module
return function(config, out_init) return GatedDeltaNet(config, out_init) end
