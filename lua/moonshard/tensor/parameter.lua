-- Parameters as modules declare them: a shape and the distribution of the initial values. They own no memory; the
-- engine draws each rank's shard, keyed by seed and name, so the initial bits do not depend on the mesh.

local errors = require("moonshard.base.error")
local lists = require("moonshard.base.checks.lists")
local options = require("moonshard.base.checks.options")
local sealed = require("moonshard.base.checks.sealed")
local strict = require("moonshard.base.checks.strict")

local parameter = {}

---@class moonshard.Initializer
---@field kind string "zeros", "ones", "normal", "uniform" or "constant"
---@field a number normal: mean; uniform: low; constant: the value
---@field b number normal: deviation; uniform: high
local Initializer = {}
Initializer.__index = Initializer

function Initializer:__tostring()
  if self.kind == "constant" then return ("constant(%g)"):format(self.a) end
  if self.kind == "normal" or self.kind == "uniform" then return ("%s(%g, %g)"):format(self.kind, self.a, self.b) end
  return self.kind
end

local TAKES = { zeros = 0, ones = 0, constant = 1, uniform = 2, normal = 2 } -- numbers

-- What is wrong with two of them, or nil.
local WRONG = {
  normal = function(_, deviation) return deviation < 0 and "a deviation of at least 0" or nil end,
  uniform = function(low, high) return low > high and "a low end that is not above the high one" or nil end,
}

local function new_initializer(kind, a, b)
  for i = 1, TAKES[kind] do
    local number = select(i, a, b)
    if type(number) ~= "number" or number - number ~= 0 then
      errors.invalid("ms.init.%s takes %d number%s, not %s", kind, TAKES[kind], TAKES[kind] == 1 and "" or "s",
        options.describe(number))
    end
  end
  local wrong = WRONG[kind] and WRONG[kind](a, b)
  if wrong then errors.invalid("ms.init.%s takes %s, not %g and %g", kind, wrong, a, b) end
  local self = { kind = kind, a = a or 0, b = b or 0 }
  setmetatable(self, Initializer) -- no tail call of a built-in function: LuaJIT would not compile its callers
  return self
end

---@class moonshard.initializers
local initializers = {}
parameter.initializers = strict.fields("ms.init", initializers)

---@return moonshard.Initializer
function initializers.zeros() return new_initializer("zeros") end

---@return moonshard.Initializer
function initializers.ones() return new_initializer("ones") end

---@param value number
---@return moonshard.Initializer
function initializers.constant(value) return new_initializer("constant", value) end

---@param mean number? 0
---@param deviation number? default 0.02, as in GPT-2
---@return moonshard.Initializer
function initializers.normal(mean, deviation) return new_initializer("normal", mean or 0, deviation or 0.02) end

---@param low number
---@param high number
---@return moonshard.Initializer
function initializers.uniform(low, high) return new_initializer("uniform", low, high) end

---The distribution of weight and bias in PyTorch's Linear: uniform within 1/sqrt(fan_in) of zero (He et al. 2015 with
---slope sqrt 5).
---@param fan_in integer
---@return moonshard.Initializer
function initializers.kaiming_uniform(fan_in)
  if type(fan_in) ~= "number" or fan_in <= 0 then
    errors.invalid("ms.init.kaiming_uniform takes the number of inputs, above 0, not %s", options.describe(fan_in))
  end
  local bound = 1 / math.sqrt(fan_in)
  return new_initializer("uniform", -bound, bound)
end

---Converts a recipe's value to an initializer: an initializer, a number, or the name of an initializer without
---arguments.
---@param value moonshard.Initializer|number|string|nil nil: normal(0, 0.02)
---@return moonshard.Initializer
function parameter.read_initializer(value)
  if value == nil then return initializers.normal() end
  if getmetatable(value) == Initializer then return value end
  if type(value) == "number" then return initializers.constant(value) end
  if value == "zeros" or value == "ones" or value == "normal" then return initializers[value]() end
  errors.invalid(
    "init must be \"zeros\", \"ones\", \"normal\", a number or an initializer such as ms.init.uniform(-1, 1), not %s",
    options.describe(value))
end

---@class moonshard.Parameter
---@field shape integer[] up to 6 sizes, outermost first; none: a scalar
---@field numel integer
---@field init moonshard.Initializer
---@field frozen boolean as declared; in a sharded model, as its rules decided
---@field source moonshard.ValueSource? origin of its initial values, in place of init
---@field balance number|false each step moves it by so much against the sign of its gradient, and no optimizer does
---@field used number the part of it that a token is multiplied with: 1, or that of its experts
---@field factor "A"|"B"|"bias"|"magnitude"|"tokens"|nil of an adapter (nn/adapter.lua): which of its parameters this is
local Parameter = {}
parameter.class = Parameter
parameter.methods = {} -- those of tensors, applied to a parameter's value (tensor/init.lua)
Parameter.__index = parameter.methods

---@param value any
---@return boolean
function parameter.is(value)
  return getmetatable(value) == Parameter
end

-- Above 2^53 a double cannot represent every element count.
local MAX_ELEMENTS = 2 ^ 53

local function read_shape(given)
  local shape = given.shape
  if shape == nil then shape = type(given[1]) == "table" and given[1] or given end
  if shape ~= given and given[shape == given[1] and 2 or 1] ~= nil then
    errors.raise("MS_ESHAPE", "ms.parameter: sizes are given twice: write { 10, 20 } or shape = { 10, 20 }, not both")
  end
  if type(shape) ~= "table" then
    errors.raise("MS_ESHAPE", "ms.parameter: shape must be a list of sizes, as in { 10, 20 }, or {} for a scalar, "
      .. "not %s", options.describe(shape))
  end
  local sizes, numel = {}, 1
  for i, size in ipairs(shape == given and shape or lists.items("ms.parameter: shape", shape)) do
    if type(size) ~= "number" or size % 1 ~= 0 or size < 1 then
      errors.raise("MS_ESHAPE", "ms.parameter: size %s of dimension %d must be an integer of at least 1",
        options.describe(size), i - 1)
    end
    sizes[i], numel = size, numel * size
  end
  if shape == given and #sizes == 0 then
    errors.raise("MS_ESHAPE", "ms.parameter: shape is missing: write its sizes, as in ms.parameter { 10, 20 }, or "
      .. "shape = {} for a scalar")
  end
  if #sizes > 6 then
    errors.raise("MS_ESHAPE", "ms.parameter: %d dimensions; write 1 to 6 sizes, as in ms.parameter { 10, 20 }", #sizes)
  end
  if numel > MAX_ELEMENTS then
    errors.raise("MS_ESHAPE", "ms.parameter: the sizes of [%s] multiply to more than 2^53", table.concat(sizes, ","))
  end
  return sizes, numel
end

local function read_frozen(value)
  if value == nil or type(value) == "boolean" then return value or false end
  errors.invalid("frozen of a parameter must be true or false, not %s", options.describe(value))
end

local function read_balance(value)
  if value == nil or value == false then return false end
  if type(value) == "number" and value > 0 and value < math.huge then return value end
  errors.invalid("balance of a parameter must be a number above 0, by which a step moves each element, not %s",
    options.describe(value))
end

-- What a parameter is declared with besides its shape, and what is kept of each value.
local DECLARED = { init = parameter.read_initializer, frozen = read_frozen, balance = read_balance }

-- Fields of PyTorch's parameters that are set there, and what is written here.
local SET_ELSEWHERE = {
  requires_grad = "the freeze option of ms.fully_shard freezes parameters, and ms.parameter { ..., frozen = true }",
  data = "train:set_parameter and model:set_parameter change the values of a parameter",
  grad = "train:step(batch) computes gradients and takes the step",
}

local OTHER_SHAPE = "another shape is another parameter, layer.weight = ms.parameter { 10, 20 }"

sealed.class(Parameter, {
  what = "a parameter", never = setmetatable(SET_ELSEWHERE, {
    __index = function(_, key) return type(key) == "number" and SET_ELSEWHERE.data or nil end,
  }),
  held = DECLARED, before = "only init, frozen and balance can; " .. OTHER_SHAPE .. ", and rules of ms.fully_shard "
    .. "decide dtypes and placements",
  answers = {
    shape = OTHER_SHAPE,
    frozen = "ms.fully_shard has decided what is frozen: declare it before, or by freeze = { pattern }; freeze of "
      .. "ms.trainer leaves parameters out of a trainer's steps",
    init = "its values are drawn; model:set_parameter(name, values) changes them",
  },
  otherwise = "its model is sharded: change it before ms.fully_shard", tables = { shape = 1 },
})

---Declares a parameter: ms.parameter { 10, 20, init = "zeros" }; the sizes can also be a list in the field shape,
---where {} declares a scalar. With `balance` it is kept and read in f32, no optimizer trains it, and the gradient norm
---does not contain it: a step adds -balance where the gradient of all ranks and micro-batches is above 0, and balance
---where it is below.
---@param given table { sizes..., init = initializer, frozen = boolean, balance = number }
---@return moonshard.Parameter
function parameter.new(given)
  if type(given) ~= "table" or getmetatable(given) then
    errors.invalid("ms.parameter takes a table of sizes, as in ms.parameter { 10, 20, init = \"zeros\" }, not %s",
      options.describe(given))
  end
  for key in pairs(given) do
    if type(key) ~= "number" and key ~= "shape" and not DECLARED[key] then
      errors.raise("MS_ENAME", "ms.parameter: unknown option %s (valid: shape, init, frozen, balance)", tostring(key))
    end
  end
  local self = { used = 1 }
  self.shape, self.numel = read_shape(given)
  for name, read in pairs(DECLARED) do self[name] = read(given[name]) end
  return sealed.hold(setmetatable(self, Parameter))
end

return parameter
