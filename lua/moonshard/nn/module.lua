-- Modules: tables with named parameters, child modules and a forward. They are written in plain Lua:
--
--   local Gate = ms.module "Gate"
--
--   function Gate:init(dim)
--     self.proj = ms.nn.linear { dim, dim }
--     self.scale = ms.parameter { dim, init = "ones" }
--   end
--
--   function Gate:forward(x)
--     return x * self.proj(x):sigmoid() * self.scale
--   end
--
--   local gate = Gate(384)
--
-- or, for a single module, ms.module { proj = ..., forward = function(self, x) ... end }. In a trace a module is called
-- like a function; its path becomes the scope of its nodes and of errors. Called on eager tensors outside a trace, it
-- is traced and evaluated.

local context = require("moonshard.base.context")
local dtypes = require("moonshard.base.dtypes")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local recompute = require("moonshard.nn.recompute")
local regather = require("moonshard.nn.regather")
local tensor = require("moonshard.tensor")
local tree = require("moonshard.nn.tree")

---@class moonshard.Module
---@field forward fun(self, ...): ... ops on tensors
---@field init fun(self, ...)? creates parameters and children; receives the constructor's arguments
---@field describe (fun(self): string)? text in parentheses in the printed tree
---@field sharding moonshard.Sharding? set by ms.fully_shard
local Module = {}
Module.__index = Module

local module = {}
module.base = Module
tree.methods = Module
module.is = tree.is_module
module.call_eagerly = nil -- calls outside a trace; set by engine/module_methods.lua

---Iterates over the parameters, each once by its first name: for name, parameter in model:named_parameters() do.
---@return fun(): string?, moonshard.Parameter?
function Module:named_parameters()
  local list, i = tree.inventory(self).parameters, 0
  return function()
    i = i + 1
    if list[i] then return list[i].name, list[i].parameter end
  end
end

---Iterates over the module itself, named "", and all of its submodules.
---@return fun(): string?, moonshard.Module?
function Module:named_modules()
  local list, i = tree.inventory(self).modules, 0
  return function()
    i = i + 1
    if list[i] then return list[i].name, list[i].module end
  end
end

---@return integer elements of all parameters; tied parameters count once
function Module:num_parameters()
  return tree.count(self)
end

-- ---- calling ----------------------------------------------------------------------------------------------------

local function is_float(value)
  return tensor.is(value) and dtypes.floats[value.dtype] ~= nil
end

local function cast_all(dtype, ...)
  local count, values = select("#", ...), { ... }
  for i = 1, count do
    if is_float(values[i]) then values[i] = values[i]:cast(dtype) end
  end
  return unpack(values, 1, count)
end

local DEEPEST = 500 -- calls within calls

local function leave(trace, path, region, regathers, ...)
  trace.depth = trace.depth - 1
  trace:enter(path)
  recompute.leave(trace, region)
  regather.set(trace, regathers)
  return ...
end

-- The root of a unit casts its inputs to the unit's param_dtype and its outputs to the unit's output_dtype, like
-- PyTorch's MixedPrecisionPolicy with cast_forward_inputs.
local function forward_in_precision(self, precision, ...)
  if not precision.output_dtype then return self:forward(cast_all(precision.param_dtype, ...)) end
  return cast_all(precision.output_dtype, self:forward(cast_all(precision.param_dtype, ...)))
end

-- How many arguments forwards take that were seen to have a place for self.
local with_self = setmetatable({}, { __mode = "k" })

-- Refuses a forward that is written with a dot, function Net.forward(x): its x would be the module.
local function check_self(forward, name, given)
  local takes = debug.getinfo(forward, "u")
  if given > 0 and not takes.isvararg and takes.nparams == given and debug.getlocal(forward, 1) ~= "self" then
    errors.invalid("the forward of %s has no place for the module: write function %s:forward(%s), with a colon", name,
      name, debug.getlocal(forward, 1) or "x")
  end
  with_self[forward] = takes.isvararg and math.huge or math.max(takes.nparams - 1, 0)
end

-- Lua drops what a function has no place for.
local function refuse_more(name, taken, ...)
  for i = taken + 1, select("#", ...) do
    if (select(i, ...)) ~= nil then
      errors.raise_at(errors.caller(true), "MS_EINVAL", "the forward of %s takes %d argument%s, but is given %d", name,
        taken, taken == 1 and "" or "s", select("#", ...))
    end
  end
end

local function call(self, ...)
  local trace = context.trace
  local name = getmetatable(self).name
  if not trace then return module.call_eagerly(self, ...) end
  local forward = self.forward
  if not forward then errors.invalid("%s has no forward: write function %s:forward(...)", name, name) end
  if not with_self[forward] then check_self(forward, name, select("#", ...)) end
  if select("#", ...) > with_self[forward] then refuse_more(name, with_self[forward], ...) end
  trace.depth = (trace.depth or 0) + 1
  if trace.depth > DEEPEST then
    errors.invalid("the forward of %s calls itself without end: call the layers that init made, self.fc(x), not the "
      .. "module", name)
  end
  local outer = context.path
  trace:enter(trace.paths[self] or outer)
  local region = recompute.enter(trace, trace.recompute[self])
  local regathers = regather.enter(trace, trace.regather[self])
  local precision = trace.precision[self]
  if precision then return leave(trace, outer, region, regathers, forward_in_precision(self, precision, ...)) end
  return leave(trace, outer, region, regathers, self:forward(...))
end

context.call_module = call

-- ---- classes ----------------------------------------------------------------------------------------------------

-- Fields of PyTorch's modules that are set from outside. A class can have one of its own: its init declares it.
local NO_MODE = "a model has no mode: train:step trains, and in train:evaluate and calls of the model dropout does "
  .. "nothing"
local FREEZE = "freeze = { pattern } of ms.fully_shard or ms.trainer says which parameters do not train"
local SET_ELSEWHERE = {
  training = NO_MODE, train = NO_MODE, eval = NO_MODE,
  requires_grad = FREEZE, frozen = FREEZE,
  dtype = "mp_policy and storage of ms.fully_shard decide in which types parameters are kept and read",
}

local made = setmetatable({}, { __mode = "k" }) -- modules whose init has returned

-- A forward can set and clear a field each time that it is traced.
local function is_in(order, key)
  for _, known in ipairs(order) do
    if known == key then return true end
  end
  return false
end

-- Records fields in the order of their assignment.
local function note_field(self, key, value)
  if SET_ELSEWHERE[key] and made[self] then
    errors.invalid("a %s has no field %s: %s (%s:init can declare a field of this name, for its own use)",
      getmetatable(self).name, key, SET_ELSEWHERE[key], getmetatable(self).name)
  end
  rawset(self, key, value)
  local order = rawget(self, "_order")
  if not (made[self] and is_in(order, key)) then order[#order + 1] = key end
  if made[self] then tree.note_added(self, ("%s.%s"):format(getmetatable(self).name, tostring(key))) end
end

local function to_text(self)
  local sharding = rawget(self, "sharding")
  return tree.print(self, sharding and sharding:marks())
end

local function instance_meta(class, name)
  return {
    moonshard_module = true, __name = "a module", name = name,
    __index = class, __newindex = note_field, __call = call, __tostring = to_text,
  }
end

-- Methods of Python's classes, which nothing would call.
local OF_PYTHON = { __init = "init", __init__ = "init", __call = "forward", __call__ = "forward", __forward = "forward",
  __repr__ = "describe", __str__ = "describe", extra_repr = "describe" }

local function definer(name)
  return function(class, key, value)
    local here = OF_PYTHON[key]
    if here then errors.invalid("%s of %s is never called: write function %s:%s(...)", key, name, name, here) end
    rawset(class, key, value)
    tree.note_added(class, ("%s.%s"):format(name, tostring(key)))
  end
end

local function new_class(name, base)
  local class = {}
  class.__index = class
  local meta = instance_meta(class, name)
  return setmetatable(class, {
    __index = base, __newindex = definer(name), __name = ("the class %s: call it, %s(...)"):format(name, name),
    __tostring = function() return "module class " .. name end,
    __call = function(_, ...)
      local self = setmetatable({ _order = {} }, meta)
      if self.init then self:init(...) end
      made[self] = true
      return self
    end,
  })
end

---A class of modules (given a name), or a single module (given a table with its fields and forward).
---@param what string|table
---@param base moonshard.Module? the class to inherit from
---@return moonshard.Module
function module.define(what, base)
  if type(what) == "string" then return new_class(what, base or Module) end
  if type(what) ~= "table" or getmetatable(what) then
    errors.invalid("ms.module takes a name or a plain table of fields, not %s", options.describe(what))
  end
  if type(what.forward) ~= "function" then
    errors.invalid("ms.module: the table has no forward: add forward = function(self, x) ... end")
  end
  rawset(what, "_order", {})
  made[what] = true
  return setmetatable(what, instance_meta(base or Module, "Module"))
end

return setmetatable(module, { __call = function(_, ...) return module.define(...) end })
