-- A small GPT trains over hosts, which are network namespaces, and a rank, a launcher, a host or a link is struck at a
-- random moment: while all start, train or save. All that survive end within the deadline and 2 seconds, name the first
-- victim and no other, and leave nothing; a rank that only lags changes nothing.

local checks = require("lua.hosts.struck_checks")
local struck_hosts = require("lua.hosts.struck_hosts")

local TIMEOUT = 5

local SHAPES = {
  { hosts = 2, ranks = 2, mesh = "2x2" }, { hosts = 2, ranks = 2, mesh = "1x4" },
  { hosts = 2, ranks = 2, mesh = "4x1" }, { hosts = 3, ranks = 1, mesh = "1x3" },
}
-- Kills are cheap; the others wait for a deadline.
local STRIKES = {
  "kill_rank", "kill_rank", "kill_rank", "kill_launcher", "kill_launcher", "kill_host", "kill_host", "stop_rank",
  "stop_rank", "lose_host", "cut_link", "stop_launcher", "lag_rank", "term", "term_launcher", "int",
}

local function draw_case(d)
  local shape = d:one_of(SHAPES)
  local case = {
    hosts = shape.hosts, ranks = shape.ranks, mesh = shape.mesh, timeout = TIMEOUT, strike = d:one_of(STRIKES),
    at = d:one_of { "start", "begun", "begun", "saving" }, nodes = d:chance(0.4),
    delay = d:integer(0, 400) / 1000, host = d:integer(1, shape.hosts), rank = d:integer(1, shape.ranks),
  }
  local strike = case.strike
  -- One command on each host is asked and watched by itself; and before ranks have met, no rank can save.
  if strike == "stop_launcher" or checks.STRIKES[strike].status then case.nodes, case.at = false, "begun" end
  case.words = strike == "lag_rank" and "steps=60" or "steps=1000000"
  if case.at == "saving" then
    case.words = case.words .. (" dir=$D/checkpoints every=3 async=%s"):format(d:chance(0.5))
  end
  return case
end

local function run(d)
  local case = draw_case(d)
  return checks.run(case), ("%s of host %d, rank %d, %g s after %s, %d hosts of %d ranks, %s, %s"):format(case.strike,
    case.host, case.rank, case.delay, case.at, case.hosts, case.ranks, case.mesh, case.nodes and "--nodes" or "--hosts")
end

return { name = "hosts", skip = struck_hosts.why_not(), run = run }
