-- Ends a recipe from inside a call that it makes, once the command has what it needs.
--
-- The recipe runs as a coroutine that is abandoned. An error would also end it, but a recipe can catch errors of a
-- step; an error is thrown only if the recipe runs the step in its own coroutine.

local early_exit = {}

local LEFT = {} -- yielded by the coroutine, or raised
local thread

---Runs a recipe to its end, or until early_exit.now() ends it.
---@param recipe function
---@param handler fun(raised: any): any passed to xpcall
---@return boolean ok false if it raised an error that it did not catch
---@return any raised
---@return boolean left whether early_exit.now() ended it
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
