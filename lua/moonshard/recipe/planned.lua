-- Runs a recipe up to the plan of its first step, for commands that compile without running. A process can do this
-- several times, with other settings each time.

local args = require("moonshard.recipe.args")
local errors = require("moonshard.base.error")
local library = require("moonshard.recipe.library")
local plan_mode = require("moonshard.recipe.plan_mode")
local recipe = require("moonshard.recipe.file")
local status = require("moonshard.base.exit_status")
local refuse = status.refuse

local planned = {}

---Explains an os.exit of the recipe before its first step. Call once, before planned.run.
function planned.intercept_exit()
  recipe.on_exit(function(call)
    if plan_mode.taken then return status.OK end
    io.stderr:write("moonshard: ", call, " before a training step, so there is no plan\n")
    return status.BAD_INPUT
  end)
end

---Runs a loaded recipe until `take` has its first plan. Raises if that never happens.
---@param path string
---@param chunk function
---@param settings { key: string, text: string }[]
---@param take fun(plan: moonshard.Plan, trainer: moonshard.Trainer, batch: table)
function planned.run(path, chunk, settings, take)
  local search = package.path
  plan_mode.take, args.taken = take, false
  local returned
  local ok, raised = plan_mode.run(function() returned = recipe.run(path, chunk, settings) end, errors.locate)
  package.path = search
  if plan_mode.taken then return end
  if not ok then error(raised, 0) end
  if plan_mode.raised ~= nil then error(plan_mode.raised, 0) end
  local is_library = library.describe(path, returned)
  if is_library then refuse("MS_EINVAL", "%s", is_library) end
  refuse("MS_EINVAL", "%s: ended without a training step, so there is no plan", path)
end

---Writes a result to standard output, as recipe.print_to_stderr returns it.
---@param out file*
---@param text string
function planned.print(out, text)
  if text:sub(-1) ~= "\n" then text = text .. "\n" end
  local ok, why = out:write(text)
  ok, why = ok and out:flush(), why
  if not ok then refuse("MS_EIO", "standard output: %s", why or "it cannot be written") end
end

return planned
