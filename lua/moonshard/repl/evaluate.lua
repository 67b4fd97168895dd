-- Evaluates a line on one rank: compiles it, runs it in the session's environment, and returns the outcome.
--
-- User code runs interpreted, because LuaJIT's compiled loops do not check for Ctrl-C. The layer below stays compiled.

local advice = require("moonshard.base.names.advice")
local context = require("moonshard.base.context")
local digest = require("moonshard.repl.digest")
local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.files.input_file")
local lexer = require("moonshard.repl.lexer")
local nearest = require("moonshard.base.names.nearest")
local show = require("moonshard.display.values")

---@class moonshard.Evaluator
---@field environment table globals of the session
local Evaluator = {}
Evaluator.__index = Evaluator

local evaluate = {}

---@class moonshard.Outcome the outcome of a line on one rank
---@field kind string "ok", "error", "interrupted", "stopped" (by the failure of another rank), "quit", "idle"
---@field text string shown values, or the message
---@field output string what the line printed
---@field code integer exit status, for "quit"

local MAX_OUTPUT = 2 ^ 16
local MAX_TEXT = 2 ^ 18

-- Raised by os.exit, so that all ranks leave together.
local Quit = {}

-- ---- output of a line ----------------------------------------------------------------------------------------------

local function keep_output(self, text)
  if self.kept < MAX_OUTPUT then
    table.insert(self.output, text)
    self.kept = self.kept + #text
  end
  if text ~= "" then self.ends_line = text:sub(-1) == "\n" end
end

-- Only rank 0's output is shown immediately; all ranks keep theirs for comparison.
local function watch_output(self)
  local write = io.write
  rawset(io, "write", function(...)
    local result = write(...)
    keep_output(self, table.concat({ ... }))
    return result
  end)
  function _G.print(...)
    local texts = {}
    for i = 1, select("#", ...) do texts[i] = show.printed((select(i, ...))) end
    io.write(table.concat(texts, "\t"), "\n")
  end
end

-- ---- the environment -----------------------------------------------------------------------------------------------

-- A loader of code whose functions belong to the session and stay interpreted.
local function own_loader(self, load)
  return function(...)
    local chunk, why = load(...)
    if type(chunk) ~= "function" then return chunk, why end
    jit.off(chunk, true)
    return setfenv(chunk, self.environment)
  end
end

local function add_loaders(self)
  local environment = self.environment
  environment.load, environment.loadstring = own_loader(self, load), own_loader(self, loadstring)
  environment.loadfile = own_loader(self, loadfile)
  function environment.dofile(path)
    local chunk, why = environment.loadfile(path)
    if not chunk then error(why, 0) end
    return chunk()
  end
  -- The user's modules are files; those of the layer are in the executable.
  local SEARCHES_FILES = 3
  local search = package.loaders[SEARCHES_FILES]
  package.loaders[SEARCHES_FILES] = function(name)
    local loader, more = search(name)
    if type(loader) == "function" then jit.off(loader, true) end
    return loader, more
  end
end

---@param rank integer
---@return moonshard.Evaluator
function evaluate.new(rank)
  local ms = require("moonshard")
  local environment = setmetatable({ ms = ms, re = ms.re, rank = rank }, { __index = _G })
  environment._G = environment
  local self = setmetatable({ environment = environment, rank = rank, output = {}, kept = 0 }, Evaluator)
  add_loaders(self)
  watch_output(self)
  rawset(os, "exit", function(code)
    local codes = { [true] = 0, [false] = 1 }
    local status = codes[code] or tonumber(code) or 0
    -- As the system has it: its last 8 bits.
    error(setmetatable({ code = status - status == 0 and math.floor(status) % 256 or 0 }, Quit), 0)
  end)
  return self
end

-- ---- compiling -----------------------------------------------------------------------------------------------------

local function compile_as(text, name, first_line)
  return loadstring(("\n"):rep(first_line - 1) .. text, name)
end

-- An expression becomes an argument of a function that collects its values: after `return`, it would be a tail call,
-- and errors could not name its line. It is within a function of its own, in which `...` is empty.
local function compile_values(text, name, first_line)
  local tokens = lexer.tokens(text)
  local last = tokens[#tokens]
  return compile_as("local _values_of_line = ... return (function(...) return _values_of_line("
    .. text:sub(1, last and last.last or 0) .. ") end)()", name, first_line)
end

-- "stdin:3: unexpected symbol near '='", the line, and a caret below the word.
local function explain(message, text, place, first_line)
  message = advice.explain_syntax(message, ("\n"):rep(first_line - 1) .. text)
  local before = text:sub(1, place - 1)
  local column = #before:match("[^\n]*$")
  local line = (before:match("[^\n]*$") .. text:sub(place)):match("^[^\n]*")
  return ("%s\n  %s\n  %s^"):format(message, line, line:sub(1, column):gsub("[^\t]", " "))
end

local function can_continue(message, text)
  return lexer.is_incomplete(message) and not lexer.has_colon_of_python(text)
end

---Compiles a text: an expression if it is one, else statements whose outermost locals the session keeps.
---@param text string
---@param name string chunk name: "=stdin"
---@param first_line integer of the text in what it came from
---@return function? chunk for an expression: passes its values to the function that it receives, and returns the result
---@return string? message
---@return boolean? incomplete more text would complete it
---@return boolean? is_expression
function evaluate.compile(text, name, first_line)
  local expression = text:match("^%s*=(.*)$")
  local chunk, message = compile_as("return " .. (expression or text), name, first_line)
  if chunk then return compile_values(expression or text, name, first_line), nil, nil, true end
  local place = lexer.find_mistake("return " .. (expression or text)) - #"return "
  if expression then
    return nil, explain(message, text, place + #text - #expression, first_line), can_continue(message, text)
  end
  local as_expression = message
  chunk, message = compile_as(lexer.keep_locals(text), name, first_line)
  if chunk then return chunk end
  -- Reports the error of the interpretation that parses further.
  local statement_place = lexer.find_mistake(text)
  if statement_place >= place then place, as_expression = statement_place, message end
  return nil, explain(as_expression, text, place, first_line), can_continue(as_expression, text)
end

---The code of a line: its outermost locals become variables of the session.
---@param text string
---@return string
function evaluate.without_locals(text)
  return loadstring(text) and lexer.keep_locals(text) or text
end

local function compile_file(path)
  local source, why = input_file.text(path)
  if not source then return nil, why end
  return loadstring(lexer.keep_locals((source:gsub("^#[^\n]*", ""))), "@" .. path)
end

-- ---- running -------------------------------------------------------------------------------------------------------

local function pack(...) return { n = select("#", ...), ... } end

local KINDS = { MS_EINTERRUPT = "interrupted", MS_EPEER = "stopped" }

local function adopt(raised)
  return getmetatable(raised) == Quit and raised or errors.locate(raised)
end

local function outcome_of_error(raised)
  if getmetatable(raised) == Quit then return { kind = "quit", text = "", code = raised.code } end
  local kind = errors.is(raised) and KINDS[raised.status] or "error"
  local needs_others = errors.is(raised) and raised.status == "MS_EMISMATCH"
  return { kind = kind, text = errors.text(raised), needs_others = needs_others }
end

-- The value of a name or of names joined by dots, which calls nothing but what __index does.
local function value_of(self, names)
  local read = loadstring("return " .. names)
  return read and setfenv(read, self.environment)()
end

-- What a person who typed a name without a value, or item 0 of a list, may have meant: " (did you mean model?)", or "".
local function advice_on_nil(self, text)
  local names, list = text:match("^%s*=?%s*([%a_][%w_.]*)%s*$"), text:match("^%s*=?%s*([%a_][%w_.]*)%[0%]%s*$")
  local holder = list and value_of(self, list)
  if type(holder) == "table" and #holder > 0 then return (" (lists begin with item 1: %s[1])"):format(list) end
  local above, name = (names or ""):match("^(.-)%.?([%w_]+)$")
  if not name or #name < 3 then return "" end
  holder = above == "" and self.environment or value_of(self, above)
  local known = {}
  for key in next, type(holder) == "table" and holder or {} do
    if type(key) == "string" and key:sub(1, 1) ~= "_" then known[#known + 1] = key end
  end
  local near = nearest.name(name, known)
  return near and (" (did you mean %s?)"):format(near) or ""
end

-- Shows the values. Ctrl-C also stops this, because a collective tostring can wait or take long.
local function run_chunk(self, chunk, request, is_expression)
  local values = is_expression and chunk(pack) or pack(chunk())
  if request.kind == "file" then
    if request.finish then request.finish() end
    return ""
  end
  if values.n == 0 then return "" end
  self.environment._ = values[1]
  self.digest = digest.of(values)
  if request.silent then return "" end
  local shown = show.values(values)
  return values.n == 1 and values[1] == nil and shown .. advice_on_nil(self, request.text) or shown
end

---Runs a request of the session.
---@param request moonshard.Request
---@param stoppable fun(call: function, handler: function, presses: integer): boolean, any xpcall that Ctrl-C stops
---@return moonshard.Outcome
function Evaluator:run(request, stoppable)
  self.output, self.kept, self.ends_line, self.digest = {}, 0, true, 0
  local outcome
  local chunk, message, _, is_expression
  if request.kind == "file" then chunk, message = compile_file(request.text)
  else chunk, message, _, is_expression = evaluate.compile(request.text, "=stdin", request.line) end
  if chunk then
    jit.off(setfenv(chunk, self.environment), true)
    local ok, result = stoppable(function() return run_chunk(self, chunk, request, is_expression) end, adopt,
      request.presses)
    context.trace, context.path = nil, "" -- of a trace that did not end
    outcome = ok and { kind = "ok", text = result, digest = self.digest } or outcome_of_error(result)
  else
    outcome = { kind = "error", text = message }
  end
  if #outcome.text > MAX_TEXT then outcome.text = outcome.text:sub(1, MAX_TEXT) .. "\n... cut here" end
  outcome.output = table.concat(self.output):sub(1, MAX_OUTPUT)
  return outcome
end

return evaluate
