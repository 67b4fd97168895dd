-- Products that add themselves to gradients train on the emulated device cuda as on the CPU, by cuBLASLt and by the
-- kernels that replace it.

-- The emulated kernels are not built for the thread sanitizer, and are slow under the others.
local CONFIG = os.getenv("MOONSHARD_CONFIG")
if CONFIG == "thread" then return end
local THIN = CONFIG ~= "release"

local runs = require("lua.support.emulated_runs").of("tests/lua/recipes/product_sums.lua")

local CUBLASLT, OWN = "MOONSHARD_CUDA_MATMUL=cublaslt", "MOONSHARD_CUDA_MATMUL=plain"

runs:case("bf16 cpu", { "micro_batches=2" })
runs:case("bf16", { "micro_batches=2", "device=cuda" }, CUBLASLT)
if not THIN then
  runs:case("f32 cpu", { "dtype=f32" })
  runs:case("f32", { "dtype=f32", "device=cuda" }, CUBLASLT)
  runs:case("own kernels", { "micro_batches=2", "device=cuda" }, OWN)
  runs:case("sharded", { "-n", "2", "mesh=1x2", "recompute=true", "device=cuda" }, CUBLASLT)
  runs:case("sharded cpu", { "-n", "2", "mesh=1x2", "recompute=true" })
end

describe("products that add themselves to gradients", function()
  teardown(function() runs:remove() end)

  it("A3 train on cuda as on the CPU", function()
    runs:assert_as("bf16 cpu", "bf16")
    if THIN then return end
    runs:assert_as("f32 cpu", "f32")
    runs:assert_as("bf16 cpu", "own kernels")
    runs:assert_as("sharded cpu", "sharded")
  end)
end)
