-- Attention sinks (gpt-oss): a number of each head, e^sink of which is in the denominator of its softmax and belongs to
-- no key, so that a head can look at nothing. The ops of attention compute the rest, and one op adds the sinks.

local ops = require("moonshard.tensor.ops")

local sink = {}

-- tokens: those of document_attention.
local function add(name, q, k, v, results, sinks, attributes, tokens)
  return ops.apply(name, { q, k, v, results[1], results[2], sinks, tokens }, attributes)[1]
end

---The op `attention`, with sinks if there are any.
---@param q moonshard.Tensor [B,T,H,D]
---@param k moonshard.Tensor [B,S,G,D]
---@param v moonshard.Tensor [B,S,G,D]
---@param sinks moonshard.Tensor? [H]
---@param attributes table of the op
---@return moonshard.Tensor [B,T,H,D]
function sink.attention(q, k, v, sinks, attributes)
  if not sinks then return ops.attention(q, k, v, attributes) end
  return add("attention_sink", q, k, v, ops.apply("attention", { q, k, v }, attributes), sinks, attributes)
end

---The op `document_attention`, with sinks if there are any.
---@param q moonshard.Tensor [B,T,H,D]
---@param k moonshard.Tensor [B,T,G,D]
---@param v moonshard.Tensor [B,T,G,D]
---@param tokens moonshard.Tensor i32 [B,T]
---@param sinks moonshard.Tensor? [H]
---@param attributes table of the op
---@return moonshard.Tensor [B,T,H,D]
function sink.document_attention(q, k, v, tokens, sinks, attributes)
  local results = ops.apply("document_attention", { q, k, v, tokens }, attributes)
  return sinks and add("document_attention_sink", q, k, v, results, sinks, attributes, tokens) or results[1]
end

---Softmax over the last axis with a sink in the denominator.
---@param scores moonshard.Tensor f32 [...,S]
---@param sinks moonshard.Tensor of as many axes as scores; its last is 1, and the others are 1 or those of scores
---@return moonshard.Tensor [...,S]
function sink.softmax(scores, sinks)
  local sizes, last = {}, #scores.shape
  for i = 1, last - 1 do sizes[i] = scores.shape[i] end
  sizes[last] = 1
  local all = ops.concat(scores, sinks:cast(scores.dtype):expand(unpack(sizes)), { axis = -1 })
  return ops.softmax(all):slice(-1, 0, scores.shape[last])
end

return sink
