-- The common layers, with PyTorch's names and meanings. `init` chooses the distribution of the initial weights:
-- "pytorch" (the default), "gpt2" (normal 0.02, zero bias), or an initializer of ms.init for the weight.

local adapter = require("moonshard.nn.adapter")
local create = require("moonshard.tensor.create")
local errors = require("moonshard.base.error")
local layer_options = require("moonshard.nn.layer_options")
local shared = require("moonshard.nn.layer")
local mixture_of_experts = require("moonshard.nn.mixture_of_experts")
local module = require("moonshard.nn.module")
local ops = require("moonshard.tensor.ops")
local options = require("moonshard.base.checks.options")
local parameter = require("moonshard.tensor.parameter")
local trainable_tokens = require("moonshard.nn.adapters.trainable_tokens")

local initializers = parameter.initializers

---@class moonshard.nn
local nn = {}

local in_dtype_of, value_of = shared.in_dtype_of, shared.value_of
local gather, describe_bias = shared.gather, shared.describe_bias

-- ---- linear -----------------------------------------------------------------------------------------------------

local Linear = module.define("Linear")
Linear.takes_adapter = true

local LINEAR = layer_options.declare("ms.nn.linear", {
  { "positive", required = "inputs", resume = "free" }, { "positive", required = "outputs", resume = "free" },
  bias = { "boolean", default = true, resume = "free" },
  init = { "string|number|table", default = "pytorch", resume = "free" },
})

function Linear:init(given)
  local config = LINEAR:parse(self, given)
  local inputs, outputs = config[1], config[2]
  local init, bias_init = config.init, "zeros"
  if init == "pytorch" then
    init = initializers.kaiming_uniform(inputs)
    bias_init = init
  elseif init == "gpt2" then
    init = initializers.normal(0, 0.02)
  end
  self.weight = parameter.new({ outputs, inputs, init = init })
  if config.bias then self.bias = parameter.new({ outputs, init = bias_init }) end
end

local function linear(self, x, without_bias)
  local weight = value_of(self, "weight")
  if trainable_tokens.of(self) then weight = trainable_tokens.weight(self, weight) end
  x = in_dtype_of(weight, x)
  if self.bias and not without_bias then return ops.matmul(x, weight, self.bias, { trans_b = 1 }) end
  return ops.matmul(x, weight, { trans_b = 1 })
end

function Linear:forward(x)
  if adapter.of(self) then return adapter.apply(self, x, linear) end
  return linear(self, x)
end

function Linear:describe()
  local config = adapter.of(self)
  return ("%d -> %d%s%s"):format(self.weight.shape[2], self.weight.shape[1], describe_bias(self),
    config and ", LoRA of " .. adapter.describe(config) or "")
end

---@class moonshard.LinearOptions
---@field [1] integer? inputs, if not given before the table
---@field [2] integer? outputs
---@field bias? boolean true
---@field init? string|number|moonshard.Initializer of the weight: "pytorch" (default), "gpt2", or one of ms.init

---y = x w' + b: x [..., in], weight [out, in], bias [out].
---@overload fun(o: moonshard.LinearOptions): moonshard.Module
---@overload fun(inputs: integer, outputs: integer, o: moonshard.LinearOptions?): moonshard.Module
---@param ... any { in, out, bias = true, init = "pytorch"|"gpt2"|initializer }
---@return moonshard.Module
function nn.linear(...) return Linear(gather(...)) end

-- ---- embedding --------------------------------------------------------------------------------------------------

local Embedding = module.define("Embedding")

local EMBEDDING = layer_options.declare("ms.nn.embedding", {
  { "positive", required = "rows", resume = "free" }, { "positive", required = "dim", resume = "free" },
  init = { "string|number|table", default = "pytorch", resume = "free" },
  used_rows = { "positive", default = 0, resume = "told" },
})

function Embedding:init(given)
  local config = EMBEDDING:parse(self, given)
  local init = config.init
  if init == "pytorch" then
    init = initializers.normal(0, 1)
  elseif init == "gpt2" then
    init = initializers.normal(0, 0.02)
  end
  self.weight = parameter.new({ config[1], config[2], init = init })
  self.used_rows = config.used_rows
end

function Embedding:forward(tokens)
  local rows = ops.embedding(self.weight, tokens, { rows = self.used_rows })
  return trainable_tokens.of(self) and trainable_tokens.look_up(self, tokens, rows) or rows
end

function Embedding:describe()
  return ("%d x %d"):format(self.weight.shape[1], self.weight.shape[2])
end

---@class moonshard.EmbeddingOptions
---@field [1] integer? count of rows, if not given before the table
---@field [2] integer? dim
---@field init? string|number|moonshard.Initializer "pytorch" (default), "gpt2", or one of ms.init
---@field used_rows? integer larger tokens are errors; default: count

---Rows of a table: tokens i32 [...] -> [..., dim], weight [count, dim].
---@overload fun(o: moonshard.EmbeddingOptions): moonshard.Module
---@overload fun(count: integer, dim: integer, o: moonshard.EmbeddingOptions?): moonshard.Module
---@param ... any { count, dim, init = "pytorch"|"gpt2"|initializer, used_rows = count }
---@return moonshard.Module
function nn.embedding(...) return Embedding(gather(...)) end

-- ---- norms ------------------------------------------------------------------------------------------------------

-- The zero bias of norms without one, by length: a constant of the trace, not a parameter. It is kept in f32, for a
-- cast belongs to the trace that it is made in.
local zeros_of = {}

local function zeros_like(gain)
  local dim = gain.shape[1]
  zeros_of[dim] = zeros_of[dim] or create.zeros(dim)
  return zeros_of[dim]:cast(gain.dtype)
end

local LayerNorm = module.define("LayerNorm")

local LAYER_NORM = layer_options.declare("ms.nn.layer_norm", {
  { "positive", required = "dim", resume = "free" }, eps = { "number", default = 1e-5, resume = "told" },
  bias = { "boolean", default = true, resume = "free" },
})

function LayerNorm:init(given)
  local config = LAYER_NORM:parse(self, given)
  self.weight = parameter.new({ config[1], init = "ones" })
  self.bias = config.bias and parameter.new({ config[1], init = "zeros" }) or nil
  self.eps = config.eps
end

function LayerNorm:forward(x)
  local weight = value_of(self, "weight")
  if weight.dtype ~= "f32" then x = in_dtype_of(weight, x) end
  return ops.layer_norm(x, weight, self.bias or zeros_like(weight), { eps = self.eps })
end

function LayerNorm:describe() return self.weight.shape[1] .. describe_bias(self) end

---@class moonshard.LayerNormOptions
---@field [1] integer? dim, if not given before the table
---@field eps? number 1e-5
---@field bias? boolean true

---Layer norm (Ba et al. 2016) over the last axis: x [..., dim], weight and bias [dim]; bias = false omits the bias.
---@overload fun(o: moonshard.LayerNormOptions): moonshard.Module
---@overload fun(dim: integer, o: moonshard.LayerNormOptions?): moonshard.Module
---@param ... any { dim, eps = 1e-5, bias = true }
---@return moonshard.Module
function nn.layer_norm(...) return LayerNorm(gather(...)) end

local RMSNorm = module.define("RMSNorm")

local RMS_NORM = layer_options.declare("ms.nn.rms_norm", {
  { "positive", required = "dim", resume = "free" }, eps = { "number", default = 1e-5, resume = "told" },
  from_one = { "boolean", default = false, resume = "refused" },
})

function RMSNorm:init(given)
  local config = RMS_NORM:parse(self, given)
  self.weight = parameter.new({ config[1], init = config.from_one and "zeros" or "ones" })
  self.eps, self.from_one = config.eps, config.from_one
end

function RMSNorm:forward(x)
  local weight = value_of(self, "weight")
  if weight.dtype ~= "f32" then x = in_dtype_of(weight, x) end
  -- In f32, since 1 + w rounds most digits of a small w away in a narrower type.
  local gain = self.from_one and weight:cast("f32") + 1 or weight
  return ops.rms_norm(x, gain, { eps = self.eps })
end

function RMSNorm:describe() return self.weight.shape[1] .. (self.from_one and ", 1 + weight" or "") end

---@class moonshard.RMSNormOptions
---@field [1] integer? dim, if not given before the table
---@field eps? number 1e-5
---@field from_one? boolean the factors are 1 + weight, as in Gemma, so that weight decay pulls them to 1; default false

---RMS norm (Zhang & Sennrich 2019) over the last axis: x [..., dim], weight [dim].
---@overload fun(o: moonshard.RMSNormOptions): moonshard.Module
---@overload fun(dim: integer, o: moonshard.RMSNormOptions?): moonshard.Module
---@param ... any { dim, eps = 1e-5, from_one = false }
---@return moonshard.Module
function nn.rms_norm(...) return RMSNorm(gather(...)) end

-- ---- dropout and containers -------------------------------------------------------------------------------------

local Dropout = module.define("Dropout")

local DROPOUT = layer_options.declare("ms.nn.dropout", { p = { "number", resume = "told" } })

function Dropout:init(p)
  if type(p) == "table" then
    if p.p then errors.invalid("ms.nn.dropout: pass p without a name: ms.nn.dropout(%s)", options.describe(p.p)) end
    p = p[1]
  end
  if p == nil then errors.invalid("ms.nn.dropout: argument 1 (p) is missing") end
  if type(p) ~= "number" or not (p >= 0 and p < 1) then
    errors.invalid("ms.nn.dropout: p must be at least 0 and below 1, not %s", options.describe(p))
  end
  self.p = p
  DROPOUT:note(self, self)
end

function Dropout:forward(x)
  if self.p == 0 then return x end
  return ops.dropout(x, { p = self.p })
end

function Dropout:describe() return ("p = %g"):format(self.p) end

---Zeroes elements with probability p in training and divides the others by 1 - p; does nothing in evaluation.
---@param p number 0 <= p < 1
---@return moonshard.Module
function nn.dropout(p) return Dropout(p) end

local Sequential = module.define("Sequential")

-- "ms.ops.relu": the first of a function's names.
local function op_name(item)
  local found
  for name, op in pairs(ops) do
    if op == item and (not found or name < found) then found = name end
  end
  return found and "ms.ops." .. found
end

function Sequential:init(layers)
  if type(layers) ~= "table" or module.is(layers) then
    errors.invalid("ms.nn.sequential takes a list of modules and functions, not %s", options.describe(layers))
  end
  for i = 1, table.maxn(layers) do -- also past the first nil, which must not silently end the list
    local layer = layers[i]
    if not (module.is(layer) or type(layer) == "function") then
      errors.invalid("ms.nn.sequential: item %d must be a module or a function, not %s", i, options.describe(layer))
    end
    rawset(self, i, layer)
    if type(layer) == "function" then layer_options.note_function(self, tostring(i - 1), op_name(layer)) end
  end
end

function Sequential:forward(x)
  for _, layer in ipairs(self) do x = layer(x) end
  return x
end

---Applies modules, or functions such as ms.ops.relu, in order; their names are their positions: "0", "1", ...
---@param layers table list of modules and functions
---@return moonshard.Module
function nn.sequential(layers)
  return Sequential(layers)
end

---Gated MLPs of which a router chooses top_k for each token: x [..., dim], router.weight [experts, dim], experts.w1 and
---w3 [experts, ffn, dim], w2 [experts, dim, ffn]; y = sum of weight w2 (silu(w1 x) * w3 x).
---@overload fun(o: moonshard.MixtureOptions): moonshard.Module
---@overload fun(dim: integer, ffn: integer, o: moonshard.MixtureOptions): moonshard.Module
---@param ... any { dim, ffn, experts =, top_k = 2, score = "softmax", bias_rate = 0, aux_loss = 0, ... }
---@return moonshard.Module
function nn.mixture_of_experts(...) return mixture_of_experts(nn.linear, ...) end

nn.masked_attention = require("moonshard.nn.masked_attention")
nn.attention_logits = require("moonshard.tensor.attention_logits").declare
for name, make in pairs(require("moonshard.nn.images")) do nn[name] = make end
for name, make in pairs(require("moonshard.nn.positions")) do nn[name] = make end

return require("moonshard.base.checks.strict").fields("ms.nn", nn)
