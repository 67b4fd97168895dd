-- What a rank reads right after a step is of that step, also where the rank owns nothing of the last parameters and the
-- ranks of its memory are late: every kernel of the update waits there. Without the wait of the barrier that ends an
-- update, these runs read older values.

local program = require("lua.support.program")

local RECIPE = "tests/lua/training/recipes/read_after_step.lua"

local function run(ranks, late, ...)
  return { "run", RECIPE, "-n", ranks, "--log-ranks", "all", "--inject-delay", "update_kernel:2ms@" .. late, ... }
end

-- Sizes of replicate, shard and tensor.
local cases = {
  ["adamw"] = run("2", "1", "mesh=2x1x1"),
  ["adafactor along tensor"] = run("4", "1", "mesh=2x1x2", "optimizer=adafactor"),
  ["adafactor over shards"] = run("4", "1", "mesh=2x2x1", "optimizer=adafactor", "layout=ragged"),
  ["adafactor of more elements than ranks"] = run("3", "0", "mesh=3x1x1", "optimizer=adafactor", "last=4"),
  ["lion of four replicas"] = run("4", "2", "mesh=4x1x1", "optimizer=lion"),
  ["muon"] = run("4", "1", "mesh=2x1x2", "muon=true"),
  ["averages"] = run("2", "1", "mesh=2x1x1", "optimizer=sgd", "ema=true"),
  ["copies in bf16"] = run("2", "0", "mesh=2x1x1", "dtype=bf16", "own_copies=true", "last=3"),
  ["own masters"] = run("2", "1", "mesh=2x1x1", "optimizer=adafactor", "shared=false"),
  ["divided state"] = run("4", "3", "mesh=4x1x1", "sliced=true", "shared=false"),
}

describe("what is read after a step", function()
  it("M4 is not older than the step, whichever rank of the memory is late", function()
    local ended = program.run_all(cases)
    for name, arguments in pairs(cases) do
      assert.equal(0, ended[name].status, name .. ": " .. ended[name].err)
      local ranks = 0
      for rank, older, still in ended[name].out:gmatch("rank (%d+) older (%d+) still (%d+)") do
        ranks = ranks + 1
        assert.same({ "0", "0" }, { older, still }, ("%s, rank %s"):format(name, rank))
      end
      assert.equal(tonumber(arguments[4]), ranks, name)
    end
  end)
end)
