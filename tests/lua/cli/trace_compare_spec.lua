-- moonshard trace --compare: where two traces differ.

local compare = require("moonshard.cli.trace.trace_compare")
local decode = require("moonshard.base.text.json").decode
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local trace_file = require("moonshard.cli.trace.trace_file")

-- A trace of some steps of a rank: a phase with a matmul of a module and an all_gather of a unit, times in ms.
local function events(steps, matmul, gather, more)
  local list, at = {}, 0
  local function add(tid, from, ms, cat, name, args)
    list[#list + 1] = { ph = "X", pid = 100, tid = tid, ts = 1e3 * from, dur = 1e3 * ms, cat = cat, name = name,
      args = args }
  end
  for step = 1, steps do
    local phase = matmul + gather
    add(100, at, phase + 1, "step", "step " .. step, { step = step })
    add(100, at, phase, "phase", "phase first", { step = step })
    add(102, at, gather, "collective,all_gather", "all_gather layers.0",
      { unit = "layers.0", bytes = 1e6, waiting_us = 0 })
    add(101, at + gather, matmul, "kernel,forward", more or "matmul", { module = "layers.0", flops = 1e9, bytes = 1e6 })
    at = at + phase + 1
  end
  return list
end

local function row(list, name)
  for i, entry in ipairs(list) do
    if entry.name == name then return entry, i end
  end
end

local function near(a, b) return math.abs(a - b) < 1e-9 end

describe("a comparison of traces", function()
  teardown(scratch.clear)

  it("E2 has the means of a rank and step, whatever the number of steps", function()
    local found = compare.of(events(1, 3, 2), events(4, 5, 2))
    local op = row(found.ops, "matmul")
    assert.truthy(near(op.predicted, 3) and near(op.real, 5) and near(op.difference, 2))
    assert.same({ 1, 1 }, op.calls)
    assert.truthy(near(row(found.collectives, "all_gather").difference, 0))
    assert.truthy(near(row(found.phases, "phase first").difference, 2))
    assert.truthy(near(row(found.units, "layers.0").difference, 2))
    assert.truthy(near(row(found.step, "step").predicted, 6) and near(row(found.step, "step").real, 8))
    local names = { "step", "kernels", "waiting", "outside" }
    for i, expected in ipairs({ 8, 5, 2, 1 }) do
      assert.equal(names[i], found.step[i].name)
      assert.truthy(near(found.step[i].real, expected))
    end
    assert.same({ 1, 4 }, found.runs)
  end)

  it("E2 means by waiting what the summary of one trace means", function()
    local list = events(4, 5, 2)
    local rank = trace_file.summarize(list).ranks[1]
    assert.truthy(near(rank.waiting_ms, 4 * 2))
    assert.truthy(near(row(compare.of(list, list).step, "waiting").real, rank.waiting_ms / 4))
  end)

  it("E2 puts the largest difference first, and what only one trace has", function()
    local found = compare.of(events(1, 3, 2, "matmul"), events(1, 30, 2, "gemm"))
    assert.equal("gemm", found.ops[1].name)
    assert.equal("matmul", found.ops[2].name)
    local text = compare.text(found, { "a", "b" }, 5)
    has(text, "only in the second")
    has(text, "only in the first")
  end)

  it("E2 has no factor for what was predicted to take next to nothing", function()
    local text = compare.text(compare.of(events(1, 1e-6, 2), events(1, 1, 2)), { "a", "b" }, 5)
    has(text, "over 1000 x")
    assert.is_nil(text:find("%d%d%d%d%.%d+ x"))
  end)

  it("E2 prints where a prediction and a run differ", function()
    local real, predicted = scratch.path(), scratch.path()
    local recipe = { "tests/lua/recipes/trouble.lua", "-n", "2" }
    local ended = program.run({ "run", recipe[1], "-n", "2", "--trace", real })
    assert.equal(0, ended.status, ended.err)
    ended = program.run({ "price", recipe[1], "-n", "2", "--cluster", "cpu-example", "--trace", predicted })
    assert.equal(0, ended.status, ended.err)
    ended = program.run({ "trace", "--compare", predicted, real })
    assert.equal(0, ended.status, ended.err)
    for _, word in ipairs({ predicted, real, "phase first", "matmul", "all_gather" }) do has(ended.out, word) end
    local found = decode(program.run({ "trace", "--compare", predicted, real, "--json" }).out)
    for _, list in ipairs({ found.ops, found.collectives }) do
      for _, entry in ipairs(list) do assert.equal(entry.calls[1], entry.calls[2], entry.name) end
    end
    program.refused(2, { "trace", "--compare", predicted }, "--compare needs two files")
    program.refused(2, { "trace", "--compare", "recipes/toy_hsdp.lua", real }, "recipes/toy_hsdp.lua | JSON")
  end)
end)
