-- A small GPT-2 in bf16 trains on the emulated device cuda as on the CPU, whether gelu and its gradient are parts of
-- matrix products or kernels of their own; and which of its plan's products have them.

-- The emulated kernels are not built for the thread sanitizer, and are slow under the others.
local CONFIG = os.getenv("MOONSHARD_CONFIG")
if CONFIG == "thread" then return end
local THIN = CONFIG ~= "release"

local runs = require("lua.support.emulated_runs").of("tests/lua/recipes/epilogues.lua")
local has = require("lua.support.message").has

runs:case("f32 cpu", {})
runs:case("f32", { "device=cuda" }, "MOONSHARD_CUDA_MATMUL=cublaslt")
runs:case("bf16 cpu", { "reduce=bf16", "-n", "2", "mesh=1x2" })
runs:case("bf16", { "reduce=bf16", "-n", "2", "mesh=1x2", "device=cuda" }, "MOONSHARD_CUDA_MATMUL=cublaslt")
runs:case("refused", { "reduce=bf16", "-n", "2", "mesh=1x2", "device=cuda" },
  "MOONSHARD_CUDA_EPILOGUES=fused MOONSHARD_EMULATE_CUBLASLT_NONE=128")
if not THIN then
  runs:case("again", { "reduce=bf16", "-n", "2", "mesh=1x2", "device=cuda" }, "MOONSHARD_CUDA_MATMUL=cublaslt")
  runs:case("apart", { "device=cuda" }, "MOONSHARD_CUDA_EPILOGUES=apart")
  runs:case("recomputed", { "recompute=true", "reduce=bf16", "device=cuda" }, "MOONSHARD_CUDA_MATMUL=cublaslt")
  runs:case("captured", { "device=cuda", "--cuda-graph" }, "MOONSHARD_CUDA_MATMUL=cublaslt")
end
runs:plan("f32 plan", {})
runs:plan("bf16 plan", { "reduce=bf16" })
runs:plan("recomputed plan", { "recompute=true" })

local function ops_of(name)
  local counts = setmetatable({}, { __index = function() return 0 end })
  local first = assert(runs:told(name).out:match("\nphase first:(.-)\nphase "))
  for op in first:gmatch("compute   (%S+) ") do counts[op] = counts[op] + 1 end
  return counts
end

describe("gelu in the epilogues of matrix products", function()
  teardown(function() runs:remove() end)

  it("A3 trains as on the CPU", function()
    runs:assert_as("f32 cpu", "f32")
    runs:assert_as("bf16 cpu", "bf16")
    if THIN then return end
    runs:assert_as("f32 cpu", "recomputed")
    runs:assert_as("f32 cpu", "captured")
    assert.same(runs:result("bf16"), runs:result("again"))
  end)

  it("A3 apart gives nearly the same, and is not it", function()
    if THIN then return end
    runs:assert_as("f32", "apart")
    assert.not_same(runs:result("f32"), runs:result("apart"))
  end)

  it("A3 what cuBLASLt refuses kernels of their own give, and the first rank says so", function()
    runs:assert_as("bf16 cpu", "refused")
    local notes = {}
    for line in runs:told("refused").err:gmatch("note: ([^\n]*)") do notes[#notes + 1] = line end
    assert.equal(2, #notes, runs:told("refused").err)
    table.sort(notes)
    for i, what in ipairs({ "gelu", "gelu's gradient" }) do
      has(notes[i], ("cuBLASLt | %s | [12,16] | [16,64]"):format(what))
    end
    assert.is_nil(runs:told("bf16").err:find("note:", 1, true))
  end)

  it("A3 the plan has them where fewer bytes move", function()
    local f32, bf16, recomputed = ops_of("f32 plan"), ops_of("bf16 plan"), ops_of("recomputed plan")
    assert.equal(2, f32.matmul_gelu)
    assert.equal(0, f32.gelu_tanh)
    assert.equal(2, f32.activation_backward_bias_recompute)
    assert.equal(2, bf16.matmul_gelu)
    assert.equal(2, bf16.matmul_gelu_backward_bias)
    assert.equal(2, bf16.gelu_tanh)
    assert.equal(0, bf16.activation_backward_bias_recompute)
    assert.equal(0, recomputed.matmul_gelu)
    assert.equal(2, recomputed.gelu_tanh)
  end)
end)
