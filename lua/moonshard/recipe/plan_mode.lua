-- Takes the first plan that a recipe compiles under a command that runs no steps (`moonshard plan`, `explain` and
-- `price`), and ends the recipe.

local args = require("moonshard.recipe.args")
local early_exit = require("moonshard.recipe.early_exit")

local plan_mode = {
  ---Takes the plan of a trainer's step, such as to print it. Set by the command.
  ---@type fun(plan: moonshard.Plan, trainer: moonshard.Trainer, batch: table)
  take = nil,
  ---Whether a plan was taken.
  taken = false,
  ---The error that the last step raised instead of making a plan; the recipe may have caught it.
  ---@type any
  raised = nil,
}

local function take_plan(trainer, batch)
  args.check_taken()
  plan_mode.take(trainer:compile(batch), trainer, batch)
  plan_mode.taken = true
end

---Hands on the plan of a trainer's step and ends the recipe. Does not return; raises if the plan cannot be made.
---@param trainer moonshard.Trainer
---@param batch table of the step
function plan_mode.report(trainer, batch)
  if plan_mode.taken then early_exit.now() end
  local ok, raised = pcall(take_plan, trainer, batch)
  if ok then early_exit.now() end
  plan_mode.raised = raised
  error(raised, 0)
end

---Runs a recipe to its end, or until its plan was taken.
---@param recipe function
---@param handler fun(raised: any): any passed to xpcall
---@return boolean ok false if it raised an error that it did not catch
---@return any raised
function plan_mode.run(recipe, handler)
  plan_mode.taken, plan_mode.raised = false, nil
  local ok, raised = early_exit.run(recipe, handler)
  if plan_mode.taken then return true end
  return ok, raised
end

return plan_mode
