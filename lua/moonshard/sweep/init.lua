-- ms.sweep: runs one recipe over a grid of settings, each point on new ranks, and reports the results as a table, CSV,
-- JSON and a page of charts. Works only under `moonshard sweep FILE`, because points run as child processes of the
-- executable.

local args = require("moonshard.recipe.args")
local byte_size = require("moonshard.base.text.byte_size")
local errors = require("moonshard.base.error")
local grid = require("moonshard.sweep.grid")
local input_file = require("moonshard.base.files.input_file")
local nearest = require("moonshard.base.names.nearest")
local options = require("moonshard.base.checks.options")
local output_file = require("moonshard.base.files.output_file")
local report = require("moonshard.sweep.report")
local results = require("moonshard.sweep.results")
local running = require("moonshard.sweep.running")
local status_line = require("moonshard.sweep.status_line")
local terminal = require("moonshard.base.text.terminal")

local sweep = {
  ---Options of the command: file (the sweep's; nil outside the command), resume, json, plan, price, run, hosts.
  mode = { file = nil, resume = false, json = false, plan = false, price = nil, run = false, hosts = nil },
  ---Whether any point of any sweep failed.
  failed = false,
  ---Number of sweeps that ran.
  ran = 0,
}

---@class moonshard.SweepOptions
---@field recipe string path, relative to the sweep's file or to the working directory
---@field over table<string, any[]>? values by setting: every combination is a point; `ranks` is the number of ranks
---@field points table<string, any>[]? further points
---@field conditions table<string, any[]>? values by name that vary like those in `over` but are no settings of the
---  recipe: conditions of the machine, such as the speed of a link, which `prepare` sets up
---@field prepare fun(point: table)? called before each run with the point's settings, conditions and `ranks`; an error
---  fails the point
---@field where fun(point: table): boolean? receives a point's settings and `ranks`; returns false to leave it out
---@field settings table<string, any>? settings of every point
---@field steps integer? steps per run, passed as the recipe's setting `steps`
---@field warmup integer? first steps of a run that do not count; default 1, or 0 if steps is 1
---@field repeats integer? runs per point; default 1
---@field ranks integer? ranks of every point; default: the product of the mesh's sizes
---@field memory_limit string|number? limit per rank, "2GiB" or bytes; points whose plan exceeds it are skipped
---@field timeout number? time limit of a plan or a run, in seconds
---@field out string? folder for the results; default build/sweep/ and the name of the sweep's file
---@field title string? title of the page
---@field sort string? "speed" (fastest first; the default), "memory" (smallest peak first; the default of plans),
---  "loss", or a metric of the recipe (lowest first; with a leading "-" highest first)
---@field plan boolean? only plan the points, of any number of ranks, and run none; also set by `--plan`
---@field price string? a cluster's description, by name or path: prices every point on it; `--price` overrides it and
---  prices instead of running, unless `--run` is given, too
---@field ranks_per_node integer? ranks per node in plans; `--ranks-per-node` overrides it
---@field order string? order of the runs: "shuffled" (by seed; the default) or "given"; each round has every point once
---@field seed integer? seed of the order; default 1

local SPECS = {
  recipe = { "string", required = true }, over = { "table" }, points = { "table" }, where = { "function" },
  conditions = { "table" }, prepare = { "function" },
  settings = { "table", default = {} }, steps = { "positive" }, warmup = { "integer" },
  repeats = { "positive", most = 1000, default = 1 }, ranks = { "positive" }, memory_limit = { "string|number" },
  timeout = { "number" }, out = { "string" }, title = { "string" }, sort = { "string" },
  plan = { "boolean" }, price = { "string" }, ranks_per_node = { "positive" },
  order = { "string", default = "shuffled" },
  seed = { "integer", default = 1 },
}
local SORTS = { speed = true, memory = true, loss = true }
local ORDERS = { shuffled = true, given = true }

local function read_memory_limit(given)
  if given == nil then return nil end
  return byte_size.read(given) or errors.invalid("ms.sweep: memory_limit must be a size like \"2GiB\" or a number of "
    .. "bytes, not %s", options.describe(given))
end

---The recipe of a sweep, and its source.
---@param path string relative to the sweep's file or to the working directory
---@return string path
---@return string source
function sweep.find_recipe(path)
  local folder = sweep.mode.file:match("^(.*/)[^/]*$") or ""
  local tried = path:sub(1, 1) == "/" and { path } or folder == "" and { path }
    or { folder .. path, path }
  for _, candidate in ipairs(tried) do
    local source = input_file.text(candidate)
    if source then return candidate, source end
  end
  errors.invalid("ms.sweep: there is no recipe %s", table.concat(tried, ", nor "))
end

local function check_conflicts(o, points)
  local given = { steps = o.steps, ranks = o.ranks }
  for _, key in ipairs(grid.columns(points)) do
    if given[key] then
      errors.invalid("ms.sweep: %s is given for all points and also varies over them: remove one of the two", key)
    end
    if o.settings[key] ~= nil then
      errors.invalid("ms.sweep: %s is in settings and also varies over points: remove one of the two", key)
    end
  end
  if o.settings.ranks then
    errors.invalid("ms.sweep: ranks is an option of the sweep, not a setting: move it out of settings")
  end
  if o.settings.steps and o.steps then
    errors.invalid("ms.sweep: steps is an option and also in settings: remove one of the two")
  end
end

local function read_warmup(o)
  local warmup = o.warmup or (o.steps == 1 and 0 or 1)
  if warmup < 0 then errors.invalid("ms.sweep: warmup must be at least 0, not %d", warmup) end
  if o.steps and o.steps <= warmup then
    errors.invalid("ms.sweep: %d step%s with a warm-up of %d: no step is left to measure: raise steps", o.steps,
      o.steps == 1 and "" or "s", warmup)
  end
  return warmup
end

local function name_of_file()
  return (sweep.mode.file:match("([^/]*)$"):gsub("%.lua$", ""))
end

-- What all points share; saved with the results.
local function new_header(job)
  local cpu = require("moonshard.base.machine").cpu()
  return {
    title = job.title, recipe = job.recipe, source = job.source, settings = job.settings, steps = job.steps,
    warmup = job.warmup, repeats = job.repeats, memory_limit = job.memory_limit, timeout = job.timeout,
    sort = job.sort, plan = job.plan or nil, price = job.price, ranks_per_node = job.ranks_per_node,
    load = running.machine_load(),
    hosts = job.hosts and job.hosts.text,
    cluster = job.cluster and ("%x"):format(require("moonshard.base.hash").of_text(job.cluster:explain())),
    version = require("moonshard.base.ffi").version, machine = { cpu = cpu.model, cores = cpu.cores },
    started = os.date("%Y-%m-%d %H:%M"),
  }
end

-- Other names are metrics, which only runs can confirm; a name close to one of ours is taken for a typing mistake.
local function check_sort(o)
  if SORTS[o.sort] then
    if o.plan and o.sort ~= "memory" and not (o.price and o.sort == "speed") then
      errors.invalid("ms.sweep: sort %q: points that are only planned have no %s: use sort = \"memory\"%s", o.sort,
        o.sort, o.sort == "speed" and ", or price = a cluster" or "")
    end
    return
  end
  if o.plan or nearest.name(o.sort, { "speed", "memory", "loss" }, 1) then
    errors.raise("MS_ENAME", "ms.sweep: sort %q: %s", o.sort, nearest.advice(o.sort, SORTS))
  end
end

local function read_job(given)
  local o = options.parse("ms.sweep", given, SPECS)
  if o.conditions and not o.prepare then
    errors.invalid("ms.sweep: conditions need prepare, the function that sets them up")
  end
  if not (o.over and next(o.over)) and not (o.points and next(o.points)) and not next(o.conditions or {}) then
    errors.invalid("ms.sweep: there is nothing to sweep: give over = { mesh = { \"1x4\", \"2x2\" } }, or points")
  end
  o.price = sweep.mode.price or o.price
  o.plan = o.plan or sweep.mode.plan or (sweep.mode.price ~= nil and not sweep.mode.run)
  o.ranks_per_node = sweep.mode.ranks_per_node or o.ranks_per_node
  if o.price then o.cluster = require("moonshard.price.cluster").load(o.price) end
  o.hosts = sweep.mode.hosts
  o.sort = o.sort or (o.plan and not o.price and "memory" or "speed")
  check_sort(o)
  if not ORDERS[o.order] then
    errors.raise("MS_ENAME", "ms.sweep: order %q: %s", o.order, nearest.advice(o.order, ORDERS))
  end
  if o.ranks_per_node and o.price then
    errors.invalid("ms.sweep: ranks_per_node and price: the cluster's description has the ranks of a node")
  end
  if o.ranks_per_node and not o.plan then
    errors.invalid("ms.sweep: ranks_per_node needs plan = true, because points that run use this machine")
  end
  o.settings = grid.settings(o.settings, "settings")
  local points, left_out = grid.points(o)
  if #points == 0 then errors.invalid("ms.sweep: where leaves out every point") end
  check_conflicts(o, points)
  if o.timeout and o.timeout <= 0 then errors.invalid("ms.sweep: timeout must be above 0 seconds") end
  o.recipe, o.source = sweep.find_recipe(o.recipe)
  o.warmup, o.memory_limit = read_warmup(o), read_memory_limit(o.memory_limit)
  -- A file can have several sweeps.
  local number = sweep.ran > 0 and "-" .. sweep.ran + 1 or ""
  o.out = (o.out or "build/sweep/" .. name_of_file() .. number):gsub("/+$", "")
  o.title = o.title or name_of_file() .. number
  if o.settings.steps == nil then o.settings.steps = o.steps end
  return o, points, left_out
end

local function write_files(job, current)
  output_file.write("sweep", job.out .. "/results.csv", report.csv(current))
  output_file.write("sweep", job.out .. "/results.json", report.json(current) .. "\n")
  output_file.write("sweep", job.out .. "/index.html", require("moonshard.sweep.page.html").page(current))
end

local function report_resumed(line, points, records)
  local known, ended = {}, 0
  for _, point in ipairs(points) do
    known[point.key] = true
    if records[point.key] then ended = ended + 1 end
  end
  local gone = 0
  for key in pairs(records) do gone = gone + (known[key] and 0 or 1) end
  line:print(("resuming: %d of %d points have finished%s"):format(ended, #points, gone > 0
    and ("; the results of %d points that the sweep no longer has are ignored"):format(gone) or ""))
end

local function count_ended(points, records)
  local n = 0
  for _, point in ipairs(points) do n = n + (records[point.key] and 1 or 0) end
  return n
end

local function keep(kept, line, record)
  kept:add(record)
  if record.status then line:ended(record) end
end

-- Plans all points that have not finished yet, then runs them in rounds. Ctrl-C raises; the caller writes the files
-- before it passes the error on.
local function run_points(job, points, kept, line)
  local ahead = {}
  for _, point in ipairs(points) do
    if not kept.records[point.key] then
      local record = kept.started[point.key] or running.plan(job, point)
      if record.status then keep(kept, line, record) else ahead[#ahead + 1] = { point = point, record = record } end
    end
  end
  local function run(point, record)
    running.run(job, point, record, function(number, steps) line:show(point.key, number, steps) end)
    line:ran()
    keep(kept, line, record)
  end
  for round, list in ipairs(grid.rounds(#ahead, job.repeats, job.order == "shuffled" and job.seed or nil)) do
    for _, i in ipairs(list) do
      local one = ahead[i]
      if not one.record.status and #one.record.runs < round then run(one.point, one.record) end
    end
  end
end

---Runs a sweep. A failed point is reported and the others continue; the command then ends with status 3.
---@param given moonshard.SweepOptions
---@return moonshard.SweepReport
function sweep.run(given)
  if not sweep.mode.file then errors.invalid("ms.sweep works only under moonshard sweep FILE.lua") end
  args.check_taken()
  local job, points, left_out = read_job(given)
  local kept = results.open(job.out .. "/results.jsonl", new_header(job), sweep.mode.resume)
  local line = status_line.new(#points, count_ended(points, kept.records), job, sweep.mode.json)
  if sweep.mode.resume then report_resumed(line, points, kept.records) end
  local ok, raised = pcall(run_points, job, points, kept, line)
  kept:close()
  local current = report.new(kept.header, points, kept.records, left_out)
  sweep.ran = sweep.ran + 1
  sweep.failed = sweep.failed or current.count.failed > 0
  write_files(job, current)
  if not ok then
    line:print("")
    if errors.is(raised) and raised.status == "MS_EINTERRUPT" then
      raised.message = ("interrupted after %d of %d points; --resume continues"):format(#current.records, #points)
    end
    error(raised, 0)
  end
  if sweep.mode.json then
    io.write(report.json(current), "\n")
  else
    line:print("\n" .. report.text(current, terminal.columns()))
    line:print(("\nwritten: %s/ index.html, results.csv, results.json, results.jsonl"):format(job.out))
  end
  local unsorted = report.unsorted(current)
  if unsorted then
    errors.raise("MS_ENAME", "ms.sweep: %s: correct sort; --resume then sorts these results and runs nothing again",
      unsorted)
  end
  return current
end

return sweep
