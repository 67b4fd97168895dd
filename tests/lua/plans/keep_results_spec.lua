-- The trainer's option rematerialize: results of gelu and norms are computed again in backward, kept, or kept where
-- they fit memory_limit; and what the plans then are.

local has = require("lua.support.message").has
local json = require("moonshard.base.text.json")
local program = require("lua.support.program")

local THIN = os.getenv("MOONSHARD_CONFIG") ~= "release"

local RECIPE, GPT2 = "tests/lua/recipes/epilogues.lua", "recipes/gpt2.lua"

local runs = require("lua.support.emulated_runs").of(RECIPE)
runs:case("again", { "-n", "2", "mesh=1x2" })
runs:case("kept", { "-n", "2", "mesh=1x2", "rematerialize=false" })
runs:case("fits", { "-n", "2", "mesh=1x2", "rematerialize=auto" })
runs:case("does not fit", { "-n", "2", "mesh=1x2", "rematerialize=auto", "limit=20000" })
if os.getenv("MOONSHARD_CONFIG") ~= "thread" then
  runs:case("kept alone", { "rematerialize=false" })
  runs:case("kept cuda", { "rematerialize=false", "device=cuda" }, "MOONSHARD_CUDA_MATMUL=cublaslt")
end

local function plan(...) return { "plan", GPT2, "-n", "1", "--json", ... } end

local told = program.checks({
  again = plan(), kept = plan("rematerialize=false"),
  ["again cuda"] = plan("--device", "cuda", "dtype=bf16"),
  ["kept cuda"] = plan("--device", "cuda", "dtype=bf16", "rematerialize=false"),
  roomy = plan("rematerialize=auto", "memory_limit=1TiB"),
  tight = plan("rematerialize=auto", "memory_limit=60MiB"),
  maybe = plan("rematerialize=maybe"),
})

local function read(name)
  local run = told(name)
  assert.equal(0, run.status, run.err)
  return json.decode(run.out)
end

-- The bytes that the kernels of the first phase read and write, and how many there are by op.
local function moved(name)
  local bytes, count = 0, setmetatable({}, { __index = function() return 0 end })
  local SIZE = { f32 = 4, bf16 = 2, i32 = 4 }
  for _, instruction in ipairs(read(name).phases[1].instructions) do
    for _, side in ipairs({ "in", "out" }) do
      for _, ref in ipairs(instruction[side] or {}) do
        local n = SIZE[ref.dtype]
        for _, size in ipairs(ref.shape) do n = n * size end
        bytes = bytes + n
      end
    end
    if instruction.op then count[instruction.op] = count[instruction.op] + 1 end
  end
  return bytes, count
end

describe("rematerialize", function()
  teardown(function() runs:remove() end)

  it("S10 kept results take memory, move fewer bytes, and give the same bits", function()
    for _, device in ipairs(THIN and { "" } or { "", " cuda" }) do
      local again, kept = read("again" .. device), read("kept" .. device)
      assert.truthy(kept.peak_bytes > again.peak_bytes)
      assert.truthy(moved("kept" .. device) < moved("again" .. device))
    end
    assert.same(runs:result("again"), runs:result("kept"))
  end)

  it("S10 the gradient of a kept gelu is part of the product before it, on cuda", function()
    local _, again = moved("again cuda")
    local _, kept = moved("kept cuda")
    assert.same({ 4, 0 }, { again.activation_backward_bias_recompute, again.matmul_gelu_backward })
    assert.same({ 0, 4 }, { kept.activation_backward_bias_recompute, kept.matmul_gelu_backward })
    if os.getenv("MOONSHARD_CONFIG") ~= "thread" then runs:assert_as("kept alone", "kept cuda") end
  end)

  it("S10 \"auto\" keeps results where the plan then fits memory_limit, and says so", function()
    assert.equal(read("kept").fingerprint, read("roomy").fingerprint)
    assert.equal(read("again").fingerprint, read("tight").fingerprint)
    has(runs:told("fits").err, "rematerialize | kept | memory_limit is 1.0 GiB")
    has(runs:ended("does not fit").err, "rematerialize | computed again | memory_limit")
  end)

  it("S10 mistakes are refused", function()
    assert.equal(2, told("maybe").status)
    has(told("maybe").err, "rematerialize | true, false or \"auto\" | maybe")
    local ms = require("moonshard")
    local model = ms.fully_shard(ms.nn.sequential { ms.nn.linear(2, 2) }, {})
    local ok, raised = pcall(ms.trainer, { model = model, loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 1 },
      rematerialize = "auto" })
    assert.is_false(ok)
    has(tostring(raised), "rematerialize | \"auto\" | memory_limit = \"70GiB\"")
  end)
end)
