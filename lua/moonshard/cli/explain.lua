-- moonshard explain: which rule made each decision, its cost, what sets the peak, and the effect of alternatives.

local explain = require("moonshard.explain")
local plan = require("moonshard.cli.plan")

local command = {}

local OPTIONS = { ["--all"] = { name = "all", value = "flag" } }

local function render(compiled, line, trainer, batch)
  local found = explain.plan(compiled, trainer, batch, { all = line.all, folder = line.recipe:match("^(.*/)[^/]*$") })
  return line.json and explain.json(found) or explain.text(found)
end

---@param arguments string[] without "explain"
---@return integer exit status
function command.main(arguments)
  return plan.of_recipe("moonshard explain", arguments, OPTIONS, render)
end

return command
