-- Attention within chunks of a text (Llama 4): a query sees the keys before it of its own chunk, and none of earlier
-- chunks. A chunk is what a document is to the op document_attention, which skips the keys of others: its tokens are
-- marks, 1 where a chunk begins. Chunks are counted from the beginning of a document where these share a row, so that a
-- document has the same logits as alone.

local constants = require("moonshard.tensor.constants")
local nn = require("moonshard.nn")
local ops = require("moonshard.tensor.ops")

-- 1 at the positions that begin a chunk, f32 [length,1].
local function beginnings(chunk, length)
  return constants.get(("beginnings of chunks %d %d"):format(chunk, length), { length, 1 }, function(data)
    for p = 0, length - 1 do data[p] = p % chunk == 0 and 1 or 0 end
  end)
end

---@param config moonshard.DecoderConfig
---@param chunk integer
---@param tokens moonshard.Tensor i32 [B,T]
---@return moonshard.Tensor marks i32 [B,T] 1 where a chunk begins: tokens of language.attend with start = 1
return function(config, chunk, tokens)
  local batch, length = unpack(tokens.shape)
  local marks = beginnings(chunk, length)
  if config.document_start then
    marks = ops.embedding(marks, nn.document_positions(tokens, config.document_start)):reshape(batch, length)
  else
    marks = marks:reshape(1, length):expand(batch, length)
  end
  return marks:cast("i32")
end
