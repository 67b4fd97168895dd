-- moonshard repl: starts the ranks and gives the terminal to rank 0. With --hosts rank 0 is on the first host, and gets
-- the terminal through the agent (runtime/host/hosts/controller_input.c).

local args = require("moonshard.recipe.args")
local command_line = require("moonshard.cli.options.command_line")
local errors = require("moonshard.base.error")
local hosts = require("moonshard.cli.hosts.hosts")
local in_progress = require("moonshard.checkpoint.in_progress")
local nodes = require("moonshard.cli.options.nodes")
local recipe = require("moonshard.recipe.file")
local run = require("moonshard.cli.run")
local status = require("moonshard.base.exit_status")
local refuse = status.refuse

local repl = {}

local OPTIONS = {
  ["-n"] = { name = "ranks", value = "count" },
  ["--device"] = { name = "device", value = "text", what = "cpu or cuda" },
  ["--timeout"] = { name = "timeout", value = "seconds" },
}
for option, row in pairs(nodes.OPTIONS) do OPTIONS[option] = row end
for option, row in pairs(hosts.OPTIONS) do OPTIONS[option] = row end

local function rank_main(line)
  if line.timeout then nodes.set_timeout(line.timeout) end
  local world = require("moonshard.distributed.world")
  local folder = line.recipe and line.recipe:match("^(.*/)[^/]*$") or "./"
  package.path = folder .. "?.lua;" .. package.path
  args.overrides = line.settings
  local ok, ended = xpcall(function()
    local code, lost = require("moonshard.repl.session").new(world):run(line.recipe, args.check_taken)
    if lost then
      run.end_saves()
      return code
    end
    in_progress.finish()
    world.finish() -- a rank of another host that ends earlier would be taken for one that died
    return code
  end, errors.locate)
  if ok then return ended end
  run.give_up(line, errors.text(ended))
  run.end_saves()
  return status.FAILED_RUN
end

local function check_launcher(line)
  local task = require("moonshard.host").task()
  if not line.nodes and task and task.size > 1 then
    refuse("MS_EINVAL", "moonshard repl starts its ranks itself, but this process is already rank %d of %d (%s): run "
      .. "it outside of that launcher, with --hosts for several hosts, or unset those variables", task.rank, task.size,
      task.source)
  end
  nodes.joins(line)
end

---@param arguments string[] without "repl"
---@return integer exit status
function repl.main(arguments)
  local line = command_line.parse("moonshard repl", arguments, { recipe = true, optional = true, options = OPTIONS })
  if line.recipe then recipe.load(line.recipe) end -- refuses a recipe that does not parse
  require("moonshard.distributed.device").apply_options(line) -- forked ranks inherit it
  nodes.check_timeout()
  nodes.choose_transport(line)
  hosts.check_options(line)
  line.interactive = true
  if line.hosts then return hosts.launch(line) end
  check_launcher(line)
  run.preload()
  require("moonshard.repl.session")
  local ended, why = require("moonshard.host").launch {
    ranks = line.ranks or 1, interactive = true, nodes = line.nodes, node_rank = line.node_rank,
    rendezvous = line.rendezvous, main = function() return rank_main(line) end,
  }
  if not ended then refuse("MS_EINVAL", "%s", why) end
  return ended
end

return repl
