-- Draws a token from logits: temperature, then top-k, then top-p (Holtzman et al. 2020). The same logits, settings and
-- seed give the same token everywhere.

local permutation = require("moonshard.base.permutation")

local sampling = {}

---Numbers that depend on every bit of the seed and on how many came before, so that those of seeds next to each other
---have nothing in common.
---@param seed integer
---@return fun(): number above 0 and below 1, 32 bits
function sampling.random(seed)
  local number = 0
  return function()
    number = number + 1
    return (permutation.key(seed, number) % 2 ^ 32 + 0.5) / 2 ^ 32
  end
end

-- Whether token a sorts before b: by logit, then by id.
local function before(logits, a, b)
  if logits[a] ~= logits[b] then return logits[a] > logits[b] end
  return a < b
end

local function sink(heap, logits, count)
  local at, token = 1, heap[1]
  while 2 * at <= count do
    local child = 2 * at
    if child < count and before(logits, heap[child], heap[child + 1]) then child = child + 1 end
    if not before(logits, token, heap[child]) then break end
    heap[at] = heap[child]
    at = child
  end
  heap[at] = token
end

---The k tokens with the largest logits, largest first.
---@param logits ffi.cdata*|number[] [vocab], from 0
---@param vocab integer
---@param k integer
---@return integer[]
function sampling.top(logits, vocab, k)
  local heap, count = {}, math.min(k, vocab)
  -- The best k so far in a heap, whose root is the first to be replaced.
  for token = 0, count - 1 do heap[token + 1] = token end
  table.sort(heap, function(a, b) return before(logits, b, a) end)
  for token = count, vocab - 1 do
    if before(logits, token, heap[1]) then
      heap[1] = token
      sink(heap, logits, count)
    end
  end
  table.sort(heap, function(a, b) return before(logits, a, b) end)
  return heap
end

---@class moonshard.SamplingOptions
---@field temperature number 0: always the most likely token
---@field top_k integer 0: all
---@field top_p number above 0; 1: all

-- Minus infinity is the logit of a token that cannot come, as long as others can.
local function are_usable(logits, vocab)
  local any = false
  for token = 0, vocab - 1 do
    local logit = logits[token]
    if logit ~= logit or logit == math.huge then return false end
    any = any or logit > -math.huge
  end
  return any
end

---@param logits ffi.cdata*|number[] [vocab], from 0
---@param vocab integer
---@param o moonshard.SamplingOptions
---@param draw fun(): number
---@return integer token -1: there is none, because a logit is NaN or infinite, or all are minus infinity
function sampling.choose(logits, vocab, o, draw)
  if not are_usable(logits, vocab) then return -1 end
  if o.temperature == 0 then return sampling.top(logits, vocab, 1)[1] end
  local list = sampling.top(logits, vocab, o.top_k > 0 and o.top_k or vocab)
  local best, sum, weights, count = logits[list[1]], 0, {}, #list
  for i, token in ipairs(list) do
    weights[i] = math.exp((logits[token] - best) / o.temperature)
    sum = sum + weights[i]
  end
  if o.top_p < 1 then
    local kept = 0
    for i = 1, #list do
      kept, count = kept + weights[i], i
      if kept >= o.top_p * sum then break end
    end
    sum = kept
  end
  local left = draw() * sum
  for i = 1, count do
    left = left - weights[i]
    if left <= 0 then return list[i] end
  end
  return list[count]
end

return sampling
