-- Two kinds of tensors with the same operators and methods. A tensor of a trace is a symbol for a value that a step
-- will compute: ops on it add nodes to the graph. An eager tensor (ms.tensor, ms.randn, ...) holds its values: outside
-- a trace ops on it compute immediately; inside a trace it is a constant. Parameters of a module behave like tensors
-- in a forward.
--
-- Tensors are immutable: an op returns a new one. Methods over axes are in axes.lua, comparisons in comparisons.lua,
-- order and indices in places.lua, images in images.lua, hints about placements in redistribute.lua, collectives in
-- collectives.lua.

local arguments = require("moonshard.base.checks.arguments")
local any_axes = require("moonshard.tensor.axes")
local collectives = require("moonshard.tensor.collectives")
local comparisons = require("moonshard.tensor.comparisons")
local einsum = require("moonshard.tensor.einsum")
local images = require("moonshard.tensor.images")
local places = require("moonshard.tensor.places")
local statistics = require("moonshard.tensor.statistics")
local redistribute = require("moonshard.tensor.redistribute")
local context = require("moonshard.base.context")
local dtypes = require("moonshard.base.dtypes")
local errors = require("moonshard.base.error")
local lists = require("moonshard.base.checks.lists")
local ops = require("moonshard.tensor.ops")
local options = require("moonshard.base.checks.options")
local parameter = require("moonshard.tensor.parameter")
local show = require("moonshard.tensor.show")
local tensor = require("moonshard.tensor.class")
local strict = require("moonshard.base.checks.strict")
local values = require("moonshard.tensor.values")

local Tensor, methods = tensor.class, tensor.methods

-- ---- operators --------------------------------------------------------------------------------------------------

-- With a number on either side the values are those of IEEE 754 and of PyTorch, for infinities, NaN and signed zeros,
-- too: what is added to a product is -0, which leaves every number as it is.
local arithmetic = {}
local NOTHING = 1 / -math.huge
local SMALLEST, LARGEST = 2 ^ -126, 2 ^ 126 -- between them both a number and 1 / number are normal in f32

local function scaled(x, by) return ops.scale(x, { alpha = by, beta = NOTHING }) end

function arithmetic.__add(a, b)
  if type(b) == "number" then return ops.scale(a, { beta = b }) end
  if type(a) == "number" then return ops.scale(b, { beta = a }) end
  return ops.add(a, b)
end

function arithmetic.__sub(a, b)
  if type(b) == "number" then return ops.scale(a, { beta = -b }) end
  if type(a) == "number" then return ops.scale(b, { alpha = -1, beta = a }) end
  return ops.sub(a, b)
end

function arithmetic.__mul(a, b)
  if type(b) == "number" then return scaled(a, b) end
  if type(a) == "number" then return scaled(b, a) end
  return ops.mul(a, b)
end

-- By a number is a product with its inverse, unless f32 cannot hold that. A numerator is a tensor without axes, not
-- computed from x: 0 x + number is NaN where x is infinite.
function arithmetic.__div(a, b)
  local size = type(b) == "number" and math.abs(b)
  if size and size >= SMALLEST and size <= LARGEST then return scaled(a, 1 / b) end
  return ops.div(a, b)
end

function arithmetic.__unm(a) return scaled(a, -1) end

function arithmetic.__mod()
  errors.invalid("x %% y on tensors: there is no op for remainders; of whole numbers, compute them where the data is "
    .. "made")
end

local POWERS = {
  [2] = function(x) return ops.mul(x, x) end,
  [3] = function(x) return ops.mul(ops.mul(x, x), x) end,
  [0.5] = function(x) return ops.sqrt(x) end,
  [-0.5] = function(x) return ops.rsqrt(x) end,
  [-1] = function(x) return arithmetic.__div(1, x) end,
}

local power = ops.pow

---The power of two tensors, or of a tensor and a number on either side: x ^ 2, x ^ y, 2 ^ x.
---@param a moonshard.Tensor|number
---@param b moonshard.Tensor|number
---@return moonshard.Tensor
function ops.pow(a, b)
  local known = type(b) == "number" and POWERS[b]
  if known then return known(a) end
  return power(a, b)
end
arithmetic.__pow = ops.pow

for name, operator in pairs(arithmetic) do
  Tensor[name] = operator
  parameter.class[name] = operator
end
for name, operator in pairs(comparisons.operators) do Tensor[name] = operator end

-- ---- methods: every op whose first input is the tensor, and the forms that read better with plain arguments -----

for name in pairs(ops.rows) do methods[name] = ops[name] end
for _, more in ipairs({
  any_axes.methods, comparisons.methods, redistribute.methods, collectives.methods, places.methods, statistics.methods,
  einsum.methods, images.methods,
}) do
  for name, method in pairs(more) do methods[name] = method end
end

-- Like the operators, they accept a number.
methods.add, methods.sub, methods.mul = arithmetic.__add, arithmetic.__sub, arithmetic.__mul
methods.div, methods.pow, methods.neg = arithmetic.__div, arithmetic.__pow, arithmetic.__unm

local function list_of(first, ...)
  if type(first) == "table" then return lists.items("sizes and axes", first) end
  return { first, ... }
end

local axis_of = any_axes.of

---The same elements in another shape.
---@param ... integer sizes, or one list of them; one may be -1
---@return moonshard.Tensor
function methods:reshape(...)
  return ops.reshape(self, { shape = list_of(...) })
end
methods.view = methods.reshape

---Swaps two axes.
---@param a integer
---@param b integer
---@return moonshard.Tensor
function methods:transpose(a, b)
  local axes = {}
  for d = 1, #self.shape do axes[d] = d - 1 end
  a, b = axis_of(self, a), axis_of(self, b)
  axes[a + 1], axes[b + 1] = b, a
  return ops.transpose(self, { axes = axes })
end

---Transposes a matrix.
---@return moonshard.Tensor
function methods:t()
  if #self.shape ~= 2 then
    errors.raise("MS_ESHAPE", "t() of a tensor %s: t() needs two axes; transpose(a, b) swaps any two",
      tensor.shape_text(self.shape))
  end
  return self:transpose(0, 1)
end

---Permutes the axes.
---@param ... integer for each axis of the result, the axis of this tensor; or one list
---@return moonshard.Tensor
function methods:permute(...)
  local axes = list_of(...)
  if #axes ~= #self.shape then
    errors.raise("MS_ESHAPE", "permute of a tensor %s: list all %d axes", tensor.shape_text(self.shape), #self.shape)
  end
  return ops.transpose(self, { axes = axes })
end

---Elements start to stop - 1 along one axis; negative numbers count from the end.
---@param axis integer
---@param start integer
---@param stop integer? default: the axis's size
---@return moonshard.Tensor
function methods:slice(axis, start, stop)
  axis = axis_of(self, axis)
  local size = self.shape[axis + 1]
  stop = stop or size
  if type(start) ~= "number" or type(stop) ~= "number" then
    errors.invalid("slice takes an axis, a start and a stop: x:slice(%d, 0, %d), not from %s to %s", axis, size,
      options.describe(start), options.describe(stop))
  end
  if start < 0 then start = start + size end
  if stop < 0 then stop = stop + size end
  return ops.slice(self, { axis = axis, start = start, stop = stop })
end

---Selects along the leading axes and removes them: x:index(2) of [4,5] is [5].
---@param ... integer from 0; negative numbers count from the end
---@return moonshard.Tensor
function methods:index(...)
  local rest, indexed = {}, self
  for axis = 0, select("#", ...) - 1 do
    local i, size = select(axis + 1, ...), self.shape[axis + 1]
    if not size or type(i) ~= "number" or i % 1 ~= 0 or i < -size or i >= size then
      errors.raise("MS_ESHAPE", "index %s of axis %d of a tensor %s: %s", options.describe(i), axis,
        tensor.shape_text(self.shape), size and ("it is 0 to %d, or negative from the end"):format(size - 1)
          or ("it has %d axes"):format(#self.shape))
    end
    indexed = ops.slice(indexed, { axis = axis, start = i % size, stop = i % size + 1 })
  end
  for axis = select("#", ...) + 1, #self.shape do rest[#rest + 1] = self.shape[axis] end
  return ops.reshape(indexed, { shape = rest })
end

---Converts the tensor to another element type; returns the tensor itself if it already has it.
---@param dtype string "f32", "bf16", "i32" or "i8" (truncate fractions), or "f8e4m3", "f8e5m2" or "e8m0", in which
---nothing computes: cast back to "f32" first. u8 masks result from comparisons only
---@return moonshard.Tensor
function methods:cast(dtype)
  local _, name = dtypes.id(dtype)
  if self.dtype == name then return self end
  return ops.cast(self, { out_dtype = name })
end
methods.mm = ops.matmul

---x:cast, by PyTorch's name; a device is an error.
---@param dtype string
---@return moonshard.Tensor
function methods:to(dtype)
  if type(dtype) == "string" and (dtype == "cpu" or dtype:find("^cuda")) then
    errors.invalid("x:to(%q): the mesh or --device chooses the device, for all tensors", dtype)
  end
  return self:cast(dtype)
end

---The tensor as f32.
---@return moonshard.Tensor
function methods:float() return self:cast("f32") end

---Repeats the tensor to a shape, with NumPy's broadcasting rules.
---@param ... integer sizes, or one list
---@return moonshard.Tensor
function methods:broadcast_to(...)
  return ops.broadcast_to(self, { shape = list_of(...) })
end

---The size of one axis, or all sizes.
---@param axis integer?
---@return integer|integer[]
function methods:size(axis)
  if axis == nil then return self.shape end
  return self.shape[axis_of(self, axis) + 1]
end

---@return integer number of axes
function methods:dim()
  return #self.shape
end

---@return integer number of elements
function methods:numel()
  local count = 1
  for _, size in ipairs(self.shape) do count = count * size end
  return count
end

-- ---- values of eager tensors ------------------------------------------------------------------------------------

local function check_eager(self, what)
  if tensor.is_eager(self) then return end
  errors.invalid("%s of a tensor %s in a trace: it is a symbol, and has values only when a step runs; "
    .. "ms.ops.where(mask, a, b) chooses by values", what, tensor.shape_text(self.shape))
end

---The value of a one-element tensor.
---@return number
function methods:item()
  check_eager(self, "item()")
  if self:numel() ~= 1 then
    errors.raise("MS_ESHAPE", "item() of a tensor %s: it needs one element; tolist() returns them all",
      tensor.shape_text(self.shape))
  end
  return values.at(self, 0)
end

---The values as nested Lua lists, or as a number if there are no axes.
---@return table|number
function methods:tolist()
  check_eager(self, "tolist()")
  return values.nested(self)
end

---The values as text, rows in brackets; above 1000 elements only the ends of each axis.
---@return string
function methods:values()
  check_eager(self, "values()")
  return show.text(self)
end

arguments.exact_all("x", methods)

-- ---- parameters as tensors --------------------------------------------------------------------------------------

-- A parameter's method is the tensor's, applied to the parameter's value in the current trace.
local forwarded = parameter.methods
for name, method in pairs(methods) do
  forwarded[name] = function(self, ...)
    if not context.trace then
      errors.invalid("%s of a parameter: it has values only inside its model; model:parameter(name) returns a tensor "
        .. "with them", name)
    end
    return method(context.trace:parameter(self), ...)
  end
end
-- Only parameters read from a file have a source, and only those of adapters are a factor.
local OPTIONAL = { source = true, factor = true }
setmetatable(forwarded, {
  __index = function(_, key)
    if type(key) == "string" and not OPTIONAL[key] then strict.unknown_method("a parameter", key, forwarded) end
  end,
})

function parameter.class:__tostring()
  local frozen = self.frozen and ", frozen" or ""
  return ("parameter %s, %s%s"):format(tensor.shape_text(self.shape), tostring(self.init), frozen)
end

return tensor
