-- Loads a recipe once, before the ranks start, and runs it with the settings of the command line. Its print shows what
-- is in tables and tensors, and can be redirected to standard error; its os.exit is intercepted.

local advice = require("moonshard.base.names.advice")
local args = require("moonshard.recipe.args")
local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.files.input_file")
local refuse = require("moonshard.base.exit_status").refuse

local recipe = {}

local redirected = false -- whether the recipe's prints go to standard error

local function print_to(file)
  rawset(_G, "print", function(...)
    local texts = {}
    for i = 1, select("#", ...) do texts[i] = context.printed((select(i, ...))) end
    file:write(table.concat(texts, "\t"), "\n")
  end)
end

---Loads a recipe; refuses a file that does not exist or does not parse.
---@param path string
---@return function
function recipe.load(path)
  local source, why = input_file.text(path)
  if not source then refuse("MS_EINVAL", "recipe %s", why) end
  source = source:gsub("^#[^\n]*", "")
  local chunk, wrong = loadstring(source, "@" .. path)
  if not chunk then refuse("MS_EINVAL", "%s", advice.explain_syntax(wrong, source)) end
  return chunk
end

---Runs a loaded recipe and passes on its errors. The recipe can require modules from its own folder.
---@param path string
---@param chunk function
---@param settings { key: string, text: string }[]
---@return any returned what the file returns
function recipe.run(path, chunk, settings)
  local folder = path:match("^(.*/)[^/]*$") or "./"
  package.path = folder .. "?.lua;" .. package.path
  args.overrides = settings
  if not redirected then print_to(io.stdout) end
  local returned = chunk()
  args.check_taken()
  return returned
end

-- ---- what a recipe prints -----------------------------------------------------------------------------------------
--
-- When a command prints a result of its own, the recipe's prints go to standard error, so that standard output contains
-- only the plan, JSON object or text and can be piped into other programs.

---From now on print, io.write and io.stdout write to standard error.
---@return file* out standard output, for the command
function recipe.print_to_stderr()
  local out = io.stdout
  rawset(io, "stdout", io.stderr)
  io.output(io.stderr)
  print_to(io.stderr)
  redirected = true
  return out
end

---From now on they go nowhere, for a command that runs a recipe many times and shows what it prints once.
function recipe.print_nothing()
  local nowhere = assert(io.open("/dev/null", "w"))
  rawset(io, "stdout", nowhere)
  io.output(nowhere)
  print_to(nowhere)
end

-- ---- os.exit ------------------------------------------------------------------------------------------------------
--
-- An os.exit in a recipe would end a run with an unexplained status, so the commands intercept the call and report it.

local real_exit = os.exit

---Ends this process with one of the commands' exit statuses.
---@param status integer
function recipe.exit(status)
  io.flush()
  real_exit(status)
end

---Makes os.exit call `ended` and end this process with the status that it returns.
---@param ended fun(call: string, succeeds: boolean): integer call: "recipe.lua:3: os.exit(7) was called"
function recipe.on_exit(ended)
  os.exit = function(code) -- luacheck: ignore 122
    local succeeds = code == nil or code == true or code == 0
    local where = errors.caller()
    local given = code == nil and "" or tostring(code)
    local call = ("%sos.exit(%s) was called"):format(where and where .. ": " or "", given)
    recipe.exit(ended(call, succeeds))
  end
end

return recipe
