-- moonshard explain: which rule made each decision, its cost, what sets the peak, and the effect of alternatives; with
-- --cluster also the time of each unit on a described cluster.

local by_unit = require("moonshard.price.by_unit")
local explain = require("moonshard.explain")
local json = require("moonshard.base.text.json")
local plan = require("moonshard.cli.plan")
local price = require("moonshard.price.price")

local command = {}

local OPTIONS = { ["--all"] = { name = "all", value = "flag" } }

local function times_of(compiled, line, trainer, batch)
  local priced = price.of(compiled, line.described, trainer, batch)
  return priced, by_unit.of(priced, trainer.session.sharding)
end

local function render(compiled, line, trainer, batch)
  local found = explain.plan(compiled, trainer, batch, { all = line.all, folder = line.recipe:match("^(.*/)[^/]*$") })
  local text = line.json and explain.json(found) or explain.text(found)
  if not line.cluster then return text end
  local priced, times = times_of(compiled, line, trainer, batch)
  if not line.json then return text:gsub("\n*$", "\n") .. by_unit.text(priced, times) end
  return ('%s,"cluster":%s,"step_seconds":%s,"unit_seconds":%s}'):format(text:match("^(.*)}%s*$"),
    json.encode(line.cluster), json.encode(priced.step), json.encode(times))
end

---@param arguments string[] without "explain"
---@return integer exit status
function command.main(arguments)
  return plan.of_recipe("moonshard explain", arguments, OPTIONS, render)
end

return command
