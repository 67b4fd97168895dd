-- Traces: runs a Lua function once on symbols, so that the ops that it calls become a graph of the engine. A graph is
-- for one set of input shapes; plans are compiled from it.

local context = require("moonshard.base.context")
local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local op_places = require("moonshard.engine.trace.op_places")
local options = require("moonshard.base.checks.options")
local recompute = require("moonshard.nn.recompute")
local regather = require("moonshard.nn.regather")
local shardings = require("moonshard.shard.sharding")
local tensor = require("moonshard.tensor")
local tree = require("moonshard.nn.tree")
local C, ffi = engine.C, engine.ffi

---@class moonshard.LossWeight of a loss in means over ranks and micro-batches
---@field weight moonshard.Tensor f32 []: 1 if none of its `terms` is ignored
---@field terms integer
---@field mean moonshard.Tensor the loss itself, 0 where its weight is 0
---@field by_rank boolean? each rank's loss counts once, or not at all

---@class moonshard.Constant an eager tensor that a trace uses
---@field name string of the input
---@field tensor moonshard.Tensor
---@field op string that first reads it
---@field path string of the module in which it does, "" for the root
---@field where string? the recipe's line there

---@class moonshard.Trace
---@field handle ffi.cdata* ms_graph*
---@field inputs table<string, moonshard.Tensor>
---@field loss moonshard.Tensor?
---@field weights table<integer, moonshard.LossWeight> by value of a loss
---@field means moonshard.Tensor[] of each mean over targets: 1, or 0 where it has none
---@field counts moonshard.LossWeight? the entry of `weights` for the returned loss
---@field outputs table<string, moonshard.Tensor>
---@field constants moonshard.Constant[] eager tensors: inputs written before every run
---@field trained table<integer, boolean> by value: whether it depends on a parameter that trains, other than by detach
---@field routers moonshard.RouterTerms[] of the routers that were called, which train:step adds to the loss
---@field attentions table? what attentions declare for QK-clip (tensor/attention_logits.lua)
---@field logit_clips moonshard.LogitClip[]? what QK-clip scales
---@field returned table the result of the traced function
---@field sharding moonshard.Sharding
---@field paths table<moonshard.Module, string> FQN of every module of the model
---@field untrained table<moonshard.Parameter, true> parameters that are constants in it
---@field recompute table<moonshard.Module, moonshard.Recompute>
---@field places moonshard.OpPlaces? where the recipe calls its ops
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
      .. "ms.fully_shard or the first step; if it is another model's, make both models fields of one model, and let "
      .. "each have a trainer that leaves out the other with the option freeze", table.concat(parameter.shape, ","))
  end
  engine.check(C.ms_graph_param(self.handle, index, value))
  local is_constant = self.untrained[parameter]
  -- Not with a method of tensors: this is called while the inputs of another op are collected.
  if is_constant then engine.check(C.ms_graph_op(self.handle, "detach", 1, value, nil, value)) end
  known = tensor.new(self, value[0])
  self.values[parameter], self.trained[known.id] = known, not (is_constant or parameter.frozen)
  return known
end

local function add_input(self, name, dtype, shape, rows)
  local dims = ffi.new("int64_t[?]", #shape + 1, shape)
  engine.check(C.ms_graph_input(self.handle, name, (dtypes.id(dtype)), #shape, dims, rows or -1, value))
  return tensor.new(self, value[0])
end

---The value of an eager tensor in this trace: a separate input, written before every run.
---@param eager moonshard.Tensor
---@param op string that reads it, for messages
---@return moonshard.Tensor
function Trace:constant(eager, op)
  local known = self.values[eager]
  if known then return known end
  local name = "constant " .. #self.constants + 1
  known = add_input(self, name, eager.dtype, eager.shape, 0)
  self.values[eager] = known
  table.insert(self.constants, { name = name, tensor = eager, op = op, path = context.path, where = errors.caller() })
  return known
end

local ATTENDS = { attention = true, document_attention = true }

---Called for every op, before it is in the graph.
---@param op string
---@param inputs (moonshard.Tensor|moonshard.Parameter)[]
---@param count integer
function Trace:note(op, inputs, count)
  if self.places then op_places.note(self.places, context.path, op, inputs, count) end
  local attentions = self.attentions
  if attentions and ATTENDS[op] then
    attentions.ops = attentions.ops or {}
    table.insert(attentions.ops, context.path)
  end
end

---Makes constants of parameters, before forward reads them: gradients pass through what they are used with.
---@param parameters table<moonshard.Parameter, true>
function Trace:leave_untrained(parameters) self.untrained = parameters end

---Frees the graph immediately. Its plans stay as they are.
function Trace:free()
  C.ms_free(ffi.gc(self.handle, nil))
  self.handle = nil
end

-- What only tracing needs.
local OF_TRACING = {
  "values", "trained", "untrained", "routers", "attentions", "paths", "precision", "recompute", "regather",
  "regathers", "region",
}

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
  if tensor.is_eager(result) then return self:constant(result, what) end
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
    self.counts = self.weights[self.loss.id]
    self.loss = self.counts and self.counts.mean or self.loss
    engine.check(C.ms_graph_set_loss(self.handle, self.loss.id, self.counts and self.counts.weight.id or -1))
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
    handle = ffi.gc(out[0], C.ms_free), sharding = sharding, model_handle = model_handle,
    inputs = {}, outputs = {}, constants = {}, values = {}, trained = {}, routers = {}, paths = {},
    weights = {}, means = {}, untrained = {},
    precision = sharding:precision(), places = op_places.new(sharding),
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
  if type(model) ~= "table" or type(config) ~= "table" or type(config.inputs) ~= "table" then
    errors.invalid("a trace takes a model and { inputs = { { name, dtype, shape }, ... }, fn = function(inputs) ... "
      .. "end }")
  end
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
  for _, name in ipairs(OF_TRACING) do self[name] = nil end
  return self
end

return require("moonshard.base.checks.strict").fields("ms.trace", capture, "parameter")
