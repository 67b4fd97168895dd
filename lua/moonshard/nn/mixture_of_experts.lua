-- A mixture of experts: a router chooses some gated MLPs for each token, and adds their results, weighted. Rows of
-- tokens are sorted by expert, so that every expert multiplies its own, and no token is dropped.
--
-- Scores and weights are f32. Two ways balance the experts, both with `train:step` alone (nn/router_loss.lua): an
-- auxiliary loss, and biases that choose but do not weigh, moved by the sign of an expert's load in each step
-- (DeepSeek-V3).

local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local layer_options = require("moonshard.nn.layer_options")
local module = require("moonshard.nn.module")
local ops = require("moonshard.tensor.ops")
local options = require("moonshard.base.checks.options")
local parameter = require("moonshard.tensor.parameter")
local shared = require("moonshard.nn.layer")

local initializers = parameter.initializers
local in_dtype_of, value_of = shared.in_dtype_of, shared.value_of

local WHO = "ms.nn.mixture_of_experts"
local MIXTURE = layer_options.declare(WHO, {
  { "positive", required = "dim", resume = "free" }, { "positive", required = "ffn", resume = "free" },
  experts = { "positive", required = true, resume = "free" }, top_k = { "positive", default = 2, resume = "refused" },
  score = { "string", default = "softmax", resume = "refused" },
  renormalise = { "boolean", default = true, resume = "refused" },
  route_scale = { "number", default = 1, resume = "refused" }, bias_rate = { "number", default = 0, resume = "told" },
  aux_loss = { "number", default = 0, resume = "told" },
  activation = { "string", default = "silu", resume = "refused" }, shared = { "table", resume = "free" },
  shared_gate = { "boolean", default = false, resume = "free" },
  init = { "string|number|table", default = "pytorch", resume = "free" },
  down_init = { "string|number|table", resume = "free" },
})
local ACTIVATIONS = { silu = true, gelu = true, gelu_tanh = true, relu = true }

local function initializer_of(given, inputs)
  if given == "pytorch" then return initializers.kaiming_uniform(inputs) end
  if given == "gpt2" then return initializers.normal(0, 0.02) end
  return given
end

-- ---- experts ----------------------------------------------------------------------------------------------------

local Experts = module.define("Experts")

function Experts:init(config, dim, ffn)
  local init, down = config.init, config.down_init or config.init
  self._activation = config.activation
  local function weight(outputs, inputs, initial)
    local of_all = parameter.new({ config.experts, outputs, inputs, init = initializer_of(initial, inputs) })
    of_all.used = config.top_k / config.experts
    return of_all
  end
  self.w1, self.w3, self.w2 = weight(ffn, dim, init), weight(ffn, dim, init), weight(dim, ffn, down)
end

-- rows [R,dim] sorted by expert, offsets i32 [E+1] -> [R,dim]
function Experts:forward(rows, offsets)
  local function through(x, weight) return ops.grouped_matmul(x, value_of(self, weight), offsets, { trans_b = 1 }) end
  local gate, up = through(rows, "w1"), through(rows, "w3")
  if self._activation == "silu" then return through(ops.swiglu(gate, up), "w2") end
  return through(ops[self._activation](gate) * up, "w2")
end

function Experts:describe()
  local shape = self.w1.shape
  return ("%d of %d -> %d -> %d"):format(shape[1], shape[3], shape[2], shape[3])
end

-- ---- the layer --------------------------------------------------------------------------------------------------

local Mixture = module.define("MixtureOfExperts")

local function check(config)
  if config.top_k > config.experts then
    errors.invalid("%s: top_k is %d, and there are %d experts", WHO, config.top_k, config.experts)
  end
  if config.score ~= "softmax" and config.score ~= "sigmoid" then
    errors.invalid('%s: score must be "softmax" or "sigmoid", not %s', WHO, options.describe(config.score))
  end
  if not ACTIVATIONS[config.activation] then
    errors.raise("MS_ENAME", "%s: activation %s is none of silu, gelu, gelu_tanh, relu", WHO,
      options.describe(config.activation))
  end
  for _, name in ipairs({ "bias_rate", "aux_loss" }) do
    if not (config[name] >= 0 and config[name] < math.huge) then
      errors.invalid("%s: %s must be at least 0, not %s", WHO, name, options.describe(config[name]))
    end
  end
  if config.shared and not module.is(config.shared) then
    errors.invalid("%s: shared must be a module that maps [T,dim] to [T,dim], not %s", WHO,
      options.describe(config.shared))
  end
  if config.shared_gate and not config.shared then
    errors.invalid("%s: shared_gate weighs the module `shared`, which is not given", WHO)
  end
end

function Mixture:init(linear, given)
  local config = MIXTURE:parse(self, given)
  check(config)
  local dim, ffn = config[1], config[2]
  self._config = config
  self.router = linear({ dim, config.experts, bias = false, init = config.init })
  if config.bias_rate > 0 then
    self.router_bias = parameter.new({ config.experts, init = "zeros", balance = config.bias_rate })
  end
  self.experts = Experts(config, dim, ffn)
  self.shared = config.shared
  self.shared_gate = config.shared_gate and linear({ dim, 1, bias = false, init = config.init }) or nil
end

-- The choices of each expert, f32 [E], from where the experts' rows begin.
local function load_of(offsets, experts)
  local begins = offsets:cast("f32")
  return begins:slice(0, 1, experts + 1) - begins:slice(0, 0, experts)
end

-- Scores that depend on nothing that trains, as those of a frozen reference, get no loss: it would be a constant, and
-- their loads would count in the loss of other routers. A frozen bias does not move.
local function note(config, bias, scores, offsets)
  local trained = context.trace.trained
  local has_loss, probability = config.aux_loss > 0 and trained[scores.id], scores
  bias = bias and trained[bias.id] and bias or nil
  if not has_loss and not bias then return end
  if has_loss and config.score == "sigmoid" then probability = scores / scores:sum(-1, true) end
  table.insert(context.trace.routers, {
    coefficient = has_loss and config.aux_loss or nil, probability = has_loss and probability:mean(0) or nil,
    load = load_of(offsets, config.experts), tokens = scores.shape[1], top_k = config.top_k, bias = bias,
  })
end

-- The weights of a token's experts f32 [T,K], and which they are, i32 [T,K]. A bias decides only which.
local function choose(config, scores, bias)
  local weights, index = ops.topk(bias and scores + bias or scores, config.top_k, -1)
  if bias then weights = scores:gather(1, index) end
  if config.renormalise then
    local sum = weights:sum(-1, true)
    weights = weights / (config.score == "sigmoid" and sum + 1e-20 or sum)
  end
  return config.route_scale ~= 1 and weights * config.route_scale or weights, index
end

-- x [...,dim] -> [...,dim]
function Mixture:forward(x)
  local config, shape = self._config, x.shape
  local rows = in_dtype_of(value_of(self.experts, "w1"), x):reshape(-1, shape[#shape])
  local logits = self.router(rows):cast("f32")
  local scores = config.score == "softmax" and logits:softmax() or logits:sigmoid()
  local bias = self.router_bias and value_of(self, "router_bias")
  local weights, index = choose(config, scores, bias)
  local order, places, offsets = unpack(ops.apply("expert_order", { index }, { experts = config.experts }))
  note(config, bias, scores, offsets)
  local results = self.experts(ops.expert_dispatch(rows, order, places), offsets)
  local y = ops.expert_combine(results, order, places, weights)
  if self.shared then
    local every = self.shared(rows)
    y = y + (self.shared_gate and self.shared_gate(rows):sigmoid() * every or every)
  end
  return y:reshape(unpack(shape))
end

function Mixture:describe()
  local config = self._config
  return ("%d of %d experts%s%s"):format(config.top_k, config.experts,
    config.bias_rate > 0 and (", biases move by %g"):format(config.bias_rate) or "",
    config.aux_loss > 0 and (", auxiliary loss %g"):format(config.aux_loss) or "")
end

---@class moonshard.MixtureOptions
---@field [1] integer? dim, if not given before the table
---@field [2] integer? ffn: the width of an expert
---@field experts integer
---@field top_k? integer experts of a token; default 2
---@field score? "softmax"|"sigmoid" of the router's logits, in f32; default "softmax"
---@field renormalise? boolean a token's weights add up to 1; default true
---@field route_scale? number factor of these weights; default 1
---@field bias_rate? number biases choose experts, with the scores, and move by so much in a step, up where the load of
---  an expert is below the mean; default 0: no biases
---@field aux_loss? number factor of an auxiliary loss that is the larger the more loads differ; default 0
---@field activation? "silu"|"gelu"|"gelu_tanh"|"relu" of the experts' gate; default "silu"
---@field shared? moonshard.Module that every token passes, [T, dim] to [T, dim]; its result is added
---@field shared_gate? boolean weigh that by the sigmoid of a product of the token; default false
---@field init? string|number|moonshard.Initializer of weights: "pytorch" (default), "gpt2", or one of ms.init
---@field down_init? string|number|moonshard.Initializer of the experts' second weights; default: init

---ms.nn.mixture_of_experts (nn/init.lua).
---@param linear function ms.nn.linear
---@param ... any its arguments
---@return moonshard.Module
return function(linear, ...) return Mixture(linear, shared.gather(...)) end
