-- Runs that save after every step and are killed by SIGKILL at random points of saving, each going on from what the one
-- before left: in the middle of any call by which a rank writes files, or all at once at any time.
--
-- After each kill the newest checkpoint must be whole, by its checksums, and not older than the one before. At the end
-- it must hold, bit for bit, what a run that was not killed has at that step.

local clock = require("moonshard.base.clock")
local ms = require("moonshard")
local program = require("lua.support.program")
local ffi = require("ffi")

local crash = {}

local RECIPE = "tests/lua/recipes/checkpointed.lua"
local STEPS_A_RUN = 3
-- Calls of rank 0 in so many saves; another rank makes a few less.
local CALLS = 350

local function settings(folder, steps)
  return { "run", RECIPE, "-n", "2", "mesh=1x2", "save_every=1", "steps=" .. steps, "checkpoint=" .. folder,
    "resume=auto" }
end

-- A generator of its own, so that a seed gives the same points everywhere (Park & Miller 1988).
local function generator(seed)
  local state = seed % 2147483646 + 1
  return function(n)
    state = state * 16807 % 2147483647
    return 1 + state % n
  end
end

local function run_killed(folder, steps, random, seconds)
  local arguments = settings(folder, steps)
  arguments[#arguments + 1] = "async=" .. tostring(random(2) == 1)
  arguments[#arguments + 1] = "more=" .. STEPS_A_RUN
  local what
  if random(4) > 1 then
    what = ("any:%d:kill"):format(random(CALLS))
    local victim = random(2) - 1
    arguments[#arguments + 1], arguments[#arguments + 2] = "inject=" .. what, "victim=" .. victim
    return program.run(arguments), ("%s on rank %d"):format(what, victim)
  end
  local after = seconds * random(1000) / 1000
  return program.run(arguments, ("timeout --foreground -s KILL %.4f"):format(after)), ("after %.4f s"):format(after)
end

local function contents(path)
  local checkpoint, values = ms.checkpoint.open(path), {}
  for _, param in ipairs(checkpoint.parameters) do
    local numel = 1
    for _, size in ipairs(param.shape) do numel = numel * size end
    local out = ffi.new("float[?]", numel)
    for _, kind in ipairs({ "param", "exp_avg", "exp_avg_sq" }) do
      checkpoint:read(kind, param.name, 0, numel, out)
      values[#values + 1] = ffi.string(out, 4 * numel)
    end
  end
  checkpoint:close()
  return values
end

local function check_newest(folder, before, what)
  local path, step = ms.checkpoint.latest(folder)
  assert(path and step >= before, ("%s: step %s after step %d"):format(what, tostring(step), before))
  local checkpoint = ms.checkpoint.open(path)
  checkpoint:verify()
  checkpoint:close()
  return step
end

---@class CrashSettings
---@field points integer kills, at most
---@field seed integer of where they happen
---@field seconds number? no further kill once so much time has passed; the first two always happen
---@field tell fun(text: string)? of each kill

---Kills runs at random points; raises where one leaves something wrong.
---@param o CrashSettings
---@return integer points
---@return integer killed runs that were killed; the others came to their end before the point
---@return integer step of the newest checkpoint
function crash.run(o)
  local points, tell = o.points, o.tell
  local folder, steps, random = os.tmpname(), (1 + points) * STEPS_A_RUN, generator(o.seed)
  os.remove(folder)
  local arguments = settings(folder, steps)
  arguments[#arguments + 1] = "more=1"
  local began = clock.now()
  local ended = program.run(arguments)
  local seconds = clock.now() - began
  assert(ended.status == 0, ended.err)
  local killed, step, done = 0, check_newest(folder, 1, "the first run"), 0
  local finish = clock.now() + (o.seconds or math.huge)
  while done < points and (done < 2 or clock.now() < finish) do
    done = done + 1
    local run, what = run_killed(folder, steps, random, seconds)
    if run.status ~= 0 then killed = killed + 1 end
    assert(run.status == 0 or run.status == 137 or run.err:find("killed by signal 9", 1, true), run.err)
    step = check_newest(folder, step, what)
    if tell then tell(("%d: %s: step %d"):format(done, what, step)) end
  end
  local whole = folder .. ".whole"
  arguments = settings(whole, steps)
  arguments[#arguments + 1] = "stop=" .. step
  ended = program.run(arguments)
  assert(ended.status == 0, ended.err)
  local expected, got = contents(ms.checkpoint.latest(whole), nil), contents(ms.checkpoint.latest(folder), nil)
  for i, bytes in ipairs(expected) do assert(bytes == got[i], "not what an unbroken run has") end
  os.execute(("rm -rf %s %s"):format(folder, whole))
  return done, killed, step
end

return crash
