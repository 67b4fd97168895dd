-- The loss of a linear layer in chunks of rows. `moonshard check` compares each run with one rank, whose logits are
-- whole: the reference drops `fused`.

local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local json = require("cjson")
local ms = require("moonshard")
local program = require("lua.support.program")

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

-- A head with a bias.
local function biased(ranks, ...) return check(ranks, "model=mixer", "head_bias=true", ...) end
cases["bias"] = biased("1", "mesh=1x1x1")
cases["bias, shards"] = biased("2", "mesh=1x2x1", "tied=true", "recompute=true", "micro_batches=2")
cases["bias, bf16"] = biased("2", "mesh=1x2x1", "dtype=bf16")
cases["bias, frozen"] = biased("2", "mesh=1x2x1", "freeze=head.bias")
cases["bias alone"] = biased("2", "mesh=1x2x1", "freeze=head.weight")
cases["bias, classes"] = biased("4", "mesh=1x2x2", "ignored=true")
cases["bias, classes, tied, bf16"] = biased("4", "mesh=1x2x2", "tied=true", "dtype=bf16")
for _, chunk in ipairs({ "0", "64" }) do
  cases["plan bias " .. chunk] = { "plan", RECIPE, "--json", "-n", "2", "mesh=1x2x1", "model=mixer", "head_bias=true",
    "vocab=50304", "seq=512", "chunk=" .. chunk }
end

-- A vocabulary of 50,304 and 1,024 rows, in f32.
local function large(command, ...)
  return { command, "recipes/gpt2.lua", "-n", "2", "mesh=1x2", "size=124M", "seq=1024", "batch=1", "dtype=f32", ... }
end
for _, fused in ipairs({ "true", "false", "auto" }) do
  cases["plan " .. fused] = large("plan", "--json", "fused=" .. fused)
  cases["explain " .. fused] = large("explain", "fused=" .. fused)
end
cases["plan in words"] = large("plan", "fused=auto")
cases["small"] = { "plan", "recipes/gpt2.lua", "-n", "2", "mesh=1x2", "fused=auto" }
cases["price"] = large("price", "--cluster", "h100x8", "fused=true")
if os.getenv("MOONSHARD_CONFIG") ~= "thread" then
  cases["cuda"] = check("2", "mesh=1x2x1", "device=cuda", "tied=true", "steps=2")
  cases["bias, cuda"] = biased("2", "mesh=1x2x1", "device=cuda", "tied=true", "steps=2")
  for _, name in ipairs({ "cuda", "bias, cuda" }) do
    cases[name].environment = program.emulated_cuda(("MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/%s"):format(
      os.getenv("MOONSHARD_BIN"):match("^(.*)/"), "libmoonshard_cuda_emulated.so"))
  end
end

local of, equals_one_rank = program.checks(cases)

local function plan_of(name)
  assert.equal(0, of(name).status, of(name).err)
  return json.decode(of(name).out)
end

-- The largest tensor that a phase's kernels write, in bytes.
local function largest(plan, name)
  local most = 0
  for _, phase in ipairs(plan.phases) do
    for _, instruction in ipairs(phase.name == name and phase.instructions or {}) do
      for _, out in ipairs(instruction.kind == "kernel" and instruction.out or {}) do
        local bytes = out.dtype == "bf16" and 2 or 4
        for _, size in ipairs(out.shape) do bytes = bytes * size end
        most = math.max(most, bytes)
      end
    end
  end
  return most
end

describe("a fused loss", function()
  it("S20 G6 trains as whole logits do, with shards, replicas, a tied head and micro-batches", function()
    equals_one_rank("one rank", "shards", "replicas in parts", "llama")
  end)
  it("S20 sums the weight's gradient in f32, and needs none of a frozen one", function()
    equals_one_rank("bf16", "frozen head", "frozen but head")
  end)
  it("S20 has classes that ranks divide", function()
    equals_one_rank("classes", "classes in parts", "classes, sequence", "padded classes", "frozen classes")
  end)
  it("S20 has rows that ranks divide", function() equals_one_rank("positions", "positions and classes") end)

  it("S20 has a bias, whose gradient is summed over chunks", function()
    equals_one_rank("bias", "bias, shards", "bias, bf16", "bias, frozen", "bias alone")
    equals_one_rank("bias, classes", "bias, classes, tied, bf16")
  end)
  it("S20 lowers the peak of a head with a bias", function()
    local fused, whole = plan_of("plan bias 64"), plan_of("plan bias 0")
    assert.equal(4 * 64 * 50304, fused.chunked_losses[1].logits_bytes)
    assert.is_false(fused.chunked_losses[1].again)
    local saved = whole.peak_bytes - fused.peak_bytes
    assert.is_true(saved > fused.chunked_losses[1].whole_bytes / 2, saved)
  end)

  it("S20 G6 lowers the peak, by what plans and explanations say", function()
    local fused, whole = plan_of("plan true"), plan_of("plan false")
    local loss, rows, classes = fused.chunked_losses[1], 1024, 50304
    assert.same({ rows, classes, false }, { loss.rows, loss.classes, loss.again })
    assert.equal(4 * rows * classes, loss.whole_bytes)
    assert.equal(4 * loss.chunk * classes, loss.logits_bytes)
    assert.equal(math.ceil(rows / loss.chunk), loss.chunks)
    assert.is_nil(whole.chunked_losses)
    assert.equal(4 * classes * 768, largest(fused, "first")) -- the weight's gradient
    assert.equal(loss.logits_bytes, largest(fused, "evaluate"))
    assert.equal(4 * rows * classes, largest(whole, "first"))
    local saved = whole.peak_bytes - fused.peak_bytes
    assert.is_true(saved > 64 * 2 ^ 20, saved)
    local size = require("moonshard.base.text.progress").size
    has(of("explain true").out, ("loss | %d chunks | whole logits | %s of peak"):format(loss.chunks, size(saved)))
    has(of("explain false").out, ('fused = "auto" | saves %s of peak'):format(size(saved)))
    has(of("plan in words").out:match("[^\n]*loss in[^\n]*"), ("%d chunks | %d rows | 196 MiB"):format(loss.chunks,
      loss.chunk))
  end)

  it("S20 is chosen where it saves memory", function()
    assert.equal(plan_of("plan true").fingerprint, plan_of("plan auto").fingerprint)
    assert.is_nil(of("small").out:find("linear_cross_entropy", 1, true))
  end)

  it("S20 has a price", function() assert.equal(0, of("price").status, of("price").err) end)

  it("S20 refuses what it cannot mean", function()
    local cross_entropy = ms.loss.cross_entropy
    has(fixture.message(cross_entropy, { fused = "often" }), 'fused | true | false | "auto" | often')
    has(fixture.message(cross_entropy, { chunk = 5 }), "chunk | fused")
    local model = fixture.gpt2 { dim = 32, vocab = 32, seq = 8 }
    ms.fully_shard(model, { fp8 = { { "head.weight", "rowwise" } } })
    local loss = cross_entropy { fused = true }
    local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1 }, loss = loss }
    local tokens = ms.zeros { 2, 8, dtype = "i32" }
    has(fixture.message(train.step, train, { tokens = tokens, targets = tokens }), "fused | 8 bits | rules of fp8")
    local capped = ms.models.gemma2 { vocab = 16, layers = 1, dim = 8, heads = 2, ffn = 8, seq = 8 }
    ms.fully_shard(capped, {})
    train = ms.trainer { model = capped, optimizer = ms.optim.sgd { lr = 1 }, loss = loss }
    has(fixture.message(train.step, train, { tokens = tokens, targets = tokens }), 'cap | fused = "auto"')
  end)

  if cases["cuda"] then
    it("S20 A1 trains so on the device cuda, with its kernels", function() equals_one_rank("cuda", "bias, cuda") end)
  end
end)
