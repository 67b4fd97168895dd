-- Causal attention of a language model: over all that came before, or within documents alone.

local ops = require("moonshard.tensor.ops")

---@param config { document_start: integer? } the token that every document begins with; nil: no borders
---@param q moonshard.Tensor [B,T,H,D]
---@param k moonshard.Tensor [B,T,G,D]
---@param v moonshard.Tensor [B,T,G,D]
---@param tokens moonshard.Tensor i32 [B,T]
---@return moonshard.Tensor [B,T,H,D]
return function(config, q, k, v, tokens)
  if not config.document_start then return ops.attention(q, k, v, { causal = true }) end
  return ops.document_attention(q, k, v, tokens, { start = config.document_start })
end
