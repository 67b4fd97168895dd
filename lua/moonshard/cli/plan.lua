-- moonshard plan: compiles the step for one rank of any world, without devices and without launching, and prints it.

local errors = require("moonshard.error")
local command_line = require("moonshard.cli.command_line")
local plan_mode = require("moonshard.plan_mode")
local recipe = require("moonshard.cli.recipe")
local status = require("moonshard.cli.status")
local world = require("moonshard.world")
local refuse = status.refuse

local plan = {}

local OPTIONS = {
  ["-n"] = { name = "ranks", value = "count" },
  ["--rank"] = { name = "rank", value = "index" },
  ["--json"] = { name = "json", value = "flag" },
}

---@param arguments string[] without "plan"
---@return integer exit status
function plan.main(arguments)
  local line = command_line.parse("moonshard plan", arguments, { recipe = true, options = OPTIONS })
  local ranks, rank = line.ranks or 1, line.rank or 0
  if rank >= ranks then
    refuse("MS_EINVAL", "--rank %d: the ranks of -n %d are 0 to %d", rank, ranks, ranks - 1)
  end
  world.describe(rank, ranks)
  plan_mode.json = line.json
  local chunk = recipe.load(line.recipe)
  local ok, raised = xpcall(function() recipe.run(line.recipe, chunk, line.settings) end, function(value)
    return value == plan_mode.REPORTED and value or errors.locate(value)
  end)
  if ok then
    refuse("MS_EINVAL", "%s: it ended without a training step, so there is no plan to print", line.recipe)
  end
  if raised ~= plan_mode.REPORTED then error(raised, 0) end
  return status.OK
end

return plan
