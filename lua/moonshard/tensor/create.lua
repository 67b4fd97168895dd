-- Creates eager tensors: from numbers, filled, ranges and random.
--
-- A shape is a list of numbers or one table; options follow it, or are named in the same table:
--   ms.zeros(2, 3)   ms.zeros({ 2, 3 }, { dtype = "i32" })   ms.zeros { 2, 3, dtype = "i32" }
--
-- Random tensors use the generator of initial parameters. Every call advances it: the n-th call after
-- ms.manual_seed(s) returns the same numbers on every rank and in every run.

local context = require("moonshard.base.context")
local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local lists = require("moonshard.base.checks.lists")
local options = require("moonshard.base.checks.options")
local tensor = require("moonshard.tensor")
local values = require("moonshard.tensor.values")
local C, make = engine.C, values.make

local create = {}

local MAX_DIMS = tonumber(C.MS_MAX_DIMS)

-- ---- arguments --------------------------------------------------------------------------------------------------

local function check_shape(who, sizes)
  if #sizes > MAX_DIMS then errors.raise("MS_ESHAPE", "%s: %d axes; at most %d", who, #sizes, MAX_DIMS) end
  for axis, size in ipairs(sizes) do
    if type(size) ~= "number" or size % 1 ~= 0 or size < 1 then
      errors.raise("MS_ESHAPE", "%s: size %s of axis %d must be an integer of at least 1", who, options.describe(size),
        axis - 1)
    end
  end
  return sizes
end

-- Splits a table into its list part and its named fields, merged with the fields of a second table.
local function split(given, more)
  local list, named = {}, {}
  for i, value in ipairs(given) do list[i] = value end
  for _, from in ipairs({ given, more }) do
    for name, value in pairs(from) do
      if type(name) == "string" then named[name] = value end
    end
  end
  return list, named
end

-- The arguments as a list, and the options: f(2, 3), f({ 2, 3 }, {...}), f { 2, 3, name = ... }.
local function read(who, specs, ...)
  specs.dtype = { "string", default = "f32" }
  local first, more = ...
  local list, named
  if type(first) == "table" and not tensor.is(first) then
    if select("#", ...) > 2 or more ~= nil and (type(more) ~= "table" or getmetatable(more)) then
      errors.invalid("%s: options follow the list in a table, { dtype = \"i32\" }, not %s", who,
        options.describe(select("#", ...) > 2 and select(3, ...) or more))
    end
    list, named = split(first, more)
  else
    for i = 1, select("#", ...) do
      if select(i, ...) == nil then errors.raise("MS_ESHAPE", "%s: argument %d is nil", who, i) end
    end
    list, named = { ... }, {}
    if type(list[#list]) == "table" then named = table.remove(list) end
  end
  local parsed = options.parse(who, named, specs)
  parsed.dtype = select(2, dtypes.id(parsed.dtype))
  dtypes.check_whole_bytes(who, parsed.dtype)
  return list, parsed
end

local function check_number(who, dtype, value)
  local range = dtypes.ranges[dtype]
  if type(value) ~= "number" then
    errors.invalid("%s: expected a number, not %s", who, options.describe(value))
  elseif range and (value % 1 ~= 0 or value < range[1] or value > range[2]) then
    errors.raise("MS_EDTYPE", "%s: %s does not fit in %s (whole numbers from %.0f to %.0f)", who, tostring(value),
      dtype, range[1], range[2])
  end
end

-- ---- from numbers -----------------------------------------------------------------------------------------------

-- Appends the numbers of a nested list to `flat`, and checks the list against the shape.
local function flatten(list, shape, axis, dtype, flat)
  if axis > #shape then
    check_number("ms.tensor", dtype, list)
    flat[#flat + 1] = list
    return
  end
  if type(list) ~= "table" or #list ~= shape[axis] then
    errors.raise("MS_ESHAPE", "ms.tensor: lists of different lengths: %s along axis %d where the first has %d",
      type(list) == "table" and ("%d item%s"):format(#list, #list == 1 and "" or "s") or options.describe(list),
      axis - 1, shape[axis])
  end
  for _, item in ipairs(lists.items("ms.tensor", list)) do flatten(item, shape, axis + 1, dtype, flat) end
end

-- A tensor with the values of another one, or of an array of a recipe's own batch.
local function of_array(given, more)
  local o = options.parse("ms.tensor", more or {}, { dtype = { "string", default = given.dtype } })
  local _, dtype = dtypes.id(given.dtype)
  local shape = { unpack(given.shape) }
  dtypes.check_whole_bytes("ms.tensor", dtype)
  dtypes.check_memory("the array's data", given.data, dtype, values.check_size(dtype, check_shape("ms.tensor", shape)))
  local made = values.copy(dtype, shape, given.data)
  return dtypes.id(o.dtype) == dtypes.id(dtype) and made or made:cast(o.dtype)
end

---A tensor with the given numbers.
---@param given number|table a number, or nested lists: { { 1, 2 }, { 3, 4 } }; or a tensor, or an array { data, dtype,
---  shape }, whose values it copies
---@param more { dtype: string? }? default f32, or that of what it copies; the outermost list can contain it:
---  { 1, 2, dtype = "i32" }
---@return moonshard.Tensor
function create.tensor(given, more)
  if type(given) == "number" and type(more) == "number" then
    errors.invalid("ms.tensor takes one number, or numbers in a list: ms.tensor { %g, %g }; ms.zeros(%g, %g) is filled",
      given, more, given, more)
  end
  if tensor.is_eager(given) or options.is_array(given) then return of_array(given, more) end
  if type(given) == "number" then given, more = { given, scalar = true }, more end
  if type(given) ~= "table" or getmetatable(given) then
    errors.invalid("ms.tensor takes a number or nested lists of numbers, not %s",
      type(given) == "table" and tostring(given) or options.describe(given))
  end
  local list, o = read("ms.tensor", { scalar = { "boolean" } }, given, more)
  local shape, inner, flat = {}, list, {}
  while type(inner) == "table" do
    if getmetatable(inner) then
      errors.invalid("ms.tensor takes numbers, and item 1 of a list is %s: ms.ops.stack { a, b } joins tensors",
        tostring(inner))
    end
    if #inner == 0 then errors.raise("MS_ESHAPE", "ms.tensor: a list is empty; sizes must be at least 1") end
    shape[#shape + 1], inner = #inner, inner[1]
  end
  flatten(list, check_shape("ms.tensor", shape), 1, o.dtype, flat)
  return make(o.dtype, o.scalar and {} or shape, function(data, count)
    for i = 1, count do data[i - 1] = flat[i] end
  end)
end

local function filled(who, value, shape, dtype)
  check_number(who, dtype, value)
  return make(dtype, check_shape(who, shape), function(data, count)
    for i = 0, count - 1 do data[i] = value end
  end)
end

---A tensor filled with 0.
---@param ... any sizes, { dtype = "f32" }
---@return moonshard.Tensor
function create.zeros(...)
  local shape, o = read("ms.zeros", {}, ...)
  return filled("ms.zeros", 0, shape, o.dtype)
end

---A tensor filled with 1.
---@param ... any sizes, { dtype = "f32" }
---@return moonshard.Tensor
function create.ones(...)
  local shape, o = read("ms.ones", {}, ...)
  return filled("ms.ones", 1, shape, o.dtype)
end

---A tensor filled with one number: ms.full({ 2, 3 }, 7).
---@param shape integer[]
---@param value number
---@param more { dtype: string? }? default f32
---@return moonshard.Tensor
function create.full(shape, value, more)
  if type(shape) ~= "table" then errors.invalid("ms.full takes a list of sizes and a number: ms.full({ 2, 3 }, 7)") end
  local sizes, o = read("ms.full", {}, shape, more)
  return filled("ms.full", value, sizes, o.dtype)
end

---start, start + step, ... below stop: ms.arange(stop), ms.arange(start, stop), ms.arange(start, stop, step).
---@param ... any numbers, { dtype = "f32" }
---@return moonshard.Tensor
function create.arange(...)
  local bounds, o = read("ms.arange", {}, ...)
  if #bounds == 0 then errors.invalid("ms.arange: argument 1 (the end) is missing") end
  if #bounds > 3 then options.no_more("ms.arange(start, stop, step)", bounds[4]) end
  local start, stop, step = bounds[1], bounds[2], bounds[3] or 1
  if #bounds == 1 then start, stop = 0, start end
  for _, bound in ipairs({ start or false, stop or false, step }) do check_number("ms.arange", "f32", bound) end
  local count = step ~= 0 and math.ceil((stop - start) / step) or 0
  if count < 1 or count ~= count then
    errors.raise("MS_ESHAPE", "ms.arange from %g to %g in steps of %g has no elements; sizes must be at least 1", start,
      stop, step)
  end
  for _, last in ipairs({ start, start + (count - 1) * step }) do check_number("ms.arange", o.dtype, last) end
  return make(o.dtype, { count }, function(data)
    for i = 0, count - 1 do data[i] = start + i * step end
  end)
end

-- ---- drawn ------------------------------------------------------------------------------------------------------

local seed, draws = 0, 0

local function check_seed(who, value)
  if type(value) == "number" and value % 1 == 0 and value >= 0 and value < 2 ^ 53 then return end
  errors.invalid("%s: a seed is an integer from 0 to 2^53 - 1, not %s", who, options.describe(value))
end

---Seeds the random tensors and restarts their sequence.
---@param value integer
function create.manual_seed(value)
  check_seed("ms.manual_seed", value)
  seed, draws = value, 0
end

---The state of ms.rand and ms.randn.
---@return { seed: number, draws: integer }
function create.generator()
  return { seed = seed, draws = draws }
end

---Restores such a state.
---@param state { seed: number, draws: integer }
function create.load_generator(state)
  seed, draws = state.seed, state.draws
end

local function drawn(who, distribution, a, b, ...)
  local shape, o = read(who, { seed = { "integer" } }, ...)
  check_shape(who, shape)
  if dtypes.ranges[o.dtype] then
    errors.raise("MS_EDTYPE", "%s generates %s, not %s", who, dtypes.list(), o.dtype)
  end
  local key, name = o.seed, who
  if key then
    check_seed(who, key)
  elseif context.trace then
    errors.invalid("%s: a forward or a loss is traced once, so every step would get the same numbers: draw them "
      .. "outside and give them as a field of the batch, batch.noise = %s { ... }; x:dropout(p) draws in every step; "
      .. "for a constant, give %s a seed", who, who, who)
  else
    draws = draws + 1
    key, name = seed, ("draw %d"):format(draws)
  end
  return make(o.dtype, shape, function(data, count)
    engine.check(C.ms_initial_values(key, name, distribution, a, b, 0, count, data))
  end)
end

---Standard normal random numbers.
---@param ... any sizes, { dtype = "f32", seed = integer }; a seed makes the result independent of earlier calls
---@return moonshard.Tensor
function create.randn(...)
  return drawn("ms.randn", C.MS_INIT_NORMAL, 0, 1, ...)
end

---Uniform random numbers in [0, 1).
---@param ... any sizes, { dtype = "f32", seed = integer }; a seed makes the result independent of earlier calls
---@return moonshard.Tensor
function create.rand(...)
  return drawn("ms.rand", C.MS_INIT_UNIFORM, 0, 1, ...)
end

return create
