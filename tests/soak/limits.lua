-- A limit of file sizes, drawn: memory that ranks share counts as a file, as do metrics, traces, logs and output. A run
-- that meets it says so and ends with a status that is not 0; what it wrote before is whole.

local metrics = require("soak.metrics")
local trial = require("soak.trial")

local STEPS = 40

local function draw_limit(d)
  -- From a block to more than anything needs; a small one is met by the memory that ranks share.
  local power = d:chance(0.3) and d:integer(12, 22) or d:integer(23, 27)
  return math.floor(2 ^ power * (1 + d:integer(0, 999) / 1000))
end

local function run(d)
  local limit, ranks = draw_limit(d), d:integer(1, 4)
  local t = { prefix = ("prlimit --fsize=%d"):format(limit), redirect = ">>$D/output </dev/null" }
  -- Output that is nearly as long as the limit before the run begins meets it within a few steps.
  local full = d:chance(0.5)
  if full then t.before = ("truncate -s %d $D/output"):format(limit - d:integer(1, 2000)) end
  t.run = ("tests/soak/recipe.lua -n %d steps=%d noise=%d --metrics $D/metrics"):format(ranks, STEPS,
    d:one_of { 1, 30 })
  if d:chance(0.4) then t.run = t.run .. " --log-ranks all" end
  if d:chance(0.4) then t.run = t.run .. " --log-dir $D/logs" end
  if d:chance(0.4) then t.run = t.run .. " --trace $D/trace" end
  return trial.run(t, function(ended)
    local wrong = trial.ended_well(ended, { 0, 2, 3 })
    if wrong then return wrong end
    if full and ended.status == 0 then return "status 0 although the output had no room" end
    if ended.status ~= 0 and not ended.err:find("File too large", 1, true) then
      return "does not say why: " .. ended.err
    end
    return metrics.check(ended.folder .. "/metrics", ended.status == 0 and STEPS or nil)
  end), ("%s, %d bytes%s"):format(t.run, limit, full and ", output full" or "")
end

return { name = "limits", run = run }
