-- What is left when a process of a run is killed: nothing, whichever it is and whenever that happens.

local program = require("lua.program")

local RECIPE = "tests/lua/recipes/killed.lua"
local SECONDS_TO_VANISH = 5

local function output_of(command)
  local pipe = assert(io.popen(command))
  local text = pipe:read("*a")
  pipe:close()
  return text
end

-- Processes that have this text in their environment: those of one run.
local function processes_with(mark)
  return output_of(("grep -lsF '%s' /proc/[0-9]*/environ"):format(mark))
end

local function assert_nothing_left(mark, folder)
  local left = processes_with(mark)
  for _ = 1, 10 * SECONDS_TO_VANISH do
    if left == "" then break end
    os.execute("sleep 0.1")
    left = processes_with(mark)
  end
  assert.equal("", left)
  assert.equal("", output_of("ls -A " .. folder))
  assert.equal("", output_of("ls -A /dev/shm | grep -i moonshard"))
end

local function run_killed(victim, phase)
  local folder = os.tmpname()
  os.remove(folder)
  os.execute("mkdir " .. folder)
  local mark = ("MOONSHARD_SPEC_RUN=%s-%s-%s"):format(folder:match("[^/]*$"), victim, phase)
  local ended = program.run({ "run", RECIPE, "-n", "3", "victim=" .. victim, "phase=" .. phase },
    ("%s TMPDIR=%s"):format(mark, folder))
  assert_nothing_left(mark, folder)
  os.execute("rmdir " .. folder)
  return ended
end

local PHASES = {
  { "start", "at the start" }, { "first", "in the first step" }, { "middle", "amid a step" },
  { "finish", "at the end" },
}

describe("a killed process", function()
  for _, phase in ipairs(PHASES) do
    it("L5 nothing outlives a launcher that is killed " .. phase[2], function()
      local ended = run_killed("launcher", phase[1])
      assert.equal(137, ended.status)
      assert.is_nil(ended.err:find("moonshard", 1, true), ended.err)
    end)

    for _, rank in ipairs({ 0, 2 }) do
      it(("L5 rank %d killed %s is named, and the others end"):format(rank, phase[2]), function()
        local ended = run_killed(rank, phase[1])
        assert.equal(3, ended.status)
        local report = ("^moonshard: rank R died: killed by signal 9 %(Killed%): [^\n]*\nmoonshard: rank R was ")
          :gsub("R", rank)
        assert.truthy(ended.err:find(report), ended.err)
      end)
    end
  end
end)
