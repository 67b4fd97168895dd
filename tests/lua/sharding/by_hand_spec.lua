-- Layers that exchange values between ranks themselves. Along tensor, `moonshard check` compares each way with one
-- rank, on which every call is the identity; along data dimensions, and with rules, runs are compared by their
-- parameters.

local compare = require("moonshard.check.tolerance")
local json = require("cjson")
local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local RECIPE = "tests/lua/sharding/recipes/by_hand.lua"

local runs, outs = {}, {}

local function check(name, ranks, ...) runs[name] = { "check", RECIPE, "-n", ranks, ... } end

local function run(name, ranks, ...)
  outs[name] = os.tmpname()
  runs[name] = { "run", RECIPE, "-n", ranks, "--timeout", "60", "out=" .. outs[name], ... }
end

local function cuda(name, ranks, ...)
  run(name, ranks, "--device", "cuda", ...)
  runs[name].environment = program.emulated_cuda()
end

local function mistake(name, ...)
  runs["mistake " .. name] = { "run", RECIPE, "-n", "2", "--timeout", "60", "mistake=" .. name, ... }
end

local ALONG_TENSOR = {
  "mlp", "without_f", "summands", "sequence", "exchange", "neighbours", "ring", "largest", "softmax",
}
for _, way in ipairs(ALONG_TENSOR) do check(way, "2", "way=" .. way) end
for _, way in ipairs({ "sequence", "exchange", "neighbours", "ring", "largest" }) do
  check(way .. " over four", "4", "way=" .. way, "mesh=1x1x4")
end
check("with shards", "4", "way=sequence", "mesh=1x2x2", "recompute=true", "micro_batches=2")
check("with replicas", "4", "way=without_f", "mesh=2x1x2", "recompute=true")
check("in bf16", "2", "way=sequence", "dtype=bf16")
check("masks", "2", "way=mlp", "dropout=0.3")
check("without rules", "2", "way=sequence", "places=false")
check("reread", "4", "way=reread", "mesh=1x1x4", "seq=128", "batch=8", "steps=2") -- long enough for sums in place
check("other mesh", "2", "way=neighbours", "mesh=1x2x1")

run("rules", "2", "way=rules")
run("by hand", "2", "way=mlp")
run("by hand, no f", "2", "way=without_f")
run("softmax by rules", "2", "way=softmax_by_rules")
run("softmax by hand", "2", "way=softmax")

local ALONG_DATA = { "batch_norm", "contrast", "data_exchange" }
for _, way in ipairs(ALONG_DATA) do
  run(way .. " 1x1x1", "1", "way=" .. way, "mesh=1x1x1")
  run(way .. " 1x2x1", "2", "way=" .. way, "mesh=1x2x1", "batch=2")
  run(way .. " 1x2x2", "4", "way=" .. way, "mesh=1x2x2", "batch=2", "recompute=true")
  if way ~= "data_exchange" then run(way .. " 2x2x1", "4", "way=" .. way, "mesh=2x2x1", "batch=1") end
end

for _, way in ipairs({ "sequence", "exchange", "neighbours", "largest" }) do
  run(way .. " cpu", "2", "way=" .. way)
  cuda(way .. " cuda", "2", "way=" .. way)
end
cuda("contrast cuda", "4", "way=contrast", "mesh=2x2x1", "batch=1")
cuda("contrast windows", "4", "way=contrast", "mesh=2x2x1", "batch=1", "--nccl-windows")
run("reread cpu", "2", "way=reread")
cuda("reread cuda", "2", "way=reread", "--nccl-windows")
cuda("sequence windows", "2", "way=sequence", "--nccl-windows")

for _, name in ipairs({ "outside", "twice", "unequal", "parameter", "axis", "no_axis", "largest", "name", "foreign",
  "no_name", "megatron", "pytorch", "context", "border", "kind", "reduction", "places", "scalar", "tensor" }) do
  mistake(name)
end
mistake("size", "batch=3")
run("with context", "4", "way=batch_norm", "mesh=1x2x2", "last=context", "places=false")
run("apart", "2", "way=batch_norm", "mesh=2x1x1", "local_steps=2")
check("data", "2", "way=contrast", "mesh=1x2x1")
runs["explain"] = { "explain", RECIPE, "-n", "2", "way=neighbours", "--json" }
runs["explain sequence"] = { "explain", RECIPE, "-n", "2", "way=sequence", "--json" }
runs["plan"] = { "plan", RECIPE, "-n", "2", "way=largest" }

local of, equals_one_rank = program.checks(runs)

local function parameters(name)
  assert.equal(0, of(name).status, name .. ": " .. of(name).err)
  local list = {}
  for value in scratch.read(outs[name]):gmatch("%S+ %d+ (%S+)\n") do list[#list + 1] = tonumber(value) end
  assert.is_true(#list > 1000)
  return list
end

local function equals(expected, got)
  local a, b = parameters(expected), parameters(got)
  assert.equal(#a, #b)
  local worst = compare.arrays(a, b, { count = #a, tolerance = 1e-5 })
  if worst and worst.differs then
    error(("%s and %s: %.9g and %.9g, %g is allowed"):format(got, expected, worst.got, worst.expected,
      worst.allowed))
  end
end

local function refused(name, facts)
  assert.equal(2, of(name).status, of(name).err)
  has(of(name).err, facts)
end

describe("layers that are divided by hand", function()
  teardown(function()
    for _, path in pairs(outs) do os.remove(path) end
  end)

  it("T4 train as one rank does, whatever they exchange along tensor", function()
    equals_one_rank(unpack(ALONG_TENSOR))
    equals_one_rank("sequence over four", "exchange over four", "neighbours over four", "ring over four",
      "largest over four")
  end)

  it("T4 compose with shards, replicas, recomputation, bf16, dropout, and parameters that no rule divides", function()
    equals_one_rank("with shards", "with replicas", "in bf16", "masks", "without rules", "other mesh")
  end)

  it("T4 change parameters as rules do", function()
    equals("rules", "by hand")
    equals("rules", "by hand, no f")
    equals("softmax by rules", "softmax by hand")
  end)

  it("T4 exchange with the ranks of data dimensions, and are those of one rank with all samples", function()
    for _, way in ipairs(ALONG_DATA) do
      equals(way .. " 1x1x1", way .. " 1x2x1")
      equals(way .. " 1x1x1", way .. " 1x2x2")
    end
    equals("batch_norm 1x1x1", "batch_norm 2x2x1")
    equals("contrast 1x1x1", "contrast 2x2x1")
  end)

  it("T4 train on the device cuda as on the CPU", function()
    for _, way in ipairs(breadth.few({ "sequence", "exchange", "largest", "neighbours" })) do
      equals(way .. " cpu", way .. " cuda")
    end
    equals("contrast 1x1x1", "contrast cuda")
    equals("contrast 1x1x1", "contrast windows")
    equals("sequence cpu", "sequence windows")
  end)

  it("T4 can read summands again when their sum is made, also where sums are made in place", function()
    equals_one_rank("reread")
    equals("reread cpu", "reread cuda")
    local function loss(name) return of(name).out:match("step 3/3  loss (%S+)") end
    assert.equal(loss("sequence cpu"), loss("sequence windows"))
  end)

  it("T4 show what they move, which for a shift is a gather", function()
    assert.equal(0, of("explain").status, of("explain").err)
    local shifts, row = 0, 4 * 16 * 4 -- of one position: what each rank gets from the other
    for _, change in ipairs(json.decode(of("explain").out).placement_changes) do
      if change.forward == "shift" then
        shifts = shifts + 1
        assert.same({ "shift", "local", "local", row, row },
          { change.backward, change.from, change.to, change.forward_bytes, change.backward_bytes })
      end
    end
    assert.equal(4, shifts) -- two a layer
    has(of("plan").out, "all_reduce max over tensor")
  end)

  it("T4 reduce and scatter the gradient of what ranks gather for different uses", function()
    local gathers = 0
    for _, change in ipairs(json.decode(of("explain sequence").out).placement_changes) do
      if change.module:find("^layers") and change.forward == "all_gather" then
        gathers = gathers + 1
        assert.equal("reduce_scatter", change.backward)
      end
    end
    assert.equal(2, gathers)
  end)

  it("T4 say what has no meaning, and what would be right", function()
    refused("mistake outside", "all_reduce | tensor | x:to_local")
    refused("mistake twice", "to_local | from_local")
    refused("mistake unequal", "from_local | all_reduce | all_gather | partial")
    refused("mistake parameter", "matmul | layers.0.up | to_local { tensor = ms.Shard(0) }")
    refused("mistake axis", "to_local | axis 0 | axis 1")
    refused("mistake size", "reduce_scatter | axis 0 | [3,8,16] | 2 and 4")
    refused("mistake no_axis", "axis 3 | [4,8,16] | 0 to 2")
    refused("mistake largest", "all_reduce | gradient")
    refused("mistake name", "all_reduce | tensr | tensor")
    refused("mistake foreign", "all_reduce | \"tp\" | tensor?")
    refused("mistake no_name", "all_reduce | \"tensor\", \"shard\" or \"replicate\" | nil")
    refused("mistake megatron", "reduce_from_tensor_model_parallel_region | x:all_reduce(\"tensor\")")
    refused("mistake pytorch", "redistribute { tensor = \"replicate\" } | a list")
    refused("mistake context", "all_gather | context")
    refused("mistake border", "to_local | tensor")
    refused("mistake kind", "to_local | colwise | ms.Shard | replicate | partial")
    refused("mistake reduction", "all_reduce | mean | sum | max")
    refused("mistake scalar", "axis 0 | no axes")
    refused("mistake tensor", "to_local | a tensor | ms.Shard")
    refused("mistake places", "shift | 0.5")
    refused("with context", "all_reduce | shard | context")
    refused("apart", "all_reduce | replicate | replicate_sync")
    refused("data", "copy_to | shard | moonshard check")
  end)
end)
