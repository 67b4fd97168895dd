-- A small Llama in bf16 trains on the emulated device cuda as on the CPU, whatever computes attention: cuDNN, emulated;
-- own kernels. In f32 too, with TF32 and without, within documents and windows, and with capped scores.

-- The emulated kernels are not built for the thread sanitizer, and are slow under the others.
local CONFIG = os.getenv("MOONSHARD_CONFIG")
if CONFIG == "thread" then return end
local THIN = CONFIG ~= "release"

local breadth = require("lua.support.breadth")
local runs = require("lua.support.emulated_runs").of("tests/lua/cuda/recipes/attention.lua")
local has = require("lua.support.message").has

runs:case("cpu", {})
runs:case("cpu documents", { "documents=true" })
runs:traced("auto", { "device=cuda" }, "MOONSHARD_ATTENTION=auto")
runs:traced("documents", { "device=cuda", "documents=true" }, "MOONSHARD_ATTENTION=auto")
runs:case("cpu window", { "window=20" })
runs:traced("window", { "device=cuda", "window=20" }, "MOONSHARD_ATTENTION=auto")
runs:case("cpu capped", { "softcap=1", "documents=true", "window=9" })
runs:case("capped documents", { "device=cuda", "softcap=1", "documents=true", "window=9" }, "MOONSHARD_ATTENTION=auto")
runs:traced("capped", { "device=cuda", "softcap=1" }, "MOONSHARD_ATTENTION=auto")
if not THIN then
  runs:case("flash", { "device=cuda" }, "MOONSHARD_ATTENTION=flash")
  runs:case("no cudnn", { "device=cuda" }, "MOONSHARD_CUDNN_LIBRARY=/proc/nowhere/libcudnn.so")
end
if breadth.all then
  runs:case("cpu f32", { "dtype=f32" })
  runs:case("f32", { "device=cuda", "dtype=f32" }, "MOONSHARD_CUDA_MATMUL_TF32=0")
  runs:case("tf32", { "device=cuda", "dtype=f32" }, "MOONSHARD_CUDA_MATMUL_TF32=1")
end
runs:case("no choice", { "device=cuda" }, "MOONSHARD_ATTENTION=fast")

describe("attention on the device cuda", function()
  teardown(function() runs:remove() end)

  it("A1 trains as on the CPU by cuDNN, and by own kernels", function()
    runs:assert_as("cpu", "auto")
    assert.is_nil(runs:told("auto").err:find("note:", 1, true))
    if THIN then return end
    runs:assert_as("cpu", "flash")
    assert.not_same(runs:result("auto"), runs:result("flash"))
  end)

  it("A1 trains as on the CPU in f32, with TF32 where that is allowed #all", function()
    if not breadth.all then return end
    runs:assert_as("cpu f32", "f32")
    runs:assert_as("cpu f32", "tf32")
    assert.not_same(runs:result("f32"), runs:result("tf32"))
  end)

  it("A1 trains as on the CPU within documents", function()
    assert.not_same(runs:result("cpu"), runs:result("cpu documents"))
    runs:assert_as("cpu documents", "documents")
  end)

  it("A1 trains as on the CPU within windows, and with capped scores", function()
    assert.not_same(runs:result("cpu"), runs:result("cpu window"))
    runs:assert_as("cpu window", "window")
    assert.not_same(runs:result("cpu documents"), runs:result("cpu capped"))
    runs:assert_as("cpu capped", "capped documents")
  end)

  it("A3 the trace contains what computes attention, and why not cuDNN", function()
    local function computed(name, op)
      for _, event in ipairs(runs:events(name)) do
        if event.name == op then return event.args.by, event.args.because end
      end
      error(name .. " has no " .. op)
    end
    for _, op in ipairs({ "attention", "attention_backward" }) do
      assert.same({ "cuDNN" }, { computed("auto", op) })
      assert.same({ "own kernels", "documents" }, { computed("documents", "document_" .. op) })
      assert.same({ "own kernels", "a sliding window" }, { computed("window", op) })
      assert.same({ "own kernels", "capped scores" }, { computed("capped", op) })
    end
    assert.same({ "cuBLASLt" }, { computed("auto", "matmul") })
  end)

  it("A3 without cuDNN own kernels give it, and the first rank says so once", function()
    if THIN then return end
    assert.same(runs:result("flash"), runs:result("no cudnn"))
    local note, after = runs:told("no cudnn").err:match("(moonshard: note: [^\n]*)\n(.*)$")
    assert.truthy(note)
    has(note, "cuDNN | /proc/nowhere/libcudnn.so: ")
    assert.is_nil(after:find("note:", 1, true))
  end)

  it("A3 a choice that is none is an error", function()
    local run = runs:ended("no choice")
    assert.equal(2, run.status, run.err)
    local message = 'MOONSHARD_ATTENTION is "fast"; it must be auto, cudnn or flash'
    has(run.err, message)
  end)
end)
