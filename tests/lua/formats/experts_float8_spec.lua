-- Weights of experts multiplied in 8 bits by rule: training by every recipe compared with bf16, on CUDA and on meshes;
-- what explain, plans and prices show; and what is refused.

local breadth = require("lua.support.breadth")
local emulated_runs = require("lua.support.emulated_runs")
local has = require("lua.support.message").has
local json = require("cjson")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local RECIPE = "tests/lua/formats/recipes/float8.lua"
local RECIPES = { "tensorwise", "rowwise_with_gw_hp", "rowwise", "mxfp8", "blockwise_power_2_scale", "blockwise" }
local EXPERTS = { "model=mixtral", [[rule=experts\.w\d$]], "layers=1" }
local SHORT = { "rows=2", "steps=3" }

local runs = emulated_runs.of(RECIPE)

-- Words of a run with experts.
local function words(...)
  local all = { unpack(EXPERTS) }
  for i = 1, select("#", ...) do all[#all + 1] = (select(i, ...)) end
  return all
end

runs:case("bf16", words("steps=12"))
for _, name in ipairs(RECIPES) do runs:case(name, words("fp8=" .. name, "steps=12")) end
for _, name in ipairs(breadth.few({ "tensorwise", "rowwise", "mxfp8", "blockwise" })) do
  runs:case(name .. " of two rows", words("fp8=" .. name, unpack(SHORT)))
  runs:case(name .. " on cuda", words("fp8=" .. name, "device=cuda", unpack(SHORT)), "")
end
-- In f32, with parts of 128 of each size, so that every tile is a rank's own; 128 rows a rank, and as many of each
-- expert as come. Linear layers, too.
local function on_mesh(name, ranks, ...)
  runs:case(name, { "-n", ranks, "model=mixtral", "layers=1", "fp8=blockwise_power_2_scale", "dtype=f32", "steps=3",
    "rows=16", "dim=256", "ffn=256", "rule=(experts.w.|wo.weight|w[qkv].weight)$", ... })
end
on_mesh("alone", "1")
on_mesh("tensor", "2", "mesh=1x1x2")
on_mesh("shards", "2", "mesh=1x2x1")
on_mesh("context", "2", "mesh=1x1x2x1")
runs:plan("plan", words("fp8=blockwise", "--json"))

local function losses(name)
  runs:told(name)
  return runs:read(name).losses
end

local function assert_near(expected, got, tolerance, what, steps)
  for i = 1, steps or math.min(#expected, #got) do
    local apart = math.abs(got[i] - expected[i]) / expected[i]
    assert(apart <= tolerance, ("%s, step %d: %.9g instead of %.9g"):format(what, i, got[i], expected[i]))
  end
end

describe("experts in 8 bits", function()
  teardown(scratch.clear)

  it("Q4 train as in bf16, by every recipe", function()
    for _, name in ipairs(RECIPES) do
      assert_near(losses("bf16"), losses(name), 0.02, name)
      assert.not_same(losses("bf16"), losses(name))
    end
  end)

  it("Q4 are those of the CPU on cuda", function()
    for _, name in ipairs(breadth.few({ "tensorwise", "rowwise", "mxfp8", "blockwise" })) do
      assert_near(losses(name .. " of two rows"), losses(name .. " on cuda"), 2e-3, name)
    end
  end)

  -- Results and gradients of inputs have tiles within a row, and weights squares within a part. Gradients of weights
  -- have tiles of a rank's own rows: those of ranks that divide the batch differ, after the first loss. Sums of values
  -- whose scales are powers of two are exact; others can round an element to another code.
  it("Q4 have equal values on meshes whose parts are whole tiles", function()
    assert_near(losses("alone"), losses("tensor"), 1e-6, "tensor")
    for _, name in ipairs({ "shards", "context" }) do
      assert_near(losses("alone"), losses(name), 1e-6, name, 1)
      assert_near(losses("alone"), losses(name), 0.01, name)
    end
  end)

  it("Q5 are counted by a plan: three a weight", function()
    local counts = { grouped_matmul_f8 = 0, grouped_matmul_f8_backward_weight = 0, grouped_matmul = 0 }
    for _, phase in ipairs(json.decode(runs:told("plan").out).phases) do
      for _, instruction in ipairs(phase.instructions) do
        local op = instruction.op
        if (phase.name == "train" or phase.name == "first") and counts[op] then counts[op] = counts[op] + 1 end
      end
    end
    assert.same({ grouped_matmul_f8 = 6, grouped_matmul_f8_backward_weight = 3, grouped_matmul = 0 }, counts)
  end)

  it("Q5 are priced by the arithmetic that multiplies them", function()
    local told = program.run { "price", RECIPE, "--cluster", "a100-80x8", "-n", "8", "mesh=1x8x1",
      "fp8=blockwise_power_2_scale", unpack(EXPERTS) }
    assert.equal(0, told.status, told.err)
    has(told.out, "grouped_matmul_f8")
  end)

  it("Q5 are explained, and gathered in their param_dtype", function()
    local told = program.run { "explain", RECIPE, "-n", "2", "mesh=1x2x1", "fp8=tensorwise", unpack(EXPERTS) }
    assert.equal(0, told.status, told.err)
    has(told.out:match("\nfp8\n(.-)\n\n"), "layers.0.mlp.experts.w1 | tensorwise")
    assert.is_nil(told.out:match("\nfp8\n(.-)\n\n"):find("gathered as", 1, true))
  end)

  it("Q5 are refused by rule, parameter and size", function()
    local function refused(given, ...) return program.refused(2, { "run", RECIPE, unpack(given) }, ...) end
    refused(words("fp8=blockwise", "ffn=24"),
      'layers.0.mlp.experts.w1 is "blockwise" | 24 of its shape [3,24,64] | multiple of 16')
    refused(words("fp8=tensorwise", "gather=i8"), "layers.0.mlp.experts.w1 | gather_dtype | fp8 | rowwise")
  end)
end)
