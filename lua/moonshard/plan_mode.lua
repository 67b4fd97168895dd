-- What happens to the first plan that a recipe compiles under `moonshard plan` or `moonshard explain`: it, or what it
-- tells, is printed, and the recipe ends.
--
-- The recipe runs as a coroutine that is left for good when its plan is printed. An error would end it too, but a
-- recipe may catch errors of a step; it is thrown only where a recipe makes the step in a coroutine of its own.

local plan_mode = {
  ---What is printed of the plan of a trainer's step. Set by the command.
  ---@type fun(plan: moonshard.Plan, trainer: moonshard.Trainer, batch: table): string
  render = nil,
  ---Whether the plan was printed.
  reported = false,
  ---What the last step raised instead of giving a plan, which the recipe may have caught.
  ---@type any
  raised = nil,
}

local ENDED = {} -- given by the coroutine, or raised
local recipe_thread

local function leave()
  if coroutine.running() == recipe_thread then pcall(coroutine.yield, ENDED) end
  error(ENDED, 0)
end

local function print_plan(trainer, batch)
  require("moonshard.args").check_taken()
  local text = plan_mode.render(trainer:compile(batch), trainer, batch)
  if text:sub(-1) ~= "\n" then text = text .. "\n" end
  local ok, why = io.write(text)
  ok, why = ok and io.flush(), why
  if not ok then
    require("moonshard.cli.status").refuse("MS_EIO", "standard output: %s", why or "it cannot be written")
  end
  plan_mode.reported = true
end

---Prints the plan of a trainer's step and ends the recipe. Does not return; a plan that cannot be made is an error.
---@param trainer moonshard.Trainer
---@param batch table of the step
function plan_mode.report(trainer, batch)
  if plan_mode.reported then leave() end
  local ok, raised = pcall(print_plan, trainer, batch)
  if ok then leave() end
  plan_mode.raised = raised
  error(raised, 0)
end

---Runs a recipe until its plan was printed, or to its end.
---@param recipe function
---@param handler fun(raised: any): any as xpcall's
---@return boolean ok false when it raised an error that it did not catch
---@return any raised
function plan_mode.run(recipe, handler)
  recipe_thread = coroutine.create(function() return xpcall(recipe, handler) end)
  local _, first, raised = coroutine.resume(recipe_thread)
  if plan_mode.reported then return true end
  return first, raised
end

return plan_mode
