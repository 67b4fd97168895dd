-- ms.log: sends the metrics of a step to the screen, the metrics file and the final curve. Only rank 0 writes; on
-- other ranks these functions do nothing.

local chart = require("moonshard.metrics.chart")
local errors = require("moonshard.base.error")
local history = require("moonshard.metrics.history")
local options = require("moonshard.base.checks.options")
local output_file = require("moonshard.base.files.output_file")
local progress = require("moonshard.base.text.progress")
local spikes = require("moonshard.metrics.spikes")
local terminal = require("moonshard.base.text.terminal")
local world = require("moonshard.distributed.world")

---@class moonshard.log
---@overload fun(step: integer, m: table) prints a step's line and writes to --metrics and --tensorboard
local log = {
  ---Losses so far, for the curve: { step, loss } each. Of more than 4096 steps, some that are equally far apart.
  ---@type { train: number[][], valid: number[][] }
  history = { train = {}, valid = {} },
  expect = progress.expect,
}

local metrics = { file = nil, events = nil }
-- Trainers are numbered as they are made; by trainer, and by the metrics of a step.
local numbers, trainers = setmetatable({}, { __mode = "k" }), 0
local watch = { spikes = spikes.new() }

---Sets the thresholds of spikes, or with false turns them off. A spike is a step whose gradient norm or loss exceeds a
---multiple of the recent median; ms.log prints it and ms.log.spikes_found() lists it. Forgets all earlier steps.
---@param o moonshard.SpikeOptions|false|nil
function log.spikes(o)
  watch.spikes = o ~= false and spikes.new(o) or nil
end

---@return { step: integer, what: string, value: number, ratio: number }[] spikes the last 1024, oldest first
function log.spikes_found() return watch.spikes and watch.spikes.found or {} end

---Writes one JSON object per step to a file from now on.
---@param path string
function log.open_metrics(path) metrics.file = require("moonshard.metrics.metrics_file").open(path) end

---Writes a TensorBoard event file in a folder from now on.
---@param folder string
function log.open_events(folder)
  metrics.events = require("moonshard.metrics.tensorboard").open(folder)
end

local function write(step, m)
  if type(step) ~= "number" or type(m) ~= "table" or type(m.loss) ~= "number" then
    errors.invalid("ms.log takes a step and its metrics, as train:step returns them: ms.log(step, m)")
  end
  for name, value in pairs(m) do
    if type(value) == "string" or type(value) == "table" and getmetatable(value) then
      errors.invalid("ms.log: %s of the metrics must be a number, not %s; of a tensor, x:item() is one", tostring(name),
        options.describe(value))
    end
  end
  if m.trainer ~= nil then
    errors.invalid("ms.log: trainer of the metrics is the trainer's number, which --metrics has itself: give yours "
      .. "another name")
  end
  if world.rank ~= 0 then return end
  history.add(log.history.train, step, m.loss)
  if m.valid_loss then history.add(log.history.valid, step, m.valid_loss) end
  if metrics.file then metrics.file:add(step, m, numbers[m] or 1) end
  if metrics.events then metrics.events:add(step, m) end
  progress.show(step, m)
  local spike = watch.spikes and watch.spikes:check(step, m)
  if spike then log.print(spike) end
end

---Logs a step that the recipe has not logged yet, because the run is ending early.
---@param step integer
---@param m moonshard.StepMetrics
function log.catch_up(step, m)
  local last = log.history.train[#log.history.train]
  if (last or metrics.file or metrics.events) and not (last and last[1] >= step) then write(step, m) end
end

---Gives a trainer of this run its number, by which its steps differ from those of others.
---@param train moonshard.Trainer
function log.number(train)
  trainers = trainers + 1
  numbers[train] = trainers
end

---Notes whose step metrics are of.
---@param m moonshard.StepMetrics
---@param train moonshard.Trainer
function log.note(m, train) numbers[m] = numbers[train] end

---A print that does not collide with the progress line.
function log.print(...)
  progress.finish()
  local texts = {}
  for i = 1, select("#", ...) do
    texts[i] = tostring((select(i, ...)))
  end
  output_file.print(table.concat(texts, "\t"), "\n")
end

---A trainer resumes from a checkpoint: its later steps that were logged before will run again.
---@param step integer the last completed one
---@param train moonshard.Trainer
function log.resumed(step, train)
  local said = metrics.file and metrics.file:resume(step, numbers[train] or 1)
  if said then log.print(said) end
  if metrics.events then metrics.events:restart(step + 1) end
end

---@class moonshard.CurveOptions
---@field svg? string file for the curve, whose folders are made; "": none
---@field title? string

---Draws the logged losses in the terminal, and as an SVG file.
---@param o moonshard.CurveOptions?
function log.curve(o)
  o = options.parse("ms.log.curve", o, { svg = { "string" }, title = { "string" } })
  if world.rank ~= 0 or #log.history.train == 0 then return end
  local curves = { { name = "training", points = log.history.train } }
  if #log.history.valid > 0 then curves[2] = { name = "validation", points = log.history.valid, marks = true } end
  local labels = { title = o.title or "loss", x = "step" }
  progress.show_last()
  log.print(chart.text(curves, {
    title = labels.title, x = labels.x, columns = math.min(terminal.columns(), 78), colour = terminal.interactive(),
  }))
  if o.svg and o.svg ~= "" then output_file.write("chart", o.svg, chart.svg(curves, labels)) end
end

return setmetatable(log, {
  __call = function(_, step, m)
    write(step, m)
  end,
})
