-- The layers of random models: what draws one, the class that a recipe then needs, and how the recipe makes and calls
-- it. A size is a multiple of the ranks of the tensor dimension, mostly.

local layers = {}

local WIDTHS = { 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 24 }
local ACTIVATIONS = { "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid" }
local MIN_NORM = 4 -- numbers: of fewer, rounding decides signs

---A width that `divisor` divides, mostly.
---@param d table of fuzz.draw
---@param divisor integer
---@return integer
function layers.width(d, divisor)
  if divisor == 1 or d:chance(0.05) then return d:one_of(WIDTHS) end
  return divisor * d:integer(1, math.max(2, math.floor(16 / divisor)))
end

-- ---- classes ----------------------------------------------------------------------------------------------------

local BLOCK = [[
local Block = ms.module "Block"

function Block:init(dim, inner, activation)
  self.fc1, self.fc2 = ms.nn.linear(dim, inner), ms.nn.linear(inner, dim)
  self.gain, self.activation = ms.parameter { 1, init = "ones" }, ms.ops[activation]
end

function Block:forward(x)
  return x + (self.fc2(self.activation(self.fc1(x))) * self.gain):cast(x.dtype)
end
]]

local LAYER = [[
local Layer = ms.module "Layer"

function Layer:init(inputs, outputs, bias, activation)
  self.linear, self.activation = ms.nn.linear(inputs, outputs, { bias = bias }), ms.ops[activation]
end

function Layer:forward(x) return self.activation(self.linear(x)) end
]]

local GATED = [[
local Gated = ms.module "Gated"

function Gated:init(dim, inner)
  self.w1, self.w3, self.w2 = ms.nn.linear(dim, inner), ms.nn.linear(dim, inner), ms.nn.linear(inner, dim)
end

function Gated:forward(x) return x + self.w2(ms.ops.swiglu(self.w1(x), self.w3(x))):cast(x.dtype) end
]]

local MIXER = [[
local Mixer = ms.module "Mixer"

function Mixer:init(length) self.tokens = ms.nn.linear(length, length) end

function Mixer:forward(x) return x + self.tokens(x:transpose(1, 2)):transpose(1, 2):cast(x.dtype) end
]]

local ATTENTION = [[
local Attention = ms.module "Attention"

function Attention:init(dim, heads, keys, size, o)
  self.heads, self.keys, self.size, self.o = heads, keys, size, o
  self.wq, self.wk = ms.nn.linear(dim, heads * size), ms.nn.linear(dim, keys * size)
  self.wv, self.wo = ms.nn.linear(dim, keys * size), ms.nn.linear(heads * size, dim)
end

function Attention:forward(x, tokens)
  local rows, length = unpack(x.shape)
  local q = self.wq(x):reshape(rows, length, self.heads, self.size)
  local k = self.wk(x):reshape(rows, length, self.keys, self.size)
  local v = self.wv(x):reshape(rows, length, self.keys, self.size)
  if self.o.rope then q, k = q:rope { theta = 100 }, k:rope { theta = 100 } end
  local o = { softcap = self.o.softcap, window = (self.o.documents or self.o.causal) and self.o.window or nil }
  if self.o.documents then o.start = 1 else o.causal = self.o.causal end
  local y = self.o.documents and ms.ops.document_attention(q, k, v, tokens, o) or ms.ops.attention(q, k, v, o)
  return x + self.wo(y:reshape(rows, length, self.heads * self.size)):cast(x.dtype)
end
]]

-- Its parameter can have any number of axes, of which any can be divided; its elements have different gradients.
local SHAPED = [[
local Shaped = ms.module "Shaped"

function Shaped:init(...) self.p = ms.parameter { init = ms.init.normal(0, 1), ... } end

function Shaped:forward(x) return x * (1 + self.p:tanh():mean()):cast(x.dtype) end
]]

-- ---- kinds ------------------------------------------------------------------------------------------------------

-- draw: the layer of a case. needs: the class. made: what makes it, and which width it gives. styles: how a tensor
-- dimension usually divides its parameters.
local KINDS = {
  linear = {
    needs = LAYER, parameters = true, styles = { linear = { "colwise", "rowwise" } },
    draw = function(d, divisor)
      return { out = layers.width(d, divisor), bias = d:chance(0.8), activation = d:one_of(ACTIVATIONS) }
    end,
    made = function(layer, width)
      return ("Layer(%d, %d, %s, %q)"):format(width, layer.out, tostring(layer.bias), layer.activation), layer.out
    end,
  },
  block = {
    needs = BLOCK, parameters = true, styles = { fc1 = { "colwise" }, fc2 = { "rowwise" } },
    draw = function(d, divisor) return { inner = layers.width(d, divisor), activation = d:one_of(ACTIVATIONS) } end,
    made = function(layer, width) return ("Block(%d, %d, %q)"):format(width, layer.inner, layer.activation), width end,
  },
  gated = {
    needs = GATED, parameters = true, styles = { w1 = { "colwise" }, w3 = { "colwise" }, w2 = { "rowwise" } },
    draw = function(d, divisor) return { inner = layers.width(d, divisor) } end,
    made = function(layer, width) return ("Gated(%d, %d)"):format(width, layer.inner), width end,
  },
  norm = {
    styles = { [""] = { "sequence", "replicate" } },
    draw = function(d) return { law = d:one_of { "layer_norm", "rms_norm" } } end,
    made = function(layer, width)
      return width >= MIN_NORM and ("ms.nn.%s { %d }"):format(layer.law, width) or "ms.nn.dropout(0)", width
    end,
  },
  mixer = {
    needs = MIXER, with_positions = true, styles = { tokens = { "colwise", "rowwise" } },
    draw = function() return {} end,
    made = function(_, width, case) return ("Mixer(%d)"):format(case.seq), width end,
  },
  attention = {
    needs = ATTENTION, with_positions = true, reads_tokens = true,
    styles = { wq = { "colwise" }, wk = { "colwise" }, wv = { "colwise" }, wo = { "rowwise" } },
    draw = function(d, divisor)
      local heads, o = divisor * d:integer(1, 2), {}
      local keys = d:one_of { heads, heads, divisor, 1 }
      for _, name in ipairs({ "causal", "rope", "documents" }) do
        if d:chance(name == "causal" and 0.7 or 0.25) then o[#o + 1] = name .. " = true" end
      end
      if d:chance(0.3) then o[#o + 1] = "window = " .. d:integer(1, 9) end
      if d:chance(0.2) then o[#o + 1] = "softcap = 0.7" end
      return { heads = heads, keys = keys, size = 2 * d:integer(1, 2), options = table.concat(o, ", ") }
    end,
    made = function(layer, width)
      return ("Attention(%d, %d, %d, %d, { %s })"):format(width, layer.heads, layer.keys, layer.size, layer.options),
        width
    end,
  },
  shaped = {
    needs = SHAPED, parameters = true, styles = {},
    made = function(layer, width) return ("Shaped(%s)"):format(table.concat(layer.shape, ", ")), width end,
  },
  dropout = {
    styles = {}, draw = function() return {} end,
    made = function(_, width) return "ms.nn.dropout(0.25)", width end,
  },
}
local DRAWN = {
  "linear", "linear", "block", "block", "block", "gated", "norm", "attention", "attention", "dropout", "mixer",
}

---@param d table of fuzz.draw
---@param divisor integer
---@return table[]
function layers.draw(d, divisor)
  local list = {}
  for i = 1, d:integer(1, 5) do
    local kind = d:one_of(DRAWN)
    local layer = KINDS[kind].draw(d, divisor)
    layer.kind = kind
    if d:chance(0.12) then layer.times = d:one_of { 0, 2 } end
    if d:chance(0.06) then layer.late = true end
    list[i] = layer
  end
  return list
end

---A layer whose parameter has up to five axes, and the axis that the ranks of a tensor dimension divide.
---@param d table of fuzz.draw
---@param ranks integer
---@return table layer
---@return integer axis from 0
function layers.shaped(d, ranks)
  local shape = {}
  for i = 1, d:integer(1, 5) do shape[i] = d:integer(1, 3) end
  local axis = d:integer(1, #shape)
  shape[axis] = ranks * shape[axis]
  return { kind = "shaped", shape = shape }, axis - 1
end

local function stands(layer, case) return case.seq or not KINDS[layer.kind].with_positions end

---What makes a layer of a case, and which width it gives.
---@return string
---@return integer
function layers.made(layer, width, case)
  if not stands(layer, case) then return "ms.nn.dropout(0)", width end
  return KINDS[layer.kind].made(layer, width, case)
end

---What the layer is called with.
---@return string
function layers.arguments(layer, case)
  return KINDS[layer.kind].reads_tokens and stands(layer, case) and "x, tokens" or "x"
end

---The classes that a case's layers need.
---@return string[]
function layers.classes(case)
  local seen, list = {}, {}
  for _, layer in ipairs(case.layers) do
    local needs = KINDS[layer.kind].needs
    if needs and stands(layer, case) and not seen[needs] then list[#list + 1], seen[needs] = needs, true end
  end
  return list
end

local function up(size, multiple) return size and math.ceil(size / multiple) * multiple end

---Makes the sizes of layers multiples of one that a tensor dimension divides. (Not in a loop over names: LuaJIT 2.1 of
---2022 loses stores of loops over a list that stands in the loop's head.)
---@param list table[]
---@param multiple integer
function layers.round_up(list, multiple)
  for _, layer in ipairs(list) do
    layer.out, layer.inner, layer.size = up(layer.out, multiple), up(layer.inner, multiple), up(layer.size, multiple)
  end
end

---Whether a layer has parameters wherever it stands.
function layers.has_parameters(layer) return KINDS[layer.kind].parameters == true end

---How a tensor dimension usually divides the parameters of a layer: styles to choose from, by name.
---@return table<string, string[]>
function layers.styles(layer) return KINDS[layer.kind].styles end

return layers
