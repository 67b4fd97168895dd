-- Rank 0's prompt: reads until a line is complete, carries out commands that concern only rank 0, and returns requests
-- for all ranks. In a terminal lines can be edited; from a pipe they are read as is, without prompts.

local commands = require("moonshard.repl.commands")
local completion = require("moonshard.repl.completion")
local evaluate = require("moonshard.repl.evaluate")
local lexer = require("moonshard.repl.lexer")
local notebook = require("moonshard.repl.notebook")
local terminal = require("moonshard.base.text.terminal")

---@class moonshard.Prompt
---@field environment table
---@field ranks integer
---@field interactive boolean a terminal
---@field timing boolean
---@field failed boolean whether any line failed
---@field line integer lines read so far
---@field notebook moonshard.Notebook
local Prompt = {}
Prompt.__index = Prompt

local prompt = {}

local FIRST, MORE = "moonshard> ", "        .. "
local HISTORY_LINES = 1000

-- $XDG_STATE_HOME/moonshard/history; nil if there is no home folder.
local function history_path()
  local state, home = os.getenv("XDG_STATE_HOME"), os.getenv("HOME")
  if state and state:sub(1, 1) == "/" then return state .. "/moonshard/history" end
  return home and home:sub(1, 1) == "/" and home .. "/.local/state/moonshard/history" or nil
end

---@param host table moonshard.host.repl
---@param world moonshard.World
---@param environment table of rank 0
---@return moonshard.Prompt
function prompt.new(host, world, environment)
  local self = setmetatable({
    host = host, handle = world.handle, ranks = world.size, environment = environment,
    interactive = host.is_terminal(), timing = false, failed = false, line = 0, notebook = notebook.new(),
  }, Prompt)
  if not self.interactive then return self end
  local opened, why = host.open_editor(history_path(), HISTORY_LINES)
  if not opened then error(why, 0) end
  function self.completer(text)
    return completion.complete(environment, text, commands.names(), terminal.columns())
  end
  print(("Moonshard %s, %d rank%s. :help lists the commands, Ctrl-D ends."):format(
    require("moonshard.base.ffi").version, self.ranks, self.ranks == 1 and "" or "s"))
  return self
end

function Prompt:close()
  if self.interactive then self.host.close_editor() end
end

-- The next line of the input; or nil, the reason ("end", "interrupt" or "lost") and a message.
function Prompt:read_line(text)
  if not self.interactive then
    local line, why, message = self.host.read(self.handle)
    if line then self.line = self.line + 1 end
    return line, why, message
  end
  local line, why, message = self.host.edit(self.handle, text, self.completer)
  if not line then return nil, why, message end
  line = line:gsub("\n$", "")
  self.line = self.line + 1 + select(2, line:gsub("\n", "")) -- a block that history recalled is one
  return line
end

-- The input becomes one entry of the history, even if it has several lines.
function Prompt:remember(typed)
  if not self.interactive or not typed:find("%S") then return end
  local saved, cause = self.host.remember(typed)
  if saved or self.told_history then return end
  self.told_history = true
  self:fail(cause)
  self.failed = false
end

---Prints an error.
---@param message string
function Prompt:fail(message)
  self.failed = true
  io.stdout:flush()
  io.stderr:write(message, "\n")
end

-- Reads more lines until a request is complete. The request is nil when the input is discarded or has ended; typed: all
-- lines.
function Prompt:complete(request, typed)
  while true do
    local text, silent = lexer.strip_semicolon(request.text)
    -- Accepts a `;` after an expression; after a statement it is part of Lua.
    local chunk, message, incomplete = evaluate.compile(text, "=stdin", request.line)
    if chunk then
      request.text, request.silent = text, silent
      return request, typed
    end
    if incomplete then
      local line, why, lost = self:read_line(MORE)
      if line then
        request.text = request.text .. "\n" .. line
        typed = typed .. "\n" .. line
      elseif why == "interrupt" then
        return nil, typed
      else
        self:fail(lost and lost ~= "" and lost or message)
        return nil, typed
      end
    else
      self:fail(message)
      return nil, typed
    end
  end
end

---The next request for all ranks.
---@return moonshard.Request? request nil when another rank was lost
---@return string? message
function Prompt:next()
  while true do
    local text, why, message = self:read_line(FIRST)
    if why == "lost" then return nil, message end
    if why == "end" then return { kind = "quit", text = "" } end
    local answer = text and commands.read(self, text, self.line) or {}
    if answer.text then print(answer.text) end
    if answer.message then self:fail(answer.message) end
    local request = answer.request
    local typed = text or ""
    if request and request.kind == "lua" then request, typed = self:complete(request, typed) end
    self:remember(typed)
    if request then return request end
  end
end

return prompt
