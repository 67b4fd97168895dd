-- The keys and values that generation keeps between tokens, as a model's forward sees them: `cache`, its second
-- argument. It has two forms. The first pass, over whole prompts, computes as training does, and keeps the keys and
-- values of every layer as outputs. Each later pass gets one token a sample: layers join its key and value with the
-- ones kept so far, which are inputs, as is the mask of those that a sample has (train/decoding.lua writes both).

local create = require("moonshard.tensor.create")
local masked_attention = require("moonshard.nn.masked_attention")
local ops = require("moonshard.tensor.ops")

---@class moonshard.KVCache
---@field outputs table<string, moonshard.Tensor> "keys 1", "values 1", ...: what this pass adds, [B,T,G,D] a layer
---@field layers moonshard.CachedLayer[] what the outputs are, in the order of the layers
---@field inputs table<string, moonshard.Tensor>? of a later pass; nil: the first one
---@field angles table<string, moonshard.Tensor> of all positions, by what the op rope is given
local KVCache = {}
KVCache.__index = KVCache

---@class moonshard.CachedLayer
---@field heads integer of keys
---@field key_dim integer
---@field value_dim integer
---@field dtype string
---@field window integer? of keys that a query sees

local kv_cache = {}

---The name of the mask of layers with a window, among the inputs.
---@param window integer?
---@return string
function kv_cache.mask_name(window)
  return window and "seen within " .. window or "seen"
end

---@param inputs table<string, moonshard.Tensor>? positions i32 [B,1], masks u8 [B,1,1,S+1] by mask_name, "keys 1",
---  "values 1", ... [B,S,G,D]; nil: the first pass
---@return moonshard.KVCache
function kv_cache.new(inputs)
  return setmetatable({ outputs = {}, layers = {}, inputs = inputs, angles = {} }, KVCache)
end

---The learned positions of this pass's tokens.
---@param positions moonshard.Module ms.nn.embedding
---@param length integer of the first pass
---@return moonshard.Tensor [T,D] or [B,1,D]
function KVCache:embed_positions(positions, length)
  if not self.inputs then return positions.weight:slice(0, 0, length) end
  return positions(self.inputs.positions)
end

-- Cosines and sines of all positions, [S+1,D]: rotating pairs (1, 0) gives them, with the bits of the first pass.
local function angles_of(self, dim, attributes)
  local names, texts = {}, {}
  for name in pairs(attributes) do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do texts[i] = ("%s=%.17g"):format(name, attributes[name]) end
  local key = dim .. " " .. table.concat(texts, " ")
  if not self.angles[key] then
    local positions = self.inputs["keys 1"].shape[2] + 1
    local pairs_of_one = ops.concat(create.ones(1, positions, 1, dim / 2), create.zeros(1, positions, 1, dim / 2),
      { axis = -1 })
    self.angles[key] = ops.rope(pairs_of_one, attributes):reshape(positions, dim)
  end
  return self.angles[key]
end

---Rotates queries or keys to the positions of this pass's tokens.
---@param x moonshard.Tensor [B,T,H,D]
---@param attributes table of the op rope
---@return moonshard.Tensor
function KVCache:rotate(x, attributes)
  if not self.inputs then return x:rope(attributes) end
  local batch, length, _, dim = unpack(x.shape)
  local half = dim / 2
  local at = ops.embedding(angles_of(self, dim, attributes), self.inputs.positions):reshape(batch, length, 1, dim)
  local cosine, sine = at:slice(-1, 0, half), at:slice(-1, half, dim)
  local wide = x:cast("f32")
  local a, b = wide:slice(-1, 0, half), wide:slice(-1, half, dim)
  return ops.concat(a * cosine - b * sine, a * sine + b * cosine, { axis = -1 }):cast(x.dtype)
end

---Attention of this pass's tokens.
---@param q moonshard.Tensor [B,T,H,D]
---@param k moonshard.Tensor [B,T,G,D]
---@param v moonshard.Tensor [B,T,G,E]
---@param o { window: integer?, softcap: number?, scale: number? }
---@param whole fun(): moonshard.Tensor attention among the tokens of the first pass
---@return moonshard.Tensor [B,T,H,E]
function KVCache:attend(q, k, v, o, whole)
  local layer = #self.layers + 1
  self.layers[layer] = { heads = k.shape[3], key_dim = k.shape[4], value_dim = v.shape[4], dtype = k.dtype,
    window = o.window }
  self.outputs["keys " .. layer], self.outputs["values " .. layer] = k, v
  if not self.inputs then return whole() end
  local keys = ops.concat(self.inputs["keys " .. layer], k, { axis = 1 })
  local values = ops.concat(self.inputs["values " .. layer], v, { axis = 1 })
  return masked_attention(q, keys, values, { causal = false, mask = self.inputs[kv_cache.mask_name(o.window)],
    softcap = o.softcap, scale = o.scale })
end

return kv_cache
