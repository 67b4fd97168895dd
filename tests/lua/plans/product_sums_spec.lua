-- Sums of gradients that are products: the products add themselves to one another in place, on the CPU and on cuda, and
-- training is that of one rank.

local program = require("lua.support.program")
local json = require("moonshard.base.text.json")

local GPT2, LLAMA, OWN = "recipes/gpt2.lua", "recipes/llama.lua", "tests/lua/recipes/product_sums.lua"
local DIVIDED = "tests/lua/recipes/tensor_parallel.lua"

local function plan(recipe, ranks, ...)
  return { "plan", recipe, "-n", tostring(ranks), "--json", ... }
end

local told, equals_one_rank = program.checks({
  ["gpt2 cpu"] = plan(GPT2, 1), ["gpt2 cuda"] = plan(GPT2, 1, "--device", "cuda", "dtype=bf16"),
  ["llama cpu"] = plan(LLAMA, 2, "mesh=1x2"),
  tensor = plan(DIVIDED, 2), sequence = plan(DIVIDED, 2, "sequence_parallel=true"),
  recomputed = plan(OWN, 1, "recompute=true"),
  later = plan(OWN, 1, "--device", "cuda", "micro_batches=2"),
  ["check 1x2"] = { "check", OWN, "-n", "2", "mesh=1x2", "dtype=f32" },
  ["check 2x2"] = { "check", OWN, "-n", "4", "mesh=2x2", "dtype=f32", "recompute=true", "micro_batches=2" },
})

-- The kernels of a phase's backward pass with that op.
local function backward(name, phase, op)
  local run = told(name)
  assert.equal(0, run.status, run.err)
  local found = {}
  for _, its in ipairs(json.decode(run.out).phases) do
    for _, instruction in ipairs(its.name == phase and its.instructions or {}) do
      if instruction.op == op and instruction.backward then found[#found + 1] = instruction end
    end
  end
  return found
end

local function assert_sums_in_place(name, count, arena)
  local sums = backward(name, "first", "matmul_add")
  assert.equal(count, #sums, name)
  for _, sum in ipairs(sums) do
    local to, from = sum.out[1], sum["in"][3]
    assert.same({ from.arena, from.offset }, { to.arena, to.offset }, name)
    if arena then assert.equal(arena, to.arena) end
  end
end

describe("gradients of what several products read", function()
  it("M8 are summed by the products, in the memory of the first", function()
    assert_sums_in_place("gpt2 cpu", 2 * 4)
    assert_sums_in_place("gpt2 cuda", 2 * 4)
    assert.same({}, backward("gpt2 cpu", "first", "add"))
    assert_sums_in_place("llama cpu", 3 * 4)
    assert.same({}, backward("llama cpu", "first", "add"))
    assert.equal(2 * 2 + 2, #backward("recomputed", "first", "matmul_add"))
  end)

  it("M8 are summed where they are sent, if a tensor dimension divides the layers", function()
    assert_sums_in_place("tensor", 2 * 2, "communication")
    assert_sums_in_place("sequence", 2 * 2, "communication")
  end)

  it("M8 of a weight that is applied twice are added to those of earlier micro-batches, too", function()
    local of_weight
    for _, product in ipairs(backward("later", "next", "matmul_add")) do
      if product.out[1].arena == "state" then of_weight = product end
    end
    assert.same({ 16, 16 }, of_weight.out[1].shape)
    assert.same(of_weight["in"][3].offset, of_weight.out[1].offset)
    local before = 0
    for _, product in ipairs(backward("later", "next", "matmul_accumulate")) do
      if product.out[1].offset == of_weight.out[1].offset then before = before + 1 end
    end
    assert.equal(1, before)
  end)

  it("M8 train as one rank does", function() equals_one_rank("check 1x2", "check 2x2") end)
end)
