-- A recipe as a function: loaded once, before ranks are started, and run with what the command line says.

local args = require("moonshard.recipe.args")
local refuse = require("moonshard.base.exit_status").refuse

local recipe = {}

---Loads a recipe; a file that is not there or does not parse is refused here.
---@param path string
---@return function
function recipe.load(path)
  local file, why = io.open(path, "rb")
  if not file then refuse("MS_EINVAL", "recipe %s", why) end
  local source, failed = file:read("*a")
  file:close()
  if not source then refuse("MS_EINVAL", "recipe %s: %s", path, failed or "it cannot be read") end
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
