-- What is left when a process of a run is killed: nothing, whichever it is and whenever that happens.

local leftovers = require("lua.support.leftovers")
local program = require("lua.support.program")

local RECIPE = "tests/lua/launching/recipes/killed.lua"
local function run_killed(victim, phase)
  local folder = os.tmpname()
  os.remove(folder)
  os.execute("mkdir " .. folder)
  local mark = ("MOONSHARD_SPEC_RUN=%s-%s-%s"):format(folder:match("[^/]*$"), victim, phase)
  local ended = program.run({ "run", RECIPE, "-n", "3", "victim=" .. victim, "phase=" .. phase },
    ("%s TMPDIR=%s"):format(mark, folder))
  assert.equal("", leftovers.of(mark, folder))
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
