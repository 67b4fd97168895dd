-- What happens to the first plan that a recipe compiles under `moonshard plan`: it is printed, and the recipe ends.

local plan_mode = {
  ---Print JSON alone.
  json = false,
  ---Raised by report, caught by the command.
  REPORTED = {},
}

---Prints the plan and ends the recipe. Does not return.
---@param plan moonshard.Plan
function plan_mode.report(plan)
  require("moonshard.args").check_taken()
  local text = plan_mode.json and plan:json() or plan:text()
  if text:sub(-1) ~= "\n" then text = text .. "\n" end
  local ok, why = io.write(text)
  ok, why = ok and io.flush(), why
  if not ok then
    require("moonshard.cli.status").refuse("MS_EIO", "standard output: %s", why or "it cannot be written")
  end
  error(plan_mode.REPORTED, 0)
end

return plan_mode
