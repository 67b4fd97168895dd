-- moonshard sweep: runs a Lua file that calls ms.sweep. The file is read like a recipe: its own settings are key=value.

local command_line = require("moonshard.cli.command_line")
local engine = require("moonshard.ffi")
local errors = require("moonshard.error")
local recipe = require("moonshard.cli.recipe")
local status = require("moonshard.cli.status")
local sweep = require("moonshard.sweep")

local command = {}

local OPTIONS = {
  ["--resume"] = { name = "resume", value = "flag" },
  ["--json"] = { name = "json", value = "flag" },
}

---@param arguments string[] without "sweep"
---@return integer exit status
function command.main(arguments)
  local line = command_line.parse("moonshard sweep", arguments, { recipe = true, options = OPTIONS })
  sweep.mode = { file = line.recipe, resume = line.resume or false, json = line.json or false }
  local chunk = recipe.load(line.recipe)
  engine.C.ms_interrupt_install()
  local ok, raised = xpcall(function() recipe.run(line.recipe, chunk, line.settings) end, errors.locate)
  if not ok then error(raised, 0) end
  if sweep.ran == 0 then status.refuse("MS_EINVAL", "%s: it ended without a call of ms.sweep", line.recipe) end
  return sweep.failed and status.FAILED_RUN or status.OK
end

return command
