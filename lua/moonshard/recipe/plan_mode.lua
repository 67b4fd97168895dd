-- Handles the first plan that a recipe compiles under `moonshard plan` or `moonshard explain`: prints it, or a report
-- about it, and ends the recipe.

local args = require("moonshard.recipe.args")
local early_exit = require("moonshard.recipe.early_exit")
local exit_status = require("moonshard.base.exit_status")

local plan_mode = {
  ---Returns the text to print for the plan of a trainer's step. Set by the command.
  ---@type fun(plan: moonshard.Plan, trainer: moonshard.Trainer, batch: table): string
  render = nil,
  ---The output file.
  ---@type file*
  out = nil,
  ---Whether the plan was printed.
  reported = false,
  ---The error that the last step raised instead of making a plan; the recipe may have caught it.
  ---@type any
  raised = nil,
}

local function print_plan(trainer, batch)
  args.check_taken()
  local text = plan_mode.render(trainer:compile(batch), trainer, batch)
  if text:sub(-1) ~= "\n" then text = text .. "\n" end
  local ok, why = plan_mode.out:write(text)
  ok, why = ok and plan_mode.out:flush(), why
  if not ok then
    exit_status.refuse("MS_EIO", "standard output: %s", why or "it cannot be written")
  end
  plan_mode.reported = true
end

---Prints the plan of a trainer's step and ends the recipe. Does not return; raises if the plan cannot be made.
---@param trainer moonshard.Trainer
---@param batch table of the step
function plan_mode.report(trainer, batch)
  if plan_mode.reported then early_exit.now() end
  local ok, raised = pcall(print_plan, trainer, batch)
  if ok then early_exit.now() end
  plan_mode.raised = raised
  error(raised, 0)
end

---Runs a recipe to its end, or until its plan has been printed.
---@param recipe function
---@param handler fun(raised: any): any passed to xpcall
---@return boolean ok false if it raised an error that it did not catch
---@return any raised
function plan_mode.run(recipe, handler)
  local ok, raised = early_exit.run(recipe, handler)
  if plan_mode.reported then return true end
  return ok, raised
end

return plan_mode
