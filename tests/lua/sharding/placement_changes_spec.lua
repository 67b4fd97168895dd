-- Placements and sequence parallelism that change between steps: the values move to the ranks that own them now.

local breadth = require("lua.support.breadth")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local ms = require("moonshard")
local program = require("lua.support.program")

local RECIPE = "tests/lua/sharding/recipes/new_placements.lua"

local function check(ranks, ...) return { "check", RECIPE, "-n", ranks, ... } end

local checks = {
  shards = check("4", "mesh=1x2x2"),
  replicas = check("4", "mesh=2x1x2", "layout=ragged"),
  ["slices of replicas"] = check("4", "mesh=2x1x2", "over_replicate=true"),
}
local CHECKED = breadth.few({ "slices of replicas", "replicas", "shards" })
local cases = { run = { "run", RECIPE, "-n", "4", "--timeout", "60", "mesh=1x2x2", "moments=bf16", "mistakes=true" } }
for _, name in ipairs(CHECKED) do cases[name] = checks[name] end

local of, equals_one_rank = program.checks(cases)

local function line(what) return of("run").out:match("%f[%l]" .. what .. ": ([^\n]*)") or "" end

describe("placements that change", function()
  it("R4 give the numbers of one rank, on shards, replicas and slices of them", function()
    equals_one_rank(unpack(CHECKED))
  end)

  it("R4 move weights, moments, averages and numbers of updates bit for bit, and halve what ranks keep", function()
    assert.equal(0, of("run").status, of("run").err)
    local before, after = of("run").out:match("\nparameters +(%S+ %a+) +(%S+ %a+)")
    assert.not_equal(before, after)
    has(of("run").out:match("\ntensor per step[^\n]*"), "KiB | *")
    has(line("gradient"), "false | gradient | placements | step")
  end)

  it("R4 sequence parallelism changes no memory of the state, and plans of both are kept", function()
    local compared = of("run").out:match("sequence[^\n]*\n(.-)\ntensor per step")
    local before, after = compared:match("optimizer +(%S+ %a+) +(%S+ %a+)")
    assert.equal(before, after)
    has(compared:match("activations[^\n]*"), "*")
  end)

  it("R4 are refused on all ranks if they are wrong on one, and the old ones stay", function()
    has(line("style"), "false | rule 1 | colwize | colwise")
    has(line("axis"), "false | head.weight | axis 2")
    has(line("heads"), "false | norm")
    has(line("alone"), "false | rank 0 | rank 1 | placements")
    has(line("unlike"), "false | layers.0.mlp.fc1.weight | axis of placements 0 | axis of placements 1")
    has(line("averages"), "false | with_ema | placements")
  end)

  it("R4 are refused where replicas take local steps", function()
    local model = ms.fully_shard(fixture.gpt2(), {
      mesh = { 1, 1 }, replicate_sync = { every = 2, outer = ms.optim.sgd { lr = 1 } },
    })
    has(fixture.message(ms.set_rules, model, { placements = {} }), "replicate_sync | placements | checkpoint")
  end)
end)
