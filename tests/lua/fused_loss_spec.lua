-- The loss of a linear layer in chunks of rows. `moonshard check` compares each run with one rank, whose logits are
-- whole: the reference drops `fused`.

local program = require("lua.program")

local RECIPE = "tests/lua/recipes/tensor_parallel.lua"

-- 2 samples of 16 tokens are chunks of 5, 5, ... and 2 rows.
local function check(ranks, ...) return { "check", RECIPE, "-n", ranks, "chunk=5", ... } end

local cases = {
  ["one rank"] = check("1", "mesh=1x1x1"),
  ["shards"] = check("2", "mesh=1x2x1", "tied=true", "layout=ragged", "recompute=true"),
  ["replicas in parts"] = check("4", "mesh=2x2x1", "micro_batches=2", "ignored=true", "tied=true"),
  ["llama"] = check("2", "mesh=1x2x1", "model=llama", "vocab=257", "pad=64"),
  ["bf16"] = check("2", "mesh=1x2x1", "dtype=bf16", "tied=true"),
  ["frozen head"] = check("2", "mesh=1x2x1", "freeze=head"),
  ["frozen but head"] = check("2", "mesh=1x2x1", "freeze=embed|pos|layers|norm"),
  ["classes"] = check("2", "mesh=1x1x2"),
  ["classes in parts"] = check("4", "mesh=1x2x2", "micro_batches=2", "ignored=true", "tied=true"),
  ["classes, sequence"] = check("4", "mesh=1x1x4", "sequence_parallel=true", "regather=always", "tied=true"),
  ["padded classes"] = check("4", "mesh=1x1x4", "vocab=257", "pad=512", "dtype=bf16"),
  ["frozen classes"] = check("2", "mesh=1x1x2", "freeze=head"),
  ["positions"] = check("2", "mesh=1x1x2x1", "tied=true", "ignored=true"),
  ["positions and classes"] = check("8", "mesh=1x2x2x2", "model=llama", "sequence_parallel=true"),
}

local _, equals_one_rank = program.checks(cases)

describe("a fused loss", function()
  it("S20 trains as whole logits do, with shards, replicas, a tied head and micro-batches", function()
    equals_one_rank("one rank", "shards", "replicas in parts", "llama")
  end)
  it("S20 sums the weight's gradient in f32, and needs none of a frozen one", function()
    equals_one_rank("bf16", "frozen head", "frozen but head")
  end)
  it("S20 has classes that ranks divide", function()
    equals_one_rank("classes", "classes in parts", "classes, sequence", "padded classes", "frozen classes")
  end)
  it("S20 has rows that ranks divide", function() equals_one_rank("positions", "positions and classes") end)
end)
