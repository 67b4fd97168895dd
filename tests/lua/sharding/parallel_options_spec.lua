-- Options of training with tensor and context dimensions: `moonshard check` compares runs with one rank, and what a
-- program reads of the model is what it reads on one rank.

local cjson = require("cjson")
local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local RECIPE = "tests/lua/sharding/recipes/parallel_options.lua"

local function check(ranks, mesh, ...) return { "check", RECIPE, "-n", ranks, "mesh=" .. mesh, ... } end
local function run(ranks, mesh, ...) return { "run", RECIPE, "-n", ranks, "--timeout", "60", "mesh=" .. mesh, ... } end

-- Sizes of replicate, shard, context and tensor.
local EQUAL = {
  ["sums in the last micro-batch"] = check("4", "2x1x1x2", "gradient_sync=last", "micro_batches=2"),
  ["sums over replicas in the last"] = check("8", "2x2x1x2", "gradient_sync=shard", "micro_batches=3",
    "keep_weights=true", "layout=ragged"),
  ["kept weights"] = check("4", "1x2x2x1", "gradient_sync=last", "micro_batches=2", "keep_weights=true"),
  ["optimizer over replicas"] = check("4", "2x1x1x2", "over_replicate=true", "shared_masters=false", "ema=0.9"),
  ["optimizer over replicas of context"] = check("4", "2x1x2x1", "over_replicate=true", "shared_masters=false",
    "gradient_sync=last", "micro_batches=2"),
  ["moments in bf16"] = check("4", "1x1x2x2", "moments=bf16", "sequence_parallel=true"),
  ["averages"] = check("4", "2x1x1x2", "ema=0.9", "dtype=bf16"),
  ["sgd, clipped"] = check("4", "1x2x1x2", "optimizer=sgd", "clip=0.05"),
  ["groups"] = check("4", "2x1x1x2", "groups=true", "layout=ragged"),
  ["a strategy"] = check("8", "2x2x1x2", "strategy=HYBRID_SHARD"),
}

local NAMES = {}
for name in pairs(EQUAL) do NAMES[#NAMES + 1] = name end
table.sort(NAMES)
NAMES = breadth.few(NAMES)

local READ = { ["1x1x1x2"] = "2", ["1x1x2x1"] = "2", ["2x2x1x2"] = "8", ["1x1x2x2"] = "4" }

-- As a share of the norm: AdamW's first steps are signs of gradients.
local function assert_near(expected, values, tolerance, what)
  local squares, off = 0, 0
  assert.equal(#expected, #values)
  for i, value in ipairs(expected) do
    squares, off = squares + value * value, off + (value - values[i]) ^ 2
  end
  assert(off <= tolerance ^ 2 * squares, ("%s is off by %.3g of its norm"):format(what, math.sqrt(off / squares)))
end

describe("with tensor and context dimensions", function()
  local ended, read = nil, {}

  setup(function()
    local cases, outs = {}, { one = scratch.path() }
    for _, name in ipairs(NAMES) do cases[name] = EQUAL[name] end
    cases.one = run("1", "1x1x1x1", "ema=0.9", "out=" .. outs.one)
    for mesh, ranks in pairs(READ) do
      outs[mesh] = scratch.path()
      cases[mesh] = run(ranks, mesh, "ema=0.9", "out=" .. outs[mesh])
    end
    cases.spoiled = run("4", "1x2x1x2", "spoil=true", "--log-ranks", "all")
    cases.spoiled_over_replicas = run("4", "2x1x1x2", "spoil=true", "over_replicate=true", "shared_masters=false",
      "--log-ranks", "all")
    ended = program.run_all(cases)
    for name, out in pairs(outs) do
      assert(ended[name].status == 0, ended[name].err)
      read[name] = cjson.decode(scratch.read(out))
    end
  end)
  teardown(scratch.clear)

  for _, name in ipairs(NAMES) do
    it("T9 C6 training is that of one rank: " .. name, function()
      assert.equal(0, ended[name].status, ended[name].err .. ended[name].out)
      has(ended[name].out, "equal within tolerance | the plan's")
    end)
  end

  for mesh in pairs(READ) do
    it("T16 parameters, gradients, moments, averages and text are read as on one rank: " .. mesh, function()
      for step, expected in ipairs(read.one) do
        local found = read[mesh][step]
        for _, kind in ipairs({ "gradients", "parameters", "moments", "averages", "unsharded" }) do
          assert.is_not_nil(next(expected[kind]))
          for name, values in pairs(expected[kind]) do
            assert_near(values, found[kind][name], 1e-4, ("step %d: %s of %s"):format(step, kind, name))
          end
        end
        assert.near(expected.evaluated, found.evaluated, 1e-5)
        assert.equal(expected.text, found.text)
      end
    end)
  end

  it("T16 a value that is not finite skips the update on all ranks, which name its place in the whole parameter",
    function()
      -- Over replicas the second one has the slice with the value.
      for name, owner in pairs({ spoiled = 1, spoiled_over_replicas = 3 }) do
        assert.equal(0, ended[name].status, ended[name].err)
        for rank = 0, 3 do
          local line = ended[name].out:match(("rank %d: ([^\n]*)"):format(rank))
          has(line, "step 2 | layers.1.mlp.fc2.weight | nan | element 639 | rank " .. owner) -- 4 * 128 + 127
        end
      end
    end)
end)
