-- ms.log: what a step gave, to the screen, to the metrics file and to the curve at the end. Rank 0 writes; on the
-- other ranks all of this does nothing.

local chart = require("moonshard.metrics.chart")
local errors = require("moonshard.base.error")
local output_file = require("moonshard.base.output_file")
local progress = require("moonshard.base.progress")
local spikes = require("moonshard.metrics.spikes")
local terminal = require("moonshard.base.terminal")
local world = require("moonshard.distributed.world")

---@class moonshard.log
---@overload fun(step: integer, m: table) a line of a step, and what --metrics and --tensorboard write
local log = {
  ---Losses so far, for the curve: { step, loss } each.
  ---@type { train: number[][], valid: number[][] }
  history = { train = {}, valid = {} },
  expect = progress.expect,
}

local metrics = { file = nil, events = nil }
local watch = { spikes = spikes.new() }

---Steps whose gradient norm or loss is a multiple of the median before are told as they are logged, and stand in
---ms.log.spikes_found(). This sets the multiples, or with false stops it; anew, so it knows nothing of earlier steps.
---@param o moonshard.SpikeOptions|false|nil
function log.spikes(o)
  watch.spikes = o ~= false and spikes.new(o) or nil
end

---@return { step: integer, what: string, value: number, ratio: number }[]
function log.spikes_found() return watch.spikes and watch.spikes.found or {} end

---Writes one JSON object a step to a file from here on.
---@param path string
function log.open_metrics(path) metrics.file = require("moonshard.metrics.metrics_file").open(path) end

---Writes an event file of TensorBoard in a folder from here on.
---@param folder string
function log.open_events(folder)
  metrics.events = require("moonshard.metrics.tensorboard").open(folder)
end

local function write(step, m)
  if type(step) ~= "number" or type(m) ~= "table" or type(m.loss) ~= "number" then
    errors.invalid("ms.log takes a step and its metrics, as train:step returns them: ms.log(step, m)")
  end
  if world.rank ~= 0 then return end
  table.insert(log.history.train, { step, m.loss })
  if m.valid_loss then table.insert(log.history.valid, { step, m.valid_loss }) end
  if metrics.file then metrics.file:add(step, m) end
  if metrics.events then metrics.events:add(step, m) end
  progress.show(step, m)
  local spike = watch.spikes and watch.spikes:see(step, m)
  if spike then log.print(spike) end
end

---Logs a step that was not logged yet, as the recipe would have: because the run ends before it comes to that.
---@param step integer
---@param m moonshard.StepMetrics
function log.catch_up(step, m)
  local last = log.history.train[#log.history.train]
  if (last or metrics.file or metrics.events) and not (last and last[1] >= step) then write(step, m) end
end

---print that does not run into the progress line.
function log.print(...)
  progress.finish()
  local texts = {}
  for i = 1, select("#", ...) do
    texts[i] = tostring((select(i, ...)))
  end
  output_file.print(table.concat(texts, "\t"), "\n")
end

---The run goes on from a checkpoint: what was logged of later steps is made again.
---@param step integer the last one that is done
function log.resumed(step)
  local said = metrics.file and metrics.file:resume(step)
  if said then log.print(said) end
  if metrics.events then metrics.events:restart(step + 1) end
end

---@class moonshard.CurveOptions
---@field svg? string file to write the curve to, with folders on the way to it; "": none
---@field title? string

---Draws the losses that were logged so far in the terminal, and as an SVG file.
---@param o moonshard.CurveOptions?
function log.curve(o)
  o = o or {}
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
