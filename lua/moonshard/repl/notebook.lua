-- Records a session: the lines that succeeded, to be saved as a recipe that repeats them, and the losses of its steps,
-- for a curve.

local args = require("moonshard.recipe.args")
local chart = require("moonshard.metrics.chart")
local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local evaluate = require("moonshard.repl.evaluate")
local input_file = require("moonshard.base.files.input_file")
local lexer = require("moonshard.repl.lexer")
local output_file = require("moonshard.base.files.output_file")
local terminal = require("moonshard.base.text.terminal")

---@class moonshard.Notebook
---@field pieces moonshard.NotebookPiece[] of a recipe
---@field losses table<moonshard.Trainer, number[][]> { step, loss } each
---@field last moonshard.Trainer? that made a step
local Notebook = {}
Notebook.__index = Notebook

local notebook = {}

---@return moonshard.Notebook
function notebook.new()
  local self = setmetatable({ pieces = {}, losses = setmetatable({}, { __mode = "k" }) }, Notebook)
  function context.on_step(trainer, metrics)
    self.losses[trainer] = self.losses[trainer] or {}
    table.insert(self.losses[trainer], { trainer.steps_done, metrics.loss })
    self.last = trainer
  end
  return self
end

-- ---- the session as a recipe ------------------------------------------------------------------------------------

local HEAD = [[
local ms = require "moonshard"
local re = ms.re
rank = ms.world().rank
]]

-- What `_` is at the prompt: the first value of the last line that had one. Only in recipes that read it.
local RESULT = [[
local function result(...)
  if select("#", ...) > 0 then _ = (...) end
end
]]

local function source_of_file(path)
  local source = input_file.text(path)
  if not source then return nil end
  source = source:gsub("^#[^\n]*\n?", ""):gsub("\n$", "")
  if lexer.returns(source) then
    source = ("do local _ = (function()\n%s\nend)() end"):format(lexer.keep_locals(source))
  end
  return ("-- %s\n%s"):format(path, source)
end

-- The settings of the session's command line, which what it saves has in its own.
local function settings()
  local lines = {}
  for i, override in ipairs(args.overrides) do
    lines[i] = ("ms.args.preset(%q)\n"):format(override.key .. "=" .. override.text)
  end
  return table.concat(lines)
end

-- Whether a text is a statement, with others around it.
local function is_statement(text) return loadstring("local _\n" .. text .. "\nlocal _") ~= nil end

-- Statements as they can stand among others: no bracket of theirs goes with the line before, and no label is there
-- twice.
local function apart(text)
  local is_open = text:find("^%(") or text:find("::", 1, true)
  return is_open and ("do\n%s\nend"):format(text) or text
end

---@class moonshard.NotebookPiece
---@field text string? its statements, which may be less than it did: `_` stays; nil: there are none
---@field result string? an expression with its values
---@field only integer? the rank that ran it

-- Variables outlive a line at the prompt, so the locals of a line are variables here, too.
local function piece_of(request)
  if request.kind == "file" then return { text = source_of_file(request.text) } end
  local text = evaluate.without_locals(request.text):gsub("^%s+", "")
  local expression = text:match("^=(.*)$") or text:match("^return%f[^%w_]%s*(.-)%s*;?%s*$") or text
  if expression == "" then return {} end -- a lone return
  if not loadstring("return " .. expression) then
    if not lexer.returns(text) then return { text = apart(text), only = request.only } end
    local call = ("(function()\n%s\nend)()"):format(text)
    return { text = ("do local _ = %s end"):format(call), result = call, only = request.only }
  end
  local has_effect = not expression:find("^[%w_.%s]*$")
  local statement = has_effect and (is_statement(expression) and apart(expression) or "_ = " .. expression) or nil
  return { text = statement, result = expression, only = request.only }
end

---Records a request that succeeded on all ranks.
---@param request moonshard.Request
function Notebook:keep(request) table.insert(self.pieces, piece_of(request)) end

-- Whether a line reads what another one gave.
local function reads_result(pieces)
  for _, piece in ipairs(pieces) do
    if (piece.result or piece.text or ""):find("%f[%w_]_%f[^%w_]") then return true end
  end
  return false
end

local function source_of(pieces)
  local with_result = reads_result(pieces)
  local lines = { HEAD .. settings() .. (with_result and RESULT or "") }
  for _, piece in ipairs(pieces) do
    local text = piece.text
    if with_result and piece.result then
      -- After a comment the bracket needs a line of its own.
      text = ("result(%s%s)"):format(piece.result, piece.result:find("--", 1, true) and "\n" or "")
    end
    if text and piece.only then text = ("if rank == %d then\n%s\nend"):format(piece.only, text) end
    lines[#lines + 1] = text and text .. "\n" or nil
  end
  return table.concat(lines)
end

---Writes the session as a recipe.
---@param path string
---@return integer? lines, string? message
function Notebook:save(path)
  local source = source_of(self.pieces)
  local ok, raised = pcall(output_file.write, ":save", path, source)
  if not ok then return nil, errors.text(raised) end
  return select(2, source:gsub("\n", "\n"))
end

-- ---- the curve --------------------------------------------------------------------------------------------------

---The losses of the trainer that made the last step, as a drawing.
---@return string? text, string? message
function Notebook:curve()
  local points = self.last and self.losses[self.last]
  if not points then return nil, ":curve: no step has been made yet" end
  return (chart.text({ { name = "training", points = points } }, {
    title = "loss", x = "step", columns = math.min(terminal.columns(), 78), colour = terminal.interactive(),
  }):gsub("\n$", ""))
end

return notebook
