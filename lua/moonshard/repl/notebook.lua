-- Records a session: the lines that succeeded, to be saved as a recipe that repeats them, and the losses of its steps,
-- for a curve.

local chart = require("moonshard.metrics.chart")
local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local evaluate = require("moonshard.repl.evaluate")
local input_file = require("moonshard.base.files.input_file")
local output_file = require("moonshard.base.files.output_file")
local terminal = require("moonshard.base.text.terminal")

---@class moonshard.Notebook
---@field pieces string[] of a recipe
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

-- An expression as a statement that also sets _, as the prompt does; nil when it has no effect.
local function as_statement(text)
  local expression = text:match("^%s*=(.*)$") or text
  if expression:find("^[%w_.%s]*$") then return nil end
  if expression == text and loadstring(text) then return text end
  return "_ = " .. expression
end

local function source_of_file(path)
  local source = input_file.text(path)
  return source and ("-- %s\n%s"):format(path, (source:gsub("^#[^\n]*\n?", ""):gsub("\n$", "")))
end

-- Variables outlive a line at the prompt, so the locals of a line are variables here, too.
local function piece_of(request)
  if request.kind == "file" then return source_of_file(request.text) end
  local text = as_statement(evaluate.without_locals(request.text):gsub("^%s+", ""))
  if request.only and text then return ("if rank == %d then\n%s\nend"):format(request.only, text) end
  return text
end

---Records a request that succeeded on all ranks.
---@param request moonshard.Request
function Notebook:keep(request)
  local piece = piece_of(request)
  if piece then table.insert(self.pieces, piece) end
end

---Writes the session as a recipe.
---@param path string
---@return boolean? saved, string? message
function Notebook:save(path)
  local source = HEAD .. table.concat(self.pieces, "\n") .. "\n"
  local ok, raised = pcall(output_file.write, ":save", path, source)
  if not ok then return nil, errors.text(raised) end
  return true
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
