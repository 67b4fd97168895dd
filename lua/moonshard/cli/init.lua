-- The command line of the executable: dispatches to a command and reports its errors.

require("moonshard.base.luajit_defects") -- replaces pairs and next, before any loop is compiled
local errors = require("moonshard.base.error")
local help = require("moonshard.cli.help")
local nearest = require("moonshard.base.names.nearest")
local status = require("moonshard.base.exit_status")
local refuse = status.refuse

-- Most code of a run goes through few rounds: tracing a model, checking rules, the start itself. LuaJIT would compile
-- what is repeated 56 times, which costs more time than it saves there. What is long, such as reading text, pays soon.
jit.opt.start("hotloop=500")

local cli = {}

-- Each has a module moonshard.cli.NAME, loaded when the command runs.
local COMMANDS = {}
local NAMES = "run plan explain price tune calibrate check sweep repl inspect export generate tokenize doctor ps trace"
for name in NAMES:gmatch("%S+") do
  COMMANDS[name] = true
end

local function print_help(command)
  io.write(command and help.of(command) or help.text)
  return status.OK
end

local function print_version()
  io.write("moonshard ", require("moonshard.base.ffi").version, "\n")
  return status.OK
end

-- Started by other commands, not by users.
local HIDDEN = { host = true, calibrate_ranks = true }

local PRINTED = {
  help = print_help, ["--help"] = print_help, ["-h"] = print_help, ["--version"] = print_version,
}

local function refuse_command(command)
  if command:match("%.lua$") then
    refuse("MS_ENAME", "unknown command %s; to run a recipe: moonshard run %s", command, command)
  end
  local known = {}
  for _, names in ipairs({ COMMANDS, PRINTED }) do
    for name in pairs(names) do
      known[name] = true
    end
  end
  refuse("MS_ENAME", "unknown command %s: %s", command, nearest.advice(command, known))
end

local function dispatch(arguments)
  local command = arguments[1]
  if not command then
    refuse("MS_EINVAL", "no command; `moonshard help` lists them")
  elseif PRINTED[command] then
    local about = arguments[2]
    if about and PRINTED[command] == print_help and not help.of(about) then refuse_command(about) end
    return PRINTED[command](about)
  elseif not COMMANDS[command] and not HIDDEN[command] then
    refuse_command(command)
  end
  local rest = {}
  for i = 2, #arguments do rest[i - 1] = arguments[i] end
  for _, argument in ipairs(rest) do
    if argument == "--help" or argument == "-h" then return print_help(command) end
  end
  return require("moonshard.cli." .. command).main(rest)
end

---Runs a command; prints an error as one line on standard error.
---@param arguments string[]
---@return integer exit status
function cli.main(arguments)
  local ok, result = pcall(dispatch, arguments)
  if ok then return result end
  io.stderr:write("moonshard: ", errors.text(result), "\n")
  return status.of(result)
end

return cli
