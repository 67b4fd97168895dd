-- Elements by their order and by their place: sums along an axis, the largest and where they are, elements that an
-- index names, triangles, pieces. Functions and methods with PyTorch's names and order of arguments; the ops of the
-- table with the same names take their inputs first, then { axis = ... }, and both forms work.

local any_axes = require("moonshard.tensor.axes")
local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local lists = require("moonshard.base.checks.lists")
local named = require("moonshard.tensor.named")
local ops = require("moonshard.tensor.ops")
local options = require("moonshard.base.checks.options")
local parameter = require("moonshard.tensor.parameter")
local tensor = require("moonshard.tensor.class")
local eager_values = require("moonshard.tensor.values")

local places, methods = {}, {}
places.methods = methods

local row = {}
for _, name in ipairs({ "cumsum", "roll", "topk", "gather", "scatter_add" }) do row[name] = ops[name] end

local function composed(name, takes, doc)
  ops.composed[name] = { takes = takes, doc = doc }
end

-- A tensor, or a parameter's value in the trace; of a dtype, if one is named.
local function value_of(who, x, dtypes)
  x = parameter.is(x) and context.trace and context.trace:parameter(x) or x
  if tensor.is(x) and (not dtypes or dtypes[x.dtype]) then return x end
  local names = {}
  for name in pairs(dtypes or {}) do names[#names + 1] = name end
  table.sort(names)
  errors.invalid("%s: it takes a tensor%s, not %s", who, #names > 0 and " in " .. table.concat(names, " or ") or "",
    tensor.is(x) and "one in " .. x.dtype or options.describe(x))
end

local FLOATS, INDICES = { f32 = true, bf16 = true }, { i32 = true }

local function flat(x) return ops.reshape(x, { shape = { -1 } }) end

local function check_whole(who, what, value, least)
  if type(value) == "number" and value % 1 == 0 and value >= least then return end
  errors.invalid("%s: %s must be a whole number%s, not %s", who, what,
    least > -math.huge and " from " .. least .. " on" or "", options.describe(value))
end

-- ---- order ------------------------------------------------------------------------------------------------------

---Sums up to each element of an axis; with reverse, of it and those after it.
---@param x moonshard.Tensor
---@param axis integer|moonshard.ops.cumsum|nil default -1
---@param reverse boolean?
---@return moonshard.Tensor
function ops.cumsum(x, axis, reverse)
  if type(axis) == "table" then return row.cumsum(x, axis) end
  return row.cumsum(x, { axis = axis or -1, reverse = reverse or false })
end

---The k largest elements along an axis in order, or the smallest, and where they are. Of equal elements the first comes
---first; NaN is the largest.
---@param x moonshard.Tensor
---@param k integer|moonshard.ops.topk
---@param axis integer? default -1
---@param largest boolean? default true
---@return moonshard.Tensor values, moonshard.Tensor indices i32
function ops.topk(x, k, axis, largest)
  if type(k) ~= "table" then check_whole("topk", "k", k, 1) end
  local attributes = type(k) == "table" and k or { k = k, axis = axis or -1, largest = largest ~= false }
  local both = ops.apply("topk", { x }, attributes)
  return both[1], both[2]
end

-- Where the largest element of an axis is, or of all elements. Axis and keepdim can be in a table.
local function where_first(who, x, axis, keepdim)
  local o = options.parse(who, type(axis) == "table" and axis or { axis = axis, keepdim = keepdim }, {
    axis = { "integer" }, keepdim = { "boolean", default = false },
  })
  if o.axis == nil then
    local _, at = ops.topk(flat(x), 1, 0)
    local shape = {}
    for d = 1, o.keepdim and #x.shape or 0 do shape[d] = 1 end
    return ops.reshape(at, { shape = shape })
  end
  local _, at = ops.topk(x, 1, o.axis)
  if o.keepdim then return at end
  return any_axes.methods.squeeze(at, o.axis)
end

---The place of the largest element along an axis, or of all in the order of memory: the first, if several are equal.
---@param x moonshard.Tensor
---@param axis integer|{ axis: integer?, keepdim: boolean? }|nil default: all
---@param keepdim boolean?
---@return moonshard.Tensor i32
function ops.argmax(x, axis, keepdim) return where_first("argmax", value_of("argmax", x, FLOATS), axis, keepdim) end
composed("argmax", "1 input, { axis, keepdim }",
  "where the largest element is, i32: the first of equal ones; NaN is the largest; without an axis, of all")

---The place of the smallest element along an axis, or of all in the order of memory: the first, if several are equal.
---@param x moonshard.Tensor
---@param axis integer|{ axis: integer?, keepdim: boolean? }|nil default: all
---@param keepdim boolean?
---@return moonshard.Tensor i32
function ops.argmin(x, axis, keepdim)
  return where_first("argmin", ops.scale(value_of("argmin", x, FLOATS), { alpha = -1 }), axis, keepdim)
end
composed("argmin", "1 input, { axis, keepdim }",
  "where the smallest element is, i32: the first of equal ones, and of NaN, if there is any; without an axis, of all")

-- ---- by index ---------------------------------------------------------------------------------------------------

-- x without what lies outside of the other's shape, on all axes but one.
local function cut_to(x, other, axis)
  for d = 0, #x.shape - 1 do
    local size = other.shape[d + 1]
    if d ~= axis and size and size < x.shape[d + 1] then x = ops.slice(x, { axis = d, start = 0, stop = size }) end
  end
  return x
end

---Elements of one axis by index: gather(x, 1, index), or gather(x, index, { axis = 1 }). The index can be shorter than
---x on other axes.
---@param x moonshard.Tensor
---@param axis integer|moonshard.Tensor
---@param ... moonshard.Tensor the index, i32
---@return moonshard.Tensor
function ops.gather(x, axis, ...)
  if type(axis) ~= "number" then return row.gather(x, axis, ...) end
  local index = ...
  x = value_of("gather", x)
  if not tensor.is(index) then
    errors.invalid("gather: the index must be a tensor i32, not %s", options.describe(index))
  end
  return row.gather(cut_to(x, index, any_axes.of(x, axis)), index, { axis = axis })
end

---Adds src to the elements of one axis that the index names, in its order: scatter_add(x, 1, index, src), or
---scatter_add(x, index, src, { axis = 1 }).
---@param x moonshard.Tensor
---@param axis integer|moonshard.Tensor
---@param ... moonshard.Tensor the index, i32, with all of x on the other axes; and src, with the index's shape
---@return moonshard.Tensor
function ops.scatter_add(x, axis, ...)
  if type(axis) ~= "number" then return row.scatter_add(x, axis, ...) end
  local index, src = ...
  return row.scatter_add(x, index, src, { axis = axis })
end

---Numbers as vectors with a 1 at their place: index i32 [...] -> [..., classes]. One outside of [0, classes) fails.
---@param index moonshard.Tensor i32
---@param classes integer
---@param dtype string? default "f32"
---@return moonshard.Tensor
function ops.one_hot(index, classes, dtype)
  index = value_of("one_hot", index, INDICES)
  check_whole("one_hot", "the number of classes", classes, 1)
  dtype = dtype or "f32"
  local shape = { unpack(index.shape) }
  shape[#shape + 1] = classes
  local at = any_axes.methods.unsqueeze(index, -1)
  local zeros = ops.fill { shape = shape, value = 0, out_dtype = dtype }
  local ones = ops.fill { shape = at.shape, value = 1, out_dtype = dtype }
  return named("one_hot", row.scatter_add, zeros, at, ones, { axis = -1 })
end
composed("one_hot", "1 input, classes, dtype", "index i32 [...] -> [...,classes]: 1 at the index, else 0")

-- ---- along an axis ----------------------------------------------------------------------------------------------

---Moves elements along an axis; what leaves at one end enters at the other. Without an axis, in the order of memory.
---@param x moonshard.Tensor
---@param by integer|moonshard.ops.roll
---@param axis integer?
---@return moonshard.Tensor
function ops.roll(x, by, axis)
  if type(by) == "table" and by[1] then
    errors.invalid("roll: it moves along one axis at a time: call it once for each")
  end
  if type(by) == "table" then return row.roll(x, by) end
  x = value_of("roll", x)
  check_whole("roll", "the distance", by, -math.huge)
  if axis then return row.roll(x, { by = by, axis = axis }) end
  return ops.reshape(row.roll(flat(x), { by = by, axis = 0 }), { shape = x.shape })
end

---Consecutive pieces of an axis: x:split(2, 1) in pieces of 2, the last perhaps shorter; x:split({ 3, 1 }, 1).
---@param x moonshard.Tensor
---@param sizes integer|integer[]
---@param axis integer? default 0
---@return moonshard.Tensor[]
function ops.split(x, sizes, axis)
  x = value_of("split", x)
  axis = any_axes.of(x, axis or 0)
  local size, pieces, start, left = x.shape[axis + 1], {}, 0, {}
  if type(sizes) ~= "table" then
    check_whole("split", "the size of a piece", sizes, 1)
    for first = 0, size - 1, sizes do left[#left + 1] = math.min(sizes, size - first) end
    sizes = left
  end
  for i, length in ipairs(lists.items("split", sizes)) do
    check_whole("split", "the size of a piece", length, 1)
    pieces[i] = start + length <= size and ops.slice(x, { axis = axis, start = start, stop = start + length })
    start = start + length
  end
  if start ~= size then
    errors.raise("MS_ESHAPE", "split: pieces of %d elements together, of axis %d of a tensor %s; they must be %d",
      start, axis, tensor.shape_text(x.shape), size)
  end
  return pieces
end
composed("split", "1 input, sizes, axis", "a list of consecutive pieces of one axis, of one size or of a list of sizes")

---Consecutive pieces of an axis, as many as asked if it is long enough: x:chunk(3, 1).
---@param x moonshard.Tensor
---@param count integer
---@param axis integer? default 0
---@return moonshard.Tensor[]
function ops.chunk(x, count, axis)
  check_whole("chunk", "the number of pieces", count, 1)
  x = value_of("chunk", x)
  axis = any_axes.of(x, axis or 0)
  return ops.split(x, math.ceil(x.shape[axis + 1] / count), axis)
end
composed("chunk", "1 input, count, axis", "a list of so many consecutive pieces of one axis, if it is long enough")

-- ---- triangles --------------------------------------------------------------------------------------------------

-- The numbers of rows and of columns, from `first` on, i32. Constants of a trace; equal ones are one tensor.
local made = setmetatable({}, { __mode = "v" })

local function numbered(shape, count, first)
  local key = table.concat(shape, "x") .. " " .. first
  local tensor_of_numbers = made[key] or eager_values.make("i32", shape, function(data)
    for i = 0, count - 1 do data[i] = first + i end
  end)
  made[key] = tensor_of_numbers
  return tensor_of_numbers
end

local function triangle(who, x, diagonal, lower)
  x, diagonal = value_of(who, x), diagonal or 0
  check_whole(who, "the diagonal", diagonal, -math.huge)
  if #x.shape < 2 then
    errors.raise("MS_ESHAPE", "%s of a tensor %s: it needs two axes", who, tensor.shape_text(x.shape))
  end
  local rows, columns = x.shape[#x.shape - 1], x.shape[#x.shape]
  diagonal = math.max(-rows, math.min(columns, diagonal)) -- beyond the corners nothing changes
  local on_diagonal, column = numbered({ rows, 1 }, rows, diagonal), numbered({ columns }, columns, 0)
  local kept = lower and ops.less_equal(column, on_diagonal) or ops.less_equal(on_diagonal, column)
  return ops.where(kept, x, 0)
end

---The lower triangle of matrices [..., rows, columns]: 0 above a diagonal.
---@param x moonshard.Tensor
---@param diagonal integer? default 0; positive: as many more above the main one stay
---@return moonshard.Tensor
function ops.tril(x, diagonal) return triangle("tril", x, diagonal, true) end
composed("tril", "1 input, diagonal", "the lower triangle of matrices [...,R,C]: 0 where column > row + diagonal")

---The upper triangle of matrices [..., rows, columns]: 0 below a diagonal.
---@param x moonshard.Tensor
---@param diagonal integer? default 0; positive: as many above the main one are 0, too
---@return moonshard.Tensor
function ops.triu(x, diagonal) return triangle("triu", x, diagonal, false) end
composed("triu", "1 input, diagonal", "the upper triangle of matrices [...,R,C]: 0 where column < row + diagonal")

for _, name in ipairs({
  "cumsum", "topk", "argmax", "argmin", "gather", "scatter_add", "one_hot", "roll", "tril", "triu", "split",
  "chunk",
}) do
  methods[name] = ops[name]
end

return places
