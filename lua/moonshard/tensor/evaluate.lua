-- Runs an op on eager tensors: a plan with only this op, compiled once per attributes, shapes and element types, and
-- run on this rank alone. All such plans share one state, whose arenas grow to the largest plan.
--
-- Plans have no tensors without elements, but a rank's part of a parameter can be one: of these, shapes alone are
-- computed.

local single_rank = require("moonshard.distributed.single_rank")
local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local tensor = require("moonshard.tensor.class")
local values = require("moonshard.tensor.values")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

-- Maximum number of compiled ops; above it all are dropped, and those still in use are compiled again.
local MAX_COMPILED = 256

local MAX_INPUTS, MAX_OUTPUTS = tonumber(C.MS_MAX_INPUTS), tonumber(C.MS_MAX_OUTPUTS)

local input_names, output_names = {}, {}
for i = 1, MAX_INPUTS do input_names[i] = tostring(i) end
for i = 1, MAX_OUTPUTS do output_names[i] = tostring(i) end

local compiled, count_compiled = {}, 0
local model, state

local config = engine.config("ms_plan_config")
config.optimizer, config.train = C.MS_OPT_NONE, 0

-- A model without parameters, and the state shared by the plans.
local function make_place()
  local out_model, out_state = ffi.new("ms_model *[1]"), ffi.new("ms_state *[1]")
  check(C.ms_model_new(0, out_model))
  model = ffi.gc(out_model[0], C.ms_free)
  local dims = engine.config("ms_model_dims")
  check(C.ms_model_shard(model, single_rank.mesh().handle, 0, dims))
  check(C.ms_state_new(single_rank.world(), model, config, 1, out_state))
  state = ffi.gc(out_state[0], C.ms_free)
end

local id, info = ffi.new("int[1]"), ffi.new("ms_value_info")

local function add_inputs(graph, inputs, count)
  local ids = ffi.new("int[?]", MAX_INPUTS)
  for i = 1, count do
    local input = inputs[i]
    local dims = ffi.new("int64_t[?]", #input.shape + 1, input.shape)
    check(C.ms_graph_input(graph, input_names[i], (dtypes.id(input.dtype)), #input.shape, dims, -1, id))
    ids[i - 1] = id[0]
  end
  return ids
end

-- The op's results, { dtype, shape } per output, which become outputs of the graph.
local function add_outputs(graph, row, results)
  local outputs = {}
  for i = 1, row.outputs do
    check(C.ms_graph_output(graph, output_names[i], results[i - 1]))
    check(C.ms_graph_describe(graph, results[i - 1], info, ffi.sizeof(info)))
    local shape = {}
    for d = 1, info.ndim do shape[d] = tonumber(info.dims[d - 1]) end
    outputs[i] = { dtype = dtypes.names[info.dtype], shape = shape }
  end
  return outputs
end

-- The graph of one op, and what its outputs are.
local function make_graph(row, inputs, count, attrs)
  if not state then make_place() end
  local out_graph = ffi.new("ms_graph *[1]")
  check(C.ms_graph_new(model, out_graph))
  local graph = ffi.gc(out_graph[0], C.ms_free)
  local ids, results = add_inputs(graph, inputs, count), ffi.new("int[?]", MAX_OUTPUTS)
  check(C.ms_graph_op(graph, row.name, count, ids, attrs, results))
  return graph, add_outputs(graph, row, results)
end

local function compile(row, inputs, count, attrs)
  local graph, outputs = make_graph(row, inputs, count, attrs)
  local out_plan, out_exec = ffi.new("ms_plan *[1]"), ffi.new("ms_exec *[1]")
  check(C.ms_plan_compile(graph, config, out_plan))
  local plan = ffi.gc(out_plan[0], C.ms_free)
  check(C.ms_exec_new(state, plan, out_exec))
  return { exec = ffi.gc(out_exec[0], C.ms_free), plan = plan, outputs = outputs }
end

local function key_of(row, inputs, count, attrs)
  local parts = { row.name, attrs or "" }
  for i = 1, count do
    parts[#parts + 1] = inputs[i].dtype
    parts[#parts + 1] = table.concat(inputs[i].shape, "x")
  end
  return table.concat(parts, " ")
end

local function find(row, inputs, count, attrs)
  local key = key_of(row, inputs, count, attrs)
  local entry = compiled[key]
  if entry then return entry end
  entry = compile(row, inputs, count, attrs)
  if count_compiled == MAX_COMPILED then compiled, count_compiled = {}, 0 end
  compiled[key], count_compiled = entry, count_compiled + 1
  return entry
end

-- ---- tensors without elements -----------------------------------------------------------------------------------

local ZERO_OF_NOTHING = { sum = true, sum_to = true }

local function has_elements(shape)
  for _, size in ipairs(shape) do
    if size == 0 then return false end
  end
  return true
end

local function refuse_empty(row, inputs, count)
  local shapes = {}
  for i = 1, count do shapes[i] = tensor.shape_text(inputs[i].shape) end
  errors.raise("MS_ESHAPE", "%s of %s is not defined: a tensor has no elements, as this rank's part of a parameter of "
    .. "which it owns nothing: leave it out where x:numel() is 0", row.name, table.concat(shapes, " and "))
end

-- The outputs' shapes with another size in place of every 0.
local function shapes_with(size, row, inputs, count, attrs)
  local filled = {}
  for i = 1, count do
    local shape = {}
    for d, own in ipairs(inputs[i].shape) do shape[d] = own == 0 and size or own end
    filled[i] = { dtype = inputs[i].dtype, shape = shape }
  end
  attrs = attrs and attrs:gsub("%f[%a]d(%d)=0%f[^%d.]", "d%1=" .. size)
  return select(2, make_graph(row, filled, count, attrs))
end

-- Sizes of outputs grow evenly with those of inputs: two that are not 0 say what 0 makes of them.
local function evaluate_empty(row, inputs, count, attrs)
  local ok, two, three = pcall(function()
    return shapes_with(2, row, inputs, count, attrs), shapes_with(3, row, inputs, count, attrs)
  end)
  if not ok and two.status ~= "MS_ESHAPE" then error(two, 0) end -- of what the shapes are no part
  if not ok then refuse_empty(row, inputs, count) end
  local results = {}
  for i, output in ipairs(two) do
    local shape = {}
    for d, size in ipairs(output.shape) do shape[d] = 3 * size - 2 * three[i].shape[d] end
    if has_elements(shape) and not ZERO_OF_NOTHING[row.name] then refuse_empty(row, inputs, count) end
    results[i] = tensor.eager(output.dtype, shape, (values.allocate(output.dtype, shape)))
  end
  return results
end

local function are_whole(inputs, count)
  for i = 1, count do
    if not has_elements(inputs[i].shape) then return false end
  end
  return true
end

---Computes one op.
---@param row moonshard.OpRow
---@param inputs moonshard.Tensor[] eager
---@param count integer of inputs
---@param attrs string? "axis=1 keepdim=1", sorted
---@return moonshard.Tensor[] all outputs
return function(row, inputs, count, attrs)
  world.check_interrupt()
  if not are_whole(inputs, count) then return evaluate_empty(row, inputs, count, attrs) end
  local entry = find(row, inputs, count, attrs)
  for i = 1, count do
    ffi.copy(C.ms_exec_input(entry.exec, input_names[i]), inputs[i].data, values.bytes(inputs[i]))
  end
  check(C.ms_exec_run(entry.exec, C.MS_PHASE_EVALUATE, nil, nil, 0))
  local results = {}
  for i, output in ipairs(entry.outputs) do
    results[i] = values.copy(output.dtype, { unpack(output.shape) }, C.ms_exec_output(entry.exec, output_names[i]))
  end
  return results
end
