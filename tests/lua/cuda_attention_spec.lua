-- A small Llama in bf16 trains on the emulated device cuda as on the CPU, whoever computes attention: cuDNN, emulated;
-- own kernels on tensor cores; own kernels in f32. Within documents too.

local compare = require("moonshard.check.compare")
local json = require("cjson")
local program = require("lua.program")

local RECIPE, TOLERANCE = "tests/lua/recipes/attention.lua", 2e-2
local FOLDER = os.getenv("MOONSHARD_BIN"):match("^(.*)/")

local runs, outs = {}, {}

local function case(name, words, environment)
  outs[name] = os.tmpname()
  runs[name] = { "run", RECIPE, "out=" .. outs[name], unpack(words) }
  runs[name].environment = environment and program.emulated_cuda(
    ("MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/libmoonshard_cuda_emulated.so %s"):format(FOLDER, environment))
end

-- The emulated kernels are not built for the thread sanitizer, and are slow under the others.
local CONFIG = os.getenv("MOONSHARD_CONFIG")
if CONFIG == "thread" then return end
local THIN = CONFIG ~= "release"

case("cpu", {})
case("cpu documents", { "documents=true" })
case("auto", { "device=cuda" }, "MOONSHARD_ATTENTION=auto")
case("documents", { "device=cuda", "documents=true" }, "MOONSHARD_ATTENTION=auto")
if not THIN then
  case("flash", { "device=cuda" }, "MOONSHARD_ATTENTION=flash")
  case("plain", { "device=cuda" }, "MOONSHARD_ATTENTION=plain")
  case("no cudnn", { "device=cuda" }, "MOONSHARD_CUDNN_LIBRARY=/nowhere/libcudnn.so")
end
case("no choice", { "device=cuda" }, "MOONSHARD_ATTENTION=fast")

local ended

local function told(name)
  ended = ended or program.run_all(runs)
  return ended[name]
end

local function result(name)
  local run = told(name)
  assert.equal(0, run.status, run.err)
  local file = assert(io.open(outs[name]))
  local text = file:read("*a")
  file:close()
  return json.decode(text)
end

local function assert_as(expected, got)
  expected, got = result(expected), result(got)
  for _, what in ipairs({ "losses", "norms" }) do
    local worst = compare.arrays(expected[what], got[what], { count = #expected[what], tolerance = TOLERANCE })
    assert.is_falsy(worst and worst.differs, what)
  end
  return got
end

describe("attention on the device cuda", function()
  teardown(function()
    for _, path in pairs(outs) do os.remove(path) end
  end)

  it("T1 trains as on the CPU by cuDNN, and by own kernels", function()
    local cudnn = assert_as("cpu", "auto")
    assert.is_nil(told("auto").err:find("note:", 1, true))
    if THIN then return end
    local flash, plain = assert_as("cpu", "flash"), assert_as("cpu", "plain")
    assert.not_same(cudnn, flash)
    assert.not_same(flash, plain)
  end)

  it("T1 trains as on the CPU within documents", function()
    assert.not_same(result("cpu"), result("cpu documents"))
    assert_as("cpu documents", "documents")
  end)

  it("T3 without cuDNN own kernels give it, and the first rank says so once", function()
    if THIN then return end
    assert.same(result("flash"), result("no cudnn"))
    local note, after = told("no cudnn").err:match("(moonshard: note: [^\n]*)\n(.*)$")
    assert.truthy(note and note:find("the fastest attention needs cuDNN: /nowhere/libcudnn.so: ", 1, true), note)
    assert.is_nil(after:find("note:", 1, true))
  end)

  it("T3 a choice that is none is an error", function()
    local run = told("no choice")
    assert.equal(2, run.status, run.err)
    local message = 'MOONSHARD_ATTENTION is "fast"; it must be auto, cudnn, flash or plain'
    assert.truthy(run.err:find(message, 1, true), run.err)
  end)
end)
