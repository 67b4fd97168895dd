-- moonshard plan --roofline: what each op would take at the rates of a described device.

local decode = require("moonshard.base.text.json").decode
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local LLAMA = { "plan", "recipes/llama.lua", "-n", "8", "size=1B", "seq=512", "batch=1" }

local function run(...)
  local words = { unpack(LLAMA) }
  for _, word in ipairs({ ... }) do words[#words + 1] = word end
  local ended = program.run(words)
  assert.equal(0, ended.status, ended.err)
  return ended.out
end

local function roofline_on(device)
  local path = scratch.path() .. ".lua"
  scratch.write(path, ('return { extends = "h100x8", device = { %s } }'):format(device))
  return decode(run("--roofline", "--json", "--cluster", path))
end

-- Times are differences of a phase's.
local function near(expected, found) assert.near(expected, found, 1e-9 * expected + 1e-15) end

describe("moonshard plan --roofline", function()
  teardown(scratch.clear)

  it("E1 takes the bytes at the rate of memory where arithmetic takes no time", function()
    local found = roofline_on([[peak = { bf16 = { "1e12 TFLOP/s", "here" }, f32 = { "1e12 TFLOP/s", "here" } },
      memory_rate = { "2 TB/s", "here" }]])
    assert.is_true(#found.ops > 10)
    for _, op in ipairs(found.ops) do
      near(op.bytes / 2e12, 1e-3 * op.roofline_ms)
      assert.equal(0, op.arithmetic_ms, op.op)
    end
    near(found.total.bytes / 2e12, 1e-3 * found.total.roofline_ms)
  end)

  it("E1 takes the operations of products at the peak where memory takes no time", function()
    local found, products = roofline_on([[peak = { bf16 = { "10 TFLOP/s", "here" } },
      memory_rate = { "1e6 TB/s", "here" }]]), 0
    for _, op in ipairs(found.ops) do
      if op.op == "matmul" or op.op == "matmul_add" then
        near(op.flops / 10e12, 1e-3 * op.roofline_ms)
        assert.equal(op.roofline_ms, op.arithmetic_ms)
        products = products + op.calls
      end
    end
    assert.is_true(products > 100)
  end)

  it("counts the kernels, operations and bytes of the price, and takes no longer", function()
    local found = decode(run("--roofline", "--json", "--cluster", "h100x8"))
    local words = { "price", unpack(LLAMA, 2) }
    for _, word in ipairs({ "--json", "--cluster", "h100x8" }) do words[#words + 1] = word end
    local price, by_op = decode(program.run(words).out), {}
    for _, op in ipairs(found.ops) do by_op[op.op] = op end
    assert.equal(#price.ops, #found.ops)
    for _, op in ipairs(price.ops) do
      local row = by_op[op.op]
      assert.same({ op.calls, op.flops, op.bytes, op.ms }, { row.calls, row.flops, row.bytes, row.priced_ms })
      assert.is_true(row.roofline_ms < op.ms, op.op)
    end
    assert.equal(price.step_ms, found.step_ms)
  end)

  it("prints a row for each op and one for all", function()
    local text = run("--roofline", "--cluster", "h100x8")
    has(text, "mesh 1x8 (replicate, shard)", "h100x8")
    assert.truthy(text:find("\n  adamw +%d+ .* memory\n"))
    assert.truthy(text:find("\n  all kernels +%d+ .* arithmetic %d+ %%, memory %d+ %%\n$"))
  end)

  it("refuses a roofline without rates", function()
    program.refused(2, { "plan", "recipes/llama.lua", "-n", "8", "--roofline" },
      "--roofline", "--cluster h100x8")
  end)
end)
