-- ms.log: sends the metrics of a step to the screen, the metrics file and the final curve. Only rank 0 writes; on
-- other ranks these functions do nothing.

local chart = require("moonshard.metrics.chart")
local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local history = require("moonshard.metrics.history")
local options = require("moonshard.base.checks.options")
local output_file = require("moonshard.base.files.output_file")
local progress = require("moonshard.base.text.progress")
local run_summary = require("moonshard.metrics.run_summary")
local spikes = require("moonshard.metrics.spikes")
local strict = require("moonshard.base.checks.strict")
local terminal = require("moonshard.base.text.terminal")
local text_lines = require("moonshard.base.text.text_lines")
local world = require("moonshard.distributed.world")
local written = require("moonshard.base.files.written")

---@class moonshard.log
---@overload fun(step: integer, m: table) prints a step's line and writes to --metrics and --tensorboard
local log = {
  ---Losses so far, for the curve: { step, loss } each. Of more than 4096 steps, some that are equally far apart. Those
  ---of further trainers by their numbers, from 2.
  ---@type { train: number[][], valid: number[][], [integer]: { train: number[][], valid: number[][] } }
  history = { train = {}, valid = {} },
  expect = progress.expect,
}

local metrics = { file = nil, events = nil }
-- Trainers are numbered as they are made; by trainer, and by the metrics of a step. And the trainer's step, by these.
local numbers, trainers, steps = setmetatable({}, { __mode = "k" }), 0, setmetatable({}, { __mode = "k" })
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
function log.open_metrics(path)
  metrics.file = require("moonshard.metrics.metrics_file").open(path)
  written.note("metrics", path)
end

---Writes a TensorBoard event file in a folder from now on.
---@param folder string
function log.open_events(folder)
  metrics.events = require("moonshard.metrics.tensorboard").open(folder)
  written.note("events", folder)
end

-- Metrics of a step that are tables of numbers: by rule of clipping, or by mesh dimension.
local TABLES = { grad_norms = true, waits_ms = true, comm_bytes = true, wire_bytes = true }

local function check_table(name, value)
  if type(value) ~= "table" or getmetatable(value) then
    errors.invalid("ms.log: %s is a metric of train:step that is a table of numbers, not %s: give yours another name",
      name, options.describe(value))
  end
  for key, number in pairs(value) do
    if type(number) ~= "number" then
      errors.invalid("ms.log: %s.%s of the metrics must be a number, not %s", name, tostring(key),
        options.describe(number))
    end
  end
end

-- What is dropped in silence is missed weeks later.
local function check_metric(name, value)
  if type(name) ~= "string" then
    errors.invalid("ms.log: the metrics have %s at the key %s: give it a name", options.describe(value), tostring(name))
  end
  if TABLES[name] then return check_table(name, value) end
  if type(value) == "number" then return end
  errors.invalid("ms.log: %s of the metrics must be a number, not %s; of a tensor, x:item() is one", name,
    options.describe(value))
end

local function history_of(trainer)
  if trainer == 1 then return log.history end
  log.history[trainer] = log.history[trainer] or { train = {}, valid = {} }
  return log.history[trainer]
end

local function write(step, m)
  if type(step) ~= "number" or type(m) ~= "table" or getmetatable(m) ~= nil or type(m.loss) ~= "number" then
    errors.invalid("ms.log takes a step and its metrics, as train:step returns them: ms.log(step, m)")
  end
  if step < 0 or step % 1 ~= 0 or step > 2 ^ 53 then
    errors.invalid("ms.log: the step must be a whole number of at least 0, not %s", options.describe(step))
  end
  for name, value in pairs(m) do check_metric(name, value) end
  for _, name in ipairs({ "step", "trainer", "trainer_step" }) do
    if m[name] ~= nil then
      errors.invalid("ms.log: %s of the metrics is what --metrics has itself: give yours another name", name)
    end
  end
  if world.rank ~= 0 then return end
  local trainer = numbers[m] or 1
  local past = history_of(trainer)
  history.add(past.train, step, m.loss)
  if m.valid_loss then history.add(past.valid, step, m.valid_loss) end
  if metrics.file then metrics.file:add(step, m, trainer, steps[m]) end
  if metrics.events then metrics.events:add(step, m, trainer) end
  run_summary.step(step, m)
  progress.show(step, m)
  local spike = watch.spikes and watch.spikes:check(step, m, trainer)
  if spike then log.print(spike) end
end

---Logs a step that the recipe has not logged yet, because the run is ending early.
---@param step integer
---@param m moonshard.StepMetrics
function log.catch_up(step, m)
  local past = history_of(numbers[m] or 1).train
  local last = past[#past]
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
function log.note(m, train) numbers[m], steps[m] = numbers[train], train.steps_done end

---A print that does not collide with the progress line.
function log.print(...)
  progress.finish()
  local texts = {}
  for i = 1, select("#", ...) do
    texts[i] = context.printed((select(i, ...)))
  end
  output_file.print(table.concat(texts, "\t"), "\n")
end

---Prints a line that names files, whose names can have any characters.
---@param text string
function log.line(text) log.print(text_lines.escape(text)) end

---A trainer resumes from a checkpoint: its later steps that were logged before will run again.
---@param step integer the last completed one
---@param train moonshard.Trainer
function log.resumed(step, train)
  local said = metrics.file and metrics.file:resume(step, numbers[train] or 1)
  if said then log.line(said) end
  -- TensorBoard would drop the steps of all trainers.
  if metrics.events and (numbers[train] or 1) == 1 then metrics.events:restart(step + 1) end
end

---A trainer goes on from a checkpoint that the recipe loaded: its later steps run again. The metrics file keeps the
---lines of both, of which the last of a step counts.
---@param step integer the last completed one
---@param train moonshard.Trainer
function log.loaded(step, train)
  if metrics.events and (numbers[train] or 1) == 1 then metrics.events:restart(step + 1) end
end

---@class moonshard.CurveOptions
---@field svg? string file for the curve, whose folders are made; "": none
---@field title? string

---Draws the logged losses in the terminal, and as an SVG file.
---@param o moonshard.CurveOptions?
function log.curve(o)
  o = options.parse("ms.log.curve", o, { svg = { "string" }, title = { "string" } })
  local curves = {}
  for trainer = 1, trainers > 0 and trainers or 1 do
    local past, of = history_of(trainer), trainer > 1 and " of trainer " .. trainer or ""
    if #past.train > 0 then curves[#curves + 1] = { name = "training" .. of, points = past.train } end
    if #past.valid > 0 then curves[#curves + 1] = { name = "validation" .. of, points = past.valid, marks = true } end
  end
  if world.rank ~= 0 or not curves[1] then return end
  local labels = { title = o.title or "loss", x = "step", y = "loss" }
  progress.show_last()
  log.print(chart.text(curves, {
    title = labels.title, x = labels.x, columns = math.min(terminal.columns(), 78), colour = terminal.interactive(),
  }))
  if not o.svg or o.svg == "" then return end
  output_file.write("chart", o.svg, chart.svg(curves, labels))
  written.note("chart", o.svg)
end

return strict.fields("ms.log", setmetatable(log, {
  __call = function(_, step, m)
    write(step, m)
  end,
}), "history spikes_found open_metrics open_events catch_up number note line resumed loaded")
