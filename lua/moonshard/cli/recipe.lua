-- A recipe as a function: loaded once, before ranks are started, and run with what the command line says.

local args = require("moonshard.recipe.args")
local input_file = require("moonshard.base.input_file")
local refuse = require("moonshard.base.exit_status").refuse

local recipe = {}

---Loads a recipe; a file that is not there or does not parse is refused here.
---@param path string
---@return function
function recipe.load(path)
  local source, why = input_file.text(path)
  if not source then refuse("MS_EINVAL", "recipe %s", why) end
  source = source:gsub("^#[^\n]*", "")
  local chunk, wrong = loadstring(source, "@" .. path)
  if not chunk then refuse("MS_EINVAL", "%s", wrong) end
  return chunk
end

---Runs a loaded recipe; any error is passed on. Its modules may stand beside it.
---@param path string
---@param chunk function
---@param settings { key: string, text: string }[]
function recipe.run(path, chunk, settings)
  local folder = path:match("^(.*/)[^/]*$") or "./"
  package.path = folder .. "?.lua;" .. package.path
  args.overrides = settings
  chunk()
  args.check_taken()
end

return recipe
