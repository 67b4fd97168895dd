-- Images [..., channels, height, width]: convolutions, pools, group norm and other sizes, with PyTorch's names and the
-- order of its arguments. Convolutions, pools and group norm are ops of the table, whose attributes have a number for
-- each axis ({ stride_h = 2, stride_w = 1 }); here one number serves both, or a list { 2, 1 }. Others consist of ops.

local any_axes = require("moonshard.tensor.axes")
local context = require("moonshard.base.context")
local constants = require("moonshard.tensor.constants")
local errors = require("moonshard.base.error")
local ops = require("moonshard.tensor.ops")
local options = require("moonshard.base.checks.options")
local parameter = require("moonshard.tensor.parameter")
local tensor = require("moonshard.tensor.class")

local images, methods = {}, {}
images.methods = methods

local row = {}
for _, name in ipairs({ "conv2d", "max_pool2d", "avg_pool2d", "group_norm" }) do row[name] = ops[name] end

local function value_of(who, x, what)
  x = parameter.is(x) and context.trace and context.trace:parameter(x) or x
  if tensor.is(x) then return x end
  errors.invalid("%s: %s must be a tensor, not %s", who, what or "x", options.describe(x))
end

local function refuse_shape(who, x, form)
  errors.raise("MS_ESHAPE", "%s: x is %s; it must be %s", who, tensor.shape_text(x.shape), form)
end

-- One number for both axes, or a list of two.
local function pair_of(who, name, value)
  local list = type(value) == "number" and { value, value } or value
  local both = type(list) == "table" and #list == 2 and type(list[1]) == "number" and type(list[2]) == "number"
  if both and list[1] % 1 == 0 and list[2] % 1 == 0 then return list end
  errors.invalid("%s: %s must be a whole number, or a list of two (height, width), not %s", who, name,
    options.describe(value))
end

-- Calls f with x [N, ...] and removes the axis that x lacked.
local function with_batch(who, x, ndim, form, f)
  if #x.shape == ndim then return f(x) end
  if #x.shape ~= ndim - 1 then refuse_shape(who, x, form) end
  return any_axes.methods.squeeze(f(any_axes.methods.unsqueeze(x, 0)), 0)
end

-- ---- convolutions -----------------------------------------------------------------------------------------------

local CONVOLUTION = {
  stride = { "number|table", default = 1 }, padding = { "number|table|string", default = 0 },
  dilation = { "number|table", default = 1 }, groups = { "positive", default = 1 },
}

-- As many zeros on both sides as leave the size as it is.
local function same_padding(who, window, stride, dilation)
  local padding = {}
  for d = 1, 2 do
    local all = dilation[d] * (window[d] - 1)
    if stride[d] ~= 1 or all % 2 ~= 0 then
      errors.invalid("%s: padding = \"same\" is for a stride of 1 and windows that cover an odd number of elements; "
        .. "give numbers, or pad x before (ms.ops.pad)", who)
    end
    padding[d] = all / 2
  end
  return padding
end

local function attributes_of(who, o, window)
  local stride, dilation = pair_of(who, "stride", o.stride), pair_of(who, "dilation", o.dilation)
  if type(o.padding) == "string" and o.padding ~= "same" then
    errors.invalid("%s: padding must be a whole number, a list of two, or \"same\", not %q", who, o.padding)
  end
  local padding = o.padding == "same" and same_padding(who, window, stride, dilation)
    or pair_of(who, "padding", o.padding)
  return {
    stride_h = stride[1], stride_w = stride[2], pad_h = padding[1], pad_w = padding[2], dilation_h = dilation[1],
    dilation_w = dilation[2], groups = o.groups,
  }
end

-- x, w, bias or nil, and the options, from f(x, w), f(x, w, bias), f(x, w, {...}), f(x, w, bias, {...}).
local function read_convolution(who, x, w, bias, o)
  if type(bias) == "table" and not getmetatable(bias) then bias, o = nil, bias end
  return value_of(who, x), value_of(who, w, "the weight"), bias and value_of(who, bias, "the bias"), o
end

-- Whether the attributes are those of the table's row.
local function has_row_names(o)
  for name in pairs(o or {}) do
    if type(name) == "string" and name:find("_[hw]$") then return true end
  end
  return false
end

---@class moonshard.ConvolutionOptions
---@field stride? integer|integer[] one number, or { height, width }; default 1
---@field padding? integer|integer[]|"same" zeros on each side; default 0
---@field dilation? integer|integer[] the distance of a window's elements; default 1
---@field groups? integer channels and results in so many groups that see only each other; default 1

---A convolution: x [N,C,H,W] or [C,H,W], w [O,C/groups,KH,KW], bias [O] -> [N,O,...], or without N.
---@param x moonshard.Tensor
---@param w moonshard.Tensor|moonshard.Parameter
---@param bias moonshard.Tensor|moonshard.Parameter|moonshard.ConvolutionOptions|nil
---@param o moonshard.ConvolutionOptions?
---@return moonshard.Tensor
function ops.conv2d(x, w, bias, o)
  x, w, bias, o = read_convolution("conv2d", x, w, bias, o)
  local attributes = o
  if not has_row_names(o) then
    local window = #w.shape == 4 and { w.shape[3], w.shape[4] } or { 1, 1 } -- the op refuses other shapes
    attributes = attributes_of("conv2d", options.parse("conv2d", o, CONVOLUTION), window)
  end
  return with_batch("conv2d", x, 4, "[N,C,H,W], or [C,H,W]", function(with)
    if bias then return row.conv2d(with, w, bias, attributes) end
    return row.conv2d(with, w, attributes)
  end)
end

---A convolution along one axis, as one over images of height 1: x [N,C,L] or [C,L], w [O,C/groups,K], bias [O] ->
---[N,O,...], or without N.
---@param x moonshard.Tensor
---@param w moonshard.Tensor|moonshard.Parameter
---@param bias moonshard.Tensor|moonshard.Parameter|moonshard.ConvolutionOptions|nil
---@param o moonshard.ConvolutionOptions?
---@return moonshard.Tensor
function ops.conv1d(x, w, bias, o)
  x, w, bias, o = read_convolution("conv1d", x, w, bias, o)
  o = options.parse("conv1d", o, {
    stride = { "positive", default = 1 }, padding = { "integer|string", default = 0 },
    dilation = { "positive", default = 1 }, groups = { "positive", default = 1 },
  })
  if #w.shape ~= 3 then
    errors.raise("MS_ESHAPE", "conv1d: the weight is %s; it must be [O,C/groups,K]", tensor.shape_text(w.shape))
  end
  local wide = {
    stride = { 1, o.stride }, padding = type(o.padding) == "string" and o.padding or { 0, o.padding },
    dilation = { 1, o.dilation }, groups = o.groups,
  }
  return with_batch("conv1d", x, 3, "[N,C,L], or [C,L]", function(with)
    local flat = any_axes.methods.unsqueeze(w, 2)
    local attributes = attributes_of("conv1d", wide, { 1, w.shape[3] })
    with = any_axes.methods.unsqueeze(with, 2)
    local y = bias and row.conv2d(with, flat, bias, attributes) or row.conv2d(with, flat, attributes)
    return any_axes.methods.squeeze(y, 2)
  end)
end
ops.composed.conv1d = { takes = "2 to 3 inputs, { stride, padding, dilation, groups }",
  doc = "conv2d of height 1: x [N,C,L], w [O,C/groups,K], bias [O]" }

-- ---- pools ------------------------------------------------------------------------------------------------------

local POOL = { stride = { "number|table" }, padding = { "number|table", default = 0 } }
local MEAN_POOL = {
  stride = { "number|table" }, padding = { "number|table", default = 0 },
  count_include_pad = { "boolean", default = true },
}

local function pool(name, specs, x, kernel, o)
  x = value_of(name, x)
  if type(kernel) == "table" and kernel.kernel_h then return row[name](x, kernel) end
  o = options.parse(name, o, specs)
  local window, padding = pair_of(name, "the kernel", kernel), pair_of(name, "padding", o.padding)
  local stride = pair_of(name, "stride", o.stride or window)
  return row[name](x, {
    kernel_h = window[1], kernel_w = window[2], stride_h = stride[1], stride_w = stride[2], pad_h = padding[1],
    pad_w = padding[2], count_include_pad = o.count_include_pad,
  })
end

---@class moonshard.PoolOptions
---@field stride? integer|integer[] default: the kernel
---@field padding? integer|integer[] on each side, at most half of the kernel; default 0

---The largest element of each window: x [...,H,W], kernel a number or { height, width }. ms.ops.apply("max_pool2d",
---{ x }, { kernel_h = 2, kernel_w = 2 }) also returns where they are.
---@param x moonshard.Tensor
---@param kernel integer|integer[]
---@param o moonshard.PoolOptions?
---@return moonshard.Tensor
function ops.max_pool2d(x, kernel, o) return pool("max_pool2d", POOL, x, kernel, o) end

---@class moonshard.MeanPoolOptions: moonshard.PoolOptions
---@field count_include_pad? boolean whether padding counts as zeros of the mean; default true

---The mean of each window: x [...,H,W], kernel a number or { height, width }.
---@param x moonshard.Tensor
---@param kernel integer|integer[]
---@param o moonshard.MeanPoolOptions?
---@return moonshard.Tensor
function ops.avg_pool2d(x, kernel, o) return pool("avg_pool2d", MEAN_POOL, x, kernel, o) end

-- ---- group norm -------------------------------------------------------------------------------------------------

---Group norm (Wu & He 2018): each image's groups of channels are normalised, then each channel has its factor and
---bias. x [N,C,...], weight and bias [C]. The op of the table takes x [N,C,S], weight, bias, { groups, eps }.
---@param x moonshard.Tensor
---@param groups integer|moonshard.Tensor a divisor of C
---@param weight moonshard.Tensor|moonshard.Parameter
---@param bias moonshard.Tensor|moonshard.Parameter
---@param eps number|{ eps: number? }|nil default 1e-5
---@return moonshard.Tensor
function ops.group_norm(x, groups, weight, bias, eps)
  if type(groups) == "table" then return row.group_norm(x, groups, weight, bias) end
  x, weight, bias = value_of("group_norm", x), value_of("group_norm", weight, "weight"),
    value_of("group_norm", bias, "bias")
  local o = options.parse("group_norm", type(eps) == "table" and eps or { eps = eps }, {
    eps = { "number", default = 1e-5 },
  })
  if #x.shape < 2 then refuse_shape("group_norm", x, "[N,C,...]") end
  local channels = x.shape[2]
  if type(groups) ~= "number" or groups < 1 or channels % groups ~= 0 then
    errors.raise("MS_ESHAPE", "group_norm: %s groups of x %s: they must divide its %d channels",
      options.describe(groups), tensor.shape_text(x.shape), channels)
  end
  local flat = ops.reshape(x, { shape = { x.shape[1], channels, -1 } })
  return ops.reshape(row.group_norm(flat, weight, bias, { groups = groups, eps = o.eps }), { shape = x.shape })
end

-- ---- other sizes ------------------------------------------------------------------------------------------------

-- How much of element i of `from` is in element j of `to`, with the centres of pixels where they are on the image
-- (align_corners = false).
local WEIGHTS = {
  nearest = function(from, to, j) return { { math.floor(j * from / to), 1 } } end,
  bilinear = function(from, to, j)
    local at = math.max(0, (j + 0.5) * from / to - 0.5)
    local low = math.floor(at)
    return { { low, low + 1 - at }, { math.min(low + 1, from - 1), at - low } }
  end,
}

-- The matrix [from, to] of a mode.
local function resampling(mode, from, to)
  return constants.get(("%s %d to %d"):format(mode, from, to), { from, to }, function(data)
    for i = 0, from * to - 1 do data[i] = 0 end
    for j = 0, to - 1 do
      for _, weight in ipairs(WEIGHTS[mode](from, to, j)) do
        data[weight[1] * to + j] = data[weight[1] * to + j] + weight[2]
      end
    end
  end)
end

-- The last axis in another size.
local function resample(x, mode, to)
  local from = x.shape[#x.shape]
  if from == to then return x end
  return ops.matmul(x, resampling(mode, from, to))
end

-- The last two axes swapped.
local function turned(x)
  local axes, ndim = {}, #x.shape
  for d = 1, ndim do axes[d] = d - 1 end
  axes[ndim - 1], axes[ndim] = ndim - 1, ndim - 2
  return ops.transpose(x, { axes = axes })
end

-- Each element of [..., height, width] as many times as both factors say.
local function repeated(x, down, across)
  local height, width = x.shape[#x.shape - 1], x.shape[#x.shape]
  local planes = 1
  for d = 1, #x.shape - 2 do planes = planes * x.shape[d] end
  local apart = ops.reshape(x, { shape = { planes, height, 1, width, 1 } })
  return ops.broadcast_to(apart, { shape = { planes, height, down, width, across } })
end

local function sizes_of(o, height, width)
  if (o.size ~= nil) == (o.scale_factor ~= nil) then
    errors.invalid("interpolate: give size or scale_factor, and not both")
  end
  if o.size then return unpack(pair_of("interpolate", "size", o.size)) end
  local factor = type(o.scale_factor) == "number" and { o.scale_factor, o.scale_factor } or o.scale_factor
  local to = { height * (tonumber(factor[1]) or 0), width * (tonumber(factor[2]) or 0) }
  if to[1] % 1 ~= 0 or to[2] % 1 ~= 0 or to[1] < 1 or to[2] < 1 then
    errors.raise("MS_ESHAPE", "interpolate: scale_factor %s of height %d and width %d makes no whole sizes; give size",
      type(o.scale_factor) == "number" and o.scale_factor or table.concat(factor, ", "), height, width)
  end
  return to[1], to[2]
end

---@class moonshard.InterpolateOptions
---@field size? integer|integer[] of the result: one number, or { height, width }
---@field scale_factor? number|number[] instead of size
---@field mode? "nearest"|"bilinear" default nearest

---Images in another size: x [...,H,W]. Nearest by whole factors repeats elements; everything else is a product with a
---constant matrix along each axis, in f32, so an infinity becomes NaN in its row and column. Gradients are PyTorch's
---with align_corners = false.
---@param x moonshard.Tensor
---@param given moonshard.InterpolateOptions
---@return moonshard.Tensor
function ops.interpolate(x, given)
  local o = options.parse("interpolate", given, {
    size = { "number|table" }, scale_factor = { "number|table" }, mode = { "string", default = "nearest" },
  })
  x = value_of("interpolate", x)
  if not WEIGHTS[o.mode] then
    errors.invalid("interpolate: mode must be nearest or bilinear, not %q", o.mode)
  end
  local ndim = #x.shape
  if ndim < 2 then refuse_shape("interpolate", x, "[...,H,W]") end
  local height, width = x.shape[ndim - 1], x.shape[ndim]
  local to_height, to_width = sizes_of(o, height, width)
  if to_height < 1 or to_width < 1 then
    errors.raise("MS_ESHAPE", "interpolate: a size of %d, %d; both must be at least 1", to_height, to_width)
  end
  local shape = { unpack(x.shape) }
  shape[ndim - 1], shape[ndim] = to_height, to_width
  if o.mode == "nearest" and to_height % height == 0 and to_width % width == 0 then
    return ops.reshape(repeated(x, to_height / height, to_width / width), { shape = shape })
  end
  local dtype, y = x.dtype, x
  if dtype == "bf16" then y = ops.cast(y, { out_dtype = "f32" }) end
  y = resample(y, o.mode, to_width)
  if to_height ~= height then
    y = turned(resample(turned(y), o.mode, to_height))
  end
  return dtype == "bf16" and ops.cast(y, { out_dtype = "bf16" }) or y
end
ops.composed.interpolate = { takes = "1 input, { size or scale_factor, mode }",
  doc = "x [...,H,W] in another size: nearest, or bilinear (align_corners = false)" }

for _, name in ipairs({ "conv2d", "conv1d", "max_pool2d", "avg_pool2d", "group_norm", "interpolate" }) do
  methods[name] = ops[name]
end

return images
