-- moonshard repl: starts the ranks and gives the terminal to rank 0.

local args = require("moonshard.recipe.args")
local command_line = require("moonshard.cli.command_line")
local recipe = require("moonshard.cli.recipe")
local refuse = require("moonshard.base.exit_status").refuse

local repl = {}

local OPTIONS = {
  ["-n"] = { name = "ranks", value = "count" },
  ["--device"] = { name = "device", value = "text", what = "cpu or cuda" },
  ["--timeout"] = { name = "timeout", value = "seconds" },
}

-- Loaded once, before the ranks are forked, instead of once per rank.
local COMMON = {
  "moonshard", "moonshard.recipe.args", "moonshard.data", "moonshard.train.generate", "moonshard.metrics.log",
  "moonshard.nn.loss", "moonshard.distributed.mesh", "moonshard.models", "moonshard.train.optim",
  "moonshard.repl.session", "moonshard.train.schedule", "moonshard.shard.sharding", "moonshard.train.trainer",
}

local function rank_main(line)
  local C = require("moonshard.base.ffi").C
  local world = require("moonshard.distributed.world")
  if line.timeout then C.ms_world_set_timeout(world.handle, line.timeout) end
  local folder = line.recipe and line.recipe:match("^(.*/)[^/]*$") or "./"
  package.path = folder .. "?.lua;" .. package.path
  args.overrides = line.settings
  return require("moonshard.repl.session").new(world):run(line.recipe, args.check_taken)
end

---@param arguments string[] without "repl"
---@return integer exit status
function repl.main(arguments)
  local line = command_line.parse("moonshard repl", arguments, { recipe = true, optional = true, options = OPTIONS })
  if line.recipe then recipe.load(line.recipe) end -- refuses a recipe that does not parse
  require("moonshard.distributed.device").apply_options(line) -- forked ranks inherit it
  for _, name in ipairs(COMMON) do require(name) end
  local ended, why = require("moonshard.host").launch {
    ranks = line.ranks or 1, interactive = true, main = function() return rank_main(line) end,
  }
  if not ended then refuse("MS_EINVAL", "%s", why) end
  return ended
end

return repl
