-- The keys and values that generation keeps between tokens, as a model's forward sees them: `cache`, its second
-- argument. It has two forms. The first pass, over whole prompts, computes as training does, and keeps the keys and
-- values of every layer as outputs, or the states of layers that have these instead. Each later pass gets one token a
-- sample: layers join its key and value with the ones kept so far, which are inputs, as is the mask of those that a
-- sample has (train/decoding.lua writes both), or begin with the state.

local create = require("moonshard.tensor.create")
local ops = require("moonshard.tensor.ops")
local rope = require("moonshard.models.rope")
local sink = require("moonshard.nn.sink")

---@class moonshard.KVCache
---@field outputs table<string, moonshard.Tensor> "keys 1", "values 1", ...: what this pass adds, [B,T,G,D] a layer
---@field layers moonshard.CachedLayer[] what the outputs are, in order
---@field inputs table<string, moonshard.Tensor>
---@field is_first boolean
---@field longest integer tokens of the longest text, this pass's included
---@field angles table<string, moonshard.Tensor> of all positions, by what the op rope is given
local KVCache = {}
KVCache.__index = KVCache

---@class moonshard.CachedLayer
---@field heads integer of keys
---@field key_dim integer
---@field value_dim integer
---@field dtype string
---@field window integer? of keys that a query sees
---@field chunk integer? it sees those of its own chunk alone
---@field state integer[]? the shape of a state of a text that this is instead of keys and values

local kv_cache = {}

---The name of the mask of layers with a window or chunks, among the inputs.
---@param layer { window: integer?, chunk: integer? }
---@return string
function kv_cache.mask_name(layer)
  if layer.chunk then return "seen in chunks of " .. layer.chunk end
  return layer.window and "seen within " .. layer.window or "seen"
end

---The cache of a first pass.
---@param inputs table<string, moonshard.Tensor> last i32 [B]: where the last token of each text is among all B T
---@param longest integer
---@return moonshard.KVCache
function kv_cache.first(inputs, longest)
  return setmetatable({ outputs = {}, layers = {}, inputs = inputs, is_first = true, longest = longest }, KVCache)
end

---The cache of a later pass.
---@param inputs table<string, moonshard.Tensor> positions and positions_in_documents i32 [B,1], masks u8 [B,1,1,S+1] by
---  mask_name, "keys 1", "values 1", ... [B,G,S,D]
---@param longest integer
---@return moonshard.KVCache
function kv_cache.later(inputs, longest)
  return setmetatable({ outputs = {}, layers = {}, inputs = inputs, is_first = false, angles = {}, longest = longest },
    KVCache)
end

---The last token of each text alone: no other's logits are needed.
---@param x moonshard.Tensor [B,T,D]
---@return moonshard.Tensor [B,1,D]
function KVCache:last(x)
  if not self.is_first then return x end
  local batch, length, dim = unpack(x.shape)
  return ops.embedding(x:reshape(batch * length, dim), self.inputs.last):reshape(batch, 1, dim)
end

-- Cosines and sines of all positions, [S+1,2P]: rotating pairs (1, 0) gives them, with the bits of the first pass.
local function angles_of(self, rotation)
  local names, texts, attributes, half = {}, {}, {}, rotation.pairs
  for name, value in pairs(rotation.attributes) do names[#names + 1], attributes[name] = name, value end
  attributes.interleaved = nil -- the angles are the same for both kinds of pairs
  table.sort(names)
  for i, name in ipairs(names) do texts[i] = ("%s=%.17g"):format(name, rotation.attributes[name]) end
  local key = ("%d %s %s"):format(half, table.concat(texts, " "), tostring(rotation.turns))
  if not self.angles[key] then
    local positions = self.inputs["keys " .. #self.layers + 1].shape[3] + 1
    local pairs_of_one = ops.concat(create.ones(1, positions, 1, half), create.zeros(1, positions, 1, half),
      { axis = -1 })
    self.angles[key] = rope.rotate(pairs_of_one, { attributes = attributes, turns = rotation.turns })
      :reshape(positions, 2 * half)
  end
  return self.angles[key]
end

---Rotates queries or keys to the positions of this pass's tokens.
---@param x moonshard.Tensor [B,T,H,D]
---@param rotation moonshard.Rotation
---@return moonshard.Tensor
function KVCache:rotate(x, rotation)
  if self.is_first then return rope.rotate(x, rotation) end
  local batch, length, heads, dim = unpack(x.shape)
  local half = rotation.pairs
  local turned = 2 * half
  local at = ops.embedding(angles_of(self, rotation), self.inputs.positions):reshape(batch, length, 1, turned)
  local cosine, sine = at:slice(-1, 0, half), at:slice(-1, half, turned)
  local wide = x:cast("f32")
  local part, result = turned < dim and wide:slice(-1, 0, turned) or wide
  if rotation.interleaved then
    part = part:reshape(batch, length, heads, half, 2)
    local a, b = part:slice(-1, 0, 1), part:slice(-1, 1, 2)
    cosine, sine = cosine:reshape(batch, length, 1, half, 1), sine:reshape(batch, length, 1, half, 1)
    result = ops.concat(a * cosine - b * sine, a * sine + b * cosine, { axis = -1 })
      :reshape(batch, length, heads, turned)
  else
    local a, b = part:slice(-1, 0, half), part:slice(-1, half, turned)
    result = ops.concat(a * cosine - b * sine, a * sine + b * cosine, { axis = -1 })
  end
  if turned < dim then result = ops.concat(result, wide:slice(-1, turned, dim), { axis = -1 }) end
  return result:cast(x.dtype)
end

-- Attention of one token a text: of its query to the kept keys, and to its own. The query heads that share a key head
-- are rows of one product, and what is kept is not copied: scores are joined instead of keys.
local function attend_to_kept(self, layer, q, k, v, o)
  local batch, _, heads, dim = unpack(q.shape)
  local groups, width = k.shape[3], v.shape[4]
  local keys, values = self.inputs["keys " .. layer], self.inputs["values " .. layer]
  local rows = keys.shape[3]
  local query, key = q:reshape(batch, groups, heads / groups, dim), k:reshape(batch, groups, 1, dim)
  local function scores_of(these) return ops.matmul(query, these, { trans_b = 1 }):cast("f32") end
  local scores = ops.concat(scores_of(keys), scores_of(key), { axis = -1 }) * (o.scale or 1 / math.sqrt(dim))
  if o.softcap then scores = (scores * (1 / o.softcap)):tanh() * o.softcap end
  local seen = ops.where(self.inputs[kv_cache.mask_name(o)], scores, -math.huge)
  local weights = (o.sinks and sink.softmax(seen, o.sinks:reshape(1, groups, heads / groups, 1)) or ops.softmax(seen))
    :cast(v.dtype)
  local y = ops.matmul(weights:slice(-1, 0, rows), values)
    + weights:slice(-1, rows, rows + 1) * v:reshape(batch, groups, 1, width)
  return y:reshape(batch, 1, heads, width)
end

---Attention of this pass's tokens.
---@param q moonshard.Tensor [B,T,H,D]
---@param k moonshard.Tensor [B,T,G,D]
---@param v moonshard.Tensor [B,T,G,E]
---@param o { window: integer?, chunk: integer?, softcap: number?, scale: number?, sinks: moonshard.Tensor? }
---@param whole fun(): moonshard.Tensor attention among the tokens of the first pass
---@return moonshard.Tensor [B,T,H,E]
function KVCache:attend(q, k, v, o, whole)
  local layer = #self.layers + 1
  self.layers[layer] = { heads = k.shape[3], key_dim = k.shape[4], value_dim = v.shape[4], dtype = k.dtype,
    window = o.window, chunk = o.chunk }
  self.outputs["keys " .. layer], self.outputs["values " .. layer] = k, v
  if self.is_first then return whole() end
  return attend_to_kept(self, layer, q, k, v, o)
end

---What a layer keeps that does not grow with the text.
---@param shape integer[] of a text's
---@param dtype string
---@return moonshard.Tensor? before [B,...] what the pass before left; nil in the first pass
---@return fun(after: moonshard.Tensor) keep notes what this pass leaves
function KVCache:state(shape, dtype)
  local layer = #self.layers + 1
  local name = "state " .. layer
  self.layers[layer] = { state = shape, dtype = dtype }
  return self.inputs[name], function(after) self.outputs[name] = after end
end

return kv_cache
