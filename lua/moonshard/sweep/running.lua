-- Runs the points of a sweep: plans each, skips it if it would exceed the memory limit, and otherwise trains it
-- `repeats` times, each time on new ranks.
--
-- Plans and runs are child processes (process.lua) with the command line that a user would type: `moonshard plan RECIPE
-- -n N --json key=value ...` and `moonshard run RECIPE -n N --metrics FILE key=value ...`. If a child fails, its error
-- message becomes the reason of the failed point.

local clock = require("moonshard.base.clock")
local grid = require("moonshard.sweep.grid")
local input_file = require("moonshard.base.files.input_file")
local json = require("moonshard.base.text.json")
local metrics_file = require("moonshard.metrics.metrics_file")
local output_file = require("moonshard.base.files.output_file")
local process = require("moonshard.sweep.process")
local progress = require("moonshard.base.text.progress")
local world = require("moonshard.distributed.world")

local running = {}

---@class moonshard.SweepRun
---@field tokens_per_s number median over the steps that count
---@field step_ms number median over the steps that count
---@field exposed_ms number? median time per step in which rank 0 ran no kernel; nil on a GPU
---@field waits_ms table<string, number>? as in SweepRecord; medians over the steps that count
---@field loss number mean over the last tenth of the steps (at least one step)
---@field metrics table<string, number> further metrics that the recipe logged: the last value of each
---@field steps integer number of steps that count
---@field seconds number duration of the whole run
---@field steps_seconds number duration of all its steps, including waiting for data

---@class moonshard.SweepPlan
---@field peak_bytes number
---@field bytes table<string, number> bytes at the peak, by category
---@field fullest table<string, number> peak bytes of each category
---@field comm_bytes table<string, number> by mesh dimension, in a step
---@field nodes string where the ranks are, and what replicas share: "4 ranks on 1 node: ..."
---@field ranks_per_node integer
---@field replicas_together integer number of replicas that share one copy of the state
---@field fingerprint string

---@class moonshard.SweepPrice
---@field step_ms number
---@field tokens_per_s number
---@field exposed_ms number
---@field waits_ms table<string, number> parts of exposed_ms, by mesh dimension
---@field host_ms number in which kernels wait for the host, or between phases
---@field mfu number?
---@field fits boolean
---@field room_bytes number of a rank

---@class moonshard.SweepRecord
---@field key string
---@field point table<string, any>
---@field ranks integer
---@field status "ok"|"skipped"|"failed"
---@field reason string? why it was skipped or failed
---@field planned moonshard.SweepPlan? of rank 0
---@field priced moonshard.SweepPrice? on job.price
---@field runs moonshard.SweepRun[]?
---@field tokens_per_s number? median over runs
---@field tokens_per_s_min number?
---@field tokens_per_s_max number?
---@field step_ms number? median over runs
---@field exposed_ms number? as in SweepRun; median over runs
---@field waits_ms table<string, number>? part of exposed_ms in which kernels waited, by mesh dimension; medians
---@field wire_bytes table<string, number>? bytes per step between rank 0 and other hosts, by mesh dimension
---@field peak_bytes number? size of rank 0's arenas
---@field comm_bytes table<string, number>? bytes per step of rank 0, by mesh dimension
---@field loss number? the first run's
---@field metrics table<string, number>? the first run's
---@field seconds number duration of the plan and all runs
---@field overhead_seconds number of `seconds`, the time outside steps

---The load average of the last minute. Before a sweep begins it shows how busy other programs keep the machine.
---@return number?
function running.machine_load()
  local file = io.open("/proc/loadavg", "rb")
  local load = file and file:read("*n")
  if file then file:close() end
  return load
end

---The median; nil if there are no values.
---@param values number[]
---@return number?
function running.median(values)
  if #values == 0 then return nil end
  local sorted = {}
  for i, value in ipairs(values) do sorted[i] = value end
  table.sort(sorted)
  local half = math.floor(#sorted / 2)
  return #sorted % 2 == 1 and sorted[half + 1] or (sorted[half] + sorted[half + 1]) / 2
end

-- The values of a key; rows without it are left out.
local function column(rows, key)
  local values = {}
  for _, row in ipairs(rows) do values[#values + 1] = row[key] end
  return values
end

-- The medians of a key that holds numbers by mesh dimension; nil where rows have none.
local function medians(rows, key)
  local by_dim, result = {}, {}
  for _, row in ipairs(rows) do
    for dim, value in pairs(row[key] or {}) do
      by_dim[dim] = by_dim[dim] or {}
      table.insert(by_dim[dim], value)
    end
  end
  for dim, values in pairs(by_dim) do result[dim] = running.median(values) end
  return next(result) and result or nil
end

-- The means: steps of local SGD move other bytes than those that synchronise.
local function means(rows, key)
  local sums
  for _, row in ipairs(rows) do
    for dim, value in pairs(row[key] or {}) do
      sums = sums or {}
      sums[dim] = (sums[dim] or 0) + value / #rows
    end
  end
  return sums
end

-- The first "moonshard: " line is the error; a recipe can print anything before or after it.
local function reason_of(ended, timeout)
  if ended.timed_out then return ("timed out after %g s"):format(timeout) end
  local last
  for line in ended.err:gmatch("[^\n]+") do
    local message = line:match("^moonshard: (.*)")
    if message and not message:match("^warning: ") then return message end
    if not message then last = line end
  end
  return last or ended.signal and ("ended by signal %d"):format(ended.signal)
    or ("ended with exit status %d"):format(ended.status)
end

-- The files of a point begin with this path.
local function stem(job, point)
  return ("%s/points/%03d-%s"):format(job.out, point.index, (point.key:gsub("[^%w=.-]+", "_"):sub(1, 120)))
end

-- Runs a child with its standard output and its standard error (if any) in files.
local function child(job, point, words, files, tick)
  for _, argument in ipairs(grid.arguments(job.settings, point, job.conditions)) do words[#words + 1] = argument end
  os.remove(files .. ".err")
  local ended = process.run(words, { output = files .. ".out", timeout = job.timeout, tick = tick })
  if ended.err ~= "" then output_file.write("sweep", files .. ".err", ended.err) end
  if ended.interrupted then world.check_interrupt() end
  return ended
end

-- What a command prints as JSON, or nil and why it failed.
local function output_of(job, point, words, files)
  local ended = child(job, point, words, files)
  local text = input_file.text(files .. ".out") or ""
  os.remove(files .. ".out")
  if ended.status ~= 0 then return nil, reason_of(ended, job.timeout) end
  local output, why = json.decode(text)
  if not output then return nil, ("the output of moonshard %s is not JSON: %s"):format(words[1], why) end
  return output
end

-- Fills record.planned, or returns the reason why the point cannot be planned.
local function plan(job, point, record)
  local files = stem(job, point) .. ".plan"
  local words = { "plan", job.recipe, "-n", tostring(point.ranks), "--summary", "--json" }
  local per_node = job.ranks_per_node and math.min(job.ranks_per_node, point.ranks)
  if job.hosts then
    per_node = job.hosts:ranks_per_node(point.ranks)
    if not per_node then return "a plan needs as many ranks on each host: --hosts " .. job.hosts.text end
  end
  if job.plan and job.cluster then -- the plan is the one that is priced
    per_node = math.min(job.cluster.ranks_per_node, point.ranks)
    words[#words + 1], words[#words + 2] = "--device", job.cluster.device
  end
  if per_node then words[#words + 1], words[#words + 2] = "--ranks-per-node", tostring(per_node) end
  local planned, why = output_of(job, point, words, files)
  if not planned then return why end
  record.planned = { peak_bytes = planned.peak_bytes, bytes = planned.bytes, fingerprint = planned.fingerprint,
    comm_bytes = planned.comm_bytes, fullest = planned.fullest, nodes = planned.nodes,
    ranks_per_node = planned.ranks_per_node, replicas_together = planned.replicas_together }
end

-- Fills record.priced, or returns the reason why the point has no price.
local function price(job, point, record)
  local words = { "price", job.recipe, "-n", tostring(point.ranks), "--cluster", job.price, "--json" }
  local priced, why = output_of(job, point, words, stem(job, point) .. ".price")
  if not priced then return why end
  record.priced = { step_ms = priced.step_ms, tokens_per_s = priced.tokens_per_s, exposed_ms = priced.exposed_ms,
    waits_ms = priced.waiting_ms, host_ms = priced.issuing_ms + priced.gaps_ms, mfu = priced.mfu, fits = priced.fits,
    room_bytes = priced.room_bytes }
end

-- Returns a function that counts the lines of a growing file.
local function line_counter(path)
  local file, lines = nil, 0
  return function()
    file = file or io.open(path, "rb")
    local text = file and file:read("*a")
    if text then lines = lines + select(2, text:gsub("\n", "\n")) end
    return lines
  end
end

local NEEDED = { "loss", "tokens_per_s", "step_ms", "data_ms", "peak_bytes", "comm_bytes" }

-- A recipe evaluates if it wants to, so this is a metric of its own.
local EVALUATED = "valid_loss"

local function is_own(key) return key == EVALUATED or not metrics_file.is_of_step(key) end

-- The metrics that a recipe added: the last value of each, because not every step has all of them. One that ends with
-- NaN or an infinity has none.
local function own_metrics(rows)
  local found = {}
  for _, row in ipairs(rows) do
    for key, value in pairs(row) do
      if is_own(key) and type(value) == "number" then found[key] = value end
    end
    for key in pairs(row.without_value) do found[key] = nil end
  end
  return found
end

-- The lines of a run's steps; or nil and a message; and the largest peak. A point is judged by its first trainer, but
-- for memory. What was logged before the first step is no step.
local function read_metrics(path)
  local rows, peak, number = {}, 0, 0
  for line in (input_file.text(path) or ""):gmatch("([^\n]+)\n") do
    local row, why = json.decode(line, true)
    number = number + 1
    if not row then return nil, ("%s: line %d: %s"):format(path, number, why) end
    local without_value = {}
    for key, value in pairs(row) do
      if value == json.null then without_value[key] = true end
    end
    for key in pairs(without_value) do row[key] = nil end
    row.without_value = without_value
    for _, key in ipairs(row.step ~= 0 and NEEDED or {}) do
      if row[key] == nil then return nil, ("the metrics have no %s: log what train:step returns"):format(key) end
    end
    peak = math.max(peak, row.peak_bytes or 0)
    if row.step ~= 0 and not row.trainer then rows[#rows + 1] = row end
  end
  return rows, nil, peak
end

-- A mean over several steps, because the loss of one step depends on its batch.
local function final_loss(rows)
  local sum, counted = 0, math.max(1, math.floor(#rows / 10))
  for i = #rows - counted + 1, #rows do sum = sum + rows[i].loss end
  return sum / counted
end

-- Summarizes the metrics of a run; or returns nil and why this is impossible.
local function summarize(path, warmup, record)
  local rows, why, peak = read_metrics(path)
  if not rows then return nil, why end
  if #rows == 0 then return nil, "the recipe logged no step: it must call ms.log" end
  if #rows <= warmup then
    return nil, ("the recipe logged %d step%s, which is not more than the warm-up of %d"):format(#rows,
      #rows == 1 and "" or "s", warmup)
  end
  local counted, seconds = {}, 0
  for i, row in ipairs(rows) do
    seconds = seconds + (row.step_ms + row.data_ms) / 1e3
    if i > warmup then counted[#counted + 1] = row end
  end
  record.peak_bytes = math.max(record.peak_bytes or 0, peak)
  record.comm_bytes, record.wire_bytes = means(counted, "comm_bytes"), means(counted, "wire_bytes")
  return {
    tokens_per_s = running.median(column(counted, "tokens_per_s")),
    step_ms = running.median(column(counted, "step_ms")),
    exposed_ms = running.median(column(counted, "exposed_ms")), waits_ms = medians(counted, "waits_ms"),
    loss = final_loss(rows), metrics = own_metrics(rows), steps = #counted, steps_seconds = seconds,
  }
end

-- Calls the sweep's prepare; returns the reason if it fails.
local function prepare(job, point)
  if not job.prepare then return nil end
  local given = { ranks = point.ranks }
  for key, value in pairs(point.values) do given[key] = value end
  local ok, result, why = pcall(job.prepare, given)
  if not ok then return "prepare: " .. tostring(type(result) == "table" and result.message or result) end
  -- As Lua's own functions fail, os.execute and io.open among them.
  if result == false or result == nil and type(why) == "string" then return "prepare: " .. tostring(why or "false") end
end

-- Runs the point once; returns the reason if it fails.
local function train(job, point, record, number, on_step)
  local files = ("%s.%d"):format(stem(job, point), number)
  local metrics = files .. ".jsonl"
  os.remove(metrics)
  local count = line_counter(metrics)
  local why_not = prepare(job, point)
  if why_not then return why_not end
  local words = { "-n", tostring(point.ranks) }
  if job.hosts then
    words, why_not = job.hosts:run_words(point.ranks)
    if not words then return why_not end
  end
  for i, word in ipairs({ "run", job.recipe, "--metrics", metrics }) do table.insert(words, i, word) end
  local ended = child(job, point, words, files, function() on_step(number, count()) end)
  if ended.status ~= 0 then return reason_of(ended, job.timeout) end
  if job.hosts and not input_file.text(metrics) then
    return ("host %s wrote no %s here: it must see this folder, or be this machine"):format(job.hosts.list[1].name,
      metrics)
  end
  local run, why = summarize(metrics, job.warmup, record)
  if not run then return why end
  run.seconds = ended.seconds
  record.runs[number] = run
end

local function combine(record)
  local speeds = column(record.runs, "tokens_per_s")
  record.tokens_per_s, record.step_ms = running.median(speeds), running.median(column(record.runs, "step_ms"))
  record.exposed_ms = running.median(column(record.runs, "exposed_ms"))
  record.waits_ms = medians(record.runs, "waits_ms")
  record.tokens_per_s_min, record.tokens_per_s_max = math.min(unpack(speeds)), math.max(unpack(speeds))
  -- Repeats that differ in more than time, as those with other seeds, are summed up in the same way.
  record.loss, record.metrics = running.median(column(record.runs, "loss")), medians(record.runs, "metrics") or {}
end

-- Calls a function and adds its duration to the record.
local function timed(record, action, ...)
  local began = clock.now()
  local reason = action(...)
  record.seconds = record.seconds + clock.now() - began
  return reason
end

---Plans a point before its first run. A point that cannot be planned has failed, and one over the memory limit is
---skipped. Errors of the point are in the record; only Ctrl-C raises (MS_EINTERRUPT), as in `run`.
---@param job table recipe, settings, repeats, warmup, memory_limit, timeout, out, plan, ranks_per_node
---@param point moonshard.SweepPoint
---@return moonshard.SweepRecord record its status is nil if the point is to run
function running.plan(job, point)
  local record = { key = point.key, point = point.values, ranks = point.ranks, runs = {}, seconds = 0 }
  output_file.make_folders("results", job.out .. "/points/")
  record.reason = timed(record, plan, job, point, record)
    or job.price and timed(record, price, job, point, record) or nil
  if record.reason then
    record.status = "failed"
  elseif job.memory_limit and record.planned.peak_bytes > job.memory_limit then
    record.status = "skipped"
    record.reason = ("planned peak %s per rank is over the limit of %s"):format(
      progress.size(record.planned.peak_bytes), progress.size(job.memory_limit))
  elseif job.plan and record.priced and not record.priced.fits then
    record.status = "skipped"
    record.reason = ("planned peak %s per rank is over the %s that %s has"):format(
      progress.size(record.planned.peak_bytes), progress.size(record.priced.room_bytes), job.cluster.name)
  elseif job.plan then
    record.status, record.comm_bytes = "ok", record.planned.comm_bytes
  end
  record.overhead_seconds = record.seconds
  return record
end

---Runs a point once more. A failure, or the last run, sets its status.
---@param job table
---@param point moonshard.SweepPoint
---@param record moonshard.SweepRecord
---@param on_step fun(run: integer, steps: integer) called about ten times a second during the run
function running.run(job, point, record, on_step)
  local number = #record.runs + 1
  record.reason = timed(record, train, job, point, record, number, on_step)
  if record.reason then record.status = "failed" end
  -- The plan was that of the first step of the recipe's first trainer.
  if not record.reason and job.memory_limit and record.peak_bytes > job.memory_limit then
    record.status = "skipped"
    record.reason = ("it had %s per rank, planned %s, and is over the limit of %s: other trainers, or later steps, "
      .. "have more than the first step"):format(progress.size(record.peak_bytes),
      progress.size(record.planned.peak_bytes), progress.size(job.memory_limit))
  end
  if number == job.repeats and not record.reason then
    combine(record)
    record.status = "ok"
  end
  record.overhead_seconds = record.seconds
  for _, run in ipairs(record.runs) do record.overhead_seconds = record.overhead_seconds - run.steps_seconds end
end

return running
