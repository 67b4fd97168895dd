-- moonshard run: starts the ranks, runs the recipe in each, and passes the first failure to the launcher.

local errors = require("moonshard.base.error")
local command_line = require("moonshard.cli.options.command_line")
local hosts = require("moonshard.cli.hosts.hosts")
local in_progress = require("moonshard.checkpoint.in_progress")
local nodes = require("moonshard.cli.options.nodes")
local output_file = require("moonshard.base.files.output_file")
local recipe = require("moonshard.recipe.file")
local run_summary = require("moonshard.metrics.run_summary")
local status = require("moonshard.base.exit_status")
local termination = require("moonshard.checkpoint.termination")
local text_lines = require("moonshard.base.text.text_lines")
local refuse = status.refuse

local run = {}

local OPTIONS = {
  ["-n"] = { name = "ranks", value = "count" },
  ["--metrics"] = { name = "metrics", value = "text", what = "a file" },
  ["--tensorboard"] = { name = "tensorboard", value = "text", what = "a folder" },
  ["--log-ranks"] = { name = "log_ranks", value = "text", what = "all" },
  ["--log-dir"] = { name = "log_dir", value = "text", what = "a folder" },
  ["--progress"] = { name = "progress", value = "text", what = "auto, bar or plain" },
  ["--pin"] = { name = "pin", value = "text", what = "auto, none, or cores like 0-3,8" },
  ["--trace"] = { name = "trace", value = "text", what = "a file" },
  ["--trace-steps"] = { name = "trace_steps", value = "text", what = "steps like 3 or 3-5" },
  ["--device"] = { name = "device", value = "text", what = "cpu or cuda" },
  ["--cluster"] = { name = "cluster", value = "text", what = "a description" },
  ["--cuda-graph"] = { name = "cuda_graph", value = "flag" },
  ["--nccl-windows"] = { name = "nccl_windows", value = "flag" },
  ["--nccl-copy-engines"] = { name = "nccl_copy_engines", value = "flag" },
  ["--sm-carveout"] = { name = "sm_carveout", value = "index" },
  ["--timeout"] = { name = "timeout", value = "seconds" },
  ["--grace"] = { name = "grace", value = "seconds" },
  ["--inject-delay"] = { name = "inject_delay", value = "text", what = "delays like gather:100ms,update:1s@2" },
}
for option, row in pairs(nodes.OPTIONS) do OPTIONS[option] = row end
for option, row in pairs(hosts.OPTIONS) do OPTIONS[option] = row end

-- Modules that most recipes use: loaded once, before the ranks are forked, instead of once per rank.
local COMMON = {
  "moonshard", "moonshard.recipe.args", "moonshard.data", "moonshard.train.generate", "moonshard.metrics.log",
  "moonshard.nn.loss", "moonshard.distributed.mesh", "moonshard.models", "moonshard.train.optim",
  "moonshard.train.schedule", "moonshard.shard.sharding", "moonshard.train.trainer",
}

-- Of rank 0, which writes them: before ranks start, and in the rank itself where another launcher starts it.
local function check_outputs(line)
  if line.metrics then output_file.check_option("--metrics", line.metrics) end
  if line.trace then output_file.check_option("--trace", line.trace) end
  if line.tensorboard then output_file.check_option("--tensorboard", line.tensorboard, true) end
end

local function set_up_rank(line)
  local C = require("moonshard.base.ffi").C
  local world = require("moonshard.distributed.world")
  C.ms_interrupt_install()
  if line.timeout then nodes.set_timeout(line.timeout) end
  if line.joins or line.rendezvous or (line.ranks or 1) > 1 then
    world.join()
    C.ms_world_catch_termination(world.handle, 0)
  end
  if line.joins and world.rank == 0 then check_outputs(line) end
  if line.trace then require("moonshard.distributed.profile").request(line.trace, unpack(line.trace_range)) end
  if line.metrics and world.rank == 0 then require("moonshard.metrics.log").open_metrics(line.metrics) end
  if line.tensorboard and world.rank == 0 then require("moonshard.metrics.log").open_events(line.tensorboard) end
end

-- Joining is immediate when one launcher started the ranks; a failed rendezvous is not retried.
local function join_late(line)
  local world = require("moonshard.distributed.world")
  if line.joins or line.rendezvous then return rawget(world, "handle") end
  local joined, handle = pcall(function() return world.handle end)
  return joined and handle or nil
end

---Reports to the launcher and the other ranks why this rank ends. Prints the message itself when the launcher cannot:
---when it is another program, or when joining failed.
---@param line moonshard.CommandLine
---@param message string
function run.give_up(line, message)
  local handle = join_late(line)
  if handle then require("moonshard.base.ffi").C.ms_world_abort(handle, message) end
  if line.joins and handle then
    local world = require("moonshard.distributed.world")
    io.stderr:write(("moonshard: rank %d of %d: %s\n"):format(world.rank, world.size, message))
  elseif line.joins or not (handle or line.rendezvous) then
    io.stderr:write("moonshard: ", message, "\n")
  end
end

local PATIENCE = 2 -- seconds without progress of a save in a run that has failed

---Waits for the saves in the background that a failed run has begun, and reports those that do not end.
function run.end_saves()
  for _, text in ipairs(in_progress.drain(PATIENCE)) do
    io.stderr:write("moonshard: ", text_lines.message(text), "\n")
  end
end

-- If this rank never gets here, the others name it.
local function end_together()
  require("moonshard.distributed.profile").finish()
  termination.finish()
  run_summary.finish()
  require("moonshard.distributed.world").finish()
end

-- Ends this rank after its trainers have saved because of SIGTERM; does not return to the recipe.
local function end_terminated(line)
  local world = require("moonshard.distributed.world")
  require("moonshard.base.text.progress").show_last()
  require("moonshard.distributed.profile").finish(true)
  local text, told_here = termination.finish()
  world.finish()
  require("moonshard.base.text.progress").finish()
  if told_here and line.joins then io.stderr:write("moonshard: ", text, "\n") end
  -- All ranks get here. Ranks that saved report to the launcher. The others wait in a barrier until that report aborts
  -- it: a rank that ended earlier would be taken for the rank at fault. If the saving ranks have already left, their
  -- leaving ends the wait, and this rank reports for itself.
  if not text then pcall(world.barrier) end
  require("moonshard.base.ffi").C.ms_world_abort(world.handle, text or "terminated")
  recipe.exit(status.TERMINATED)
end

local function tell_library(line, returned)
  local world = require("moonshard.distributed.world")
  if world.training or world.rank ~= 0 then return end
  local text = require("moonshard.recipe.library").describe(line.recipe, returned)
  if text then io.stderr:write("moonshard: ", text, "\n") end
end

---Runs one rank from start to end.
---@param line moonshard.CommandLine
---@param chunk function the recipe
---@return integer exit status
function run.rank_main(line, chunk)
  recipe.on_exit(function(call, succeeds)
    require("moonshard.base.text.progress").finish()
    if succeeds then
      local lost = in_progress.drain()
      if not lost[1] then return status.OK end
      call = table.concat(lost, "; ")
    end
    run.give_up(line, call)
    run.end_saves()
    return status.FAILED_RUN
  end)
  io.stdout:setvbuf("line") -- for files too, so that the output of a killed rank is complete
  local ok, raised = xpcall(function()
    set_up_rank(line)
    termination.exit_rank = function() end_terminated(line) end
    tell_library(line, recipe.run(line.recipe, chunk, line.settings))
    require("moonshard.base.text.progress").show_last()
    output_file.check_printed()
    end_together()
  end, errors.locate)
  require("moonshard.base.text.progress").finish()
  if ok then return status.OK end
  require("moonshard.distributed.profile").forget()
  run.give_up(line, errors.text(raised))
  run.end_saves()
  if errors.is(raised) and raised.status == "MS_EINTERRUPT" then run_summary.stopped() end
  return status.of(raised, require("moonshard.distributed.world").training)
end

-- Forked ranks inherit it.
local function inject_delay(line)
  local why = require("moonshard.host").inject_delay(line.inject_delay)
  if why then refuse("MS_EINVAL", "%s", why) end
  if not line.ranks or line.nodes or line.hosts then return end -- how many ranks there are another launcher knows
  for rank in line.inject_delay:gmatch("@(%d+)") do
    if tonumber(rank) >= line.ranks then
      refuse("MS_EINVAL", "--inject-delay %s: the ranks of -n %d are 0 to %d", line.inject_delay, line.ranks,
        line.ranks - 1)
    end
  end
end

local STYLES = { auto = true, bar = true, plain = true }

-- "3-5" as { 3, 5 }. The default skips the first step, whose caches are cold.
local DEFAULT_STEPS = "2-4"

local function read_steps(text)
  local first, last = text:match("^(%d+)%-(%d+)$")
  first = tonumber(first or text:match("^%d+$"))
  last = tonumber(last) or first
  if not first or first < 1 or last < first then
    refuse("MS_EINVAL", "--trace-steps %s: must be a step like 3 or a range like 3-5, counted from 1", text)
  end
  return { first, last }
end

local function check(line)
  require("moonshard.distributed.device").apply_options(line) -- forked ranks inherit it
  if line.trace_steps and not line.trace then
    refuse("MS_EINVAL", "--trace-steps %s: give --trace FILE too", line.trace_steps)
  elseif line.trace then
    line.trace_range = read_steps(line.trace_steps or DEFAULT_STEPS)
  end
  if line.log_ranks and line.log_ranks ~= "all" then
    refuse("MS_EINVAL", "--log-ranks %s: must be all", line.log_ranks)
  end
  if line.progress and not STYLES[line.progress] then
    refuse("MS_EINVAL", "--progress %s: must be auto, bar or plain", line.progress)
  end
  if line.inject_delay then inject_delay(line) end
  if line.cluster then
    require("moonshard.train.utilisation").cluster = require("moonshard.price.cluster").load(line.cluster)
  end
end

-- mpirun gives each rank a terminal and torchrun shares its own, but their output usually ends up in files and logs,
-- mixed with other output; a redrawn line is only useful to a person watching this run alone.
local function choose_progress(line)
  local task = require("moonshard.host").task()
  local style = line.progress or "auto"
  if style == "auto" and task and task.source then style = "plain" end
  require("moonshard.base.text.progress").show_as(style)
end

-- The first collection of garbage waits until there are so many KiB, which short runs never have. It would also write
-- to all memory that a rank shares with the others since the fork. From then on the collector works as usual.
local FIRST_COLLECTION = 32 * 1024

-- Loads modules without the collector, which would visit all of them several times meanwhile.
local function delay_collector(load)
  collectgarbage("stop")
  load()
  local percent = math.floor(100 * FIRST_COLLECTION / collectgarbage("count"))
  local before = collectgarbage("setpause", math.max(200, percent))
  collectgarbage("restart", -1) -- with a pause of so many percent; without -1 a collection would begin now
  collectgarbage("setpause", before)
end

---Loads the modules that most recipes use; call before the ranks are forked, so that it happens once.
function run.preload()
  delay_collector(function()
    for _, name in ipairs(COMMON) do require(name) end
  end)
end

---Runs a program on every rank and waits until all have ended.
---@param line moonshard.CommandLine of run, or of a command with the same options for ranks
---@param chunk function a loaded recipe
---@return integer exit status
function run.launch(line, chunk)
  nodes.check_timeout()
  nodes.choose_transport(line)
  hosts.check_options(line)
  if line.hosts then return hosts.launch(line) end
  run.preload()
  line.joins = nodes.joins(line)
  if not line.joins and (line.node_rank or 0) == 0 then check_outputs(line) end
  if line.log_dir then output_file.check_option("--log-dir", line.log_dir, true) end
  choose_progress(line)
  if line.joins and not line.log_dir then return run.rank_main(line, chunk) end
  if line.log_dir then output_file.make_folders("--log-dir", line.log_dir .. "/") end
  local host = require("moonshard.host")
  local main = function() return run.rank_main(line, chunk) end
  local ended, why
  if line.joins then
    ended, why = host.launch {
      ranks = 1, joins = true, node_rank = host.task().rank, log_dir = line.log_dir, main = main,
    }
  else
    ended, why = host.launch {
      ranks = line.ranks or 1, log_all = line.log_ranks == "all", log_dir = line.log_dir, pin = line.pin,
      nodes = line.nodes, node_rank = line.node_rank, rendezvous = line.rendezvous, grace = line.grace, main = main,
    }
  end
  if not ended then refuse("MS_EINVAL", "%s", why) end
  return ended
end

---@param arguments string[] without "run"
---@return integer exit status
function run.main(arguments)
  local line = command_line.parse("moonshard run", arguments, { recipe = true, options = OPTIONS })
  check(line)
  return run.launch(line, recipe.load(line.recipe))
end

return run
