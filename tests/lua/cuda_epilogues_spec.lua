-- A small GPT-2 in bf16 trains on the emulated device cuda as on the CPU, whether gelu and its gradient are parts of
-- matrix products or kernels of their own; and which of its plan's products have them.

local compare = require("moonshard.check.compare")
local json = require("cjson")
local program = require("lua.program")

local RECIPE, TOLERANCE = "tests/lua/recipes/epilogues.lua", 2e-2
local FOLDER = os.getenv("MOONSHARD_BIN"):match("^(.*)/")

-- The emulated kernels are not built for the thread sanitizer, and are slow under the others.
local CONFIG = os.getenv("MOONSHARD_CONFIG")
if CONFIG == "thread" then return end
local THIN = CONFIG ~= "release"

local runs, outs = {}, {}

local function case(name, words, environment)
  outs[name] = os.tmpname()
  runs[name] = { "run", RECIPE, "out=" .. outs[name], unpack(words) }
  runs[name].environment = environment and program.emulated_cuda(
    ("MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/libmoonshard_cuda_emulated.so %s"):format(FOLDER, environment))
end

local function plan(name, words)
  runs[name] = { "plan", RECIPE, "--device", "cuda", unpack(words) }
  runs[name].environment = program.emulated_cuda("MOONSHARD_EMULATE_DEVICES=0")
end

case("f32 cpu", {})
case("f32", { "device=cuda" }, "MOONSHARD_CUDA_MATMUL=cublaslt")
case("bf16 cpu", { "reduce=bf16", "-n", "2", "mesh=1x2" })
case("bf16", { "reduce=bf16", "-n", "2", "mesh=1x2", "device=cuda" }, "MOONSHARD_CUDA_MATMUL=cublaslt")
case("refused", { "reduce=bf16", "-n", "2", "mesh=1x2", "device=cuda" }, "MOONSHARD_EMULATE_CUBLASLT_NONE=128")
if not THIN then
  case("again", { "reduce=bf16", "-n", "2", "mesh=1x2", "device=cuda" }, "MOONSHARD_CUDA_MATMUL=cublaslt")
  case("apart", { "device=cuda" }, "MOONSHARD_CUDA_EPILOGUES=apart")
  case("recomputed", { "recompute=true", "reduce=bf16", "device=cuda" }, "MOONSHARD_CUDA_MATMUL=cublaslt")
  case("captured", { "device=cuda", "--cuda-graph" }, "MOONSHARD_CUDA_MATMUL=cublaslt")
end
plan("f32 plan", {})
plan("bf16 plan", { "reduce=bf16" })
plan("recomputed plan", { "recompute=true" })

local ended

local function told(name)
  ended = ended or program.run_all(runs)
  assert.equal(0, ended[name].status, ended[name].err)
  return ended[name]
end

local function result(name)
  told(name)
  local file = assert(io.open(outs[name]))
  local text = file:read("*a")
  file:close()
  return json.decode(text)
end

local function assert_close(expected, got, what)
  local worst = compare.arrays(expected, got, { count = #expected, tolerance = TOLERANCE })
  assert.is_falsy(worst and worst.differs, what)
end

local function assert_as(expected, got)
  local one, other = result(expected), result(got)
  assert_close(one.losses, other.losses, got .. ": losses")
  assert_close(one.norms, other.norms, got .. ": norms")
  for name, values in pairs(one.params) do assert_close(values, other.params[name], got .. ": " .. name) end
end

local function ops_of(name)
  local counts = setmetatable({}, { __index = function() return 0 end })
  local first = assert(told(name).out:match("\nphase first:(.-)\nphase "))
  for op in first:gmatch("compute   (%S+) ") do counts[op] = counts[op] + 1 end
  return counts
end

describe("gelu in the epilogues of matrix products", function()
  teardown(function()
    for _, path in pairs(outs) do os.remove(path) end
  end)

  it("T3 trains as on the CPU", function()
    assert_as("f32 cpu", "f32")
    assert_as("bf16 cpu", "bf16")
    if THIN then return end
    assert_as("f32 cpu", "recomputed")
    assert_as("f32 cpu", "captured")
    assert.same(result("bf16"), result("again"))
  end)

  it("T3 apart gives nearly the same, and is not it", function()
    if THIN then return end
    assert_as("f32", "apart")
    assert.not_same(result("f32"), result("apart"))
  end)

  it("T3 what cuBLASLt refuses kernels of their own give, and the first rank says so", function()
    assert_as("bf16 cpu", "refused")
    local notes = {}
    for line in told("refused").err:gmatch("note: ([^\n]*)") do notes[#notes + 1] = line end
    assert.equal(2, #notes, told("refused").err)
    table.sort(notes)
    for i, what in ipairs({ "gelu", "gelu's gradient" }) do
      assert.equal(("cuBLASLt has no algorithm with %s for [12,16] x [16,64]: a kernel behind the product does it")
        :format(what), notes[i])
    end
    assert.is_nil(told("bf16").err:find("note:", 1, true))
  end)

  it("T3 the plan has them where fewer bytes move", function()
    local f32, bf16, recomputed = ops_of("f32 plan"), ops_of("bf16 plan"), ops_of("recomputed plan")
    assert.equal(2, f32.matmul_gelu)
    assert.equal(0, f32.gelu_tanh)
    assert.equal(2, f32.activation_backward_bias_recompute)
    assert.equal(2, bf16.matmul_gelu)
    assert.equal(2, bf16.matmul_gelu_backward_bias)
    assert.equal(2, bf16.gelu_tanh)
    assert.equal(0, bf16.activation_backward_bias_recompute)
    assert.equal(0, recomputed.matmul_gelu)
    assert.equal(2, recomputed.gelu_tanh)
  end)
end)
