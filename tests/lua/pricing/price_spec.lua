-- moonshard price: the numbers of a plan on a cluster, its trace, and tables of meshes.

local cluster = require("moonshard.price.cluster")
local decode = require("moonshard.base.text.json").decode
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local refused = program.refused
local LLAMA = { "recipes/llama.lua", "-n", "16", "size=1B", "seq=512", "batch=1" }

local function with(command, arguments, more)
  local words = { command, unpack(arguments) }
  for _, word in ipairs(more) do words[#words + 1] = word end
  return words
end

local function run(words)
  local ended = program.run(words)
  assert.equal(0, ended.status, ended.err)
  return ended.out
end

local function priced(more) return decode(run(with("price", LLAMA, { "--json", unpack(more) }))) end

local function planned(more)
  return decode(run(with("plan", LLAMA, { "--device", "cuda", "--ranks-per-node", "8", "--json", unpack(more) })))
end

-- A description of hosts with two ranks each and a network.
local function two_hosts()
  local path = scratch.path() .. ".lua"
  scratch.write(path, [[return { extends = "cpu-example",
    network = { rails = { 1, "here" }, rail = { "1 Gbit/s", "here" } },
    links = { memory = { step_between = { "50 us", "here" }, between = { "90 %", "here" } } } }]])
  return path
end

-- The operations of forward and backward, without what fused kernels recompute.
local function flops_of(plan)
  for _, phase in ipairs(plan.phases) do
    if phase.name == "first" then return phase.flops end
  end
end

describe("moonshard price", function()
  teardown(scratch.clear)

  it("a description's accuracy follows the time", function()
    local path = scratch.path() .. ".lua"
    scratch.write(path, [[return { extends = "h100x8-400g", accuracy = { "8 %", "here" } }]])
    has(run({ "price", "--cluster", path, unpack(LLAMA) }), "ms +-8 %")
    assert.is_nil(run({ "price", "--cluster", "h100x8-400g", unpack(LLAMA) }):find("+-", 1, true))
  end)

  it("E4 prints the memory, the bytes and the operations of the plan", function()
    for _, mesh in ipairs({ "mesh=2x8", "mesh=1x16" }) do
      local price, plan = priced({ "--cluster", "h100x8-400g", mesh }), planned({ mesh })
      local bytes = 0
      for _, of in pairs(plan.bytes) do bytes = bytes + of end
      assert.equal(bytes, price.peak_bytes)
      assert.equal(plan.fingerprint, price.fingerprint)
      local ops = 0
      for _, op in ipairs(price.ops) do ops = ops + op.flops end
      assert.equal(ops, price.flops)
      assert.truthy(price.flops >= flops_of(plan) and price.flops <= 1.01 * flops_of(plan))
      local summary = decode(run(with("plan", LLAMA, { "--device", "cuda", "--ranks-per-node", "8", "--summary",
        "--json", mesh })))
      assert.same(summary.comm_bytes, price.comm_bytes)
      assert.equal(16 * 512, price.tokens)
    end
  end)

  it("E4 adds up: a step is its kernels, its waits and its gaps", function()
    local small, larger = { "recipes/llama.lua", "-n", "4" }, { "recipes/llama.lua", "-n", "8" }
    local cases = { { LLAMA, "--cluster", "h100x8-25gbe", "mesh=2x8" },
      { LLAMA, "--cluster", "h100x8-3200g", "mesh=16x1" }, { small, "--cluster", two_hosts(), "mesh=2x2" },
      { small, "--cluster", two_hosts(), "mesh=1x4" }, { larger, "--cluster", two_hosts(), "mesh=2x4" },
      { larger, "--cluster", two_hosts(), "mesh=1x4x2" } }
    for _, arguments in ipairs(cases) do
      local price = decode(run(with("price", arguments[1], { "--json", unpack(arguments, 2) })))
      local waiting, exposed, ops, of_dim = 0, 0, 0, {}
      for _, entry in ipairs(price.exposed) do
        exposed, of_dim[entry.dim] = exposed + entry.ms, (of_dim[entry.dim] or 0) + entry.ms
      end
      for dim, ms in pairs(price.waiting_ms) do
        waiting = waiting + ms
        assert.near(ms, of_dim[dim] or 0, 1e-6 * price.step_ms, dim)
      end
      for _, op in ipairs(price.ops) do ops = ops + op.ms end
      assert.truthy(math.abs(waiting - price.exposed_ms) < 1e-6 * price.step_ms)
      assert.truthy(math.abs(exposed - waiting) < 1e-6 * price.step_ms, exposed .. " of " .. waiting)
      assert.truthy(math.abs(ops - price.kernels_ms) < 1e-6 * price.step_ms)
      local sum = price.kernels_ms + waiting + price.issuing_ms + price.gaps_ms
      assert.truthy(math.abs(sum - price.step_ms) < 1e-6 * price.step_ms, sum .. " of " .. price.step_ms)
      assert.truthy(price.mfu > 0 and price.mfu < 1 and price.hfu > 0)
      local critical = price.critical_ms -- of devices with streams
      assert.equal(arguments[1] == LLAMA, critical ~= nil)
      if critical then
        local path = critical.kernels + critical.rest
        for _, ms in pairs(critical.collectives) do path = path + ms end
        assert.near(price.step_ms, path, 1e-6 * price.step_ms)
        assert.truthy(critical.rest >= 0)
      end
      assert.truthy(math.abs(price.tokens / price.step_ms * 1e3 - price.tokens_per_s) < 1e-6 * price.tokens_per_s)
    end
  end)

  it("E4 says how what limits a step and what kernels wait for differ, where they do", function()
    local text = run(with("price", LLAMA, { "--cluster", "h100x8-25gbe", "mesh=2x8" }))
    has(text, "over replicate | waiting for: | limited by: | replicate, not shard")
    for line in text:gmatch("[^\n]+") do assert.truthy(#line <= 120, line) end
    has(run(with("price", LLAMA, { "--cluster", "h100x8", "-n", "1", "mesh=1x1" })), "limited by compute")
  end)

  it("E4 counts the bytes of all micro-batches of a step", function()
    local path = program.recipe([==[
      local ms = require "moonshard"
      local cfg = ms.args { micro = 1, mesh = "1x-1" }
      local model = ms.models.gpt2 { vocab = 64, layers = 2, dim = 64, heads = 2, seq = 16 }
      ms.fully_shard(model, { mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }) })
      local train = ms.trainer { model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.adamw { lr = 1e-3 },
        micro_batches = cfg.micro }
      for _, batch in ms.data.text { files = cfg.files, seq = 16, batch = 4 }:batches(1) do train:step(batch) end
    ]==])
    local function of(micro)
      local price = decode(run({ "price", path, "-n", "8", "--cluster", "h100x8", "micro=" .. micro, "--json" }))
      local gathers = 0
      for _, phase in ipairs(price.phases) do gathers = gathers + (phase.name == "next" and phase.runs or 0) end
      return price.comm_bytes.shard, gathers
    end
    local one, none = of(1)
    local four, more = of(4)
    assert.equal(0, none)
    assert.equal(3, more)
    assert.near(4, four / one, 1e-3) -- but for the norm, which is summed once
  end)

  it("E4 counts the parameters that a token uses, and frozen ones without a gradient, in MFU", function()
    local function mfu(...)
      local price = decode(run({ "price", "--cluster", "h100x8", "-n", "8", "--json", ... }))
      return price.mfu * price.step_ms / 1e3 * 8 * 67e12 / price.tokens, price.mfu_counts, price
    end
    -- 2 of 8 experts of 3 x 128 x 192 in each of 4 layers; the rest of the recipe's parameters are used by every token.
    local used = 2 * 256 * 128 + 128 + 4 * (2 * 128 + 128 * (128 + 64 + 64 + 128) + 8 * 128 + 8 + 2 * 3 * 128 * 192)
    local operations, counts, price = mfu("recipes/mixture_of_experts.lua")
    assert.near(6 * used + 12 * 4 * 128 * 128, operations, 1e-6 * operations)
    has(counts, "6 N | a token uses")
    assert.truthy(price.mfu < 1.5 * price.hfu)
    local adapters = 4 * 8 * (256 + 256 + 256 + 128) -- of wq and wv, with 8 heads of which 4 have keys
    local frozen = 2 * 256 * 256 + 256 + 4 * (2 * 256 + 256 * (256 + 128 + 128 + 256) + 3 * 256 * 704)
    operations, counts = mfu("recipes/lora.lua", "dtype=f32")
    assert.near(6 * adapters + 4 * frozen + 12 * 4 * 256 * 256, operations, 1e-6 * operations)
    has(counts, "6 N | 4 N frozen")
  end)

  it("E4 prices the cores that a description has, whichever machine this is", function()
    local path = scratch.path() .. ".lua"
    scratch.write(path, [[return { extends = "cpu-example", ranks_per_node = { 4, "here" },
      device = { cores = { 64, "here" } } }]])
    local function step(ranks, environment)
      local ended = program.run({ "price", "recipes/llama.lua", "-n", ranks, "--cluster", path, "--json" }, environment)
      assert.equal(0, ended.status, ended.err)
      return decode(ended.out)
    end
    assert.equal(step("4", "OMP_NUM_THREADS=16").step_ms, step("4", "env -u OMP_NUM_THREADS").step_ms)
    local alone = decode(run({ "price", "recipes/llama.lua", "-n", "1", "--cluster", "cpu-example", "--json" }))
    assert.truthy(alone.hfu < 1 and alone.room_bytes == 16e9) -- it has the node for itself
  end)

  it("E4 averages over the steps between two syncs of local SGD", function()
    local function of(every, more)
      return decode(run({ "price", "tests/lua/recipes/local_sgd.lua", "-n", "16", "mesh=2x8", "every=" .. every,
        "--cluster", "h100x8-25gbe", "--json", unpack(more or {}) }))
    end
    local two, many = of(2), of(1000)
    local outer = two.phases[#two.phases]
    assert.equal("outer", outer.name)
    assert.equal(0.5, outer.runs)
    local phase_gap = 1e3 * cluster.load("h100x8-25gbe"):struct().phase_gap
    local expected = (1 / 2 - 1 / 1000) * (outer.ms + phase_gap)
    assert.truthy(math.abs(two.step_ms - many.step_ms - expected) < 1e-9 * two.step_ms)
    local sum = two.gaps_ms
    for _, phase in ipairs(two.phases) do sum = sum + phase.runs * phase.ms end
    assert.truthy(math.abs(sum - two.step_ms) < 1e-9 * sum)
    local ops = 0
    for _, op in ipairs(two.ops) do ops = ops + op.flops end
    assert.truthy(math.abs(ops - two.flops) < 1e-9 * ops)
    has(run({ "price", "tests/lua/recipes/local_sgd.lua", "-n", "16", "mesh=2x8", "every=2", "--cluster",
      "h100x8-25gbe" }), "one in 2 synchronises")
  end)

  it("E4 says of local SGD which step a trace shows, and what a delay does to the price", function()
    local trace = scratch.path()
    local function of(...)
      return run({ "price", "tests/lua/recipes/local_sgd.lua", "-n", "16", "--cluster", "h100x8-25gbe", "every=4",
        ... })
    end
    has(of("mesh=2x8", "--trace", trace), "one in 4 synchronises | --trace")
    has(scratch.read(trace), "rank 0 | synchronises | one in 4")
    has(of("mesh=2x8", "delay=2"), "delay | most")
    local text = of("delay=2", "--mesh-list", "2x8,4x4")
    has(text, "local SGD | delay | most")
    assert.is_nil(of("--mesh-list", "2x8,4x4"):find("local SGD", 1, true))
    assert.same({ every = 4, upper_bound = true }, decode(of("mesh=2x8", "delay=2", "--json")).local_sgd)
  end)

  it("E4 says that attention counts all pairs, since its rate can be above the peak", function()
    has(run({ "price", LLAMA[1], "-n", "16", "--cluster", "h100x8-400g", "size=1B", "seq=4096", "batch=1" }),
      "attention | all pairs | causal")
  end)

  it("E4 counts the tokens of a run: of targets, or else of the first array of a batch", function()
    local recipe = scratch.path() .. ".lua"
    scratch.write(recipe, [[
      local ms = require "moonshard"
      local cfg = ms.args { mesh = "1x-1" }
      local model = ms.nn.linear(10, 10)
      ms.fully_shard(model, { mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }) })
      local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-3 },
        forward = function(m, b) return ms.loss.mse(m(b.at), b.to * b.weight) end }
      local function zeros(n, shape)
        return { data = require("ffi").new("float[?]", n), dtype = "f32", shape = shape }
      end
      train:step { at = zeros(80, { 8, 10 }), to = zeros(80, { 8, 10 }), weight = zeros(8, { 8, 1 }), data_ms = 1 }
    ]])
    local price = decode(run({ "price", recipe, "-n", "4", "--cluster", "h100x8", "--json" }))
    assert.equal(4 * 80, price.tokens)
    assert.equal(0, program.run({ "tune", recipe, "-n", "4", "--cluster", "h100x8", "--json" }).status)
  end)

  it("E4 charges one start for the parameters that a launch of AdamW updates", function()
    local recipe, slow = scratch.path() .. ".lua", scratch.path() .. ".lua"
    scratch.write(slow, [[return { extends = "h100x8", device = { kernel_start = { "1 s", "here" } } }]])
    scratch.write(recipe, [[
      local ms = require "moonshard"
      local cfg = ms.args { mesh = "1x-1", vectors = 1, moments = "f32", groups = 1 }
      local Vectors = ms.module "Vectors"
      function Vectors:init()
        for i = 1, cfg.vectors do self["v" .. i] = ms.parameter { 4096, init = "ones" } end
      end
      function Vectors:forward(x)
        for i = 1, cfg.vectors do x = x * self["v" .. i] end
        return x
      end
      local model = Vectors()
      ms.fully_shard(model, { mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }) })
      local groups = {}
      for i = 2, cfg.groups do groups[i - 1] = { "v" .. i, { betas = { 0.5 + i / 100, 0.9 } } } end
      local optimizer = ms.optim.adamw { lr = 1e-3, moments = cfg.moments, groups = groups }
      local train = ms.trainer { model = model, optimizer = optimizer,
        forward = function(m, b) return ms.loss.mse(m(b.inputs), b.inputs) end }
      train:step { inputs = { data = require("ffi").new("float[4096]"), dtype = "f32", shape = { 1, 4096 } } }
    ]])
    local function starts(...)
      for _, phase in ipairs(decode(run({ "price", recipe, "-n", "1", "--cluster", slow, "--json", ... })).phases) do
        if phase.name == "update" then return math.floor(phase.ms / 1e3) end
      end
    end
    local one = starts()
    assert.equal(one, starts("vectors=40"))
    assert.equal(one + 1, starts("vectors=41"))
    assert.equal(one + 40, starts("vectors=41", "moments=i8"))
    assert.equal(one + 9, starts("vectors=40", "groups=10"))
  end)

  it("E4 compares memory with a trainer's memory_limit where that is less than the device has", function()
    local path = scratch.path() .. ".lua"
    local function limited(limit, ...)
      local option = ("%%0 memory_limit = %q,"):format(limit)
      scratch.write(path, (scratch.read("recipes/llama.lua"):gsub("clip_grad_norm = 1%.0,", option)))
      return run({ "price", path, "-n", "8", "--cluster", "h100x8", "seq=64", ... })
    end
    local found = decode(limited("1MiB", "--json"))
    assert.same({ 2 ^ 20, false, "memory" }, { found.room_bytes, found.fits, found.limit.kind })
    has(limited("1MiB"), "DOES NOT FIT | 1.0 MiB | memory_limit")
    assert.is_true(decode(limited("1GiB", "--json")).fits)
    assert.is_nil(limited("999GiB"):find("memory_limit", 1, true))
  end)

  it("E4 refuses memory that a device does not have, by the sizes of both", function()
    local room = cluster.load("a100-40x8"):room()
    local fits, none = priced({ "--cluster", "a100-40x8", "mesh=1x16" }), scratch.path() .. ".lua"
    assert.truthy(fits.fits and fits.room_bytes == room)
    scratch.write(none, [[return { extends = "a100-40x8", device = { memory = { "2 GB", "here" },
      reserved = { "1 GB", "here" } } }]])
    local price = priced({ "--cluster", none, "mesh=1x16" })
    assert.falsy(price.fits)
    assert.equal(1e9, price.room_bytes)
    assert.equal("memory", price.limit.kind)
    has(run(with("price", LLAMA, { "--cluster", none, "mesh=1x16" })), "DOES NOT FIT")
  end)

  it("E2 writes a trace that moonshard trace accepts, of the plan's kernels and collectives", function()
    local cases = {
      { recipe = LLAMA, more = { "--cluster", "h100x8-400g", "mesh=2x8" } },
      { recipe = { "tests/lua/recipes/trouble.lua", "-n", "2" },
        more = { "--cluster", "cpu-example", "micro_batches=4" } },
      { recipe = { "recipes/hybrid.lua", "-n", "4" },
        more = { "--cluster", two_hosts(), "mesh=2x2", "accumulate=2", "shard_optimizer=true" } },
    }
    for _, case in ipairs(cases) do
      local path = scratch.path()
      local price = decode(run(with("price", case.recipe, { "--json", "--trace", path, unpack(case.more) })))
      local sum = decode(run({ "trace", path, "--json" }))
      assert.truthy(math.abs(sum.step_ms - price.step_ms) < 1e-3)
      assert.truthy(math.abs(sum.kernel_ms - price.kernels_ms) < 1e-3 * sum.kernels)
      local calls, runs = 0, 0
      for _, op in ipairs(price.ops) do calls = calls + op.calls end
      assert.equal(calls, sum.kernels)
      for _, phase in ipairs(price.phases) do runs = runs + phase.runs end
      local slices = 0
      for _, phase in ipairs(sum.phases) do slices = slices + phase.calls end
      assert.equal(runs, slices)
      assert.truthy(sum.collectives > 0)
    end
  end)

  it("E4 has the names of a real trace of the same recipe", function()
    local real, predicted = scratch.path(), scratch.path()
    local settings = { "tests/lua/recipes/trouble.lua", "-n", "2" }
    run(with("run", settings, { "--trace", real }))
    run(with("price", settings, { "--cluster", "cpu-example", "--trace", predicted }))
    local function names(path)
      local sum, set = decode(run({ "trace", path, "--json" })), {}
      for _, list in ipairs({ sum.ops, sum.by_collective, sum.units, sum.phases }) do
        for _, entry in ipairs(list) do set[entry.name] = true end
      end
      return set
    end
    local of_run = names(real)
    for name in pairs(names(predicted)) do assert.truthy(of_run[name], name) end
  end)

  it("E4 sorts a list of meshes by tokens per second, and lists those that are refused", function()
    local list = decode(run(with("price", LLAMA, { "--cluster", "h100x8-400g", "--json", "--mesh-list",
      "16x1,2x8,1x16,3x5" })))
    assert.equal(4, #list)
    for i = 2, 3 do
      if list[i - 1].fits == list[i].fits then assert.truthy(list[i - 1].tokens_per_s >= list[i].tokens_per_s) end
    end
    assert.equal("3x5", list[4].mesh)
    has(list[4].refused, "15 ranks | 16")
    local one = priced({ "--cluster", "h100x8-400g", "mesh=2x8" })
    for _, record in ipairs(list) do
      if record.mesh == "2x8" then
        assert.equal(one.step_ms, record.step_ms)
        assert.equal(one.fingerprint, record.fingerprint)
      end
    end
    local text = run(with("price", LLAMA, { "--cluster", "h100x8-400g", "--mesh-list", "2x8, 1x16,3x5" }))
    for _, words in ipairs({ "mesh | tokens/s | MFU", "2x8", "1x16", "refused", "3x5" }) do has(text, words) end
  end)

  it("E1 refuses what does not fit the cluster", function()
    local function bad(more, ...) refused(2, with("price", LLAMA, more), ...) end
    bad({}, "--cluster | h100x8-400g")
    bad({ "--cluster", "h100x8", "mesh=2x8" }, "h100x8 | 8 ranks | network")
    bad({ "--cluster", "h100x8-400g", "--mesh-list", "2x8", "mesh=2x8" }, "mesh=2x8 | --mesh-list")
    bad({ "--cluster", "h100x8-400g", "mesh=2x8,1x16" }, "mesh=2x8,1x16 | --mesh-list 2x8,1x16")
    local path = scratch.path() .. ".lua"
    for _, network in ipairs({ '"400 Gbit/s"', "{ 8 }", '{ rails = { 8, "here" } }' }) do
      scratch.write(path, ('return { extends = "h100x8", network = %s }'):format(network))
      bad({ "--cluster", path }, 'network | rails = { 8, | rail = { "400 Gbit/s",')
    end
    bad({ "--cluster", "h100x8-400g", "--mesh-list", "2y8" }, "2y8")
    bad({ "--cluster", "h100x8-400g", "--mesh-list", "2x8", "--trace", "x" }, "--trace")
    bad({ "--cluster", "h100x8-400g", "--mesh-list", "3x5,5x3" }, "15 ranks | 16")
    refused(2, { "price", LLAMA[1], "-n", "12", "--cluster", "h100x8-400g" }, "-n 12 | multiple | 8")
  end)
end)
