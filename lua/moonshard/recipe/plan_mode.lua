-- What happens to the first plan that a recipe compiles under `moonshard plan` or `moonshard explain`: it, or what it
-- tells, is printed, and the recipe ends.

local args = require("moonshard.recipe.args")
local early_exit = require("moonshard.recipe.early_exit")
local exit_status = require("moonshard.base.exit_status")

local plan_mode = {
  ---What is printed of the plan of a trainer's step. Set by the command.
  ---@type fun(plan: moonshard.Plan, trainer: moonshard.Trainer, batch: table): string
  render = nil,
  ---Where to.
  ---@type file*
  out = nil,
  ---Whether the plan was printed.
  reported = false,
  ---What the last step raised instead of giving a plan, which the recipe may have caught.
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

---Prints the plan of a trainer's step and ends the recipe. Does not return; a plan that cannot be made is an error.
---@param trainer moonshard.Trainer
---@param batch table of the step
function plan_mode.report(trainer, batch)
  if plan_mode.reported then early_exit.now() end
  local ok, raised = pcall(print_plan, trainer, batch)
  if ok then early_exit.now() end
  plan_mode.raised = raised
  error(raised, 0)
end

---Runs a recipe until its plan was printed, or to its end.
---@param recipe function
---@param handler fun(raised: any): any as xpcall's
---@return boolean ok false when it raised an error that it did not catch
---@return any raised
function plan_mode.run(recipe, handler)
  local ok, raised = early_exit.run(recipe, handler)
  if plan_mode.reported then return true end
  return ok, raised
end

return plan_mode
