-- Weights that are gathered as codes of f8e4m3 (fp8 = "tensorwise"): their values and scales on every mesh and device,
-- after whatever wrote the parameters, and the bytes that move.

local breadth = require("lua.support.breadth")
local emulated_runs = require("lua.support.emulated_runs")
local ffi = require("ffi")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local json = require("cjson")
local ms = require("moonshard")
local program = require("lua.support.program")
local re = ms.re

local RECIPE = "tests/lua/formats/recipes/float8_gather.lua"
-- A product of one number with one: nothing but its last rounding, to the dtype of the result.
local ROUNDED = { f32 = 2 ^ -21, bf16 = 2 ^ -8 }

local runs = emulated_runs.of(RECIPE)
local MESHES = {
  shards = { "-n", "4", "mesh=1x4" }, replicas = { "-n", "4", "mesh=4x1" }, both = { "-n", "4", "mesh=2x2" },
}
-- Those that train in f32 as well, and on emulated GPUs.
local MOST = breadth.few({ "shards", "replicas", "both" })
for name, words in pairs(MESHES) do runs:case(name, words) end
for _, name in ipairs(MOST) do
  runs:case(name .. " on cuda", { "device=cuda", unpack(MESHES[name]) }, "")
  runs:case(name .. " in f32", { "dtype=f32", unpack(MESHES[name]) })
end
runs:case("one", { "-n", "1", "ema=true" })
runs:case("uneven", { "-n", "3", "mesh=1x3", "rows=48", "shared=false" })
runs:case("ragged", { "-n", "4", "mesh=1x4", "layout=ragged", "ema=true", "rows=128", "micro=2" })
runs:case("neighbours", { "-n", "4", "mesh=1x4", "reshard=2" })
runs:case("sliced", { "-n", "4", "mesh=2x2", "sliced=true", "shared=false", "ema=true" })
runs:case("kept", { "-n", "2", "mesh=1x2", "keep=false", "rows=64", "micro=2" })
local OVER = { "--agent", "tests/fuzz/agent.sh", "--rendezvous", "tcp://127.0.0.1", "--hosts", "a:2,b:2" }
if breadth.all then runs:case("hosts", { "mesh=1x4", unpack(OVER) }) end
-- Gathers of the slices stay in flight between its updates and the next steps.
runs:case("sliced hosts", { "mesh=2x2", "sliced=true", unpack(OVER) })
runs:case("one on cuda", { "-n", "1", "device=cuda", "micro=2" }, "")
runs:case("jittered", { "-n", "4", "mesh=1x4", "device=cuda", "rows=128", "micro=2" },
  "MOONSHARD_EMULATE_STREAMS=threads MOONSHARD_EMULATE_JITTER=50")

-- 448 over the largest magnitude, as a float; and the weights' nearest codes, divided by it.
local function quantised(weights)
  local most = 0
  for _, value in ipairs(weights) do most = math.max(most, math.abs(value)) end
  local scale = ffi.new("float[1]", 448 / math.max(most, 1e-12))[0]
  local codes = (ms.tensor(weights) * scale):cast("f8e4m3"):cast("f32"):tolist()
  for i, code in ipairs(codes) do codes[i] = code / scale end
  return codes
end

local function assert_quantised(name, dtype)
  local states = 0
  for state, weights in pairs(runs:result(name).states) do
    for weight, has_been in pairs(weights) do
      local expected = quantised(has_been.weight)
      for i, value in ipairs(has_been.seen) do
        if math.abs(value - expected[i]) > ROUNDED[dtype] * math.abs(expected[i]) then
          error(("%s, %s, element %d of %s: %a, not %a"):format(name, state, i, weight, value, expected[i]))
        end
      end
    end
    states = states + 1
  end
  return states
end

local function assert_same(expected, got, what)
  for i, value in ipairs(expected) do
    if value ~= got[i] then error(("%s, element %d: %a, not %a"):format(what, i, got[i], value)) end
  end
end

describe("a weight that is gathered as codes", function()
  it("Q3 has the codes and the scale of its f32 master, whatever wrote that, on any mesh", function()
    for name in pairs(MESHES) do assert.equal(3, assert_quantised(name, "bf16")) end
    for _, name in ipairs(MOST) do assert_quantised(name .. " in f32", "f32") end
    for _, name in ipairs({ "uneven", "neighbours", "kept", "sliced hosts" }) do assert_quantised(name, "bf16") end
    if breadth.all then assert_quantised("hosts", "bf16") end
    for _, name in ipairs({ "one", "ragged", "sliced" }) do assert.equal(4, assert_quantised(name, "bf16")) end
  end)

  it("Q3 has them on emulated GPUs, too", function()
    for _, name in ipairs(MOST) do assert_quantised(name .. " on cuda", "bf16") end
    for _, name in ipairs({ "one on cuda", "jittered" }) do assert_quantised(name, "bf16") end
  end)

  it("Q3 is the same, bit for bit, on (4,1), (1,4) and (2,2), whose losses are alike", function()
    local expected = runs:result("replicas")
    for _, name in ipairs({ "shards", "both", "neighbours", "kept", "sliced" }) do
      local got = runs:result(name)
      for state, weights in pairs(expected.states) do
        for weight, has_been in pairs(weights) do
          assert_same(has_been.seen, got.states[state][weight].seen, ("%s, %s of %s"):format(name, weight, state))
        end
      end
      -- Losses of ranks and of micro-batches are added up in another order.
      for i, loss in ipairs(expected.losses) do assert.near(loss, got.losses[i], 1e-6 * loss, name) end
    end
  end)
end)

-- ---- bytes ------------------------------------------------------------------------------------------------------

local SHARDS, I8_RECORD, NF4_RECORD = 4, 1040, 8464

local function chunk(rows, columns, size) return math.ceil(rows / SHARDS) * columns * size end

local function plan(...)
  local told = program.run { "plan", RECIPE, "-n", "4", "mesh=1x4", "--json", ... }
  assert.equal(0, told.status, told.err)
  return json.decode(told.out)
end

local function moved(of, op, phase)
  local bytes = {}
  for _, instruction in ipairs(of.phases[phase or 1].instructions) do
    if instruction.op == op then bytes[instruction.scope] = (bytes[instruction.scope] or 0) + instruction.bytes end
  end
  return bytes
end

describe("the gather of a unit", function()
  it("Q2 is one, of codes, bf16, f32, i8 and nf4, frozen and trainable, to the byte, scales included", function()
    local of = plan()
    local gathers, gathered = {}, moved(of, "all_gather")
    for _, instruction in ipairs(of.phases[1].instructions) do
      if instruction.op == "all_gather" then table.insert(gathers, instruction) end
    end
    assert.equal(2, #gathers)
    assert.equal(7, gathers[1].segments)
    local up, down = chunk(48, 64, 1), chunk(64, 48, 1)
    local plain, gain = chunk(64, 64, 2) + chunk(64, 1, 2), chunk(64, 1, 4)
    -- Of i8 each rank has one of the four records that have 4096 elements, of nf4 the one of 16384 or padding.
    assert.equal((SHARDS - 1) * (up + down + plain + gain + I8_RECORD + NF4_RECORD), gathered.block)
    assert.equal((SHARDS - 1) * chunk(16, 64, 1), gathered.root)
    assert.equal(2 * (SHARDS - 1) / SHARDS * 4 * 3, moved(of, "all_reduce")["weight scales"])
    assert.same({ f8e4m3 = 4 * (up + down), bf16 = 4 * plain, f32 = 4 * gain, i32 = 4 * (I8_RECORD + NF4_RECORD) },
      gathers[1].dtypes)
  end)

  it("Q5 is what ranks move: counted bytes are the plan's, and half of those in bf16 #release", function()
    local counted = runs:result("shards").comm_bytes.shard
    local evaluated, total = 0, 0
    for _, phase in ipairs(plan().phases) do
      for _, instruction in ipairs(phase.instructions) do
        local bytes = instruction.bytes and instruction.stream ~= "compute" and instruction.bytes or 0
        if phase.name == "evaluate" then evaluated = evaluated + bytes
        elseif phase.name ~= "next" and phase.name ~= "last" then total = total + bytes end
      end
    end
    assert(evaluated > 0)
    assert.equal(total, counted)
    local codes, rows = moved(plan(), "all_gather"), moved(plan("fp8=rowwise"), "all_gather")
    assert.equal((SHARDS - 1) * (chunk(48, 64, 1) + chunk(64, 48, 1)), rows.block - codes.block)
    assert.equal(2 * codes.root, rows.root)
    assert.is_nil(moved(plan("fp8=rowwise"), "all_reduce")["weight scales"])
  end)

  it("Q3 needs one maximum over the shards and one over the tensor dimension #release", function()
    local told = program.run { "plan", "tests/lua/formats/recipes/float8.lua", "-n", "4", "fp8=tensorwise",
      "mesh=1x2x2" }
    local weights = 2 * 6 -- of two layers: wq, wk, wv, wo, fc1, fc2
    local first = told.out:match("\nphase first.-\nphase ")
    for _, dim in ipairs({ "shard", "tensor" }) do
      local line = ("all_reduce max over %s, %d B in 1 segment"):format(dim, 4 * weights)
      assert.equal(1, select(2, first:gsub(line, "")), told.out)
    end
  end)

  it("Q2 is printed with its dtypes, and explained by parameter #release", function()
    local told = program.run { "plan", RECIPE, "-n", "4", "mesh=1x4" }
    has(told.out, "in 7 segments of f32, bf16, i32, f8e4m3")
    local explained = program.run { "explain", RECIPE, "-n", "4", "mesh=1x4" }
    assert.equal(0, explained.status, explained.err)
    has(explained.out:match("\nfp8\n(.-)\n\n"), "block.up.weight | tensorwise | gathered as f8e4m3")
  end)
end)

describe("a weight that cannot be gathered as codes", function()
  local function refused(make)
    local model = ms.module { w = ms.parameter { 16, 16 }, forward = make }
    ms.fully_shard(model, { fp8 = { { "w", "tensorwise" } } })
    return fixture.message(function() return model(ms.ones(16, 16)) end)
  end

  it("Q5 is refused by name: one that something else reads #release", function()
    has(refused(function(self, x) return x:matmul(self.w) + self.w end), "parameter 'w' | add reads it | 8-bit form")
    local tied = ms.models.gpt2 { vocab = 64, layers = 1, dim = 32, heads = 2, seq = 16, tied = true }
    ms.fully_shard(tied, { fp8 = { { re"embed.weight", "tensorwise" } } })
    has(fixture.message(function() return tied(ms.tensor { { 1, 2, 3, 4 }, dtype = "i32" }) end),
      "'embed.weight' | embedding reads it")
  end)

  it("Q5 is gathered once where two layers share it, and both multiply it in 8 bits", function()
    local model = ms.module { forward = function(self, x) return self.b(self.a(x)) end }
    model.a, model.b = ms.nn.linear(16, 16, { bias = false }), ms.nn.linear(16, 16, { bias = false })
    model.b.weight = model.a.weight
    ms.fully_shard(model, { fp8 = { { re".", "tensorwise" } } })
    local w = quantised(model:parameter("a.weight"):reshape(-1):tolist())
    local once = ms.tensor(w):reshape(16, 16)
    local x = ms.zeros(16, 16) + 1
    local got, expected = model(x):reshape(-1):tolist(), x:matmul(once:t()):matmul(once:t()):reshape(-1):tolist()
    for i, value in ipairs(got) do assert(math.abs(value - expected[i]) < 0.05 * 16 * 0.06) end
  end)
end)
