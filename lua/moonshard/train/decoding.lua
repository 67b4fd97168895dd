-- Passes of a model over texts that grow by a token each: with the keys and values of earlier tokens kept, or, for
-- models that do not take a cache and for texts beyond the model's length, over the last tokens again.
--
-- The first pass takes whole texts, padded at the end to a power of two, and gives keys and values of all their tokens.
-- They are kept on the host, and are inputs of the later passes, together with a mask of those that a text has: its own
-- in front of the new token, within the layer's window and the document. Their number is a power of two as well, so
-- that a few plans serve texts of all lengths. Layers with a state instead of keys and values begin with the one that
-- the pass before left.

local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local kv_cache = require("moonshard.models.kv_cache")
local ops = require("moonshard.tensor.ops")
local ffi = engine.ffi

local MIN_ROWS = 16

---@class moonshard.DecodedText
---@field ids integer[] its tokens; a caller appends to them
---@field document integer index, from 0, of the token that begins the newest document among the first `read` ones
---@field read integer

---@class moonshard.Decoding
---@field model moonshard.Module
---@field running moonshard.Session
---@field texts moonshard.DecodedText[] of this rank
---@field seq integer the model's length
---@field vocab integer
---@field keeps boolean whether keys and values are kept
---@field layers moonshard.CachedLayer[]?
---@field rows integer tokens that the kept arrays have room for
---@field arrays table<string, { data: ffi.cdata*, dtype: string, count: integer }> "keys 1", ...: [B,G,rows,D]
local Decoding = {}
Decoding.__index = Decoding

local decoding = {}

-- What the layers of a model keep. A plan that another call compiled does not trace the model again.
local layers_of = setmetatable({}, { __mode = "k" })

---@param running moonshard.Session
---@param lists integer[][] the tokens of each text of this rank; as many on every rank
---@param keeps boolean whether to keep keys and values
---@return moonshard.Decoding
function decoding.new(running, lists, keeps)
  local config, texts = running.model.config, {}
  for i, ids in ipairs(lists) do texts[i] = { ids = ids, document = 0, read = 0 } end
  return setmetatable({ model = running.model, running = running, texts = texts, seq = config.seq, vocab = config.vocab,
    document_start = config.document_start, keeps = keeps, rows = 0, arrays = {} }, Decoding)
end

local function room_for(self, tokens)
  local rows = MIN_ROWS
  while rows < tokens do rows = 2 * rows end
  return math.min(rows, self.seq)
end

local function run(exec, inputs)
  for name, array in pairs(inputs) do exec:write(name, array, 0, array.count) end
  exec:run("evaluate")
end

-- Ranks have compared the prompts and the settings, from which the shapes of all passes follow.
local AGREED = { train = false, agreed = true, who = "ms.generate" }

local function array_of(dtype, count)
  return { data = ffi.new(dtypes.ctypes[dtype] .. "[?]", count), dtype = dtype, count = count }
end

-- A number for each text, i32 [B].
local function of_each(self, number)
  local array = array_of("i32", #self.texts)
  for i, text in ipairs(self.texts) do array.data[i - 1] = number(text, i) end
  return array
end

-- The logits that follow text i, of a pass that gives those of `length` tokens a text.
local function reader(self, exec, length, at)
  local logits = exec:output("logits", "f32")
  return function(i) return logits + ((i - 1) * length + at(self.texts[i])) * self.vocab end
end

local function only_one() return 0 end

-- The length above which a model rotates texts by other frequencies (models/rope.lua, longrope).
local function limit_of(self) return self.model.long_above and self.model:long_above() or math.huge end

local function is_long(self, longest) return longest > limit_of(self) end

-- ---- over the last tokens again ----------------------------------------------------------------------------------

-- The last tokens of each text, padded at the end, i32 [B,length].
local function last_tokens(self, length)
  local array = array_of("i32", #self.texts * length)
  for i, text in ipairs(self.texts) do
    local used = math.min(#text.ids, length)
    for t = 0, used - 1 do array.data[(i - 1) * length + t] = text.ids[#text.ids - used + t + 1] end
  end
  return array
end

-- Padding must not make a long text of a short one.
local function recompute(self, longest)
  local length = is_long(self, longest) and self.seq or math.min(self.seq, limit_of(self))
  local spec = { name = "tokens", dtype = "i32", shape = { #self.texts, length } }
  local model = self.model
  local exec = self.running:exec("generate", { spec }, function(inputs)
    return { outputs = { logits = ops.cast(model(inputs.tokens), { out_dtype = "f32" }) } }
  end, AGREED)
  run(exec, { tokens = last_tokens(self, length) })
  return reader(self, exec, length, function(text) return math.min(#text.ids, length) - 1 end)
end

-- ---- the first pass ---------------------------------------------------------------------------------------------

local function each_array(self, visit)
  for i, layer in ipairs(self.layers) do
    if not layer.state then
      visit("keys " .. i, layer, layer.key_dim)
      visit("values " .. i, layer, layer.value_dim)
    end
  end
end

local function each_state(self, visit)
  for i, layer in ipairs(self.layers) do
    if layer.state then visit("state " .. i, layer) end
  end
end

-- A pass leaves a new state in place of the one before.
local function keep_states(self, exec)
  each_state(self, function(name, layer)
    local count = #self.texts
    for _, size in ipairs(layer.state) do count = count * size end
    local array = self.arrays[name] or array_of(layer.dtype, count)
    ffi.copy(array.data, exec:output(name, layer.dtype), count * dtypes.sizes[layer.dtype])
    self.arrays[name] = array
  end)
end

-- Gives the kept arrays room for more tokens.
local function make_room(self, tokens)
  if tokens <= self.rows then return end
  local rows = room_for(self, tokens)
  each_array(self, function(name, layer, width)
    local blocks = #self.texts * layer.heads
    local before, after = self.arrays[name], array_of(layer.dtype, blocks * rows * width)
    local bytes = self.rows * width * dtypes.sizes[layer.dtype]
    for i = 0, before and blocks - 1 or -1 do
      ffi.copy(after.data + i * rows * width, before.data + i * self.rows * width, bytes)
    end
    self.arrays[name] = after
  end)
  self.rows = rows
end

-- Keeps what a pass made of tokens [from, #ids) of every text, which are its first ones: [B,length,G,D].
local function keep(self, exec, length, from)
  each_array(self, function(name, layer, width)
    local made, kept, bytes = exec:output(name, layer.dtype), self.arrays[name].data, width * dtypes.sizes[layer.dtype]
    for i, text in ipairs(self.texts) do
      local first = from(text)
      for t = first, #text.ids - 1 do
        for g = 0, layer.heads - 1 do
          ffi.copy(kept + (((i - 1) * layer.heads + g) * self.rows + t) * width,
            made + (((i - 1) * length + t - first) * layer.heads + g) * width, bytes)
        end
      end
    end
  end)
end

local function with_outputs(cache, logits)
  local outputs = { logits = ops.cast(logits, { out_dtype = "f32" }) }
  for name, value in pairs(cache.outputs) do outputs[name] = value end
  return { outputs = outputs }
end

local function name_of_pass(self, name, longest) return is_long(self, longest) and name .. " long texts" or name end

local function begin(self, longest)
  local length, model, running = room_for(self, longest), self.model, self.running
  self.began_long = is_long(self, longest)
  local exec = running:exec(name_of_pass(self, "prefill", longest), {
    { name = "tokens", dtype = "i32", shape = { #self.texts, length } },
    { name = "last", dtype = "i32", shape = { #self.texts } },
  }, function(inputs)
    local cache = kv_cache.first(inputs, longest)
    local logits = model(inputs.tokens, cache)
    layers_of[running] = cache.layers
    return with_outputs(cache, logits)
  end, AGREED)
  self.layers = layers_of[running]
  local last = of_each(self, function(text, i) return (i - 1) * length + #text.ids - 1 end)
  run(exec, { tokens = last_tokens(self, length), last = last })
  make_room(self, longest)
  keep(self, exec, length, function() return 0 end)
  keep_states(self, exec)
  return reader(self, exec, 1, only_one)
end

-- ---- later passes -----------------------------------------------------------------------------------------------

-- Follows a text to the token that begins its newest document.
local function follow_documents(self, text)
  for t = text.read + 1, #text.ids do
    if text.ids[t] == self.document_start then text.document = t - 1 end
  end
  text.read = #text.ids
end

-- u8 [B,1,1,rows+1]: the kept tokens that the new one, the last column, sees.
local function mask_of(self, layer)
  local columns, window, chunk = self.rows + 1, layer.window, layer.chunk
  local array = array_of("u8", #self.texts * columns)
  for i, text in ipairs(self.texts) do
    local row, at = array.data + (i - 1) * columns, #text.ids - 1
    local first = window and at - window + 1 or chunk and at - (at - text.document) % chunk or 0
    for t = math.max(text.document, first), at - 1 do row[t] = 1 end
    row[columns - 1] = 1
  end
  return array
end

-- What the pass is given, and how the graph's inputs are declared.
local function inputs_of(self)
  local batch, inputs, specs = #self.texts, {}, {}
  local function add(name, array, ...)
    inputs[name], specs[#specs + 1] = array, { name = name, dtype = array.dtype, shape = { batch, ... } }
  end
  add("tokens", of_each(self, function(text) return text.ids[#text.ids] end), 1)
  add("positions", of_each(self, function(text) return #text.ids - 1 end), 1)
  add("positions_in_documents", of_each(self, function(text) return #text.ids - 1 - text.document end), 1)
  each_array(self, function(name, layer, width)
    local mask = kv_cache.mask_name(layer)
    if not inputs[mask] then add(mask, mask_of(self, layer), 1, 1, self.rows + 1) end
    add(name, self.arrays[name], layer.heads, self.rows, width)
  end)
  each_state(self, function(name, layer) add(name, self.arrays[name], unpack(layer.state)) end)
  return inputs, specs
end

local function continue(self, longest)
  make_room(self, longest)
  if self.document_start then
    for _, text in ipairs(self.texts) do follow_documents(self, text) end
  end
  local model, inputs, specs = self.model, inputs_of(self)
  local exec = self.running:exec(name_of_pass(self, "decode", longest), specs, function(given)
    local cache = kv_cache.later(given, longest)
    return with_outputs(cache, model(given.tokens, cache))
  end, AGREED)
  run(exec, inputs)
  keep(self, exec, 1, function(text) return #text.ids - 1 end)
  keep_states(self, exec)
  return reader(self, exec, 1, only_one)
end

---Runs the model once. Every text has at least one token, and at most one more than in the pass before. Collective.
---@param longest integer number of tokens of the longest text of any rank
---@return fun(i: integer): ffi.cdata* logits float [vocab] of the token that follows text i, valid until the next pass
function Decoding:next(longest)
  if not self.keeps or longest > self.seq then return recompute(self, longest) end
  -- Keys that were rotated as those of shorter texts are computed again.
  if self.rows == 0 or is_long(self, longest) and not self.began_long then return begin(self, longest) end
  return continue(self, longest)
end

return decoding
