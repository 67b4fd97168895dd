-- Runs on the device cuda without a GPU: the host code of the device over an emulated runtime and NCCL, with the CPU's
-- kernels (tests/emulated_cuda). Numbers, memory and counts are those of the CPU; what goes wrong is told.

local compare = require("moonshard.check.tolerance")
local json = require("cjson")
local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local program = require("lua.support.program")

local PARITY, TROUBLE = "tests/lua/recipes/parity.lua", "tests/lua/recipes/trouble.lua"
local SLOWER = os.getenv("MOONSHARD_CONFIG") == "release" and 1 or 4
local DEADLINE = tostring(2 * SLOWER)
local MIB = 2 ^ 20

local runs, outs = {}, {}

local function parity(name, ranks, settings, options)
  local words = { "run", PARITY, "-n", tostring(ranks), "steps=" .. (breadth.all and 4 or 3), unpack(settings) }
  outs[name] = { cpu = os.tmpname(), cuda = os.tmpname() }
  local cpu, cuda = { unpack(words) }, { unpack(words) }
  for _, word in ipairs(options or {}) do cuda[#cuda + 1] = word end
  cpu[#cpu + 1], cuda[#cuda + 1] = "out=" .. outs[name].cpu, "out=" .. outs[name].cuda
  cpu[#cpu + 1], cuda[#cuda + 1] = "shared_masters=false", "device=cuda"
  cuda.environment = program.emulated_cuda("MOONSHARD_EMULATE_JITTER=50")
  runs[name .. " cpu"], runs[name .. " cuda"] = cpu, cuda
end

local function case(name, arguments, environment)
  runs[name] = arguments
  runs[name].environment = program.emulated_cuda(environment)
end

local THIN = os.getenv("MOONSHARD_CONFIG") ~= "release"
parity("alone", 1, { "mesh=1x1", "micro=2", "dropout=true" })
parity("hsdp", 4, { "mesh=2x2", "micro=3", "recompute=blocks", "reshard=true", "sync=shard" })
parity("averages", 2, { "mesh=1x2", "ema=0.8", "ema_warmup=true", "freeze=fc1", "optimizer=sgd" })
parity("graph", 2, { "mesh=1x2", "micro=3", "reshard_backward=false" }, { "--cuda-graph" })
-- With the kernels of CUDA, emulated.
local function kernels(name, ranks, settings, environment)
  parity(name, ranks, settings)
  runs[name .. " cuda"].environment = program.emulated_cuda(("MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/%s %s"):format(
    os.getenv("MOONSHARD_BIN"):match("^(.*)/"), "libmoonshard_cuda_emulated.so", environment or ""))
end
if os.getenv("MOONSHARD_CONFIG") ~= "thread" then
  kernels("kernels", 2, { "mesh=1x2", "micro=2", "recompute=ops", "optimizer=sgd" })
  kernels("no cuBLASLt", 2, { "mesh=1x2", "steps=2" }, "MOONSHARD_CUBLASLT_LIBRARY=/proc/nowhere/libcublasLt.so")
end
if not THIN then
  kernels("kernels in bf16", 1, { "mesh=1x1", "micro=2", "steps=2", "dtype=bf16" }, "MOONSHARD_CUDA_MATMUL=cublaslt")
  parity("slices", 4, { "mesh=2x2", "micro=3", "dtype=bf16", "over_replicate=all", "ema=0.8" }, { "--nccl-windows" })
end
if breadth.all then
  parity("shards", 2, { "mesh=1x2", "layout=ragged", "micro=2", "sync=last", "mixed=true", "dtype=bf16" })
  parity("groups", 4, { "mesh=1x4", "reshard=2", "rows=12" })
  parity("replicas", 2, { "mesh=2x1", "freeze=fc1", "optimizer=sgd" })
  parity("whole units", 4, { "mesh=2x2", "micro=3", "dtype=bf16", "whole=rest" }, { "--cuda-graph" })
end

parity("windows", 4, { "mesh=2x2", "micro=3", "reshard=true", "dtype=bf16", "mixed=true" }, { "--nccl-windows" })
parity("engines", 2, { "mesh=1x2", "reshard=true" }, { "--nccl-copy-engines", "--cuda-graph" })

local function trouble(name, words, environment)
  local arguments = { "run", TROUBLE, "-n", "2", "--device", "cuda", "--timeout", DEADLINE, unpack(words) }
  case(name, arguments, environment)
end

local BIG = { "dim=256", "rows=256", "blocks=4", "steps=100000" }
trouble("killed", { "how=kill", "where=inside", unpack(BIG) })
trouble("stopped", { "how=stop", "where=inside", unpack(BIG) })
trouble("library", {}, "MOONSHARD_EMULATE_FAIL=asynchronous:9")
trouble("lost", {}, "MOONSHARD_EMULATE_FAIL=lost:9")
trouble("lost in a graph", { "--cuda-graph" }, "MOONSHARD_EMULATE_FAIL=lost:30")
trouble("stopped in a graph", { "--cuda-graph", "how=stop", "where=inside", unpack(BIG) })
trouble("hanging abort", {}, "MOONSHARD_EMULATE_FAIL=asynchronous:9,abort:1")
trouble("old library", {}, "MOONSHARD_EMULATE_NCCL_VERSION=21203")
trouble("no windows", { "--nccl-windows" }, "MOONSHARD_EMULATE_NCCL_VERSION=22605")
trouble("no engines", { "--nccl-copy-engines" }, "MOONSHARD_EMULATE_NCCL_VERSION=22709")
trouble("no window", { "--nccl-windows" }, "MOONSHARD_EMULATE_FAIL=ncclCommWindowRegister:2")
trouble("lost window", { "--nccl-windows" }, "MOONSHARD_EMULATE_FAIL=window:1")
trouble("no library", {}, "MOONSHARD_NCCL_LIBRARY=/proc/nowhere/libnccl.so")
trouble("too few", {}, "MOONSHARD_EMULATE_DEVICES=1")
trouble("no gpu", {}, "MOONSHARD_EMULATE_DEVICES=0")
trouble("no driver", {}, "MOONSHARD_EMULATE_DEVICES=-1")
trouble("no memory", {}, "MOONSHARD_EMULATE_FAIL=cudaMalloc:4")
runs["nothing"] = { "run", TROUBLE, "device=cuda", environment = "MOONSHARD_CUDA_LIBRARY=/proc/nowhere/lib.so" }
case("doctor", { "doctor", "--json" }, "MOONSHARD_EMULATE_DEVICES=2")
trouble("old gpu", {}, "MOONSHARD_EMULATE_CAPABILITY=80")
case("doctor of 8.0", { "doctor" }, "MOONSHARD_EMULATE_CAPABILITY=80")
case("doctor of 7.5", { "doctor" }, "MOONSHARD_EMULATE_CAPABILITY=75")
case("doctor of 10.0", { "doctor", "--json" }, "MOONSHARD_EMULATE_CAPABILITY=100")
case("doctor of an old driver", { "doctor" }, "MOONSHARD_EMULATE_CAPABILITY=100 MOONSHARD_EMULATE_DRIVER=12090")
case("older doctor", { "doctor" }, "MOONSHARD_EMULATE_NCCL_VERSION=22709")
local metrics, trace = os.tmpname(), os.tmpname()
trouble("measured", { "--metrics", metrics, "--trace", trace, "steps=4" })
case("plan", { "plan", PARITY, "-n", "4", "mesh=2x2", "micro=3", "recompute=blocks", "reshard=true", "sync=shard",
  "--device", "cuda", "--json" }, "MOONSHARD_EMULATE_DEVICES=0")

for _, device in ipairs({ "cpu", "cuda" }) do
  case("added " .. device, { "plan", PARITY, "mesh=1x1", "micro=2", "--device", device })
end

local ended

local function told(name)
  ended = ended or program.run_all(runs)
  return ended[name]
end

local function read_json(path)
  local file = assert(io.open(path))
  local text = file:read("*a")
  file:close()
  return json.decode(text)
end

local function assert_close(expected, got, tolerance, what)
  local worst = compare.arrays(expected, got, { count = #expected, tolerance = tolerance })
  assert.is_falsy(worst and worst.differs, what)
end

local function result(name, device)
  local run = told(name .. " " .. device)
  assert.equal(0, run.status, run.err)
  return read_json(outs[name][device])
end

local function assert_same(name, tolerance)
  local cpu, cuda = result(name, "cpu"), result(name, "cuda")
  assert_close(cpu.losses, cuda.losses, tolerance, name .. ": losses")
  assert_close(cpu.norms, cuda.norms, tolerance, name .. ": norms")
  assert_close({ cpu.evaluated }, { cuda.evaluated }, tolerance, name .. ": evaluated")
  for param, values in pairs(cpu.params) do
    assert_close(values, cuda.params[param], compare.PARAMETERS * tolerance, name .. ": " .. param)
  end
  assert.same(cpu.collectives, cuda.collectives)
  assert.same(cpu.comm_bytes, cuda.comm_bytes)
  assert.equal(cuda.plan.peak_bytes, cuda.peak_bytes)
  return cuda
end

local function fails(name, status, ...)
  local run = told(name)
  assert.equal(status, run.status, run.err)
  for _, facts in ipairs({ ... }) do has(run.err, facts) end
end

describe("the device cuda over emulated libraries", function()
  teardown(function()
    for _, files in pairs(outs) do os.remove(files.cpu); os.remove(files.cuda) end
    os.remove(metrics)
    os.remove(trace)
  end)

  it("A1 one rank trains, evaluates and is read as on the CPU", function()
    assert.equal(0, assert_same("alone", 1e-5).allocations)
  end)

  it("A1 replicas of shards do, with micro-batches, recomputation and units that are gathered again", function()
    assert.equal(0, assert_same("hsdp", 1e-5).allocations)
  end)

  it("A1 groups, layouts, dtypes and strategies do #all", function()
    if not breadth.all then return end
    assert_same("shards", 2e-2)
    assert_same("groups", 1e-5)
    assert_same("replicas", 1e-5)
    assert_same("whole units", 2e-2)
  end)

  it("A1 H11 optimizer state sharded over the replicas does", function()
    if THIN then return end
    local cpu, cuda = result("slices", "cpu").averages, assert_same("slices", 2e-2).averages
    assert_close({ cpu.evaluated, cpu.as_weights }, { cuda.evaluated, cuda.evaluated }, 2e-2, "evaluated")
  end)

  it("A1 averages of the weights are kept, and evaluated with", function()
    local cpu, cuda = result("averages", "cpu").averages, assert_same("averages", 1e-5).averages
    assert_close({ cpu.evaluated, cpu.as_weights }, { cuda.evaluated, cuda.evaluated }, 1e-5, "evaluated")
    for name, values in pairs(cpu.kept) do assert_close(values, cuda.kept[name], 1e-5, name) end
  end)

  it("A1 the kernels of CUDA give them, emulated", function()
    if runs["kernels cuda"] then assert_same("kernels", 1e-5) end
    if runs["kernels in bf16 cuda"] then assert_same("kernels in bf16", 2e-2) end
    assert.is_nil(told("alone cuda").err:find("note:", 1, true))
  end)

  it("A3 without cuBLASLt own kernels give them, and the first rank says so once", function()
    if not runs["no cuBLASLt cuda"] then return end
    assert_same("no cuBLASLt", 1e-5)
    local note, after = told("no cuBLASLt cuda").err:match("(moonshard: note: [^\n]*)\n(.*)$")
    assert.truthy(note)
    has(note, "cuBLASLt | /proc/nowhere/libcublasLt.so")
    assert.is_nil(after:find("note:", 1, true))
  end)

  it("A2 captured phases give the same numbers", function() assert_same("graph", 1e-5) end)

  it("A1 registered windows and gathers by copy engines give the same numbers", function()
    assert_same("windows", 2e-2)
    assert_same("engines", 1e-5)
  end)

  it("A1 a plan for GPUs contains the bytes of a rank without one", function()
    local planned = told("plan")
    assert.equal(0, planned.status, planned.err)
    local bytes = result("hsdp", "cuda").peak_bytes
    assert.equal(bytes, json.decode(planned.out).peak_bytes)
  end)

  it("A1 products add the gradients of later micro-batches in place, and nothing else adds those", function()
    local counts = {}
    for _, device in ipairs({ "cpu", "cuda" }) do
      local planned = told("added " .. device)
      assert.equal(0, planned.status, planned.err)
      local later = assert(planned.out:match("\nphase next:(.-)\nphase "))
      local _, products = later:gsub(" matmul_accumulate ", "")
      local added = 0
      for elements in later:gmatch(" accumulate [^\n]*state%+%d+%[(%d+)%]") do added = added + tonumber(elements) end
      counts[device] = { products, added }
    end
    assert.equal(0, counts.cpu[1])
    assert.truthy(counts.cuda[1] > 2, counts.cuda[1])
    assert.truthy(counts.cuda[2] > 0 and counts.cuda[2] < counts.cpu[2] / 4, counts.cuda[2])
  end)

  it("A1 memory outside the arenas is measured and reported", function()
    local run = told("measured")
    assert.equal(0, run.status, run.err)
    local file = assert(io.open(metrics))
    local first = json.decode((file:read("*l")))
    file:close()
    assert.equal((300 + 3 * 16) * MIB, first.outside_bytes) -- a context, and three communicators of the emulated NCCL
  end)

  it("A1 a trace has the times of the device", function()
    local run = told("measured")
    assert.equal(0, run.status, run.err)
    local summed = program.run({ "trace", trace, "--json" })
    assert.equal(0, summed.status, summed.err)
    has(summed.out, "all_gather")
    has(summed.out, "matmul")
  end)

  it("A4 a rank that dies amid a collective is named, and the others end", function()
    fails("killed", 3, "moonshard: | rank 1 | signal 9", "\nmoonshard: rank 1 | phase")
  end)

  -- Wherever it is then: in a collective, or in Lua between two steps.
  it("A4 a rank that stops is named at the deadline", function()
    fails("stopped", 3, "rank 0 | rank 1 | process | stopped | signal")
  end)

  -- Told by who asks for it, or by the next call of the library.
  it("A4 an error of the library of collectives ends the run", function()
    fails("library", 3, "nccl | : remote process exited")
    fails("hanging abort", 3, "nccl | : remote process exited")
  end)

  it("A4 a collective that does not end is an error at the deadline", function()
    fails("lost", 3, "reduce_scatter layers. | all ranks | rank")
    fails("lost window", 3, "rank | communicator | device")
  end)

  it("A4 a collective of a captured phase is named as well", function()
    fails("lost in a graph", 3, "all ranks | rank")
    assert.truthy(told("lost in a graph").err:find("%l+_%l+ [%l%d.]+: "), told("lost in a graph").err)
    fails("stopped in a graph", 3, "rank 0 | rank 1 | process | stopped | signal")
    assert.truthy(told("stopped in a graph").err:find("%l+_%l+ [%l%d.]+"), told("stopped in a graph").err)
  end)

  it("A1 missing libraries and GPUs are reported", function()
    fails("old library", 2, "NCCL 2.12.3 | 2.18.5")
    fails("no windows", 2, "NCCL 2.26.5 | windows | 2.27")
    fails("no engines", 2, "NCCL 2.27.9 | copy engines | 2.28")
    fails("no window", 3, "ncclCommWindowRegister: internal error")
    fails("no library", 2, "NCCL: /proc/nowhere/libnccl.so")
    fails("too few", 2, "ranks 0 and 1 | same GPU, 0000:00:00.0 | one rank per GPU")
    fails("no gpu", 2, "device cuda | no GPU")
    fails("no driver", 2, "device cuda | NVIDIA driver | CUDA 13.0")
    fails("no memory", 3, "GPU | bytes | arena")
    fails("nothing", 2, "device cuda | MOONSHARD_CUDA_LIBRARY | /proc/nowhere/lib.so: | shared object file")
  end)

  it("A1 a GPU for which the library has no code is refused by name before anything runs, and by doctor", function()
    local facts = "(emulated) has | capability 8.0 | code for 9.0: | `make cuda CUDA_ARCHS=80`"
    fails("old gpu", 2, "device cuda: GPU | " .. facts)
    has(told("doctor of 8.0").out, facts .. " | GPU 0 | GPU 7")
    has(told("doctor of 7.5").out, "GPU 0 (emulated) | capability 7.5 | 8.0 or later")
    has(told("doctor of an old driver").out,
      "capability 10.0 | code for 9.0 and PTX of 9.0 | driver (CUDA 12.9) is too old | CUDA_ARCHS=100")
    for _, gpu in ipairs(json.decode(told("doctor of 10.0").out).gpu.devices) do -- by PTX
      assert.equal("10.0", gpu.capability)
      assert.is_nil(gpu.why)
    end
  end)

  it("A1 the library next to the executable is found from any folder", function()
    local folder = os.tmpname()
    os.remove(folder)
    assert(os.execute(("mkdir %s && cp %s %s/moonshard && echo broken >%s/libmoonshard_cuda.so"):format(folder,
      os.getenv("MOONSHARD_BIN"), folder, folder)))
    for _, started in ipairs({ "moonshard", folder .. "/moonshard" }) do
      local out = assert(io.popen(("PATH=%s:$PATH MOONSHARD_CUDA_LIBRARY= %s doctor"):format(folder, started)))
      local text = out:read("*a")
      out:close()
      has(text, folder .. "/libmoonshard_cuda.so: file too short")
    end
    os.execute("rm -r " .. folder)
  end)

  it("A1 doctor prints GPUs, versions and links", function()
    local found = json.decode(told("doctor").out).gpu
    assert.equal(2, #found.devices)
    assert.equal("9.0", found.devices[1].capability)
    assert.same({ 1 }, found.devices[1].peers)
    assert.equal("13.0", found.libraries.driver)
    assert.equal("2.28.9", found.libraries.nccl)
    assert.equal("13.1.0", found.libraries.cublasLt)
    assert.equal("9.19.0", found.libraries.cudnn)
    assert.is_nil(found.why)
    assert.same({ "windows", "copy_engines" }, found.nccl_options)
    has(told("older doctor").out, "nccl 2.27.9 (windows)")
  end)
end)
