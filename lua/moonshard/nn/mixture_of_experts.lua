-- A mixture of experts: a router chooses some gated MLPs for each token, and adds their results, weighted. Rows of
-- tokens are sorted by expert, so that every expert multiplies its own, and no token is dropped.
--
-- Scores and weights are f32. Experts can be in groups, of which a token's are in the best ones (DeepSeek-V2). Two ways
-- balance the experts, both with `train:step` alone (nn/router_loss.lua): an auxiliary loss, and biases that choose but
-- do not weigh, moved by the sign of an expert's load in each step (DeepSeek-V3).

local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local gated = require("moonshard.nn.gated")
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
  route_scale = { "number", default = 1, resume = "refused" },
  n_group = { "positive", resume = "refused" }, topk_group = { "positive", resume = "refused" },
  group_score = { "string", resume = "refused" },
  route_bias = { "boolean", resume = "free" }, bias_rate = { "number", default = 0, resume = "told" },
  aux_loss = { "number", default = 0, resume = "told" },
  activation = { "string", default = "silu", resume = "refused" },
  bias = { "boolean", default = false, resume = "free" }, fused = { "boolean", default = false, resume = "free" },
  shared = { "table", resume = "free" },
  shared_gate = { "boolean", default = false, resume = "free" },
  score_before_experts = { "boolean", default = false, resume = "refused" },
  init = { "string|number|table", default = "pytorch", resume = "free" },
  down_init = { "string|number|table", resume = "free" },
})

local function initializer_of(given, inputs)
  if given == "pytorch" then return initializers.kaiming_uniform(inputs) end
  if given == "gpt2" then return initializers.normal(0, 0.02) end
  return given
end

-- ---- experts ----------------------------------------------------------------------------------------------------

local Experts = module.define("Experts")

function Experts:init(config, dim, ffn)
  local init, down = config.init, config.down_init or config.init
  self._activation = gated[config.activation]
  local function add(name, outputs, inputs, initial)
    self[name] = parameter.new({ config.experts, outputs, inputs, init = initializer_of(initial, inputs) })
    self[name].used = config.top_k / config.experts
    if not config.bias then return end
    self[name .. "_bias"] = parameter.new({ config.experts, outputs, init = "zeros" })
    self[name .. "_bias"].used = config.top_k / config.experts
  end
  if config.fused then
    add("w13", 2 * ffn, dim, init)
  else
    add("w1", ffn, dim, init)
    add("w3", ffn, dim, init)
  end
  add("w2", dim, ffn, down)
end

-- Rows times their experts' matrices, and their experts' biases: ones times a matrix of one column.
local function through(self, name, x, offsets)
  local y = ops.grouped_matmul(x, value_of(self, name), offsets, { trans_b = 1 })
  if not self[name .. "_bias"] then return y end
  local bias = value_of(self, name .. "_bias")
  local ones = x:detach():slice(-1, 0, 1) * 0 + 1
  return y + ops.grouped_matmul(ones, bias:reshape(bias.shape[1], bias.shape[2], 1), offsets, { trans_b = 1 })
end

-- Gate and up [R,ffn]. As one matrix, its outputs are those of both by turns.
local function gate_and_up(self, rows, offsets)
  if self.w1 then return through(self, "w1", rows, offsets), through(self, "w3", rows, offsets) end
  local both = through(self, "w13", rows, offsets)
  local count, ffn = both.shape[1], both.shape[2] / 2
  both = both:reshape(count, ffn, 2)
  return both:slice(-1, 0, 1):reshape(count, ffn), both:slice(-1, 1, 2):reshape(count, ffn)
end

-- rows [R,dim] sorted by expert, offsets i32 [E+1] -> [R,dim], without the last biases
function Experts:forward(rows, offsets)
  local hidden = self._activation(gate_and_up(self, rows, offsets))
  return ops.grouped_matmul(hidden, value_of(self, "w2"), offsets, { trans_b = 1 })
end

-- What the last biases add: those of a token's experts, weighted as these are. It is apart, since ranks that divide w2
-- have sums of the experts' results, to which a bias counts once.
local function weighted_bias(self, scores, index, weights)
  local bias = value_of(self, "w2_bias")
  local of_all = ops.scatter_add(scores:detach() * 0, index, weights, { axis = 1 }) -- [T,E]
  return ops.matmul(of_all:cast(bias.dtype), bias)
end

function Experts:describe()
  local experts, dim, ffn = unpack(self.w2.shape)
  return ("%d of %d -> %d -> %d"):format(experts, dim, ffn, dim)
end

-- ---- the layer --------------------------------------------------------------------------------------------------

local Mixture = module.define("MixtureOfExperts")

-- How many of a group's best experts make its score.
local GROUP_SCORES = { max = 1, top2 = 2 }

-- How many groups there are, how many of them a token has, and how many experts make a group's score. Options that are
-- not given stay so: checkpoints of layers without groups do not name them.
local function groups_of(config)
  return config.n_group or 1, config.topk_group or 1, GROUP_SCORES[config.group_score or "max"]
end

local function check_groups(config)
  local groups, chosen, of_score = groups_of(config)
  local size = config.experts / groups
  if not of_score then
    errors.invalid('%s: group_score must be "max" or "top2", not %s', WHO, options.describe(config.group_score))
  elseif size % 1 ~= 0 then
    errors.invalid("%s: n_group is %d, which does not divide %d experts into groups of equal size", WHO, groups,
      config.experts)
  elseif chosen > groups then
    errors.invalid("%s: topk_group is %d, and n_group %d", WHO, chosen, groups)
  elseif chosen * size < config.top_k then
    errors.invalid("%s: top_k is %d, and topk_group %d: so many groups have %d experts", WHO, config.top_k, chosen,
      chosen * size)
  elseif chosen < groups and size < of_score then
    errors.invalid("%s: group_score is %s, the sum of the best %d experts, and a group has %d", WHO,
      options.describe(config.group_score), of_score, size)
  end
end

local function check(config)
  if config.top_k > config.experts then
    errors.invalid("%s: top_k is %d, and there are %d experts", WHO, config.top_k, config.experts)
  end
  check_groups(config)
  if config.score ~= "softmax" and config.score ~= "sigmoid" then
    errors.invalid('%s: score must be "softmax" or "sigmoid", not %s', WHO, options.describe(config.score))
  end
  if not gated[config.activation] then
    errors.raise("MS_ENAME", "%s: activation %s is none of silu, gelu, gelu_tanh, relu, swiglu_oai", WHO,
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
  if config.score_before_experts and config.bias then
    errors.invalid("%s: score_before_experts is not built with bias, of experts", WHO)
  end
  if config.shared_gate and not config.shared then
    errors.invalid("%s: shared_gate weighs the module `shared`, which is not given", WHO)
  end
  if config.route_bias == false and config.bias_rate > 0 then
    errors.invalid("%s: bias_rate is %g, the step of biases, and route_bias is false, so there are none", WHO,
      config.bias_rate)
  end
end

function Mixture:init(linear, given)
  local config = MIXTURE:parse(self, given)
  check(config)
  local dim, ffn = config[1], config[2]
  self._config = config
  self.router = linear({ dim, config.experts, bias = config.bias, init = config.init })
  local moves = config.bias_rate > 0
  if moves or config.route_bias then -- a frozen one is kept in f32 like one that moves
    self.router_bias = parameter.new({ config.experts, init = "zeros", balance = moves and config.bias_rate or 1,
      frozen = not moves })
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

-- Scores f32 [T,E], and -inf in place of those outside of a token's best groups.
local function within_groups(config, scores)
  local groups, chosen, of_score = groups_of(config)
  local tokens = scores.shape[1]
  if chosen == groups then return scores end
  local by_group = scores:detach():reshape(tokens, groups, config.experts / groups)
  local of_groups = ops.topk(by_group, of_score, -1):sum(-1)
  local best, index = ops.topk(of_groups, chosen, -1)
  local is_chosen = ops.scatter_add(of_groups * 0, index, best * 0 + 1, { axis = 1 })
  is_chosen = is_chosen:reshape(tokens, groups, 1):expand(unpack(by_group.shape)):reshape(tokens, config.experts)
  return ops.where(is_chosen:ne(0), scores, -math.huge)
end

-- The weights of a token's experts f32 [T,K], and which they are, i32 [T,K]. A bias decides only which.
local function choose(config, scores, bias)
  local weights, index = ops.topk(within_groups(config, bias and scores + bias or scores), config.top_k, -1)
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
  local rows = in_dtype_of(value_of(self.experts, "w2"), x):reshape(-1, shape[#shape])
  local logits = self.router(rows):cast("f32")
  local scores = config.score == "softmax" and logits:softmax() or logits:sigmoid()
  local bias = self.router_bias and value_of(self, "router_bias")
  local weights, index = choose(config, scores, bias)
  local order, places, offsets = unpack(ops.apply("expert_order", { index }, { experts = config.experts }))
  note(config, bias, scores, offsets)
  local before = config.score_before_experts
  local read = before and ops.expert_dispatch(rows, order, places, weights) or ops.expert_dispatch(rows, order, places)
  local results = self.experts(read, offsets)
  local y = before and ops.expert_combine(results, order, places)
    or ops.expert_combine(results, order, places, weights)
  if config.bias then y = y + weighted_bias(self.experts, scores, index, weights) end
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
---@field n_group? integer groups of experts, of equal size; default 1
---@field topk_group? integer a token chooses among the experts of its best groups, so many; default 1
---@field group_score? "max"|"top2" a group's score: its best expert's (DeepSeek-V2), or the sum of its two best ones,
---  with their biases (DeepSeek-V3); default "max"
---@field route_bias? boolean biases choose experts although bias_rate is 0: they are frozen; default false
---@field bias_rate? number biases choose experts, with the scores, and move by so much in a step, up where the load of
---  an expert is below the mean; default 0: no biases
---@field aux_loss? number factor of an auxiliary loss that is the larger the more loads differ; default 0
---@field activation? "silu"|"gelu"|"gelu_tanh"|"relu"|"swiglu_oai" of the experts' gates (nn/gated.lua); default
---  "silu"
---@field bias? boolean of the router's and the experts' products; default false
---@field fused? boolean an expert's first two matrices are one, w13, whose outputs are those of both by turns
---  (gpt-oss); default false
---@field shared? moonshard.Module that every token passes, [T, dim] to [T, dim]; its result is added
---@field shared_gate? boolean weigh that by the sigmoid of a product of the token; default false
---@field score_before_experts? boolean a token's weights multiply what its experts read, and not what they return;
---  default false
---@field init? string|number|moonshard.Initializer of weights: "pytorch" (default), "gpt2", or one of ms.init
---@field down_init? string|number|moonshard.Initializer of the experts' second weights; default: init

---ms.nn.mixture_of_experts (nn/init.lua).
---@param linear function ms.nn.linear
---@param ... any its arguments
---@return moonshard.Module
return function(linear, ...) return Mixture(linear, shared.gather(...)) end
