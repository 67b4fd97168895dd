-- Ending a recipe from inside of a call that it makes, once what was wanted of it is done.
--
-- The recipe runs as a coroutine that is left for good. An error would end it too, but a recipe may catch errors of a
-- step; one is thrown only where a recipe makes the step in a coroutine of its own.

local early_exit = {}

local LEFT = {} -- given by the coroutine, or raised
local thread

---Runs a recipe until it is left, or to its end.
---@param recipe function
---@param handler fun(raised: any): any as xpcall's
---@return boolean ok false when it raised an error that it did not catch
---@return any raised
---@return boolean left whether it was left
function early_exit.run(recipe, handler)
  thread = coroutine.create(function() return xpcall(recipe, handler) end)
  local _, first, raised = coroutine.resume(thread)
  thread = nil
  if first == LEFT or (first == false and raised == LEFT) then return true, nil, true end
  return first, raised, false
end

---Ends the recipe. Does not return.
function early_exit.now()
  if coroutine.running() == thread then pcall(coroutine.yield, LEFT) end
  error(LEFT, 0)
end

return early_exit
