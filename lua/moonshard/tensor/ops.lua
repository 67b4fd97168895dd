-- Every op of the engine as a function: ops.<name>(inputs..., { attribute = value }). The functions are generated from
-- the op table, so a new op of the engine needs no change here. ops.help() lists them, and all methods of tensors.
--
-- A function returns the op's first output; ops.apply returns all outputs (statistics of a norm, the target count of
-- cross_entropy). During a trace, inputs are tensors or parameters of the trace, and eager tensors as constants;
-- outside a trace they are eager tensors, and the op is computed immediately. Numbered attributes of the table are
-- given as one list: ops.reshape(x, { shape = { 8, -1 } }), ops.transpose(x, { axes = { 0, 2, 1 } }).

local context = require("moonshard.base.context")
local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local list_checks = require("moonshard.base.checks.lists")
local method_help = require("moonshard.tensor.method_help")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")
local parameter = require("moonshard.tensor.parameter")
local eager_values = require("moonshard.tensor.values")
local C, ffi = engine.C, engine.ffi

local MAX_INPUTS, MAX_OUTPUTS = tonumber(C.MS_MAX_INPUTS), tonumber(C.MS_MAX_OUTPUTS)
local ACTIVATIONS = { none = 0, relu = 1, gelu = 2, gelu_tanh = 3, silu = 4 }

---@class moonshard.ops
local ops = {}

---@class moonshard.OpRow one op's row of the op table
---@field name string
---@field doc string formula and shapes
---@field outputs integer
---@field min_inputs integer
---@field max_inputs integer
---@field differentiable boolean
---@field across boolean along a mesh dimension: collectives.lua has it with arguments of its own
---@field attributes table<string, string> "integer" or "number" by name
---@field lists table<string, { letter: string, count: integer, ndim: boolean }>
local rows = {}
ops.rows = rows

-- Parses "axis=-1 eps=1e-5" to types by name: a default with a point, an exponent or inf is a number's. d0, d1, ...
-- ndim make the list `shape`, p0, p1, ... `axes`.
local function parse_attributes(text)
  local attributes, lists, count = {}, {}, { d = 0, p = 0 }
  for name, default in text:gmatch("([%w_]+)=(%S+)") do
    local letter = name:match("^([dp])%d$")
    if letter then count[letter] = count[letter] + 1
    else attributes[name] = default:find("[%.ei]") and "number" or "integer" end
  end
  if count.d > 0 then
    lists.shape = { letter = "d", count = count.d, ndim = true }
    attributes.ndim = nil
  end
  if count.p > 0 then lists.axes = { letter = "p", count = count.p, ndim = false } end
  return attributes, lists
end

local function read_row(index)
  local info = ffi.new("ms_op_info")
  engine.check(C.ms_op_describe(index, info, ffi.sizeof(info)))
  local name = ffi.string(info.name)
  local attributes, lists = parse_attributes(ffi.string(info.attrs))
  return {
    name = name, doc = ffi.string(info.doc), outputs = info.outputs, attributes = attributes, lists = lists,
    min_inputs = info.min_inputs, max_inputs = info.max_inputs,
    differentiable = info.differentiable ~= 0, internal = info.internal ~= 0, across = attributes.ranks ~= nil,
  }
end

local function integer_of(row, name, value)
  if type(value) == "boolean" then return value and 1 or 0 end
  if name == "out_dtype" and type(value) == "string" then return 1 + dtypes.id(value) end
  if name == "activation" and ACTIVATIONS[value] then return ACTIVATIONS[value] end
  if type(value) == "number" and value % 1 == 0 then return value end
  errors.invalid("%s: %s must be an integer, not %s", row.name, name, options.describe(value))
end

-- The engine's text of attributes: "alpha=0.5 axis=1". 17 digits are all of a double.
local function add(attrs, name, value) attrs[#attrs + 1] = ("%s=%.17g"):format(name, value) end

local function add_list(row, attrs, name, list, values)
  if type(values) ~= "table" or #values > list.count then
    errors.raise("MS_ESHAPE", "%s: %s must be a list of at most %d integers", row.name, name, list.count)
  end
  for i = 1, #values do
    add(attrs, list.letter .. i - 1, integer_of(row, ("item %d of %s"):format(i, name), values[i]))
  end
  if list.ndim then add(attrs, "ndim", #values) end
end

local function add_attribute(row, attrs, name, value)
  local kind = row.attributes[name]
  if kind == "number" then
    if type(value) ~= "number" then
      errors.invalid("%s: %s must be a number, not %s", row.name, name, options.describe(value))
    end
    add(attrs, name, value)
  elseif kind then
    add(attrs, name, integer_of(row, name, value))
  elseif row.lists[name] then
    add_list(row, attrs, name, row.lists[name], value)
  else
    local valid = {}
    for key in pairs(row.attributes) do valid[key] = true end
    for key in pairs(row.lists) do valid[key] = true end
    errors.raise("MS_ENAME", "%s: no attribute %s: %s", row.name, tostring(name), nearest.advice(tostring(name), valid))
  end
end

-- Buffers of the current call; the engine copies what it keeps.
local ids = ffi.new("int[?]", MAX_INPUTS)
local results = ffi.new("int[?]", MAX_OUTPUTS)

-- Why a value is no tensor: a field that init did not set is nil, and so is what x.sum() gives sum.
local function described(row, position, input)
  if input ~= nil then return options.describe(input) end
  return "nil: it was never assigned, or has another name"
    .. (position == 1 and ("; methods have a colon, x:%s(...)"):format(row.name) or "")
end

local function input_id(trace, row, position, input)
  if type(input) == "table" then
    if rawget(input, "trace") == trace then return input.id end
    if parameter.is(input) then return trace:parameter(input).id end
    if rawget(input, "trace") then
      errors.invalid("%s: input %d belongs to another trace; a trace can only use its own tensors", row.name, position)
    end
    if rawget(input, "data") ~= nil and not options.is_array(input) then return trace:constant(input, row.name).id end
  end
  errors.invalid("%s: input %d must be a tensor, not %s", row.name, position, described(row, position, input))
end

-- ---- numbers as inputs -----------------------------------------------------------------------------------------

-- Broadcasting ops, with the index of the first input that can be a number: it becomes a tensor without axes, with the
-- other input's element type; that of a power is f32, and the result has the other's type. For sums, products and most
-- divisors a number is an attribute instead: x + 1 is the op scale.
local TAKES_NUMBERS = {
  less = 1, less_equal = 1, equal = 1, not_equal = 1, maximum = 1, minimum = 1, where = 2, pow = 1, div = 1,
}

local function dtype_beside(inputs, first, count)
  for i = first, count do
    local input = inputs[i]
    if parameter.is(input) then return context.trace and context.trace:parameter(input).dtype or "f32" end
    if type(input) == "table" and rawget(input, "dtype") then return input.dtype end
  end
  return "f32"
end

local function number_as_tensor(row, number, dtype)
  local range = dtypes.ranges[dtype]
  if range and (number % 1 ~= 0 or number < range[1] or number > range[2]) then
    errors.raise("MS_EDTYPE", "%s: %g with a tensor %s, whose numbers are whole, from %.0f to %.0f: cast the tensor, "
      .. 'x:cast("f32")', row.name, number, dtype, range[1], range[2])
  end
  if context.trace then return ops.fill { shape = {}, value = number, out_dtype = dtype } end
  return eager_values.make(dtype, {}, function(data) data[0] = number end)
end

local function take_numbers(row, inputs, count)
  local first = TAKES_NUMBERS[row.name]
  if not first then return end
  local dtype = row.name == "pow" and "f32" or dtype_beside(inputs, first, count)
  for i = first, count do
    if type(inputs[i]) == "number" then inputs[i] = number_as_tensor(row, inputs[i], dtype) end
  end
end

local function check_eager(row, inputs, count)
  for i = 1, count do
    local input = inputs[i]
    if parameter.is(input) then
      errors.invalid("%s: input %d is a parameter, which has values only inside its model; model:parameter(name) "
        .. "returns a tensor with them", row.name, i)
    elseif type(input) ~= "table" or rawget(input, "data") == nil or options.is_array(input) then
      local symbol = type(input) == "table" and rawget(input, "trace")
      errors.invalid("%s: input %d must be a tensor with values, as ms.tensor makes them, not %s", row.name, i,
        symbol and "a symbol of a trace that has ended" or described(row, i, input))
    end
  end
end

-- The text of a call's attributes. Sorted, so that equal attributes are equal texts; nil without any.
local function read_attributes(row, attributes)
  if not attributes then return nil end
  local attrs = {}
  for name, value in pairs(attributes) do add_attribute(row, attrs, name, value) end
  table.sort(attrs)
  return table.concat(attrs, " ")
end

local function check_count(row, count)
  if count == 0 and row.min_inputs > 0 then
    errors.invalid("%s has no input: call it with a colon, x:%s(...), or give it a tensor", row.name, row.name)
  end
  if count <= MAX_INPUTS then return end
  errors.invalid("%s: got %d inputs; it takes at most %d", row.name, count, row.max_inputs)
end

local function emit(trace, row, inputs, count, attrs)
  local trained = false
  for i = 1, count do
    ids[i - 1] = input_id(trace, row, i, inputs[i])
    trained = trained or trace.trained[ids[i - 1]]
  end
  trace:note(row.name, inputs, count)
  engine.check(C.ms_graph_op(trace.handle, row.name, count, ids, attrs, results))
  if not trained or row.name == "detach" then return end
  for i = 0, row.outputs - 1 do trace.trained[results[i]] = true end
end

-- Computes immediately; returns the list of all outputs.
local function evaluate(row, inputs, count, attrs)
  check_eager(row, inputs, count)
  return require("moonshard.tensor.evaluate")(row, inputs, count, attrs)
end

-- A table without a metatable is a list of inputs if it contains tensors, and the attributes if it is no array, which
-- is refused as an input.
local function sort_arguments(row, ...)
  local inputs, count, attributes = {}, 0, nil
  for i = 1, select("#", ...) do
    local argument = select(i, ...)
    if type(argument) ~= "table" or getmetatable(argument) or options.is_array(argument) then
      count = count + 1
      inputs[count] = argument
    elseif type(argument[1]) == "table" and getmetatable(argument[1]) then
      for _, input in ipairs(list_checks.items(row.name, argument)) do
        count = count + 1
        inputs[count] = input
      end
    elseif attributes then
      errors.invalid("%s: attributes given twice; put them in one table", row.name)
    else
      attributes = argument
    end
  end
  return inputs, count, attributes
end

---Applies an op and returns all of its outputs.
---@param name string
---@param inputs (moonshard.Tensor|moonshard.Parameter)[]
---@param attributes table<string, any>?
---@return moonshard.Tensor[]
function ops.apply(name, inputs, attributes)
  local row = rows[name]
  if not row then
    errors.raise("MS_ENAME", "no op named %s: %s", tostring(name), nearest.advice(tostring(name), rows))
  end
  check_count(row, #inputs)
  inputs = { unpack(inputs) }
  take_numbers(row, inputs, #inputs)
  local attrs, trace, values = read_attributes(row, attributes), context.trace, {}
  if not trace then return evaluate(row, inputs, #inputs, attrs) end
  emit(trace, row, inputs, #inputs, attrs)
  for i = 1, row.outputs do values[i] = results[i - 1] end
  for i = 1, row.outputs do values[i] = trace:tensor(values[i]) end
  return values
end

---Functions that consist of ops, for help: what they take, and their formula.
---@type table<string, { takes: string, doc: string }>
ops.composed = {
  apply = { takes = "a name, a list of inputs, { attribute }", doc = "all outputs of that op, as a list" },
  help = { takes = "nothing", doc = "this text" },
}

local function add_entry(lines, name, takes, doc)
  lines[#lines + 1] = ("%-14s %s\n               %s"):format(name, takes, doc)
end

local function add_row(lines, row)
  local attributes = {}
  for key in pairs(row.attributes) do attributes[#attributes + 1] = key end
  for key in pairs(row.lists) do attributes[#attributes + 1] = key end
  table.sort(attributes)
  local taken = row.min_inputs == row.max_inputs and row.min_inputs or row.min_inputs .. " to " .. row.max_inputs
  local more = #attributes > 0 and ", { " .. table.concat(attributes, ", ") .. " }" or ""
  if row.across then more = ", a mesh dimension, ..." end
  add_entry(lines, row.name, ("%s input%s%s"):format(taken, taken == 1 and "" or "s", more), row.doc)
end

---All functions of ms.ops and all methods of tensors, as text: the ops with their inputs, attributes and formulas, and
---what consists of them.
---@return string
function ops.help()
  local lines, names = {}, {}
  for _, entries in ipairs({ rows, ops.composed, method_help }) do
    for name in pairs(entries) do names[#names + 1] = name end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local entry = ops.composed[name] or method_help[name]
    if entry then add_entry(lines, name, entry.takes, entry.doc) else add_row(lines, rows[name]) end
  end
  return table.concat(lines, "\n")
end

for index = 0, C.ms_op_count() - 1 do
  local row = read_row(index)
  if not row.internal then
    rows[row.name] = row
    ops[row.name] = function(...)
      local inputs, count, attributes = sort_arguments(row, ...)
      check_count(row, count)
      take_numbers(row, inputs, count)
      local attrs, trace = read_attributes(row, attributes), context.trace
      if not trace then return evaluate(row, inputs, count, attrs)[1] end
      emit(trace, row, inputs, count, attrs)
      return trace:tensor(results[0])
    end
  end
end

return setmetatable(ops, {
  __index = function(_, name)
    errors.raise("MS_ENAME", "no op named %s: %s", tostring(name), nearest.advice(tostring(name), rows))
  end,
})
