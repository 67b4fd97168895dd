-- Which class of each row is its target: what losses need that are made of ops over all classes.

local create = require("moonshard.tensor.create")
local ops = require("moonshard.tensor.ops")

local classes = {}

-- The classes 0 to n - 1, i32: a constant of traces, so equal ones are one tensor.
local numbers = setmetatable({}, { __mode = "v" })

---A mask of each row's target; a row whose target is no class, such as -100, has none.
---@param targets moonshard.Tensor i32 [...]
---@param n integer number of classes
---@return moonshard.Tensor mask u8 [..., n]
function classes.of(targets, n)
  local known = numbers[n] or create.arange(n, { dtype = "i32" })
  numbers[n] = known
  return ops.equal(targets:unsqueeze(-1), known)
end

return classes
