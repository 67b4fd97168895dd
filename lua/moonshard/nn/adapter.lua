-- Low-rank adapters of linear layers (LoRA, Hu et al. 2021): y = W x + b + s B A x with s = alpha / rank, where W and b
-- stay as they are. The layer gets two more parameters: lora_A [rank, in], uniform within 1/sqrt(in) of zero, and
-- lora_B [out, rank], zeros, so that the layer first computes what it did without them: zero is added to it.
--
-- With lora_bias there is a third one, added to B A x: lora_bias [out], zeros. With use_dora (DoRA, Liu et al. 2024)
-- the rows of W + s B A are also given lengths that train: y = (m / |W + s B A|) (W x + s B A x) + b, where
-- lora_magnitude m [out] begins as the lengths of the rows of W, and |W + s B A| is a constant for the gradient, as in
-- section 4.3 of the paper.
--
-- Names, rules and files see these as parameters of the layer: layers.0.attn.wq.lora_A.

local context = require("moonshard.base.context")
local dtypes = require("moonshard.base.dtypes")
local ffi = require("ffi")
local layer_options = require("moonshard.nn.layer_options")
local ops = require("moonshard.tensor.ops")
local parameter = require("moonshard.tensor.parameter")
local tree = require("moonshard.nn.tree")

local adapter = {}

---@class moonshard.Adapter
---@field rank integer
---@field alpha number the factor of B A is alpha / rank
---@field dropout number probability with which an element of the input is zero for the adapter, in training
---@field use_dora boolean? the lengths of the rows of W + s B A train, too
---@field lora_bias boolean? B A x gets a bias
---@field init_lora_weights boolean|string? initial values of A and B: true (default), false or "gaussian", as in PEFT

-- The scale of an adapter is compared with its records (huggingface/layout.lua), and its parameters tell the rest.
adapter.OPTIONS = layer_options.declare("ms.lora", {
  rank = { "positive", default = 8, resume = "free" }, alpha = { "number", resume = "free" },
  dropout = { "number", default = 0, resume = "told", name = "lora_dropout" },
  use_rslora = { "boolean", default = false, resume = "free" },
  use_dora = { "boolean", default = false, resume = "free" },
  lora_bias = { "boolean", default = false, resume = "free" },
  init_lora_weights = { "boolean|string", default = true, resume = "free" },
})

local initializers = parameter.initializers

-- Initial values of A and B, by init_lora_weights. PEFT's `false` leaves PyTorch's, of a linear layer, in both.
---@type table<boolean|string, fun(inputs: integer, rank: integer): any, any>
adapter.INITIAL = {
  [true] = function(inputs) return initializers.kaiming_uniform(inputs), "zeros" end,
  [false] = function(inputs, rank)
    return initializers.kaiming_uniform(inputs), initializers.kaiming_uniform(rank)
  end,
  gaussian = function(_, rank) return initializers.normal(0, 1 / rank), "zeros" end,
}

---@class moonshard.AdapterPart a parameter of an adapter
---@field field string of the layer
---@field factor string which of them: placements decide by it
---@field record string field of moonshard.AdapterRecord with its name
---@field stored string how PEFT's files call it, after the module's name
---@field when string? field of the config that asks for it; nil: every adapter has it
---@field rows boolean one for each output of the layer; else all outputs share it
---@field scaled boolean? it is multiplied by alpha / rank
---@field shape fun(rank: integer, inputs: integer, outputs: integer): integer[]

---@type moonshard.AdapterPart[]
adapter.PARTS = {
  { field = "lora_A", factor = "A", record = "down", stored = "lora_A.weight", rows = false,
    shape = function(rank, inputs) return { rank, inputs } end },
  { field = "lora_B", factor = "B", record = "up", stored = "lora_B.weight", rows = true, scaled = true,
    shape = function(rank, _, outputs) return { outputs, rank } end },
  { field = "lora_bias", factor = "bias", record = "bias", stored = "lora_B.bias", rows = true, scaled = true,
    when = "lora_bias", shape = function(_, _, outputs) return { outputs } end },
  { field = "lora_magnitude", factor = "magnitude", record = "magnitude", stored = "lora_magnitude_vector", rows = true,
    when = "use_dora", shape = function(_, _, outputs) return { outputs } end },
}

---@class moonshard.AdaptedLayer
---@field name string FQN of the layer
---@field layer moonshard.Module
---@field adapter moonshard.Adapter

-- The origin of lengths that nothing has trained: those of the rows of W, of which B A changes nothing yet.
local function lengths_of(layer)
  local weight, inputs = layer.weight.source, layer.weight.shape[2]
  local function read(first, count, out)
    local bytes = 0
    for i = 0, count - 1 do
      local row = ffi.new("float[?]", inputs)
      bytes = bytes + weight.read((first + i) * inputs, inputs, row)
      local sum = 0
      for k = 0, inputs - 1 do sum = sum + row[k] * row[k] end
      out[i] = math.sqrt(sum)
    end
    return bytes
  end
  return { read = read, path = weight.path, paths = weight.paths, identity = weight.identity }
end

---Gives a linear layer an adapter.
---@param layer moonshard.Module
---@param config moonshard.Adapter
---@param shared moonshard.Parameter? its lora_A, if another layer has the same
function adapter.attach(layer, config, shared)
  local outputs, inputs = unpack(layer.weight.shape)
  local initial = config.init_lora_weights
  local down, up = adapter.INITIAL[initial == nil or initial](inputs, config.rank)
  local init = { lora_A = down, lora_B = up }
  for _, part in ipairs(adapter.PARTS) do
    if not part.when or config[part.when] then
      local param = part.field == "lora_A" and shared
        or parameter.new({ shape = part.shape(config.rank, inputs, outputs), init = init[part.field] or "zeros" })
      param.factor = part.factor
      layer[part.field] = param
    end
  end
  if config.use_dora and layer.weight.source then layer.lora_magnitude.source = lengths_of(layer) end
  rawset(layer, "_adapter", config)
  adapter.OPTIONS:note(layer, config)
end

---Removes the adapter of a layer.
---@param layer moonshard.Module
function adapter.detach(layer)
  rawset(layer, "_adapter", nil)
  for _, part in ipairs(adapter.PARTS) do rawset(layer, part.field, nil) end
  adapter.OPTIONS:forget(layer)
end

---@param module moonshard.Module
---@return moonshard.Adapter?
function adapter.of(module)
  local config = rawget(module, "_adapter") -- no tail call of a built-in function: LuaJIT would not compile its callers
  return config
end

---The layers of a model that have adapters.
---@param model moonshard.Module
---@return moonshard.AdaptedLayer[]
function adapter.layers(model)
  local found = {}
  for _, entry in ipairs(tree.inventory(model).modules) do
    local config = adapter.of(entry.module)
    if config then found[#found + 1] = { name = entry.name, layer = entry.module, adapter = config } end
  end
  return found
end

---@class moonshard.AdapterRecord an adapter without its layer, as checkpoints keep it
---@field layer string FQN
---@field down string FQN of A, which several layers can have
---@field up string FQN of B
---@field bias string? FQN of the bias of B A x
---@field magnitude string? FQN of the lengths of rows
---@field rank integer
---@field alpha number
---@field dropout number
---@field inputs integer
---@field outputs integer

---@param model moonshard.Module
---@return moonshard.AdapterRecord[]
function adapter.records(model)
  local list, first_name = {}, {}
  for name, param in model:named_parameters() do first_name[param] = name end
  for i, found in ipairs(adapter.layers(model)) do
    local layer, config = found.layer, found.adapter
    list[i] = {
      layer = found.name, rank = config.rank, alpha = config.alpha, dropout = config.dropout,
      inputs = layer.weight.shape[2], outputs = layer.weight.shape[1],
    }
    for _, part in ipairs(adapter.PARTS) do
      local param = rawget(layer, part.field)
      list[i][part.record] = param and first_name[param]
    end
  end
  return list
end

local function in_dtype(x, dtype) return dtypes.floats[x.dtype] and x:cast(dtype) or x end

-- Rows of zeros, such as those of a padded vocabulary, have no direction: they stay zeros.
local SHORTEST = 1e-30

-- m / |W + s B A|, f32 [out]. The lengths are computed in f32, also where the weights are bf16.
local function ratio(layer, weight, down, up, scale)
  local product = ops.matmul(up:cast("f32"), down:cast("f32"))
  local rows = weight:cast("f32") + product * scale
  local lengths = ops.sqrt((rows * rows):sum(-1)):clamp({ min = SHORTEST }):detach()
  return context.trace:parameter(layer.lora_magnitude):cast("f32") / lengths
end

-- (m / |W + s B A|) (W x + s B A x) + b. Where the adapter does not see all of x, W x is taken of all of it once, and
-- (m / |W + s B A| - 1) W x of what the adapter sees, as PEFT does.
local function rescaled(layer, x, seen, added, given)
  local factor = ratio(layer, given.weight, given.down, given.up, given.scale)
  local base = given.product(layer, seen, true)
  if seen == x then
    local y = (factor * (base + added)):cast(base.dtype)
    return layer.bias and y + context.trace:parameter(layer.bias):cast(y.dtype) or y
  end
  return given.product(layer, x) + ((factor - 1) * base + factor * added):cast(base.dtype)
end

---A layer's result with its adapter, in a trace. The adapter is computed in the type of A and B, which rules of
---param_dtype can choose.
---@param layer moonshard.Module
---@param x moonshard.Tensor [..., in]
---@param product fun(layer: moonshard.Module, x: moonshard.Tensor, without_bias: boolean?): moonshard.Tensor what the
---  layer computes without the adapter
---@return moonshard.Tensor [..., out]
function adapter.apply(layer, x, product)
  local config = adapter.of(layer)
  local y = not config.use_dora and product(layer, x)
  local down, up = context.trace:parameter(layer.lora_A), context.trace:parameter(layer.lora_B)
  local scale, seen = config.alpha / config.rank, x
  if config.dropout > 0 then seen = ops.dropout(x, { p = config.dropout }) end
  local inner = ops.matmul(in_dtype(seen, down.dtype), down, { trans_b = 1 }) -- [..., rank]
  local added = ops.matmul(in_dtype(inner * scale, up.dtype), up, { trans_b = 1 })
  if config.lora_bias then
    added = added + (context.trace:parameter(layer.lora_bias) * scale):cast(added.dtype)
  end
  if not y then
    local weight = context.trace:parameter(layer.weight)
    return rescaled(layer, x, seen, added, { weight = weight, down = down, up = up, scale = scale, product = product })
  end
  return y + added:cast(y.dtype)
end

---For people: "rank 8, alpha 16".
---@param config moonshard.Adapter
---@return string
function adapter.describe(config)
  return ("rank %d, alpha %g%s%s%s"):format(config.rank, config.alpha,
    config.dropout > 0 and (", dropout %g"):format(config.dropout) or "", config.use_dora and ", DoRA" or "",
    config.lora_bias and ", biases" or "")
end

return adapter
