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
  ["--plan"] = { name = "plan", value = "flag" },
}

-- A recipe that was given instead of a sweep would train to its end before that is told. A file that runs other ones is
-- let through: they may sweep.
local function check_it_sweeps(path)
  local file = assert(io.open(path, "rb"))
  local source = file:read("*a")
  file:close()
  local rest = source:gsub("require%s*%(?%s*[\"']moonshard[\"']", "")
  for _, word in ipairs({ "sweep", "find_lr", "require", "dofile", "load" }) do
    if rest:find(word, 1, true) then return end
  end
  status.refuse("MS_EINVAL", "%s calls neither ms.sweep nor ms.find_lr; to train by a recipe: moonshard run %s", path,
    path)
end

---@param arguments string[] without "sweep"
---@return integer exit status
function command.main(arguments)
  local line = command_line.parse("moonshard sweep", arguments, { recipe = true, options = OPTIONS })
  sweep.mode = { file = line.recipe, resume = line.resume or false, json = line.json or false,
    plan = line.plan or false }
  local chunk = recipe.load(line.recipe)
  check_it_sweeps(line.recipe)
  engine.C.ms_interrupt_install()
  local ok, raised = xpcall(function() recipe.run(line.recipe, chunk, line.settings) end, errors.locate)
  if not ok then error(raised, 0) end
  if sweep.ran == 0 then status.refuse("MS_EINVAL", "%s: it ended without a call of ms.sweep", line.recipe) end
  return sweep.failed and status.FAILED_RUN or status.OK
end

return command
