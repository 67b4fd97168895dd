-- Layers for images and signals, with PyTorch's names and meanings: convolutions, pools, group norm and other sizes.
-- Convolutions also take one image, without the axis of the batch. There is no batch norm: its statistics would
-- depend on how the batch is divided among ranks.

local errors = require("moonshard.base.error")
local layer = require("moonshard.nn.layer")
local layer_options = require("moonshard.nn.layer_options")
local module = require("moonshard.nn.module")
local ops = require("moonshard.tensor.ops")
local options = require("moonshard.base.checks.options")
local parameter = require("moonshard.tensor.parameter")

local images = {}

local initializers = parameter.initializers

-- ---- convolutions -----------------------------------------------------------------------------------------------

-- The arguments as one table: conv2d { 3, 8, 3, stride = 2 }, conv2d(3, 8, { 3, 2 }, { stride = 2 }).
local function gather(who, inputs, outputs, kernel, o)
  if type(inputs) == "table" then return inputs end
  if o ~= nil and type(o) ~= "table" then
    errors.invalid("%s: options follow the kernel in a table, %s(16, 32, 3, { stride = 2, padding = 1 }), not %s", who,
      who, options.describe(o))
  end
  local given = { inputs, outputs, kernel }
  for name, value in pairs(o or {}) do given[name] = value end
  return given
end

local function convolution(name, who, axes, apply)
  local Convolution = module.define(name)
  local declared = layer_options.declare(who, {
    { "positive", required = "inputs", resume = "free" }, { "positive", required = "outputs", resume = "free" },
    { "positive|table", required = "kernel", resume = "free" },
    stride = { "number|table", default = 1, resume = "refused" },
    padding = { "number|table|string", default = 0, resume = "refused" },
    dilation = { "number|table", default = 1, resume = "refused" },
    groups = { "positive", default = 1, resume = "refused" }, bias = { "boolean", default = true, resume = "free" },
    init = { "string|number|table", default = "pytorch", resume = "free" },
  })

  function Convolution:init(given)
    local config = declared:parse(self, given)
    local inputs, outputs, kernel = config[1], config[2], config[3]
    local window = type(kernel) == "number" and { kernel, axes == 2 and kernel or nil } or kernel
    if #window ~= axes then
      errors.invalid("%s: the kernel must be a number or a list of %d, not of %d; options follow it, as in "
        .. "%s(16, 32, 3, { padding = 1 })", who, axes, #window, who)
    end
    if inputs % config.groups ~= 0 or outputs % config.groups ~= 0 then
      errors.raise("MS_ESHAPE", "%s: %d groups must divide %d inputs and %d outputs", who, config.groups, inputs,
        outputs)
    end
    local fan_in = inputs / config.groups
    for _, size in ipairs(window) do fan_in = fan_in * size end
    local init = config.init == "pytorch" and initializers.kaiming_uniform(fan_in) or config.init
    self.weight = parameter.new({ outputs, inputs / config.groups, init = init, unpack(window) })
    if config.bias then self.bias = parameter.new({ outputs, init = initializers.kaiming_uniform(fan_in) }) end
    self._window = {
      stride = config.stride, padding = config.padding, dilation = config.dilation, groups = config.groups,
    }
  end

  function Convolution:forward(x)
    local weight = layer.value_of(self, "weight")
    x = layer.in_dtype_of(weight, x)
    if not self.bias then return apply(x, weight, self._window) end
    return apply(x, weight, layer.value_of(self, "bias"):cast(weight.dtype), self._window)
  end

  function Convolution:describe()
    local shape, groups = self.weight.shape, self._window.groups
    return ("%d -> %d, %s%s%s"):format(shape[2] * groups, shape[1], table.concat(shape, "x", 3),
      groups > 1 and (", %d groups"):format(groups) or "", layer.describe_bias(self))
  end

  return Convolution
end

local Conv2d = convolution("Conv2d", "ms.nn.conv2d", 2, ops.conv2d)
local Conv1d = convolution("Conv1d", "ms.nn.conv1d", 1, ops.conv1d)

---@class moonshard.Conv2dOptions: moonshard.ConvolutionOptions
---@field [1] integer? inputs, if not given before the table
---@field [2] integer? outputs
---@field [3] integer|integer[]|nil kernel: one number, or { height, width }
---@field bias? boolean true
---@field init? string|number|moonshard.Initializer of the weight: "pytorch" (default), or one of ms.init

---A convolution of images: x [N,C,H,W] or [C,H,W] -> [N,O,...]; weight [O,C/groups,KH,KW], bias [O].
---@overload fun(o: moonshard.Conv2dOptions): moonshard.Module
---@overload fun(inputs: integer, outputs: integer, kernel: integer|integer[], o: table?): moonshard.Module
---@param ... any { in, out, kernel, stride = 1, padding = 0, dilation = 1, groups = 1, bias = true, init = "pytorch" }
---@return moonshard.Module
function images.conv2d(...) return Conv2d(gather("ms.nn.conv2d", ...)) end

---A convolution of signals: x [N,C,L] or [C,L] -> [N,O,...]; weight [O,C/groups,K], bias [O].
---@overload fun(o: moonshard.Conv2dOptions): moonshard.Module
---@overload fun(inputs: integer, outputs: integer, kernel: integer, o: moonshard.Conv2dOptions?): moonshard.Module
---@param ... any { in, out, kernel, stride = 1, padding = 0, dilation = 1, groups = 1, bias = true, init = "pytorch" }
---@return moonshard.Module
function images.conv1d(...) return Conv1d(gather("ms.nn.conv1d", ...)) end

-- ---- pools ------------------------------------------------------------------------------------------------------

local function pool(name, who, apply, specs)
  local Pool = module.define(name)
  specs[1] = { "positive|table", required = "kernel", resume = "refused" }
  specs.stride = { "number|table", resume = "refused" }
  specs.padding = { "number|table", default = 0, resume = "refused" }
  local declared = layer_options.declare(who, specs)

  function Pool:init(given)
    local config = options.parse(who, given, specs)
    config.stride = config.stride or config[1]
    declared:note(self, config)
    self._kernel, config[1] = config[1], nil
    self._window = config
  end

  function Pool:forward(x) return apply(x, self._kernel, self._window) end

  function Pool:describe()
    local kernel = self._kernel
    return type(kernel) == "number" and ("%dx%d"):format(kernel, kernel) or table.concat(kernel, "x")
  end

  return Pool
end

local MaxPool = pool("MaxPool2d", "ms.nn.max_pool2d", ops.max_pool2d, {})
local MeanPool = pool("AvgPool2d", "ms.nn.avg_pool2d", ops.avg_pool2d,
  { count_include_pad = { "boolean", default = true, resume = "refused" } })

-- ms.nn.max_pool2d(2), ({ 2, 3 }, { stride = 2 }), { 2, stride = 2 }; a list of two numbers alone is the kernel.
local function pool_arguments(who, kernel, o)
  local named = type(kernel) == "table" and (kernel[2] == nil or type(kernel[1]) == "table")
  for key in pairs(type(kernel) == "table" and not named and kernel or {}) do
    if type(key) ~= "number" then
      errors.invalid("%s: options follow a kernel of two numbers: %s({ %s, %s }, { %s = ... })", who, who,
        tostring(kernel[1]), tostring(kernel[2]), tostring(key))
    end
  end
  local given = {}
  if o ~= nil and type(o) ~= "table" then
    errors.invalid("%s takes a table of options after its kernel, not %s", who, options.describe(o))
  end
  for key, value in pairs(named and kernel or o or {}) do given[key] = value end
  if not named then given[1] = kernel end
  return given
end

---The largest element of each window: x [...,H,W].
---@param kernel integer|integer[]|moonshard.PoolOptions one number, or { height, width }
---@param o moonshard.PoolOptions?
---@return moonshard.Module
function images.max_pool2d(kernel, o) return MaxPool(pool_arguments("ms.nn.max_pool2d", kernel, o)) end

---The mean of each window: x [...,H,W].
---@param kernel integer|integer[]|moonshard.MeanPoolOptions one number, or { height, width }
---@param o moonshard.MeanPoolOptions?
---@return moonshard.Module
function images.avg_pool2d(kernel, o) return MeanPool(pool_arguments("ms.nn.avg_pool2d", kernel, o)) end

-- ---- group norm -------------------------------------------------------------------------------------------------

local GroupNorm = module.define("GroupNorm")

local GROUP_NORM = layer_options.declare("ms.nn.group_norm", {
  { "positive", required = "groups", resume = "refused" }, { "positive", required = "channels", resume = "free" },
  eps = { "number", default = 1e-5, resume = "told" },
})

function GroupNorm:init(given)
  local config = GROUP_NORM:parse(self, given)
  if config[2] % config[1] ~= 0 then
    errors.raise("MS_ESHAPE", "ms.nn.group_norm: %d groups must divide %d channels", config[1], config[2])
  end
  self.weight = parameter.new({ config[2], init = "ones" })
  self.bias = parameter.new({ config[2], init = "zeros" })
  self._groups, self._eps = config[1], config.eps
end

function GroupNorm:forward(x)
  local weight = layer.value_of(self, "weight")
  if weight.dtype ~= "f32" then x = layer.in_dtype_of(weight, x) end
  return ops.group_norm(x, self._groups, weight, layer.value_of(self, "bias"), self._eps)
end

function GroupNorm:describe() return ("%d groups of %d"):format(self._groups, self.weight.shape[1] / self._groups) end

---@class moonshard.GroupNormOptions
---@field [1] integer? groups, if not given before the table
---@field [2] integer? channels
---@field eps? number 1e-5

---Group norm (Wu & He 2018): x [N,C,...]; weight and bias [C].
---@overload fun(o: moonshard.GroupNormOptions): moonshard.Module
---@overload fun(groups: integer, channels: integer, o: moonshard.GroupNormOptions?): moonshard.Module
---@param ... any { groups, channels, eps = 1e-5 }
---@return moonshard.Module
function images.group_norm(...) return GroupNorm(layer.gather(...)) end

-- ---- other sizes ------------------------------------------------------------------------------------------------

local Upsample = module.define("Upsample")

local UPSAMPLE = layer_options.declare("ms.nn.upsample", {
  size = { "number|table", resume = "told" }, scale_factor = { "number|table", resume = "told" },
  mode = { "string", default = "nearest", resume = "refused" },
})

function Upsample:init(given) self._to = UPSAMPLE:parse(self, given) end

function Upsample:forward(x) return ops.interpolate(x, self._to) end

function Upsample:describe()
  local by = self._to.scale_factor or self._to.size or "?"
  local text = type(by) == "table" and table.concat(by, ", ") or tostring(by)
  return ("%s %s, %s"):format(self._to.size and "to" or "by", text, self._to.mode)
end

---Images in another size: x [...,H,W]; { scale_factor = 2, mode = "nearest" }, or { size = { 32, 32 }, mode =
---"bilinear" }.
---@param o moonshard.InterpolateOptions
---@return moonshard.Module
function images.upsample(o) return Upsample(o) end

return images
