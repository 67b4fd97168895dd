-- Standard descriptors that are closed when a run begins, in every combination: the run ends with the status that it
-- has with all of them open, and what it writes to files is as whole.

local metrics = require("soak.metrics")
local trial = require("soak.trial")

local COUNT = 4
local STEPS = "steps=" .. COUNT

-- How a run ends: words of the run, its status, and what strikes it.
local ENDINGS = {
  { words = STEPS, status = 0 },
  { words = STEPS .. " fault=error step=3 rank=0", status = 3 },
  { words = STEPS .. " fault=kill step=3 rank=0", status = 3 },
  { words = STEPS .. " fault=exit step=3 rank=0", status = 3 },
  { words = STEPS .. " mesh=9", status = 2 },
  { words = "steps=0", status = 143, strike = "sleep 0.%03d; kill -TERM $pid" },
  { words = "steps=0", status = 130, strike = "sleep 0.%03d; kill -INT $pid" },
  { words = "steps=0", status = 137, strike = "sleep 0.%03d; kill -KILL $pid" },
  { words = "steps=0", status = 3, strike = "sleep 0.%03d; " .. trial.kill_rank(1, "KILL") },
}

local function redirections(d)
  local words = {}
  for i, open in ipairs({ "</dev/null", ">/dev/null", "2>$D/err" }) do
    words[i] = d:chance(0.5) and ("%d>&-"):format(i - 1) or open
  end
  return table.concat(words, " ")
end

local function run(d)
  local ending, ranks, redirect = d:one_of(ENDINGS), d:integer(1, 4), redirections(d)
  local words = ("tests/soak/recipe.lua -n %d noise=%d --metrics $D/metrics %s"):format(ranks,
    d:one_of { 0, 50 }, ending.words)
  if d:chance(0.3) then words = words .. " --log-ranks all" end
  if d:chance(0.3) then words = words .. " --log-dir $D/logs" end
  if d:chance(0.3) then words = words .. " --trace $D/trace" end
  return trial.run({
    run = words, redirect = redirect, strike = ending.strike and ending.strike:format(d:integer(50, 600)),
  }, function(ended)
    local wrong = trial.ended_well(ended, { ending.status })
    if wrong then return wrong end
    return metrics.check(ended.folder .. "/metrics", ending.status == 0 and COUNT or nil)
  end), words .. " " .. redirect
end

return { name = "descriptors", run = run }
