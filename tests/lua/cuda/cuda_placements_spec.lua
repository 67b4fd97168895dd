-- Layers and samples divided over the ranks of emulated GPUs: `moonshard check` compares each run with one rank. With
-- the CPU's kernels, and some with those of CUDA, emulated.

local program = require("lua.support.program")

local RECIPE = "tests/lua/recipes/tensor_parallel.lua"
local KERNELS = ("MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/libmoonshard_cuda_emulated.so"):format(
  assert(os.getenv("MOONSHARD_BIN")):match("^(.*)/"))

local cases = {}

local function check(name, ranks, settings, environment)
  cases[name] = { "check", RECIPE, "-n", ranks, "device=cuda", unpack(settings) }
  cases[name].environment = program.emulated_cuda(environment or "MOONSHARD_EMULATE_JITTER=50")
end

check("tensor", "2", { "mesh=1x1x2", "dropout=0.2", "steps=1" })
check("sequence", "4", { "mesh=1x2x2", "model=llama", "sequence_parallel=true" })
check("sequence, kept", "2", { "mesh=1x1x2", "sequence_parallel=true", "regather=never" })
check("recomputed", "2", { "mesh=1x1x2", "sequence_parallel=true", "recompute=true", "micro_batches=2" })
check("own modules", "2", { "mesh=1x1x2", "model=mixer", "sequence_parallel=true" })
check("context", "4", { "mesh=1x2x2x1", "model=llama" })
check("documents", "2", { "mesh=1x1x2x1", "documents=true", "seq=64" })
check("all", "8", { "mesh=2x1x2x2", "sequence_parallel=true", "batch=1" })
check("kernels of sequence", "2", { "mesh=1x1x2", "sequence_parallel=true", "dropout=0.2", "steps=2" }, KERNELS)
check("kernels of context", "2", { "mesh=1x1x2x1", "model=llama", "steps=2" }, KERNELS)
check("kernels of documents", "2", { "mesh=1x1x2x1", "documents=true", "seq=64", "steps=1" }, KERNELS)
cases.explain = { "explain", RECIPE, "-n", "2", "mesh=1x1x2", "sequence_parallel=true", "--device", "cuda", "--json" }
cases.explain.environment = program.emulated_cuda("MOONSHARD_EMULATE_DEVICES=0")

local of, equals_one_rank = program.checks(cases)

describe("layers and samples divided over GPUs", function()
  it("T1 train as one rank does", function() equals_one_rank("tensor", "sequence") end)

  it("T9 with micro-batches, recomputation and kept gathers", function()
    equals_one_rank("recomputed", "sequence, kept")
  end)

  it("T5 in modules that no preset knows", function() equals_one_rank("own modules") end)

  it("C1 along context, with shards", function() equals_one_rank("context") end)

  it("C4 along context, with documents, whose tokens are gathered", function() equals_one_rank("documents") end)

  it("C6 along four dimensions", function() equals_one_rank("all") end)

  it("T1 with the kernels of CUDA", function()
    equals_one_rank("kernels of sequence", "kernels of context", "kernels of documents")
  end)

  it("T2 gather inputs again for backward, since each GPU would keep a copy", function()
    assert.equal(0, of("explain").status, of("explain").err)
    local again = 0
    for _, change in ipairs(require("cjson").decode(of("explain").out).placement_changes) do
      again = again + (change.regathered and 1 or 0)
    end
    assert.equal(2 * 2 + 1, again)
  end)
end)
