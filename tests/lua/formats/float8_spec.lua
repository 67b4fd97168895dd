-- Weights multiplied in 8 bits by rule: training compared with bf16, on meshes, on CUDA; what explain, plans and prices
-- show; and what is refused.

local breadth = require("lua.support.breadth")
local emulated_runs = require("lua.support.emulated_runs")
local has = require("lua.support.message").has
local json = require("cjson")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local RECIPE = "tests/lua/formats/recipes/float8.lua"
local RECIPES = { "tensorwise", "rowwise", "rowwise_with_gw_hp", "mxfp8", "blockwise", "blockwise_power_2_scale" }
-- Sanitizers need no more than that all of it has run.
local RELEASE = breadth.all
local STEPS, MESH_STEPS = RELEASE and 50 or 3, RELEASE and 8 or 2
-- For the emulated device, which takes most of the time by far: the last loss is after an update.
local SHORT = { "rows=2", "steps=" .. (RELEASE and 3 or 2) }

-- The most by which a loss may differ from that in bf16, as a part of it.
local FROM_BF16 = 0.02
-- Between meshes: a sum in another order may round an element to another code.
local MESHES = 0.01

local runs = emulated_runs.of(RECIPE)

runs:case("bf16", { "steps=" .. STEPS })
for _, name in ipairs(RECIPES) do
  runs:case(name, { "fp8=" .. name, "steps=" .. STEPS })
  runs:case(name .. " of two rows", { "fp8=" .. name, unpack(SHORT) })
  if RELEASE or not name:find("rowwise") then -- whose kernels "parts on cuda" and "older on cuda" run, too
    runs:case(name .. " on cuda", { "fp8=" .. name, "device=cuda", unpack(SHORT) },
      name == "mxfp8" and "MOONSHARD_EMULATE_CAPABILITY=100" or "")
  end
end
local function case(name, ranks, ...) runs:case(name, { "-n", ranks, "fp8=rowwise", "steps=" .. MESH_STEPS, ... }) end
case("alone", "1")
case("shards", "4", "mesh=1x4x1")
case("replicas", "4", "mesh=2x2x1", "micro=2")
case("micro-batches", "1", "micro=4")
case("tensor", "2", "mesh=1x1x2")
case("whole", "2", "mesh=1x1x2", "whole=fc2.weight|wo.weight")
case("sequence", "4", "mesh=1x2x2", "sequence=true")
case("recomputed", "2", "mesh=1x2x1", "recompute=true")
case("llama", "1", "model=llama")
case("divided llama", "4", "model=llama", "mesh=1x2x2")
case("f32", "1", "dtype=f32")
runs:case("all in 8 bits", { "-n", "4", "mesh=2x2x1", "fp8=tensorwise", "moments=i8", "replicate=i8",
  "steps=" .. STEPS })
if RELEASE then
  runs:case("plain on cuda", { "fp8=rowwise", "device=cuda", unpack(SHORT) }, "MOONSHARD_CUDA_MATMUL=plain")
end
runs:case("parts on cuda", { "fp8=rowwise", "device=cuda", "micro=2", unpack(SHORT) }, "")
runs:case("older on cuda", { "fp8=rowwise", "device=cuda", unpack(SHORT) }, "MOONSHARD_EMULATE_CUBLASLT_VERSION=120800")
runs:case("without on cuda", { "fp8=rowwise", "device=cuda", unpack(SHORT) }, "MOONSHARD_EMULATE_CUBLASLT_NO_FLOAT8=1")
runs:case("squares on Blackwell", { "fp8=blockwise", "device=cuda", unpack(SHORT) }, "MOONSHARD_EMULATE_CAPABILITY=100")
runs:case("blocks on Hopper", { "fp8=mxfp8", "device=cuda", unpack(SHORT) }, "")
runs:plan("cuda plan", { "fp8=rowwise", "--json" })

local function losses(name)
  runs:told(name)
  return runs:read(name).losses
end

local function assert_near(expected, got, tolerance, what)
  for i = 1, math.min(#expected, #got) do
    local apart = math.abs(got[i] - expected[i]) / expected[i]
    assert(apart <= tolerance, ("%s, step %d: %.6g instead of %.6g"):format(what, i, got[i], expected[i]))
  end
end

describe("products in 8 bits", function()
  teardown(scratch.clear)

  for _, name in ipairs(RECIPES) do
    it("Q4 train as in bf16: " .. name, function()
      assert_near(losses("bf16"), losses(name), FROM_BF16, name)
      assert.not_same(losses("bf16"), losses(name))
    end)

    it("Q4 are those of the CPU on cuda: " .. name .. (name:find("rowwise") and " #all" or ""), function()
      assert_near(losses(name .. " of two rows"), losses(name .. " on cuda"), 2e-3, name)
    end)
  end

  it("Q2 Q6 Q9 train as in bf16 with gathers, sums over replicas and moments in 8 bits", function()
    assert_near(losses("bf16"), losses("all in 8 bits"), FROM_BF16, "all in 8 bits")
  end)

  it("Q4 train alike on every mesh", function()
    for _, name in ipairs({ "shards", "replicas", "micro-batches", "tensor", "whole", "sequence", "recomputed",
      "f32" }) do
      assert_near(losses("alone"), losses(name), MESHES, name)
    end
    assert_near(losses("llama"), losses("divided llama"), MESHES, "llama")
  end)

  it("Q4 Q9 Q10 go on from a checkpoint with moments in 8 bits, bit for bit, and nearly so on other meshes", function()
    local folder = scratch.path()
    local function went_on(name, ranks, ...)
      local out = scratch.path()
      local ended = program.run { "run", RECIPE, "-n", ranks, "fp8=" .. name, "moments=i8", "steps=6", "out=" .. out,
        ... }
      assert.equal(0, ended.status, ended.err)
      return json.decode(scratch.read(out))
    end
    for _, name in ipairs(breadth.few(RECIPES)) do
      local saved = folder .. name
      local whole = went_on(name, "2", "mesh=1x2x1", "save=" .. saved, "save_at=3")
      local same = went_on(name, "2", "mesh=1x2x1", "load=" .. saved)
      assert.equal(3, #same.losses)
      for i = 1, 3 do
        assert.equal(whole.losses[3 + i], same.losses[i], name)
        assert.equal(whole.norms[3 + i], same.norms[i], name)
      end
      assert.equal(whole.evaluated, same.evaluated, name)
      for mesh, ranks in pairs { ["1x1x1"] = "1", ["2x2x1"] = "4", ["1x1x2"] = "2" } do
        local other = went_on(name, ranks, "mesh=" .. mesh, "load=" .. saved)
        assert_near({ unpack(whole.losses, 4) }, other.losses, MESHES, name .. " on " .. mesh)
      end
    end
  end)

  it("Q4 are the same by our own kernels and by an older library", function()
    if RELEASE then assert_near(losses("rowwise of two rows"), losses("plain on cuda"), 2e-3, "plain") end
    assert_near(losses("rowwise of two rows"), losses("older on cuda"), 2e-3, "older")
    assert_near(losses("rowwise of two rows"), losses("parts on cuda"), MESHES, "in parts")
  end)

  it("Q5 are never computed otherwise", function()
    local ended = runs:ended("without on cuda")
    assert.equal(2, ended.status)
    has(ended.err, "matmul_f8 | no algorithm | compute capability 9.0 | rowwise | 8.9 | fp8")
    has(runs:ended("blocks on Hopper").err, "matmul_f8 | no algorithm | compute capability 9.0 | mxfp8 | 10.0 | fp8")
    has(runs:ended("squares on Blackwell").err,
      "matmul_f8 | no algorithm | compute capability 10.0 | blockwise | 9.0 | fp8")
  end)

  it("Q5 are refused by rule, parameter and size", function()
    local function refused(words, ...) return program.refused(2, { "run", RECIPE, unpack(words) }, ...) end
    refused({ "fp8=rowise" }, "fp8 | rule 2 | rowise | rowwise")
    refused({ "fp8=rowwise", "rule=layers.0.*bias" },
      'layers.0.attn.wq.bias is "rowwise" by rule /layers.0.*bias/ | not a matrix | false in an earlier rule')
    refused({ "fp8=rowwise", "rule=head", "vocab=56" },
      'head.weight is "rowwise" | 56 of its shape [56,64] | multiple of 16')
    refused({ "fp8=rowwise", "rows=1", "seq=12" }, "'layers.0.attn.wq.weight' | 12 rows | multiple of 16")
    refused({ "fp8=rowwise", "excepted=norm", "rule=embed.*" }, "'embed.weight' | embedding reads it")
  end)

  it("Q5 are listed by explain, exceptions too", function()
    local told = program.run({ "explain", RECIPE, "-n", "2", "mesh=1x2x1", "fp8=rowwise" })
    assert.equal(0, told.status, told.err)
    local section = told.out:match("\nfp8\n(.-)\n\n")
    has(section, "embed.weight | no | /norm|embed/ | layers.0.attn.wq.weight, layers.1.attn.wq.weight | rowwise")
  end)

  it("Q5 are priced in their dtype, and need its peak", function()
    local function price(cluster)
      return program.run({ "price", RECIPE, "--cluster", cluster, "-n", "8", "mesh=1x8x1", "fp8=rowwise" })
    end
    local told = price("h100x8")
    assert.equal(0, told.status, told.err)
    has(told.out, "matmul_f8")
    has(price("a100-80x8").err, "no peak rate for f8e4m3 | matmul_f8")
  end)

  it("Q5 are counted by a plan: three a weight", function()
    local counts = {}
    for _, phase in ipairs(json.decode(runs:told("cuda plan").out).phases) do
      for _, instruction in ipairs(phase.instructions) do
        if instruction.op == "matmul_f8" then counts[phase.name] = (counts[phase.name] or 0) + 1 end
      end
    end
    local weights = 2 * 6 -- of two layers: wq, wk, wv, wo, fc1, fc2
    assert.equal(3 * weights, counts.train or counts.first)
    assert.equal(weights, counts.evaluate)
  end)
end)
