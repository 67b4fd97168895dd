-- Plans for the device cuda on a machine where its library is not installed: they and their prices are those that the
-- library's own kernels (emulated) give, to the byte.

local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local BINARY = assert(os.getenv("MOONSHARD_BIN"))
local LIBRARY = ("MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/libmoonshard_cuda_emulated.so"):format(
  BINARY:match("^(.*)/"))
local PARTS, GPT2, LLAMA = "tests/lua/recipes/tensor_parallel.lua", "recipes/gpt2.lua", "recipes/llama.lua"

-- A library as it was before versions knew of ops, whose kernels would be those of other ops today.
local OTHER = [[
static const struct { int version, kind; const char *name; } table = {8, 1, "cuda"};
const void *ms_device_table(const void *host) { return host ? &table : 0; }
]]

local commands = {
  gpt2 = { "plan", GPT2, "-n", "8", "mesh=2x4", "dtype=bf16", "dropout=0.1", "ema=0.9" },
  ["gpt2 of 1.5B"] = { "plan", GPT2, "-n", "16", "size=1.5B", "mesh=1x16", "dtype=bf16", "seq=1024", "--json" },
  ["gpt2 in f32"] = { "plan", GPT2, "-n", "1", "mesh=1x1", "dtype=f32" },
  llama = { "plan", LLAMA, "-n", "8", "mesh=1x4x2", "sequence_parallel=true", "--json" },
  ["llama of 8B"] = { "plan", LLAMA, "-n", "64", "size=8B", "mesh=2x4x2x4", "seq=8192", "batch=1", "--rank", "21" },
  tensor = { "plan", PARTS, "-n", "4", "mesh=1x2x2", "dtype=bf16", "dropout=0.2", "tied=true" },
  recomputed = { "plan", PARTS, "-n", "2", "mesh=1x1x2", "recompute=true", "micro_batches=3", "dtype=bf16" },
  ["recomputed llama"] = { "plan", PARTS, "-n", "4", "mesh=1x4x1", "model=llama", "recompute=true", "micro_batches=2" },
  context = { "plan", PARTS, "-n", "4", "mesh=1x2x2x1", "model=llama", "dtype=bf16" },
  documents = { "plan", PARTS, "-n", "4", "mesh=1x1x2x2", "documents=true", "seq=64", "dtype=bf16" },
  ["documents in f32"] = { "plan", PARTS, "-n", "2", "mesh=1x2x1", "documents=true", "seq=64", "recompute=true" },
  ["own modules"] = { "plan", PARTS, "-n", "2", "mesh=1x1x2", "model=mixer", "sequence_parallel=true" },
  ["attention by hand"] = { "plan", PARTS, "-n", "2", "mesh=1x2x1", "model=by_hand", "--json" },
  ["slices of the optimizer"] = { "plan", PARTS, "-n", "4", "mesh=2x2x1", "sliced=true" },
  ["local sgd"] = { "plan", "tests/lua/recipes/local_sgd.lua", "-n", "2" },
  epilogues = { "plan", "tests/lua/recipes/epilogues.lua", "-n", "1" },
  accumulated = { "plan", "recipes/hybrid.lua", "-n", "4", "accumulate=2", "reduce=bf16", "dtype=bf16" },
}

-- Each of them in both ways, at the same time.
local folder, ended

local function of(name)
  if ended then return ended[name] end
  folder = os.tmpname()
  assert(os.execute(("rm %s && mkdir %s && cp %s %s/moonshard"):format(folder, folder, BINARY, folder)))
  scratch.write(folder .. "/other.c", OTHER)
  assert(os.execute(("cc -shared -fPIC %s/other.c -o %s/other.so"):format(folder, folder)))
  local runs = {
    ["plan with another version's"] = {
      "plan", GPT2, "-n", "2", "--device", "cuda", environment = ("MOONSHARD_CUDA_LIBRARY=%s/other.so"):format(folder),
    },
    price = { "price", GPT2, "-n", "16", "--cluster", "h100x8-400g", environment = LIBRARY },
    ["price without"] = {
      "price", GPT2, "-n", "16", "--cluster", "h100x8-400g",
      binary = folder .. "/moonshard", environment = "MOONSHARD_CUDA_LIBRARY=",
    },
    ["run without"] = {
      "run", "recipes/toy_hsdp.lua", "-n", "1", "--device", "cuda", "mesh=1x1",
      binary = folder .. "/moonshard", environment = "MOONSHARD_CUDA_LIBRARY=",
    },
    ["doctor without"] = { "doctor", binary = folder .. "/moonshard", environment = "MOONSHARD_CUDA_LIBRARY=" },
    ["plan with nothing"] = {
      "plan", GPT2, "-n", "2", "--device", "cuda", environment = "MOONSHARD_CUDA_LIBRARY=/proc/nowhere/lib.so",
    },
  }
  for plan, command in pairs(commands) do
    runs[plan] = { environment = LIBRARY, unpack(command) }
    table.insert(runs[plan], "--device")
    table.insert(runs[plan], "cuda")
    runs[plan .. " without"] = { unpack(runs[plan]) }
    runs[plan .. " without"].binary = folder .. "/moonshard"
    runs[plan .. " without"].environment = "MOONSHARD_CUDA_LIBRARY="
  end
  ended = program.run_all(runs)
  os.execute("rm -r " .. folder)
  return ended[name]
end

local function alike(name)
  local with, without = of(name), of(name .. " without")
  assert.equal(0, with.status, name .. ": " .. with.err)
  assert.equal(0, without.status, name .. ": " .. without.err)
  assert.equal(with.out, without.out, name)
end

describe("without the library of the device cuda", function()
  it("A5 plans are the same", function()
    for name in pairs(commands) do alike(name) end
  end)

  it("A5 prices are the same", function() alike("price") end)

  it("A5 what needs a GPU reports that the library is missing", function()
    assert.equal(2, of("run without").status)
    for _, name in ipairs({ "run without", "doctor without" }) do
      has(of(name).out .. of(name).err, "device cuda | no libmoonshard_cuda.so | nvcc | MOONSHARD_CUDA_LIBRARY")
    end
  end)

  it("A5 a library that was named and cannot be used is an error for plans, too", function()
    assert.equal(2, of("plan with nothing").status)
    has(of("plan with nothing").err, "device cuda | MOONSHARD_CUDA_LIBRARY | /proc/nowhere/lib.so")
    assert.equal(2, of("plan with another version's").status)
    has(of("plan with another version's").err, "device cuda | libmoonshard_cuda.so | version")
  end)
end)
