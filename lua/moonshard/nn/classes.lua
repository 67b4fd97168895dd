-- Which class of each row is its target, and what a table has of it: what losses need that are made of ops.

local context = require("moonshard.base.context")
local create = require("moonshard.tensor.create")
local errors = require("moonshard.base.error")
local named = require("moonshard.tensor.named")
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

local SCOPE = "targets"
local WRONG = "embedding: token (%-?%d+) at position (%d+) is not in %[0,(%d+)%)"
local TOLD = "%starget %s of row %s is not in [0,%s) and is not ignored"

---The number that a table has of each row's target. A target that is no class fails the step: see wrong_target.
---@param of_classes moonshard.Tensor f32 [n]
---@param targets moonshard.Tensor i32 [...], without those that are ignored
---@return moonshard.Tensor f32 [...]
function classes.look_up(of_classes, targets)
  local rows = of_classes:reshape(of_classes.shape[1], 1)
  if context.trace then return named(SCOPE, ops.embedding, rows, targets):squeeze(-1) end
  local ok, found = pcall(ops.embedding, rows, targets)
  if ok then return found:squeeze(-1) end
  local target, row, n = tostring(errors.is(found) and found.message or found):match(WRONG)
  if target then errors.invalid("%s", TOLD:format("", target, row, n)) end
  error(found, 0)
end

---A message of the engine, in the words of a loss where it is of a target that is looked up in a table.
---@param message string
---@return string
function classes.wrong_target(message)
  local before, target, row, n = message:match("^(.*)%." .. SCOPE .. ": " .. WRONG)
  if target then return TOLD:format(before .. ": ", target, row, n) end
  before, target, row, n = message:match("^(.*)in " .. SCOPE .. ": " .. WRONG) -- of a recipe's own forward
  return target and TOLD:format(before, target, row, n) or message
end

return classes
