-- Output that is not read: every rank's lines go to a pipe without a reader, and the run is struck at a random time. It
-- ends within seconds, with the status of what struck it, and leaves nothing.

local message = require("lua.support.message")
local trial = require("soak.trial")

-- Milliseconds until a run is struck: from before its ranks have met to long after all of them wait to print.
local LATEST = 900

-- How a run is struck, and the status that it ends with. A launcher that is killed says nothing.
local STRIKES = {
  { name = "SIGINT", status = 130, shell = function() return "kill -INT $pid" end },
  { name = "SIGTERM", status = 143, shell = function() return "kill -TERM $pid" end },
  { name = "SIGHUP", status = 129, shell = function() return "kill -HUP $pid" end },
  { name = "kill -9 of the launcher", status = 137, shell = function() return "kill -KILL $pid" end },
  { name = "kill -9 of rank %d", status = 3, shell = function(place) return trial.kill_rank(place, "KILL") end,
    says = "signal 9 | Killed" },
  -- Nothing strikes: one rank waits to print until the others have waited for it too long.
  { name = "a deadline", status = 3, shell = function() return ":" end, deadline = true,
    says = "blocked | print | read" },
}

local function run(d)
  local ranks, strike, delay = d:integer(1, 4), d:one_of(STRIKES), d:integer(0, LATEST)
  if strike.deadline then ranks = math.max(ranks, 2) end
  local victim = d:integer(1, ranks)
  local noisy = (strike.deadline or d:chance(0.3)) and victim - 1 or "all"
  local words = ("tests/soak/recipe.lua -n %d steps=0 noise=%d noisy=%s"):format(ranks, d:one_of { 10, 100, 3000 },
    noisy)
  -- Rank 0's lines are shown without --log-ranks too.
  if strike.deadline or d:chance(0.7) then words = words .. " --log-ranks all" end
  if d:chance(0.5) then words = words .. " --log-dir $D/logs" end
  if strike.deadline then words = words .. " --timeout 1" end
  local name = strike.name:format(victim - 1)
  local failure = trial.run({
    run = words,
    before = "mkfifo $D/pipe && exec 9<>$D/pipe",
    redirect = ">$D/pipe 9<&- </dev/null",
    strike = ("sleep %.3f; %s"):format(delay / 1000, strike.shell(victim)),
  }, function(ended)
    local wrong = trial.ended_well(ended, { strike.status })
    local lacks = strike.says and message.lacks(ended.err, strike.says)
    if not wrong and lacks then wrong = ("does not say %q: %s"):format(lacks, ended.err) end
    return wrong
  end)
  return failure, ("%s after %d ms, %s"):format(name, delay, words)
end

return { name = "blocked", run = run }
