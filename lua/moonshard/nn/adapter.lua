-- Low-rank adapters of linear layers (LoRA, Hu et al. 2021): y = W x + b + (alpha / rank) B A x, where W and b stay as
-- they are. The layer gets two more parameters: lora_A [rank, in], uniform within 1/sqrt(in) of zero, and
-- lora_B [out, rank], zeros, so that the layer first computes what it did without them: zero is added to it.
--
-- Names, rules and files see lora_A and lora_B as parameters of the layer: layers.0.attn.wq.lora_A.

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

-- The scale of an adapter is compared with its records (huggingface/layout.lua).
adapter.OPTIONS = layer_options.declare("ms.lora", {
  rank = { "positive", default = 8, resume = "free" }, alpha = { "number", resume = "free" },
  dropout = { "number", default = 0, resume = "told", name = "lora_dropout" },
})

---@class moonshard.AdaptedLayer
---@field name string FQN of the layer
---@field layer moonshard.Module
---@field adapter moonshard.Adapter

---Gives a linear layer an adapter.
---@param layer moonshard.Module
---@param config moonshard.Adapter
---@param shared moonshard.Parameter? its lora_A, if another layer has the same
function adapter.attach(layer, config, shared)
  local outputs, inputs = unpack(layer.weight.shape)
  layer.lora_A = shared
    or parameter.new({ config.rank, inputs, init = parameter.initializers.kaiming_uniform(inputs) })
  layer.lora_B = parameter.new({ outputs, config.rank, init = "zeros" })
  layer.lora_A.factor, layer.lora_B.factor = "A", "B"
  rawset(layer, "_adapter", config)
  adapter.OPTIONS:note(layer, config)
end

---Removes the adapter of a layer.
---@param layer moonshard.Module
function adapter.detach(layer)
  rawset(layer, "_adapter", nil)
  rawset(layer, "lora_A", nil)
  rawset(layer, "lora_B", nil)
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
      layer = found.name, down = first_name[layer.lora_A], up = first_name[layer.lora_B], rank = config.rank,
      alpha = config.alpha, dropout = config.dropout, inputs = layer.weight.shape[2], outputs = layer.weight.shape[1],
    }
  end
  return list
end

local function in_dtype(x, dtype) return dtypes.floats[x.dtype] and x:cast(dtype) or x end

---Adds the adapter's part to the result of a layer, in a trace. It is computed in the type of A and B, which rules of
---param_dtype can choose.
---@param layer moonshard.Module
---@param x moonshard.Tensor [..., in]
---@param y moonshard.Tensor [..., out] what the layer computes without the adapter
---@return moonshard.Tensor
function adapter.add(layer, x, y)
  local config = adapter.of(layer)
  local down, up = context.trace:parameter(layer.lora_A), context.trace:parameter(layer.lora_B)
  if config.dropout > 0 then x = ops.dropout(x, { p = config.dropout }) end
  local inner = ops.matmul(in_dtype(x, down.dtype), down, { trans_b = 1 }) -- [..., rank]
  local scaled = inner * (config.alpha / config.rank)
  return y + ops.matmul(in_dtype(scaled, up.dtype), up, { trans_b = 1 }):cast(y.dtype)
end

-- sums[i] = a row of B times columns column + i of A
local function add_row(sums, row, down, inputs, rank, column, count)
  ffi.fill(sums, 8 * count)
  for k = 0, rank - 1 do
    local factor, from = row[k], down + k * inputs + column
    for i = 0, count - 1 do sums[i] = sums[i] + factor * from[i] end
  end
end

---Adds (alpha / rank) B A to elements of a weight [out, in]. Every element is summed in double precision and in one
---order, so that it has the same bits wherever it is computed.
---@param values ffi.cdata* float *, elements first to first + count - 1 of the flattened weight
---@param first number
---@param count number
---@param inputs integer
---@param down ffi.cdata* float *, A
---@param up ffi.cdata* float *, B
---@param config moonshard.Adapter
function adapter.add_product(values, first, count, inputs, down, up, config)
  local rank, scale, sums, done = config.rank, config.alpha / config.rank, ffi.new("double[?]", inputs), 0
  down, up = ffi.cast("const float *", down), ffi.cast("const float *", up)
  while done < count do
    local column = (first + done) % inputs
    local run = math.min(inputs - column, count - done)
    add_row(sums, up + (first + done - column) / inputs * rank, down, inputs, rank, column, run)
    for i = 0, run - 1 do values[done + i] = values[done + i] + scale * sums[i] end
    done = done + run
  end
end

---For people: "rank 8, alpha 16".
---@param config moonshard.Adapter
---@return string
function adapter.describe(config)
  local dropout = config.dropout > 0 and (", dropout %g"):format(config.dropout) or ""
  return ("rank %d, alpha %g%s"):format(config.rank, config.alpha, dropout)
end

return adapter
