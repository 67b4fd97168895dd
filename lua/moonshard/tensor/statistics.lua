-- Reductions that consist of others: variance, standard deviation, and the logarithm of a sum of exponentials. In bf16
-- they compute in f32 and round once, since what they subtract is close to what it is subtracted from.

local any_axes = require("moonshard.tensor.axes")
local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local ops = require("moonshard.tensor.ops")
local options = require("moonshard.base.checks.options")
local parameter = require("moonshard.tensor.parameter")
local tensor = require("moonshard.tensor.class")

local statistics, methods = {}, {}
statistics.methods = methods

---@class moonshard.VarianceOptions: moonshard.Reduction
---@field unbiased? boolean divide by the number of elements less one; default true

local REDUCTION = { axis = { "any" }, keepdim = { "boolean", default = false } }
local VARIANCE = {
  axis = { "any" }, keepdim = { "boolean", default = false }, unbiased = { "boolean", default = true },
}

-- x:var(), x:var(1), x:var({ 0, 2 }, true), x:var { axis = 1, unbiased = false }
local function read(who, specs, axis, keepdim)
  local named = type(axis) == "table" and type(axis[1]) ~= "number"
  return options.parse(who, named and axis or { axis = axis, keepdim = keepdim }, specs)
end

local function as_f32(who, x)
  x = parameter.is(x) and context.trace and context.trace:parameter(x) or x
  if not tensor.is(x) or x.dtype ~= "f32" and x.dtype ~= "bf16" then
    errors.invalid("%s: x must be a tensor in f32 or bf16, not %s", who,
      tensor.is(x) and "one in " .. x.dtype or options.describe(x))
  end
  return x.dtype == "bf16" and ops.cast(x, { out_dtype = "f32" }) or x, x.dtype
end

local function back(y, dtype) return dtype == "bf16" and ops.cast(y, { out_dtype = "bf16" }) or y end

local function variance(who, x, o)
  local of, dtype = as_f32(who, x)
  local count = any_axes.count(of, o.axis == nil and {} or o.axis)
  if o.unbiased and count < 2 then
    errors.raise("MS_ESHAPE", "%s of a tensor %s over one element: it divides by the number of elements less one; give "
      .. "unbiased = false", who, tensor.shape_text(of.shape))
  end
  local distance = ops.sub(of, any_axes.methods.mean(of, o.axis, true))
  local squares = any_axes.methods.mean(ops.mul(distance, distance), o.axis, o.keepdim)
  return o.unbiased and ops.scale(squares, { alpha = count / (count - 1) }) or squares, dtype
end

---The variance over all elements, or over some axes: x:var(), x:var(1, true), x:var { axis = 1, unbiased = false }.
---@param x moonshard.Tensor
---@param axis integer|integer[]|moonshard.VarianceOptions|nil default: all
---@param keepdim boolean?
---@return moonshard.Tensor
function ops.var(x, axis, keepdim)
  return back(variance("var", x, read("var", VARIANCE, axis, keepdim)))
end
ops.composed.var = { takes = "1 input, { axis, keepdim, unbiased }",
  doc = "mean of (x - mean)^2 over axes; unbiased, the default, divides by the number of elements less one" }

---The standard deviation, the root of var.
---@param x moonshard.Tensor
---@param axis integer|integer[]|moonshard.VarianceOptions|nil default: all
---@param keepdim boolean?
---@return moonshard.Tensor
function ops.std(x, axis, keepdim)
  local squares, dtype = variance("std", x, read("std", VARIANCE, axis, keepdim))
  local same = ops.equal(squares, 0) -- of equal elements the root has no slope; the gradient is 0, as PyTorch's
  return back(ops.where(same, 0, ops.sqrt(ops.where(same, 1, squares))), dtype)
end
ops.composed.std = { takes = "1 input, { axis, keepdim, unbiased }", doc = "the root of var" }

---ln sum e^x over all elements, or over some axes, without overflow: x:logsumexp(-1).
---@param x moonshard.Tensor
---@param axis integer|integer[]|moonshard.Reduction|nil default: all
---@param keepdim boolean?
---@return moonshard.Tensor
function ops.logsumexp(x, axis, keepdim)
  local o = read("logsumexp", REDUCTION, axis, keepdim)
  local of, dtype = as_f32("logsumexp", x)
  local largest = ops.detach(any_axes.methods.max(of, o.axis, true))
  largest = ops.where(ops.less(ops.abs(largest), math.huge), largest, 0) -- infinity less infinity is NaN
  local sum = any_axes.methods.sum(ops.exp(ops.sub(of, largest)), o.axis, true)
  local y = ops.add(ops.log(sum), largest)
  if not o.keepdim then y = ops.reshape(y, { shape = any_axes.shape_without(of, o.axis == nil and {} or o.axis) }) end
  return back(y, dtype)
end
ops.composed.logsumexp = { takes = "1 input, { axis, keepdim }", doc = "ln sum e^x over axes, without overflow" }

methods.var, methods.std, methods.logsumexp = ops.var, ops.std, ops.logsumexp

return statistics
