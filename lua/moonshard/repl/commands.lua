-- Prompt input that is not Lua: the prompt's own commands, which rank 0 carries out or turns into a request to all
-- ranks.

local documentation = require("moonshard.repl.documentation")
local errors = require("moonshard.base.error")
local nearest = require("moonshard.base.names.nearest")
local show = require("moonshard.display.values")

local commands = {}

local HELP = [[
Every line is Lua and runs on every rank. The value of an expression is printed: once if all ranks agree, else by rank.

  x = 1; local y = 2     variables of the session, local or not
  expr   =expr           prints the value; _ is the last value
  line;                  a ; at the end suppresses the value
  ?name                  documentation: ?ms, ?ms.trainer, ?adamw, ?train:step, ?softmax, ?clip_grad_norm; or help(name)
  @2 line                runs on rank 2 only (it must not wait for others)
  @all line              prints every rank's value separately, even if all are equal
  !command               runs a shell command, on rank 0
  :load FILE             runs a Lua file on every rank; its outermost locals stay
  :vars                  lists the variables of the session
  :save FILE             writes the session as a recipe: the lines that succeeded, in order
  :curve                 draws the losses of the last trainer's steps
  :time on   :time off   whether every line says how long it took
  :quit                  ends the session; so do exit, quit() and Ctrl-D

Tab completes names, methods, options inside a call's table and, inside quotes, the names of parameters and modules.
An incomplete line continues on the next one. Ctrl-C stops a line, or discards what you typed; the ranks stay.]]

---@class moonshard.Request work for all ranks
---@field kind string "lua", "file" or "quit"
---@field text string
---@field line integer where the text begins in the input
---@field silent boolean?
---@field only integer? the one rank that runs it
---@field apart boolean? show every rank separately
---@field presses integer? presses of Ctrl-C on rank 0 so far

---@class moonshard.Answer
---@field text string?
---@field message string? an error
---@field request moonshard.Request?

local handlers = {}
local TAKES = { help = "a name", load = "a file", save = "a file", time = "on or off" } -- others take nothing

local function describe(prompt, name)
  local described, message = documentation.describe(prompt.environment, name)
  return { text = described, message = message }
end

-- All commands, one of them (:help save), or what ?name says.
function handlers.help(prompt, argument)
  if argument == "" then return { text = HELP } end
  local command = argument:gsub("^:", "")
  for line in HELP:gmatch("[^\n]+") do
    if line:find("  :" .. command, 1, true) == 1 then return { text = line } end
  end
  return describe(prompt, argument)
end

function handlers.quit() return { request = { kind = "quit", text = "" } } end

function handlers.load(_, argument)
  if argument == "" then return { message = ":load needs a file: :load FILE" } end
  return { request = { kind = "file", text = argument } }
end

function handlers.time(prompt, argument)
  if argument ~= "on" and argument ~= "off" then return { message = ":time takes on or off" } end
  prompt.timing = argument == "on"
  return {}
end

-- Globals that the session began with are not the user's variables.
local GIVEN = { _G = true, ms = true, re = true, rank = true, _ = true }
for name in ("load loadstring loadfile dofile"):gmatch("%S+") do GIVEN[name] = true end

local LONGEST = 96 -- columns of a variable's value

-- A value in one line: the first of an object's, the beginning of a table's.
local function in_a_line(value)
  local text = show.any(value)
  if text:sub(1, 2) ~= "{\n" then return (text:gsub("\n.*", " ...")) end
  text = text:gsub("\n%s*", " ")
  return #text <= LONGEST and text or text:sub(1, LONGEST):match("^(.*),.-$") .. ", ... }"
end

function handlers.vars(prompt)
  local names, lines = {}, {}
  for name in pairs(prompt.environment) do
    if type(name) == "string" and not GIVEN[name] then names[#names + 1] = name end
  end
  table.sort(names)
  for i, name in ipairs(names) do
    lines[i] = ("%s = %s"):format(name, in_a_line(prompt.environment[name]))
  end
  return { text = #lines > 0 and table.concat(lines, "\n") or nil }
end

function handlers.save(prompt, argument)
  if argument == "" then return { message = ":save needs a file: :save FILE" } end
  local lines, why = prompt.notebook:save(argument)
  return { message = why, text = lines and ("wrote %s, %d line%s"):format(argument, lines, lines == 1 and "" or "s") }
end

function handlers.curve(prompt)
  local text, why = prompt.notebook:curve()
  return { text = text, message = why }
end

---Names of the commands, for completion.
---@return string[]
function commands.names()
  local names = {}
  for name in pairs(handlers) do names[#names + 1] = name end
  return names
end

-- A child is not a rank: it must not inherit the launcher's variables of this rank.
local RANK_VARIABLES = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MOONSHARD_JOB_FD"

local function run_shell(command)
  io.flush()
  local status = os.execute(("unset %s; %s"):format(RANK_VARIABLES, command))
  if status == 0 then return {} end
  return { message = ("the command ended with status %d"):format(math.floor(status / 256)) }
end

local function address(prompt, target, rest, line)
  local request = { kind = "lua", text = rest, line = line }
  if target == "all" then
    request.apart = true
  else
    request.only = tonumber(target)
    if not request.only or request.only >= prompt.ranks then
      return { message = ("@%s: ranks are 0 to %d, or all"):format(target, prompt.ranks - 1) }
    end
  end
  return { request = request }
end

-- What people type at other prompts: exit, quit(), help, help(name), help "name". A session's own name comes first.
local function word_of(prompt, text)
  local word, rest = text:match("^%s*(%a+)%s*(.-)%s*$")
  local handler = ({ exit = handlers.quit, quit = handlers.quit, help = handlers.help })[word]
  if not handler or prompt.environment[word] ~= nil then return nil end
  local argument = rest == "" and "" or rest:match("^%(%s*(.-)%s*%)$") or rest:match("^[\"'].*[\"']$")
    or handler == handlers.help and rest:match("^[%w_.:]+$")
  if not argument or handler == handlers.quit and argument ~= "" then return nil end
  return handler(prompt, argument:match("^[\"'](.*)[\"']$") or argument)
end

local function read(prompt, text, line)
  local first = text:match("^%s*(%S?)")
  if first == "" then return {} end
  if first == "!" then return run_shell(text:match("!(.*)$")) end
  if first == "?" then
    local name = text:match("%?%s*(.-)%s*$")
    return name == "" and { text = HELP } or describe(prompt, name)
  end
  local word = word_of(prompt, text)
  if word then return word end
  if first == ":" and not text:match("^%s*::") then
    local name, argument = text:match(":%s*(%S*)%s*(.-)%s*$")
    if handlers[name] and argument ~= "" and not TAKES[name] then
      return { message = (":%s takes nothing, and %s follows it"):format(name, argument) }
    end
    if handlers[name] then return handlers[name](prompt, argument) end
    return { message = (":%s is not a command: %s"):format(name, nearest.advice(name, handlers)) }
  end
  if first == "@" then
    local target, rest = text:match("@(%w+)%s+(.*)$")
    if not target then return { message = "@ needs a rank or all, and a line: @2 x" } end
    return address(prompt, target, rest, line)
  end
  return { request = { kind = "lua", text = text, line = line } }
end

---Reads what was typed. Text that is Lua becomes a request. An error of a command, such as one that a recipe's
---__tostring or __index raises, is its message: it ends no session.
---@param prompt { environment: table, ranks: integer, timing: boolean? }
---@param text string
---@param line integer
---@return moonshard.Answer
function commands.read(prompt, text, line)
  local ok, answer = xpcall(function() return read(prompt, text, line) end, errors.adopt)
  return ok and answer or { message = errors.text(answer) }
end

return commands
