-- Attention with any mask: causal, sliding windows, prefixes that all tokens see, masks of a recipe's own, and scores
-- that are capped. Where the op `attention` can compute it, it does, and never stores scores. All else is composed of
-- ops that keep them, and takes memory for [batch, heads, T, S] scores: masks, and windows with a prefix.
--
-- The query heads that share a key head are rows of one product, so that keys and values are not repeated, unless ranks
-- of `tensor` share a head of keys.

local context = require("moonshard.base.context")
local eager_values = require("moonshard.tensor.values")
local errors = require("moonshard.base.error")
local ops = require("moonshard.tensor.ops")
local options = require("moonshard.base.checks.options")
local parameter = require("moonshard.tensor.parameter")
local sink = require("moonshard.nn.sink")
local tensor = require("moonshard.tensor")

local SPECS = {
  causal = { "boolean", default = true }, window = { "positive" }, prefix = { "positive" }, mask = { "any" },
  softcap = { "number" }, scale = { "number" }, sinks = { "any" },
}

-- Which keys a query sees, as a text that names the rows: the key of the masks below.
local function key_of(o, queries, keys)
  return table.concat({ queries, keys, tostring(o.causal), o.window or 0, o.prefix or 0 }, " ")
end

-- Masks are constants of a trace; equal ones are one tensor, so that the layers of a model share it.
local made = setmetatable({}, { __mode = "v" })

-- The last query sees the last key, as with a cache of earlier keys.
local function sees(o, query, key, later)
  local ahead = key - (query + later)
  if o.prefix and key < o.prefix then return true end
  if o.causal and ahead > 0 then return false end
  return not o.window or math.abs(ahead) < o.window
end

---The mask u8 [queries, keys] of an attention: 1 where a query sees a key. nil where it sees all.
---@param o moonshard.AttentionOptions
---@param queries integer
---@param keys integer
---@return moonshard.Tensor?
local function mask_of(o, queries, keys)
  if not (o.causal or o.window) then return nil end
  local key = key_of(o, queries, keys)
  if made[key] then return made[key] end
  local mask = eager_values.make("u8", { queries, keys }, function(data)
    for query = 0, queries - 1 do
      for at = 0, keys - 1 do data[query * keys + at] = sees(o, query, at, keys - queries) and 1 or 0 end
    end
  end)
  made[key] = mask
  return mask
end

-- A tensor, or a parameter's value in the trace, as of learned queries.
local function value_of(name, x)
  if parameter.is(x) and context.trace then return context.trace:parameter(x) end
  if tensor.is(x) then return x end
  if parameter.is(x) then
    errors.invalid("ms.nn.masked_attention: %s is a parameter, which has values only inside its model; "
      .. "model:parameter(name) returns a tensor with them", name)
  end
  errors.invalid("ms.nn.masked_attention: %s must be a tensor, not %s", name, options.describe(x))
end

local function check(o, q, k, v)
  local heads, groups = q.shape[3], k.shape[3]
  if #q.shape ~= 4 or #k.shape ~= 4 or #v.shape ~= 4 or heads % groups ~= 0 then
    errors.raise("MS_ESHAPE", "ms.nn.masked_attention: q must be [B,T,H,D], k [B,S,G,D], v [B,S,G,E], and H a multiple "
      .. "of G; they are %s, %s and %s", tensor.shape_text(q.shape), tensor.shape_text(k.shape),
      tensor.shape_text(v.shape))
  end
  if o.softcap and o.softcap <= 0 then
    errors.invalid("ms.nn.masked_attention: softcap must be above 0, not %s", options.describe(o.softcap))
  end
  if o.prefix and not o.causal then
    errors.invalid("ms.nn.masked_attention: prefix is the number of keys that every query sees although attention is "
      .. "causal; with causal = false a query sees all keys")
  end
  if o.mask ~= nil and not tensor.is(o.mask) then
    errors.invalid("ms.nn.masked_attention: mask must be a tensor that broadcasts to [B,H,T,S], u8 (1: a query sees a "
      .. "key) or f32 (added to scores), not %s", options.describe(o.mask))
  end
  if o.sinks ~= nil and not (tensor.is(o.sinks) or parameter.is(o.sinks)) then
    errors.invalid("ms.nn.masked_attention: sinks must be a tensor [H], a number for each head, not %s",
      options.describe(o.sinks))
  elseif o.sinks and (#o.sinks.shape ~= 1 or o.sinks.shape[1] ~= heads) then
    errors.raise("MS_ESHAPE", "ms.nn.masked_attention: sinks are %s and q is %s; they must be [H], one for each of the "
      .. "%d heads", tensor.shape_text(o.sinks.shape), tensor.shape_text(q.shape), heads)
  end
end

-- The longest heads of the op on a GPU.
local MAX_HEAD = 256

local function is_of_the_op(o, q, k, v)
  if o.mask or o.prefix and o.window then return false end
  if (o.causal or o.window) and q.shape[2] > k.shape[2] then return false end
  if math.max(q.shape[4], v.shape[4]) > MAX_HEAD then return false end
  return q.dtype == k.dtype and k.dtype == v.dtype
end

-- [B,T,H,D] -> [B,G,R T,D], where R = H / G query heads share a key head.
local function by_key_head(x, groups)
  local batch, length, heads, dim = unpack(x.shape)
  local shared = heads / groups
  if shared == 1 then return x:permute(0, 2, 1, 3) end
  return x:reshape(batch, length, groups, shared, dim):permute(0, 2, 3, 1, 4)
    :reshape(batch, groups, shared * length, dim)
end

-- How many ranks divide the heads in the current trace.
local function ranks_of_heads()
  local sharding = context.trace and context.trace.sharding
  local dim = sharding and sharding.tensor_dim or -1
  return dim >= 0 and sharding.mesh:size(dim) or 1
end

-- [B,S,G,D] -> [B,S,H,D]: the head of keys of each query head.
local function repeated(x, heads)
  local batch, length, groups, dim = unpack(x.shape)
  return x:reshape(batch, length, groups, 1, dim):expand(batch, length, groups, heads / groups, dim)
    :reshape(batch, length, heads, dim)
end

local function apply_masks(o, scores)
  local queries, keys = scores.shape[3], scores.shape[4]
  local own, given = mask_of(o, queries, keys), o.mask
  if own then scores = ops.where(own, scores, -math.huge) end
  if not given then return scores end
  if given.dtype == "u8" then return ops.where(given, scores, -math.huge) end
  return scores + given
end

---@class moonshard.AttentionOptions
---@field causal? boolean no query sees later keys; default true
---@field window? integer a query sees only so many keys: itself and window - 1 before it (and after it, if not causal)
---@field prefix? integer every query sees so many first keys
---@field mask? moonshard.Tensor u8 (1: seen) or f32 (added to the scores), broadcast to [B,H,T,S]
---@field softcap? number scores s become softcap tanh(s / softcap) (Gemma 2)
---@field scale? number of the scores; default 1 / sqrt(D)
---@field sinks? moonshard.Tensor [H] e^sink is added to the denominator of a head's softmax (gpt-oss)

---Attention under a mask: softmax(cap(q k' scale) + mask) v, with scores and softmax in f32. A row of which nothing is
---seen gives NaN.
---@param q moonshard.Tensor|moonshard.Parameter [B,T,H,D]
---@param k moonshard.Tensor|moonshard.Parameter [B,S,G,D], G divides H
---@param v moonshard.Tensor|moonshard.Parameter [B,S,G,E]
---@param given moonshard.AttentionOptions?
---@return moonshard.Tensor [B,T,H,E]
local function masked_attention(q, k, v, given)
  local o = options.parse("ms.nn.masked_attention", given, SPECS)
  q, k, v = value_of("q", q), value_of("k", k), value_of("v", v)
  check(o, q, k, v)
  if is_of_the_op(o, q, k, v) then
    return sink.attention(q, k, v, o.sinks, { causal = o.causal, window = o.window, prefix = o.prefix,
      scale = o.scale, softcap = o.softcap })
  end
  local batch, queries, heads, dim = unpack(q.shape)
  if k.shape[3] % ranks_of_heads() ~= 0 then k, v = repeated(k, heads), repeated(v, heads) end
  local keys, groups, width = k.shape[2], k.shape[3], v.shape[4]
  local scores = ops.matmul(by_key_head(q, groups), by_key_head(k, groups), { trans_b = 1 }):cast("f32")
  scores = scores * (o.scale or 1 / math.sqrt(dim))
  if o.softcap then scores = (scores * (1 / o.softcap)):tanh() * o.softcap end
  scores = apply_masks(o, scores:reshape(batch, heads, queries, keys))
  local seen = (o.sinks and sink.softmax(scores, o.sinks:reshape(1, heads, 1, 1)) or ops.softmax(scores)):cast(v.dtype)
  seen = seen:reshape(batch, groups, heads / groups * queries, keys)
  local y = ops.matmul(seen, by_key_head(v, groups)):reshape(batch, heads, queries, width)
  return y:permute(0, 2, 1, 3)
end

return masked_attention
