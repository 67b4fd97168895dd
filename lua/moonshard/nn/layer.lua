-- What layers share: their arguments, and parameters as values of a trace.

local context = require("moonshard.base.context")
local dtypes = require("moonshard.base.dtypes")
local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local parameter = require("moonshard.tensor.parameter")
local tensor = require("moonshard.tensor")

local layer = {}

-- The operands of an op share one element type; if a recipe mixes types, the layer's own wins.
---@param weight moonshard.Tensor
---@param x any
---@return any
function layer.in_dtype_of(weight, x)
  if tensor.is(x) and dtypes.floats[x.dtype] then return x:cast(weight.dtype) end
  return x
end

---The value of a field of a layer, in a trace.
---@param self moonshard.Module
---@param name string
---@return moonshard.Tensor
function layer.value_of(self, name)
  local value = self[name]
  if not parameter.is(value) then
    errors.invalid("its field %s must be a parameter (ms.parameter), not %s", name, options.describe(value))
  end
  return context.trace:parameter(value)
end

-- A layer's arguments as one table: ms.nn.linear { 3, 4, bias = false }, or linear(3, 4, { bias = false }).
---@param ... any
---@return table
function layer.gather(...)
  if type((...)) == "table" then return (...) end
  local given = {}
  for i, argument in ipairs({ ... }) do
    if type(argument) ~= "table" then
      given[#given + 1] = argument
    else
      options.no_more("a layer", select(i + 1, ...))
    end
  end
  local last = select("#", ...) > 0 and select(select("#", ...), ...) or nil
  for name, value in pairs(type(last) == "table" and last or {}) do given[name] = value end
  return given
end

---For people.
---@param self moonshard.Module
---@return string
function layer.describe_bias(self)
  return self.bias and "" or ", no bias"
end

return layer
