-- Ops over any axes, built from the engine's ops, which support one form each: a reduction over one axis or all,
-- softmax over the last axis, concatenation of a few tensors. Inputs are reshaped, or permuted if the axes are not
-- adjacent, and concatenated in groups. As functions (ms.ops.sum(x, { 0, 2 }), ms.ops.softmax(x, 1)) and as methods.

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local lists = require("moonshard.base.checks.lists")
local ops = require("moonshard.tensor.ops")
local options = require("moonshard.base.checks.options")

local MAX_INPUTS = tonumber(engine.C.MS_MAX_INPUTS)

local axes, methods = {}, {}
axes.methods = methods

local function shape_text(x)
  return "[" .. table.concat(x.shape, ",") .. "]"
end

local function check_shaped(x)
  if type(x) == "table" and type(x.shape) == "table" then return end
  errors.invalid("an op over axes takes a tensor, not %s", options.describe(x))
end

---Normalises an axis to count from 0.
---@param x moonshard.Tensor
---@param axis any negative numbers count from the end
---@return integer
function axes.of(x, axis)
  check_shaped(x)
  local ndim = #x.shape
  if ndim == 0 then
    errors.raise("MS_ESHAPE", "axis %s of a tensor []: a single number has no axes", options.describe(axis))
  end
  if type(axis) ~= "number" then
    errors.raise("MS_ESHAPE", "the axis of a tensor %s must be a number from 0 to %d, or negative from the end, not %s",
      shape_text(x), ndim - 1, options.describe(axis))
  end
  if axis % 1 ~= 0 or axis < -ndim or axis >= ndim then
    errors.raise("MS_ESHAPE", "axis %s of a tensor %s: axes are 0 to %d, or negative from the end",
      options.describe(axis), shape_text(x), ndim - 1)
  end
  return axis % ndim
end

-- An axis or a list of axes, as a sorted 0-based list, and as a set.
local function axes_of(x, given)
  local list, set = {}, {}
  for i, axis in ipairs(type(given) == "table" and lists.items("the axes", given) or { given }) do
    list[i] = axes.of(x, axis)
    if set[list[i]] then
      errors.raise("MS_ESHAPE", "axis %d of a tensor %s is given twice", list[i], shape_text(x))
    end
    set[list[i]] = true
  end
  table.sort(list)
  return list, set
end

local function product(x, list)
  local count = 1
  for _, axis in ipairs(list) do count = count * x.shape[axis + 1] end
  return count
end

local function are_neighbours(list)
  return list[#list] - list[1] == #list - 1
end

-- The shape of x without these axes, or with size 1 in their place.
local function shape_without(x, set, kept)
  local shape = {}
  for axis, size in ipairs(x.shape) do
    if not set[axis - 1] then shape[#shape + 1] = size elseif kept then shape[#shape + 1] = 1 end
  end
  return shape
end

---The number of elements along some axes, or all: how many a reduction takes together.
---@param x moonshard.Tensor
---@param given integer|integer[] {}: all
---@return integer
function axes.count(x, given)
  local list = axes_of(x, given)
  if #list > 0 then return product(x, list) end
  local count = 1
  for _, size in ipairs(x.shape) do count = count * size end
  return count
end

---The shape that a reduction over some axes leaves.
---@param x moonshard.Tensor
---@param given integer|integer[] {}: all
---@return integer[]
function axes.shape_without(x, given)
  local list, set = axes_of(x, given)
  return #list > 0 and shape_without(x, set) or {}
end

-- The permutation that moves these axes to the end, and its inverse.
local function order_to_end(x, list, set)
  local order, inverse = {}, {}
  for axis = 0, #x.shape - 1 do
    if not set[axis] then order[#order + 1] = axis end
  end
  for _, axis in ipairs(list) do order[#order + 1] = axis end
  for place, axis in ipairs(order) do inverse[axis + 1] = place - 1 end
  return order, inverse
end

-- ---- reductions -------------------------------------------------------------------------------------------------

local row = { concat = ops.concat, clamp = ops.clamp }
for _, name in ipairs({ "sum", "mean", "max", "min", "softmax", "log_softmax" }) do row[name] = ops[name] end

local function with(attributes, more)
  local all = {}
  for name, value in pairs(attributes) do all[name] = value end
  for name, value in pairs(more) do all[name] = value end
  return all
end

-- Adjacent axes: a reshape merges them into one.
local function reduce_neighbours(name, x, list, attributes)
  local shape, first = {}, list[1]
  for axis, size in ipairs(x.shape) do
    if axis <= first or axis > first + #list then shape[#shape + 1] = size end
    if axis == first + 1 then shape[#shape + 1] = product(x, list) end
  end
  return row[name](ops.reshape(x, { shape = shape }), with(attributes, { axis = first }))
end

-- Axes with others in between. The engine's sums accept any axis; other reductions need them at the end.
local function reduce_scattered(name, x, list, set, attributes)
  if name == "sum" or name == "mean" then
    local sum = ops.sum_to(x, { shape = shape_without(x, set, true), out_dtype = attributes.out_dtype })
    return name == "sum" and sum or ops.scale(sum, { alpha = 1 / product(x, list) })
  end
  local shape = shape_without(x, set)
  shape[#shape + 1] = product(x, list)
  local order = order_to_end(x, list, set)
  return row[name](ops.reshape(ops.transpose(x, { axes = order }), { shape = shape }), with(attributes, { axis = -1 }))
end

local function reduce_over(name, x, given, attributes)
  local list, set = axes_of(x, given)
  local keepdim = attributes.keepdim
  attributes = with(attributes, { keepdim = false })
  if #list == 0 or #list == #x.shape then
    return row[name](x, with(attributes, { all = true, keepdim = keepdim }))
  elseif #list == 1 then
    return row[name](x, with(attributes, { axis = list[1], keepdim = keepdim }))
  end
  local reduced = are_neighbours(list) and reduce_neighbours(name, x, list, attributes)
    or reduce_scattered(name, x, list, set, attributes)
  return ops.reshape(reduced, { shape = shape_without(x, set, keepdim) })
end

local function is_list(value)
  return type(value) == "table" and not getmetatable(value) and type(value[1]) == "number"
end

---@class moonshard.Reduction
---@field axis? integer|integer[] default: all
---@field keepdim? boolean keep the reduced axes with size 1

local function define_reduction(name)
  ---A reduction over one axis, by default the last, or over several: ops.sum(x, 1, true), ops.sum(x, { 0, 2 }).
  ---@param x moonshard.Tensor
  ---@param ... any axis, integer or list, and keepdim; or moonshard.Reduction
  ---@return moonshard.Tensor
  ops[name] = function(x, ...)
    local given, keepdim = ...
    if type(given) == "number" or is_list(given) then return methods[name](x, given, keepdim) end
    if type(given) == "table" and type(given.axis) == "table" and keepdim == nil then return methods[name](x, given) end
    return row[name](x, ...)
  end

  ---A reduction over all elements, or over some axes: x:sum(), x:sum(1), x:sum({ 0, 2 }, true), x:sum { axis = 1 }.
  ---@param axis integer|integer[]|moonshard.Reduction|nil
  ---@param keepdim boolean?
  ---@return moonshard.Tensor
  methods[name] = function(self, axis, keepdim)
    local attributes = { keepdim = keepdim }
    if type(axis) == "table" and not is_list(axis) and not getmetatable(axis) then
      attributes = with(axis, {})
      axis, attributes.axis = attributes.axis, nil
    end
    if type(axis) == "table" and getmetatable(axis) then
      errors.invalid("x:%s(y) reduces x over axes; the %s of two tensors, element by element, is x:%s(y)", name,
        name == "min" and "smaller" or name == "max" and "larger" or name,
        name == "min" and "minimum" or name == "max" and "maximum" or "add")
    end
    local keep = attributes.keepdim
    if keep ~= nil and type(keep) ~= "boolean" then
      errors.invalid("%s: keepdim must be true or false, not %s: x:%s(1, true); several axes are a list, x:%s { 0, 1 }",
        name, options.describe(keep), name, name)
    end
    return reduce_over(name, self, axis == nil and {} or axis, attributes)
  end
end
for _, name in ipairs({ "sum", "mean", "max", "min" }) do define_reduction(name) end
methods.amax, methods.amin = methods.max, methods.min

-- ---- softmax ----------------------------------------------------------------------------------------------------

local function softmax_over(name, x, given)
  local list, set = axes_of(x, given)
  local last = #x.shape - 1
  if #list == 0 or #list == 1 and list[1] == last then return row[name](x) end
  local order, inverse = order_to_end(x, list, set)
  local at_end = list[1] == last - #list + 1 -- the axes are adjacent and last: as many as follow the first one
  local permuted = at_end and x or ops.transpose(x, { axes = order })
  local flat = shape_without(x, set)
  flat[#flat + 1] = product(x, list)
  local result = row[name](ops.reshape(permuted, { shape = flat }))
  result = ops.reshape(result, { shape = permuted.shape })
  return at_end and result or ops.transpose(result, { axes = inverse })
end

for _, name in ipairs({ "softmax", "log_softmax" }) do
  ---Over the last axis, or jointly over others: x:softmax(), x:softmax(1), x:softmax({ 1, 2 }).
  ---@param x moonshard.Tensor
  ---@param ... any the axis, integer or list; or { axis = integer or list }
  ---@return moonshard.Tensor
  ops[name] = function(x, ...)
    local given = ...
    options.no_more(name, select(2, ...))
    if type(given) == "table" and not getmetatable(given) and not is_list(given) then
      given = options.parse(name, given, { axis = { "number|table" } }).axis
      if given == nil then return row[name](x) end
    end
    if type(given) == "number" or is_list(given) then return softmax_over(name, x, given) end
    return row[name](x, ...)
  end
  methods[name] = ops[name]
end

-- ---- joining ----------------------------------------------------------------------------------------------------

-- The tensors among the arguments, and the attributes: ops.concat(a, b, { axis = 1 }), ops.concat({ a, b }, 1).
local function read_joined(who, ...)
  lists.check(who, { ... })
  local inputs, attributes = {}, nil
  for i = 1, select("#", ...) do
    local argument = select(i, ...)
    if type(argument) == "number" and i == select("#", ...) then
      attributes = { axis = argument }
    elseif type(argument) ~= "table" or getmetatable(argument) then
      inputs[#inputs + 1] = argument
    elseif type(argument[1]) == "table" then
      for _, input in ipairs(lists.items(who, argument)) do inputs[#inputs + 1] = input end
    else
      attributes = argument
    end
  end
  return inputs, attributes
end

-- Concatenates groups of the largest size that one call accepts first.
local function join(inputs, attributes)
  while #inputs > MAX_INPUTS do
    local groups = {}
    for first = 1, #inputs, MAX_INPUTS do
      local group = { unpack(inputs, first, math.min(first + MAX_INPUTS - 1, #inputs)) }
      groups[#groups + 1] = #group == 1 and group[1] or row.concat(group, attributes or {})
    end
    inputs = groups
  end
  return row.concat(inputs, attributes or {})
end

---Concatenates any number of tensors along an axis: ms.ops.concat(a, b, { axis = 1 }), ms.ops.cat({ a, b }, 1).
---@param ... any tensors or one list of them; then the axis, or { axis = integer }; default 0
---@return moonshard.Tensor
function ops.concat(...)
  local inputs, attributes = read_joined("concat", ...)
  return join(inputs, attributes)
end
ops.cat, methods.concat, methods.cat = ops.concat, ops.concat, ops.concat

---Joins tensors of one shape along a new axis: ms.ops.stack({ a, b }, 1).
---@param ... any tensors or one list of them; then the axis, or { axis = integer }; default 0
---@return moonshard.Tensor
function ops.stack(...)
  local inputs, attributes = read_joined("stack", ...)
  local axis, parts = attributes and attributes.axis or 0, {}
  for i, input in ipairs(inputs) do parts[i] = methods.unsqueeze(input, axis) end
  return join(parts, { axis = axis })
end

ops.composed.stack = { takes = "any number of inputs, { axis }", doc = "inputs of one shape, joined on a new axis" }
ops.composed.cat = { takes = "any number of inputs, { axis }", doc = "concat, by PyTorch's name" }

-- ---- axes of size 1, and axes made one --------------------------------------------------------------------------

---Inserts a new axis of size 1.
---@param axis integer its position in the result; negative: from the end
---@return moonshard.Tensor
function methods:unsqueeze(axis)
  check_shaped(self)
  local shape, ndim = { unpack(self.shape) }, #self.shape + 1
  if type(axis) ~= "number" or axis % 1 ~= 0 or axis < -ndim or axis >= ndim then
    errors.raise("MS_ESHAPE", "unsqueeze: a new axis of a tensor %s is 0 to %d, or negative from the end, not %s",
      shape_text(self), ndim - 1, options.describe(axis))
  end
  table.insert(shape, axis % ndim + 1, 1)
  return ops.reshape(self, { shape = shape })
end

---Removes all axes of size 1, or only the given ones, which stay if they are larger.
---@param axis integer|integer[]|nil
---@return moonshard.Tensor
function methods:squeeze(axis)
  local _, set = axes_of(self, axis == nil and {} or axis)
  local shape = {}
  for place, size in ipairs(self.shape) do
    if size ~= 1 or axis ~= nil and not set[place - 1] then shape[#shape + 1] = size end
  end
  return ops.reshape(self, { shape = shape })
end

---Merges adjacent axes into one.
---@param first integer? 0
---@param last integer? default -1; included
---@return moonshard.Tensor
function methods:flatten(first, last)
  if #self.shape == 0 then return ops.reshape(self, { shape = { 1 } }) end
  first, last = axes.of(self, first or 0), axes.of(self, last or -1)
  if first > last then
    errors.raise("MS_ESHAPE", "flatten: axes %d to %d of a tensor %s: the first must come before the last", first, last,
      shape_text(self))
  end
  local shape, size = {}, 1
  for axis = 0, #self.shape - 1 do
    if axis < first or axis > last then shape[#shape + 1] = self.shape[axis + 1]
    else size = size * self.shape[axis + 1] end
    if axis == last then shape[#shape + 1] = size end
  end
  return ops.reshape(self, { shape = shape })
end

---Repeats the tensor along its axes of size 1, and along new leading axes; -1 keeps a size.
---@param ... integer sizes, or one list
---@return moonshard.Tensor
function methods:expand(...)
  local shape = { unpack(type(...) == "table" and lists.items("expand", (...)) or { ... }) }
  for i, size in ipairs(shape) do
    if size == -1 then shape[i] = self.shape[#self.shape - #shape + i] or 1 end
  end
  return ops.broadcast_to(self, { shape = shape })
end

return axes
