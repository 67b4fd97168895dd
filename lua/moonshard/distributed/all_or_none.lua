-- What all ranks do or none, because ranks that did it and ranks that did not could not go on together: the end of a
-- step, binding a plan, changing rules.
--
-- Ctrl-C waits until it is done, and so does the news that another rank gave up elsewhere. It is only right where the
-- first collective of the call comes before anything changes: none passes it unless all have begun.

local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local C = require("moonshard.base.ffi").C

---Calls a function with arguments; gives its result, or raises its error.
---@param call function
---@param ... any
---@return any
local function together(call, ...)
  if context.trace then
    errors.invalid("this needs all ranks, and stands in a forward or loss, which is traced and not run: do it between "
      .. "steps")
  end
  C.ms_interrupt_defer(1)
  local ok, result = pcall(call, ...)
  C.ms_interrupt_defer(-1)
  if not ok then error(result, 0) end
  return result
end

return together
