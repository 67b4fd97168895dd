-- Comparisons, choices and bounds as methods. A comparison gives a mask, u8 with 1 and 0, that where reads; cast makes
-- it a number to multiply by. Lua's own operators cannot give a tensor: < and == always end as true or false.

local errors = require("moonshard.base.error")
local ops = require("moonshard.tensor.ops")
local parameter = require("moonshard.tensor.parameter")

local comparisons, methods = {}, {}
comparisons.methods = methods

---Whether a > b, element by element: b < a.
---@param a moonshard.Tensor|number
---@param b moonshard.Tensor|number
---@return moonshard.Tensor mask u8
function ops.greater(a, b) return ops.less(b, a) end

---Whether a >= b, element by element: b <= a.
---@param a moonshard.Tensor|number
---@param b moonshard.Tensor|number
---@return moonshard.Tensor mask u8
function ops.greater_equal(a, b) return ops.less_equal(b, a) end

---Where this is less than the other.
---@param other moonshard.Tensor|number
---@return moonshard.Tensor mask u8
function methods:lt(other) return ops.less(self, other) end

---Where this is less than the other, or equal.
---@param other moonshard.Tensor|number
---@return moonshard.Tensor mask u8
function methods:le(other) return ops.less_equal(self, other) end

---Where this is more than the other.
---@param other moonshard.Tensor|number
---@return moonshard.Tensor mask u8
function methods:gt(other) return ops.less(other, self) end

---Where this is more than the other, or equal.
---@param other moonshard.Tensor|number
---@return moonshard.Tensor mask u8
function methods:ge(other) return ops.less_equal(other, self) end

---Where both are equal: tokens:eq(0).
---@param other moonshard.Tensor|number
---@return moonshard.Tensor mask u8
function methods:eq(other) return ops.equal(self, other) end

---Where both differ.
---@param other moonshard.Tensor|number
---@return moonshard.Tensor mask u8
function methods:ne(other) return ops.not_equal(self, other) end

methods.greater, methods.greater_equal = methods.gt, methods.ge

---Of masks: where both are 1.
---@param other moonshard.Tensor u8
---@return moonshard.Tensor mask u8
function methods:logical_and(other) return ops.where(self, other, 0) end

---Of masks: where one is 1, or both.
---@param other moonshard.Tensor u8
---@return moonshard.Tensor mask u8
function methods:logical_or(other) return ops.where(self, 1, other) end

---Of a mask: where it is 0.
---@return moonshard.Tensor mask u8
function methods:logical_not() return ops.equal(self, 0) end

---This with a number in the places of a mask: scores:masked_fill(tokens:eq(0), -1e9).
---@param mask moonshard.Tensor u8, which broadcasts
---@param value number|moonshard.Tensor
---@return moonshard.Tensor
function methods:masked_fill(mask, value) return ops.where(mask, value, self) end

local clamp = ops.clamp

---No element below min, none above max: x:clamp(0), x:clamp(-1, 1), x:clamp { max = 1 }.
---@param x moonshard.Tensor
---@param min number|{ min: number?, max: number? }|nil no bound
---@param max number? no bound
---@return moonshard.Tensor
function ops.clamp(x, min, max)
  local bounds = type(min) == "table" and min or { min = min, max = max }
  if bounds.min == nil and bounds.max == nil then
    errors.invalid("clamp: give min, max or both: x:clamp { min = 0 }")
  end
  return clamp(x, bounds)
end
methods.clamp = ops.clamp

-- ---- operators of Lua -------------------------------------------------------------------------------------------

-- LuaJIT calls these when both sides are tensors. With a number on one side `<` is an error of Lua's own, which
-- unknown_name.explain completes, and `==` is false.
local function refuse(operator, method)
  return function()
    errors.invalid("x %s y on tensors: Lua's operators return true or false, not a tensor: write x:%s(y)", operator,
      method)
  end
end
comparisons.operators = { __lt = refuse("<", "lt"), __le = refuse("<=", "le"), __eq = refuse("==", "eq") }

-- Parameters stand in sets and lists, where == asks for the same one.
parameter.class.__lt, parameter.class.__le = comparisons.operators.__lt, comparisons.operators.__le

return comparisons
