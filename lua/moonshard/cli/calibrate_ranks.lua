-- moonshard calibrate_ranks: the ranks of a calibration on one number of ranks, or over several hosts (--between);
-- `moonshard calibrate` starts it. Rank 0 prints what it measured as lines of JSON. It is not for users.

local calibration_between = require("moonshard.calibrate.between")
local calibration_rank = require("moonshard.calibrate.rank")
local calibration_trainings = require("moonshard.calibrate.trainings")
local command_line = require("moonshard.cli.options.command_line")
local hosts = require("moonshard.cli.hosts.hosts")
local nodes = require("moonshard.cli.options.nodes")
local run = require("moonshard.cli.run")

local command = {}

local OPTIONS = {
  ["-n"] = { name = "ranks", value = "count" },
  ["--device"] = { name = "device", value = "text", what = "cpu or cuda" },
  ["--dtypes"] = { name = "dtypes", value = "text", what = "names of dtypes" },
  ["--rounds"] = { name = "rounds", value = "count" },
  ["--quick"] = { name = "quick", value = "flag" },
  ["--timeout"] = { name = "timeout", value = "seconds" },
  ["--between"] = { name = "between", value = "flag" },
}
for option, row in pairs(nodes.OPTIONS) do OPTIONS[option] = row end
for option, row in pairs(hosts.OPTIONS) do OPTIONS[option] = row end

---@param arguments string[] without "calibrate_ranks"
---@return integer exit status
function command.main(arguments)
  local line = command_line.parse("moonshard calibrate_ranks", arguments, { options = OPTIONS })
  require("moonshard.distributed.device").apply_options(line)
  local dtypes = {}
  for dtype in (line.dtypes or "f32"):gmatch("[^,]+") do dtypes[#dtypes + 1] = dtype end
  line.recipe, line.progress = "", "plain"
  return run.launch(line, function()
    if line.between then return calibration_between.run(line.quick, line.rounds or 1) end
    local ranks = require("moonshard.distributed.world").size
    local trainings = calibration_trainings.of(ranks, { dtypes = dtypes, device = line.device or "cpu",
      quick = line.quick })
    calibration_rank.run(trainings, line.rounds or 1)
  end)
end

return command
