-- Comparisons, selection and bounds as methods. A comparison returns a mask, u8 with 1 and 0, for `where`; cast turns
-- it into numbers for multiplication. Lua's own operators cannot return a tensor: < and == always give true or false.

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

ops.composed.greater = { takes = "2 inputs", doc = "1 where a > b, else 0, as u8" }
ops.composed.greater_equal = { takes = "2 inputs", doc = "1 where a >= b, else 0, as u8" }

---Mask of the elements less than the other's.
---@param other moonshard.Tensor|number
---@return moonshard.Tensor mask u8
function methods:lt(other) return ops.less(self, other) end

---Mask of the elements less than or equal to the other's.
---@param other moonshard.Tensor|number
---@return moonshard.Tensor mask u8
function methods:le(other) return ops.less_equal(self, other) end

---Mask of the elements greater than the other's.
---@param other moonshard.Tensor|number
---@return moonshard.Tensor mask u8
function methods:gt(other) return ops.less(other, self) end

---Mask of the elements greater than or equal to the other's.
---@param other moonshard.Tensor|number
---@return moonshard.Tensor mask u8
function methods:ge(other) return ops.less_equal(other, self) end

---Mask of the equal elements: tokens:eq(0).
---@param other moonshard.Tensor|number
---@return moonshard.Tensor mask u8
function methods:eq(other) return ops.equal(self, other) end

---Mask of the elements that differ.
---@param other moonshard.Tensor|number
---@return moonshard.Tensor mask u8
function methods:ne(other) return ops.not_equal(self, other) end

methods.greater, methods.greater_equal = methods.gt, methods.ge

---Logical and of masks, of which all numbers but 0 are true.
---@param other moonshard.Tensor u8
---@return moonshard.Tensor mask u8: 0 or 1
function methods:logical_and(other) return ops.where(self, ops.not_equal(other, 0), 0) end

---Logical or of masks, of which all numbers but 0 are true.
---@param other moonshard.Tensor u8
---@return moonshard.Tensor mask u8: 0 or 1
function methods:logical_or(other) return ops.where(self, 1, ops.not_equal(other, 0)) end

---Logical not of a mask.
---@return moonshard.Tensor mask u8
function methods:logical_not() return ops.equal(self, 0) end

---Replaces the elements where the mask is 1 by a number: scores:masked_fill(tokens:eq(0), -1e9).
---@param mask moonshard.Tensor u8; broadcasts
---@param value number|moonshard.Tensor
---@return moonshard.Tensor
function methods:masked_fill(mask, value) return ops.where(mask, value, self) end

local clamp = ops.clamp

---Limits elements to the range min to max: x:clamp(0), x:clamp(-1, 1), x:clamp { max = 1 }.
---@param x moonshard.Tensor
---@param min number|{ min: number?, max: number? }|nil default: no bound
---@param max number? default: no bound
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

-- LuaJIT calls these if both operands are tensors. With a number as one operand `<` raises Lua's own error, which
-- advice.explain completes, and `==` is false.
local function refuse(operator, method)
  return function()
    errors.invalid("x %s y on tensors: Lua's operators return true or false, not a tensor: write x:%s(y)", operator,
      method)
  end
end
comparisons.operators = { __lt = refuse("<", "lt"), __le = refuse("<=", "le"), __eq = refuse("==", "eq") }

function comparisons.operators.__concat()
  errors.invalid("x .. y on tensors: .. joins texts; ms.ops.cat({ x, y }, axis) joins tensors, tostring(x) is a text")
end

-- Parameters are elements of sets and lists, where == means identity.
parameter.class.__lt, parameter.class.__le = comparisons.operators.__lt, comparisons.operators.__le

return comparisons
