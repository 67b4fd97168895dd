-- moonshard calibrate: measures this machine and writes a cluster description with which prices of plans are those of
-- this machine; with --hosts, those of several machines like it, whose links it measures, too.
--
-- It starts ranks over the hosts, first of all, since one that cannot be reached ends it then; and twice on this one,
-- with all cores, then one for each core. They are child processes that print what they measure
-- (cli/calibrate_ranks.lua). -n is the most ranks that a node of the description can have.

local busy = require("moonshard.calibrate.busy")
local calibration_file = require("moonshard.calibrate.file")
local calibrate_hosts = require("moonshard.cli.hosts.calibrate_hosts")
local calibration_fit = require("moonshard.calibrate.fit")
local calibration_trainings = require("moonshard.calibrate.trainings")
local fit_between = require("moonshard.calibrate.fit_between")
local command_line = require("moonshard.cli.options.command_line")
local device = require("moonshard.distributed.device")
local engine = require("moonshard.base.ffi")
local json = require("moonshard.base.text.json")
local machine = require("moonshard.base.machine")
local output_file = require("moonshard.base.files.output_file")
local process = require("moonshard.sweep.process")
local progress = require("moonshard.base.text.progress")
local status = require("moonshard.base.exit_status")
local terminal = require("moonshard.base.text.terminal")
local refuse = status.refuse

local command = {}

local OPTIONS = {
  ["-n"] = { name = "ranks", value = "count" },
  ["--device"] = { name = "device", value = "text", what = "cpu or cuda" },
  ["--out"] = { name = "out", value = "text", what = "a file" },
  ["--quick"] = { name = "quick", value = "flag" },
}
for option, row in pairs(calibrate_hosts.OPTIONS) do OPTIONS[option] = row end

-- How often each training runs, some time apart; the fastest run counts. A GPU computes for this process alone.
local ROUNDS = { cpu = 3, cuda = 1 }
local function rounds_of(line) return line.quick and 1 or ROUNDS[line.device] end

local DEFAULT_OUT = "cluster.lua"

-- ---- measuring ----------------------------------------------------------------------------------------------------

-- The numbers of ranks to measure with, ascending: not more than cores, since ranks that wait for a core measure that.
local function worlds(most) return most > 1 and { 1, most } or { 1 } end

local function dtypes_of(kind)
  local native = kind == "cuda" or require("moonshard.shard.policies.precision").cpu_has_bf16()
  return native and { "f32", "bf16" } or { "f32" }
end

local function words_of(line, ranks, dtypes)
  local words = { "calibrate_ranks", "-n", tostring(ranks), "--dtypes", table.concat(dtypes, ","), "--rounds",
    tostring(rounds_of(line)), "--device", line.device }
  if line.quick then words[#words + 1] = "--quick" end
  return words
end

-- A file without a name, which ends with this process however that ends; its path, for the ranks' standard output.
local function nameless_file()
  local descriptor = engine.C.memfd_create("moonshard-calibrate", 0)
  if descriptor < 0 then refuse("MS_EIO", "calibrate: cannot make a file in memory: %s",
      engine.ffi.string(engine.C.strerror(engine.ffi.errno()))) end
  return "/proc/self/fd/" .. descriptor, descriptor
end

local function lines_of(path)
  local file, list = assert(io.open(path, "rb")), {}
  for text in file:lines() do list[#list + 1] = text end
  file:close()
  return list
end

-- Elsewhere than on a terminal: a line for each stage.
local function announce(text)
  if terminal.interactive() then return end
  io.stderr:write("calibrate: ", text, "\n")
  io.stderr:flush()
end

-- One line that is redrawn on a terminal.
local function show(part, text)
  if not terminal.interactive() then return end
  io.stdout:write("\r", progress.bar(part), "  ", text, "\27[K")
  io.stdout:flush()
end

-- Runs the ranks of a world; returns their records. text: which ranks they are.
local function measure(words, text, shown)
  local path, descriptor = nameless_file()
  announce(("measuring on %s, after %d of %d trainings"):format(text, shown.done, shown.all))
  local ended = process.run(words, {
    output = path, tick = function() show((shown.done + #lines_of(path)) / shown.all, text) end,
  })
  local records = lines_of(path)
  engine.C.close(descriptor)
  if ended.status ~= status.OK then
    show(0, "")
    if ended.interrupted then require("moonshard.distributed.world").check_interrupt() end
    refuse("MS_EPEER", "calibrate: the measurement on %s failed (%s):\n  %s", text,
      ended.status and "exit status " .. ended.status or "signal " .. tostring(ended.signal),
      (ended.err:gsub("\n", "\n  ")))
  end
  for i, record in ipairs(records) do records[i] = assert(json.decode(record)) end
  shown.done = shown.done + #records
  return records
end

-- Returns the records of this host, and those of several.
local function measure_all(line, list, over)
  local dtypes, records = dtypes_of(line.device), {}
  local shown = { done = 0, all = over and calibrate_hosts.records(rounds_of(line), line.quick) or 0 }
  local all_over = shown.all
  for _, ranks in ipairs(list) do
    local trainings = calibration_trainings.of(ranks, { dtypes = dtypes, device = line.device, quick = line.quick })
    shown.all = shown.all + rounds_of(line) * #trainings
  end
  local between = over and measure(calibrate_hosts.words(over, rounds_of(line), line.quick),
    ("%d ranks on %d hosts"):format(over.world, #over.list), shown)
  shown.done = all_over -- the largest layers are left out where links are slow
  for _, ranks in ipairs(list) do
    local text = ("%d rank%s"):format(ranks, ranks == 1 and "" or "s")
    for _, record in ipairs(measure(words_of(line, ranks, dtypes), text, shown)) do records[#records + 1] = record end
  end
  if terminal.interactive() then io.stdout:write("\r\27[K") end
  return records, between
end

-- ---- the description ----------------------------------------------------------------------------------------------

-- Adds what was measured between hosts to the links; returns the network of the description.
local function describe_network(links, between, over, by)
  local fastest = fit_between.fastest(between)
  local fitted = fit_between.add(fastest, links)
  local names = {}
  for i, host in ipairs(over.list) do names[i] = host.name end
  local over_hosts = "over the hosts " .. table.concat(names, ", ")
  return {
    rail = fitted.rail,
    rate_source = ("fitted by %s to %d large collectives %s, %.0f %% off"):format(by, fitted.large, over_hosts,
      100 * fitted.off),
    start_source = ("fitted by %s to %d small collectives %s"):format(by, fitted.small, over_hosts),
    processor_source = ("processor time of ranks, without that of training, measured by %s %s"):format(by, over_hosts),
  }
end

local function describe(line, records, ranks, cores, between, over)
  local facts = machine.inspect()
  local host = require("moonshard.host").name()
  local model = line.device == "cuda" and facts.gpu.devices[1].name or facts.cpu.model
  local memory = line.device == "cuda" and facts.gpu.devices[1].memory_bytes or facts.memory.limit_bytes
    or facts.memory.total_bytes
  local by = ("moonshard calibrate on %s, %s"):format(host, os.date("%Y-%m-%d"))
  local fastest = calibration_fit.fastest(records)
  local points = calibration_fit.points(fastest, cores, line.device)
  local rates, off = calibration_fit.rates(points, line.device)
  local step_gap, phase_gap = calibration_fit.gaps(fastest)
  local steps = fastest[1].training.steps
  local links = calibration_fit.links(fastest, cores)
  return {
    network = between and describe_network(links, between, over, by),
    about = ("%s: %s, measured by %s"):format(host, model, by),
    measured = ("measured by %s, medians of %d steps%s"):format(by, steps,
      rounds_of(line) > 1 and (", the fastest of %d rounds"):format(rounds_of(line)) or ""),
    fitted = ("fitted by %s to %d kernels, whose times it alone misses by %.0f %%"):format(by, #points, 100 * off),
    links_source = ("fitted by %s to the times of %d trainings"):format(by, #fastest),
    machine = "what " .. host .. " reports", device = line.device, ranks_per_node = ranks, cores = cores,
    memory = memory, rates = rates, phase_gap = phase_gap, step_gap = step_gap,
    issue = line.device == "cuda" and calibration_fit.issue(fastest) or nil,
    links = links, points = calibration_fit.thin(points, rates), all_points = points,
  }
end

-- What was found between hosts, as a line.
local function report_network(d)
  if not d.network then return end
  local function range(field, scale)
    local list = {}
    for i, link in ipairs(d.links) do list[i] = scale * link[field] end
    return math.min(unpack(list)), math.max(unpack(list))
  end
  local first, last = range("start_between", 1e6)
  output_file.print(("between hosts: %.3g MB/s of a node, %.0f to %.0f us until the first byte, %.2f to %.2f ns of "
    .. "processor time a byte\n"):format(1e-6 * d.network.rail, first, last, range("processor", 1e9)))
end

local function report(path, d)
  report_network(d)
  local spreads = {}
  for _, point in ipairs(d.all_points) do
    if point.trainings > 1 then spreads[#spreads + 1] = point.spread end
  end
  table.sort(spreads)
  local given = path:find("/", 1, true) and path or "./" .. path
  output_file.print(("%d kernels measured; %d are written, from which the times of the others follow\n"):format(
    #d.all_points, #d.points),
    ("prices are no more exact than this: the time of a kernel differs by %.0f %% between trainings (median of %d)\n")
    :format(100 * ((spreads[math.ceil(#spreads / 2)] or 1) - 1), #spreads),
    ("written: %s; to use it: moonshard price RECIPE.lua -n %d --cluster %s\n"):format(path, d.ranks_per_node, given))
end

---@param arguments string[] without "calibrate"
---@return integer exit status
function command.main(arguments)
  local line = command_line.parse("moonshard calibrate", arguments, { options = OPTIONS })
  line.device, line.out = line.device or "cpu", line.out or DEFAULT_OUT
  calibrate_hosts.check(line)
  local kind = device.kind(line.device, "--device")
  output_file.check_option("--out", line.out)
  engine.C.ms_interrupt_install()
  local units = kind == engine.C.MS_DEVICE_CPU and machine.cpu().cores or #machine.inspect().gpu.devices
  local over = calibrate_hosts.read(line, units)
  local ranks = over and over.ranks or line.ranks or units
  local most = tonumber(engine.C.MS_MAX_LOCAL_RANKS)
  if ranks > most then refuse("MS_EINVAL", "-n %d: a node can have at most %d ranks", ranks, most) end
  busy.check()
  local records, between = measure_all(line, worlds(math.min(ranks, units)), over)
  announce("fitting the description")
  local d = describe(line, records, ranks, units, between, over)
  output_file.write("cluster description", line.out, calibration_file.text(d))
  report(line.out, d)
  return status.OK
end

return command
