-- Traces: runs a Lua function once on symbols, so that the ops that it calls become a graph of the engine. A graph is
-- for one set of input shapes; plans are compiled from it.

local context = require("moonshard.base.context")
local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.options")
local recompute = require("moonshard.nn.recompute")
local regather = require("moonshard.nn.regather")
local shardings = require("moonshard.shard.sharding")
local tensor = require("moonshard.tensor")
local tree = require("moonshard.nn.tree")
local C, ffi = engine.C, engine.ffi

---@class moonshard.Trace
---@field handle ffi.cdata* ms_graph*
---@field inputs table<string, moonshard.Tensor>
---@field loss moonshard.Tensor?
---@field weights table<integer, { weight: moonshard.Tensor, terms: integer }> by value of a loss: its weight in means
---  over micro-batches, which is 1 if none of its `terms` is ignored
---@field counts { weight: moonshard.Tensor, terms: integer }? the entry of `weights` for the returned loss
---@field outputs table<string, moonshard.Tensor>
---@field constants { name: string, tensor: moonshard.Tensor }[] eager tensors: inputs written before every run
---@field trained table<integer, boolean> by value: whether it depends on a parameter that trains, other than by detach
---@field routers moonshard.RouterTerms[] of the routers that were called, which train:step adds to the loss
---@field returned table the result of the traced function
---@field sharding moonshard.Sharding
---@field paths table<moonshard.Module, string> FQN of every module of the model
---@field recompute table<moonshard.Module, moonshard.Recompute>
---@field regather table<moonshard.Module, moonshard.Regather>
---@field regathers moonshard.Regather the current one
---@field region moonshard.Region recomputation region of new nodes
---@field regions integer number of regions so far
---@field precision table<moonshard.Module, moonshard.MixedPrecision> for root modules of units
local Trace = {}
Trace.__index = Trace

---@class moonshard.trace
local capture = {}

---@param id integer a value of the graph
---@return moonshard.Tensor
function Trace:tensor(id)
  return tensor.new(self, id)
end

local value = ffi.new("int[1]")

---The value of a parameter in this trace, in its unit's param_dtype.
---@param parameter moonshard.Parameter
---@return moonshard.Tensor
function Trace:parameter(parameter)
  local known = self.values[parameter]
  if known then return known end
  local index = self.sharding.index[parameter]
  if not index then
    errors.raise("MS_ENAME", "parameter [%s] is not part of the model: assign it to a field of a module before "
      .. "ms.fully_shard or the first step", table.concat(parameter.shape, ","))
  end
  engine.check(C.ms_graph_param(self.handle, index, value))
  known = tensor.new(self, value[0])
  self.values[parameter], self.trained[known.id] = known, not parameter.frozen
  return known
end

local function add_input(self, name, dtype, shape, rows)
  local dims = ffi.new("int64_t[?]", #shape + 1, shape)
  engine.check(C.ms_graph_input(self.handle, name, (dtypes.id(dtype)), #shape, dims, value))
  if rows then engine.check(C.ms_graph_set_input_rows(self.handle, value[0], rows)) end
  return tensor.new(self, value[0])
end

---The value of an eager tensor in this trace: a separate input, written before every run.
---@param eager moonshard.Tensor
---@return moonshard.Tensor
function Trace:constant(eager)
  local known = self.values[eager]
  if known then return known end
  local name = "constant " .. #self.constants + 1
  known = add_input(self, name, eager.dtype, eager.shape, 0)
  self.values[eager] = known
  table.insert(self.constants, { name = name, tensor = eager })
  return known
end

---Sets the module path of the nodes that follow.
---@param path string
function Trace:enter(path)
  if path == context.path then return end
  context.path = path
  engine.check(C.ms_graph_set_scope(self.handle, path))
end

---The tensor of a parameter in the current trace.
---@param parameter moonshard.Parameter
---@return moonshard.Tensor
function capture.parameter(parameter)
  return context.trace:parameter(parameter)
end

local function declare_input(self, given)
  local name, dtype, shape = given[1] or given.name, given[2] or given.dtype, given[3] or given.shape
  if type(name) ~= "string" or type(shape) ~= "table" then
    errors.invalid("trace: an input is { name, dtype, shape }, as in { \"tokens\", \"i32\", { 8, 256 } }")
  end
  self.inputs[name] = add_input(self, name, dtype, shape, given.rows)
end

local function check_tensor(self, what, result)
  if tensor.is_eager(result) then return self:constant(result) end
  if tensor.is(result) then return result end
  errors.invalid("trace: %s must be a tensor, not %s", what, options.describe(result))
end

-- Sets the loss and the named outputs from the result of the traced function.
local function take_results(self, results)
  if type(results) ~= "table" or tensor.is(results) then
    errors.invalid("trace: the function must return { loss = tensor, outputs = { name = tensor } }")
  end
  if results.loss then
    self.loss = check_tensor(self, "loss", results.loss)
    engine.check(C.ms_graph_set_loss(self.handle, self.loss.id))
    self.counts = self.weights[self.loss.id]
    if self.counts then engine.check(C.ms_graph_set_loss_weight(self.handle, self.counts.weight.id)) end
  end
  local names = {}
  for name in pairs(results.outputs or {}) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    self.outputs[name] = check_tensor(self, "output " .. name, results.outputs[name])
    engine.check(C.ms_graph_output(self.handle, name, self.outputs[name].id))
  end
end

local function new_trace(model, sharding)
  local out = ffi.new("ms_graph *[1]")
  local model_handle = sharding:handle()
  engine.check(C.ms_graph_new(model_handle, out))
  local self = setmetatable({
    handle = ffi.gc(out[0], C.ms_graph_free), sharding = sharding, model_handle = model_handle,
    inputs = {}, outputs = {}, constants = {}, values = {}, trained = {}, routers = {}, paths = {},
    weights = {},
    precision = sharding:precision(),
    recompute = sharding.recompute, region = recompute.none(), regions = 0,
    regather = sharding.regather, regathers = regather.DEFAULT,
  }, Trace)
  local modules = sharding.model == model and sharding.modules or tree.inventory(model).modules
  for _, entry in ipairs(modules) do self.paths[entry.module] = entry.name end
  return self
end

---Traces a function into a graph over the parameters of a model.
---@param model moonshard.Module sharded by ms.fully_shard, or with the default sharding
---@param config { inputs: table[], fn: fun(inputs: table<string, moonshard.Tensor>): table, sharding: table? } inputs
---  are { name, dtype, shape }; fn returns { loss = scalar f32 tensor, outputs = { name = tensor } }, both optional;
---  sharding: default the model's
---@return moonshard.Trace
function capture.graph(model, config)
  local self = new_trace(model, config.sharding or shardings.of(model))
  local outer_trace, outer_path = context.trace, context.path
  context.trace, context.path = self, ""
  local ok, raised = xpcall(function()
    for _, given in ipairs(config.inputs) do declare_input(self, given) end
    self.returned = config.fn(self.inputs)
    take_results(self, self.returned)
  end, errors.adopt)
  context.trace, context.path = outer_trace, outer_path
  if not ok then error(raised, 0) end
  return self
end

return capture
