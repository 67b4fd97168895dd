-- A rank or a micro-batch without a target does not count in the mean of means, on any mesh, and a loss that is made of
-- such a mean is refused on all ranks.

local has = require("lua.support.message").has
local program = require("lua.support.program")

local RECIPE = "tests/lua/models/recipes/without_targets.lua"

local function run(ranks, ...) return { "run", RECIPE, "-n", ranks, "--timeout", "60", ... } end

-- Eight rows in micro-batches of two, of which the fourth has no target.
local SAME = {
  ["shards"] = run("2", "mesh=1x2"),
  ["replicas"] = run("2", "mesh=2x1"),
  ["a rank without any"] = run("4", "mesh=2x2", "rows=2"),
  ["ranks of tensor"] = run("4", "names=shard tensor", "mesh=2x2", "alike=2"),
  ["ranks of context"] = run("4", "names=shard context", "mesh=2x2", "alike=2"),
}

local OWN = "mean of ms.loss.cross_entropy | NaN"
local REFUSED = {
  ["shards"] = { run("2", "loss=own"), "step 1 | nan | micro-batch 2 | rank 1 | " .. OWN },
  ["replicas"] = { run("2", "loss=own", "mesh=2x1", "empty=4"), "micro-batch 1 of 2 | rank 1 | " .. OWN },
  ["ranks of tensor"] = { run("4", "loss=own", "names=shard tensor", "mesh=2x2", "alike=2"),
    "micro-batch 2 of 2 | rank 2 | " .. OWN },
  ["an evaluation"] = { run("4", "loss=own", "mesh=2x2", "rows=2", "evaluate=true"),
    "train:evaluate | rank 3 | " .. OWN },
}

describe("a mean over targets", function()
  local ended

  setup(function()
    local runs = { one = run("1", "mesh=1x1", "rows=8"), own = run("2", "loss=own", "empty=-2"),
      apart = run("1", "mesh=1x1", "rows=8", "apart=true") }
    for name, words in pairs(SAME) do runs["same " .. name] = words end
    for name, case in pairs(REFUSED) do runs["refused " .. name] = case[1] end
    ended = program.run_all(runs)
  end)

  it("S6 leaves out ranks and micro-batches without a target, as one rank does with all rows", function()
    local expected = {}
    assert.equal(0, ended.one.status, ended.one.err)
    for number in ended.one.out:gmatch("[%d.]+") do expected[#expected + 1] = tonumber(number) end
    assert.equal(5, #expected)
    assert.near(tonumber(ended.apart.out), expected[1], 2e-6, ended.apart.err)
    for name in pairs(SAME) do
      local of, at = ended["same " .. name], 0
      assert.equal(0, of.status, name .. ": " .. of.err)
      for number in of.out:gmatch("[%d.]+") do
        at = at + 1
        -- One rank's evaluation is one mean over all targets; in steps each micro-batch has its own.
        if at < #expected then assert.near(expected[at], tonumber(number), 2e-5, name) end
      end
      assert.equal(#expected, at)
    end
  end)

  it("U1 is refused on all ranks in a loss made of one without a target, with rank and micro-batch", function()
    assert.equal(0, ended.own.status, ended.own.err)
    for name, case in pairs(REFUSED) do
      local of = ended["refused " .. name]
      assert.not_equal(0, of.status, name)
      has(of.err, case[2])
      assert.equal("", of.out)
    end
  end)
end)
