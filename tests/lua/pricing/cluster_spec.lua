-- Descriptions of clusters: the shipped ones, those of users, and mistakes in them.

local cluster = require("moonshard.price.cluster")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local quantity = require("moonshard.price.quantity")
local scratch = require("lua.support.scratch")

-- A description of a CPU.
local WHOLE = [[
return {
  ranks_per_node = { 2, "here" },
  device = {
    kind = "cpu", cores = { 2, "here" }, memory = { "4 GiB", "here" }, peak = { f32 = { "100 GFLOP/s", "here" } },
    clock = { "100 %", "here" }, product = { efficiency = { "90 %", "here" }, k_half = { 64, "here" } },
    attention = { forward = { "40 %", "here" }, backward = { "40 %", "here" }, keys_half = { 64, "here" },
      causal = { "60 %", "here" } },
    memory_rate = { "10 GB/s", "here" }, memory_half = { "4 KB", "here" }, kernel_start = { "1 us", "here" },
    phase_gap = { "5 us", "here" }, step_gap = { "0.1 ms", "here" }, overlap = { "0 %", "here" },
  },
  links = { memory = { algorithm = "hosts", start = { "2 us", "here" }, step_inside = { "100 ns", "here" },
    inside = { "5 GB/s", "here" } } },
}
]]

local function written(text, path)
  path = path or scratch.path() .. ".lua"
  scratch.write(path, text)
  return path
end

-- A description that extends the whole one by a Lua table.
local function changed(fields)
  local base = written(WHOLE)
  return written(("return { extends = %q, %s }"):format(base, fields))
end

-- The field `kernels` with one measured kernel, one of whose fields is another.
local function kernel(other)
  local name, fields = other:match("^%l+"), { 'op = "matmul"', 'shape = "product"', 'dtype = "f32"', "variant = 0",
    "threads = 1", "size = { 1, 8, 16, 32 }", "flops = 8192", "bytes = 1792", 'time = "3 us"' }
  for i, field in ipairs(fields) do
    if field:match("^%l+") == name then fields[i] = other end
  end
  return ('kernels = { source = "me", points = { { %s } } }'):format(table.concat(fields, ", "))
end

local function refused(fields, ...)
  local path = changed(fields)
  local text = fixture.message(cluster.load, path)
  for _, facts in ipairs({ ... }) do has(text, facts) end
  return text, path
end

describe("a description of a cluster", function()
  teardown(scratch.clear)

  it("E1 names the other links where a field of one is missing, since its name may be the mistake", function()
    refused('links = { memroy = { inside = { "6 GB/s", "here" } } }', "links.memroy.algorithm | memory")
  end)

  it("E1 names all missing fields of a group at once", function()
    refused("device = { clock = false, memory = false, memory_rate = false }",
      "device.clock, device.memory, device.memory_rate are missing: give them")
    refused("device = { clock = false }", "device.clock is missing: give it")
  end)

  it("E1 ends the question about an unknown field before it goes on", function()
    local path = written('return { extends = "h100x8-400g", network = { rial = { "400 Gbit/s", "here" } } }')
    local text = fixture.message(cluster.load, path)
    has(text, "network.rial | rail | rails")
    assert.is_nil(text:find("?.", 1, true))
  end)

  it("E1 has a source for every constant of each shipped description, and loads", function()
    assert.truthy(#cluster.names() >= 12)
    for _, name in ipairs(cluster.names()) do
      local one = cluster.load(name)
      assert.truthy(one:struct().links >= 1, name)
      assert.truthy(#one.constants > 20, name)
      for _, constant in ipairs(one.constants) do assert.truthy(#constant.source > 3, name .. ": " .. constant.path) end
      has(one:explain(), name)
    end
  end)

  it("E1 has each shipped file in its list", function()
    local listed = {}
    for _, name in ipairs(cluster.names()) do listed[name] = true end
    for name in pairs(require("moonshard.clusters.networks")) do assert.truthy(listed[name], name) end
    local files = io.popen("ls lua/moonshard/clusters/*.lua lua/moonshard/clusters/pytorch")
    for file in files:lines() do
      local name = file:match("([^/]*)%.lua$")
      assert.truthy(not name or name == "init" or name == "networks" or listed[name], file)
    end
    files:close()
  end)

  it("E1 reads units to bytes, seconds, operations and parts", function()
    local cases = {
      { "989 TFLOP/s", "flops", 989e12 }, { "80 GB", "bytes", 80e9 }, { "80 GiB", "bytes", 80 * 2 ^ 30 },
      { "3.35 TB/s", "rate", 3.35e12 }, { "400 Gbit/s", "rate", 50e9 }, { "12 us", "time", 12e-6 },
      { "1.5 ms", "time", 1.5e-3 }, { "90 %", "part", 0.9 }, { 132, "count", 132 }, { "8", "count", 8 },
      { "1e3 ns", "time", 1e-6 }, { "0.8 ns/B", "per_byte", 0.8e-9 },
    }
    for _, case in ipairs(cases) do
      local value = assert(quantity.read(case[1], case[2]))
      assert.truthy(math.abs(value - case[3]) <= 1e-12 * case[3], case[1])
    end
    for _, wrong in ipairs({ { "80", "bytes" }, { 80, "bytes" }, { "80 GB", "rate" }, { "12 us", "bytes" },
      { "x GB", "bytes" }, { "1.5", "count" }, { "90", "part" }, { {}, "time" }, { "1 ns", "per_byte" },
      { "1 ns/b", "per_byte" }, { "0x10 GB", "bytes" } }) do
      assert.is_nil((quantity.read(wrong[1], wrong[2])))
    end
  end)

  it("E1 is what the engine gets", function()
    local one = cluster.load(changed('device = { memory = { "8 GB", "here" } }'))
    local c = one:struct()
    assert.equal(8e9, c.memory)
    assert.equal(2, c.cores)
    assert.equal(100e9, c.peak[0])
    assert.equal(0, c.peak[1])
    assert.equal(1e10, c.memory_rate)
    assert.equal(5e9, c.link[0].inside)
    assert.equal(1, c.link[0].max_nodes) -- no network
    assert.truthy(math.abs(c.link[0].step_inside - 1e-7) < 1e-15)
    assert.equal(0, c.link[0].processor)
    local costly = cluster.load(changed('links = { memory = { processor = { "0.5 ns/B", "here" } } }'))
    assert.truthy(math.abs(costly:struct().link[0].processor - 5e-10) < 1e-18)
    local of_gpus = written('return { extends = "h100x8", links = { nvls = { processor = { "1 ns/B", "here" } } } }')
    has(fixture.message(cluster.load, of_gpus), "links.nvls.processor | cpu")
    local gpu = cluster.load("h100x8-400g"):struct()
    local simple = cluster.load("h100x8-3200g"):struct()
    for i = 0, gpu.links - 1 do
      if gpu.link[i].max_nodes ~= 1 then assert.truthy(gpu.link[i].between <= 50e9) end
    end
    assert.equal(gpu.links, simple.links)
  end)

  it("E1 divides the network's rate by its oversubscription", function()
    local function between(factor)
      local path = written(('return { extends = "h100x8-400g", network = { oversubscription = { %s, "here" } } }')
        :format(factor))
      local one = cluster.load(path)
      for i, name in ipairs(one.link_names) do
        if name == "ring_simple" then return one:struct().link[i - 1].between end
      end
    end
    assert.truthy(math.abs(between("1") / between("4") - 4) < 1e-9)
    has(fixture.message(between, "0.5"), "network.oversubscription | at least 1")
  end)

  it("E1 moves no more between nodes than the network does, whatever the rate of a link", function()
    local function rates(network)
      local one = cluster.load(written(('return { extends = "h100x8", network = { rails = { 1, "here" }, %s } }')
        :format(network)))
      local of = {}
      for i, name in ipairs(one.link_names) do of[name] = one:struct().link[i - 1].between end
      return of
    end
    local slow, fast = rates('rail = { "10 GB/s", "here" }'), rates('rail = { "100 GB/s", "here" }')
    assert.equal(5e9, slow.ring_ll) -- half of its bytes are flags
    assert.equal(20.4e9, fast.ring_ll)
    for name, rate in pairs(slow) do assert.truthy(rate <= 10e9, name) end
    assert.equal(2.5e9, rates('rail = { "10 GB/s", "here" }, oversubscription = { 2, "here" }').ring_ll)
    local own = cluster.load(changed('network = { rails = { 1, "here" }, rail = { "1 GB/s", "here" } }, links = { '
      .. 'memory = { step_between = { "9 us", "here" }, between = { "3 GB/s", "here" } } }'))
    assert.equal(1e9, own:struct().link[0].between)
  end)

  it("E1 names a field that is unknown, missing, without a unit or a source, or out of range", function()
    local cases = {
      { 'device = { memroy = { "4 GB", "here" } }', "device.memroy | unknown | memory" },
      { "device = { memory = false }", "device.memory | missing" },
      { 'device = { memory = "4 GB" }', 'device.memory | no source' },
      { 'device = { memory = { "4 GB" } }', 'device.memory | no source' },
      { 'device = { memory = { 4e9, "here" } }', "device.memory | no unit" },
      { 'device = { memory = { "4 Gb", "here" } }', "device.memory | Gb | 4 GB" },
      { 'device = { memory_rate = { "10 Gb/s", "here" } }', "device.memory_rate | 10 Gbit/s | 10 GB/s" },
      { 'device = { memory_rate = { "10 us", "here" } }', "device.memory_rate | 10 us | per second" },
      { 'device = { peak = { f32 = { "1 TFLOPS", "here" } } }', "device.peak.f32 | TFLOPS | TFLOP/s" },
      { 'device = { peak = { f33 = { "1 TFLOP/s", "here" } } }', "device.peak.f33 | f32" },
      { 'device = { clock = { "120 %", "here" } }', "device.clock | 120 % | at most 100 %" },
      { 'device = { memory_rate = { "1e-300 B/s", "here" } }', "device.memory_rate | 1e-300 B/s | at least 1" },
      { 'device = { memory = { "1e308 TB", "here" } }', "device.memory | 1e308 TB | at most 1e+18 B" },
      { 'device = { peak = { f32 = { "1e-300 FLOP/s", "here" } } }', "device.peak.f32 | at least 1" },
      { 'device = { overlap = { "95 %", "here" } }', "device.overlap | 90 %" },
      { 'device = { issue = { "1 us", "here" } }', "device.issue | cuda" },
      { 'device = { kind = "gpu" }', "device.kind | cuda" },
      { "device = 3", "device | table" },
      { "links = { memory = false }", "links | empty" },
      { 'links = { memory = { algorithm = "rings" } }', "links.memory.algorithm | ring" },
      { 'links = { memory = { kinds = { "allgather" } } }', "links.memory.kinds | all_gather" },
      { 'links = { memory = { kinds = { "all_gather" } } }', "links | none takes" },
      { "links = { other = false }", "links.other | removes nothing" },
      { 'links = { memory = { processor = { "8 ns", "here" } } }', "links.memory.processor | 8 ns | each byte" },
      { 'links = { memory = { processor = { "2 GB/s", "here" } } }', "links.memory.processor | 2 GB/s | 0.8 ns/B" },
      { 'links = { memory = { processor = { "2 s/B", "here" } } }', "links.memory.processor | 2 s/B | at most 1 s/B" },
      { 'links = { memory = { processor = { "-1 ns/B", "here" } } }', "links.memory.processor | at least 0" },
      { 'ranks_per_node = { 2.5, "here" }', "ranks_per_node | whole" },
      { 'network = { rails = { 1, "here" } }, links = { memory = { step_between = { "9 us", "here" }, between = '
        .. '{ "90 %", "here" } } }', "network.rail | missing" },
      { 'network = { rails = { 1, "here" }, rail = { "1 Gbit/s", "here" } }', "links.memory.between | missing" },
      { 'device = { kind = "gpu", attention = false }', "device.kind | cuda" }, -- what is given comes first
      { "kernels = { points = {} }", "kernels.source | missing" },
      { 'kernels = { source = "me", points = { { op = "matmull" } } }', "kernels.points[1].op | matmull" },
      { 'kernels = { source = "me", points = { first = {} } }', "kernels.points | list" },
      { kernel('threads = 1e10'), "kernels.points[1].threads | 2^31" },
      { kernel('variant = 1e300'), "kernels.points[1].variant | 2^31" },
      { kernel('flops = 1e300'), "kernels.points[1].flops | 1e30" },
      { kernel('time = "1e-300 s"'), "kernels.points[1] | 1e-300 | 1e-12" },
      { 'links = { memory = { kinds = { "all_gather", only = true } } }', "links.memory.kinds | list | only" },
      { 'device = { product = { tile_m = { 128, "here" }, tile_n = { 128, "here" } } }', "product.units | from 1" },
      { 'network = { rails = { 1, "here" }, rail = { "1 Gbit/s", "here" } }, links = { memory = { step_between = '
        .. '{ "9 us", "here" }, between = { "1e-20 %", "here" } } }', "links.memory: between | from 1" },
      { 'links = { memory = { between = { "500 %", "here" } } }', "links.memory.between | 500 % | at most 100 %" },
    }
    for _, case in ipairs(cases) do
      local text, path = refused(case[1], case[2])
      if not case[2]:find("missing") and not case[2]:find("none") then has(text, path) end
    end
  end)

  it("E1 names the file of a mistake in what it extends", function()
    local base = written('return { extends = "h100x8", device = { memory = { "80 Gbit", "here" } } }')
    local path = written(("return { extends = %q }"):format(base))
    has(fixture.message(cluster.load, path), base .. " | device.memory")
    for _, missing in ipairs({ "h100x9", "/nonexistent/h100.lua" }) do
      path = written(("return { extends = %q }"):format(missing))
      has(fixture.message(cluster.load, path), missing)
      has(fixture.message(cluster.load, path), path)
    end
    local own = scratch.path() .. ".lua"
    written(("return { extends = %q }"):format(own), own)
    has(fixture.message(cluster.load, own), "extends itself | " .. own)
    written('return { extends = "./' .. own:match("[^/]*$") .. '" }', own)
    has(fixture.message(cluster.load, own), "extends itself | " .. own)
    written('return { extends = "../' .. own:match("[^/]*/[^/]*$") .. '" }', own)
    has(fixture.message(cluster.load, own), "16 | " .. own)
    has(fixture.message(cluster.load, "h100x8-400"), "h100x8-400g")
    has(fixture.message(cluster.load, "mine.txt"), "like ./mine.txt")
    has(fixture.message(cluster.load, own .. "x.lua"), "No such file | --cluster")
    written('return { extends = "./none.lua" }', own)
    has(fixture.message(cluster.load, own), "none.lua | No such file | " .. own .. " extends it")
    written('return { extends = "h100x8-400" }', own)
    has(fixture.message(cluster.load, own), "h100x8-400g | " .. own .. ": extends h100x8-400")
  end)

  it("E1 is data alone", function()
    for text, fact in pairs({
      ["return os.time()"] = "os", ["while true do end"] = "end", ["return 3"] = "table, not a number",
      ["return {"] = "unexpected",
      ["return { about = function() end }"] = "about | function", ["return setmetatable({}, {})"] = "setmetatable",
      ['return { about = ("x"):rep(9) }'] = "string", ["return nil"] = "table, not a nil",
      ["local t = { 1 } for i = 1, 7 do local u = {} for k = 1, 200 do u['a' .. k] = t end t = u end return t"] =
        "more than 1000000 values",
    }) do
      has(fixture.message(cluster.load, written(text)), fact)
    end
    local compiled = written("\27LJ")
    has(fixture.message(cluster.load, compiled), compiled .. ": attempt to load")
    assert.equal("xx", ("x"):rep(2)) -- strings have their functions again
  end)

  it("E1 is as the guide shows one", function()
    local guide = scratch.read("recipes/guides/pricing.md"):match("```lua\n(.-)```")
    local one, base = cluster.load(written(guide)), cluster.load("h100x8-800g")
    assert.truthy(math.abs(one:struct().clock - 0.88) < 1e-12)
    assert.equal(base:struct().links - 1, one:struct().links)
  end)

  it("E1 takes measured kernels", function()
    local path = changed([[kernels = { source = "a stopwatch", points = { { op = "matmul", shape = "product",
      dtype = "bf16", variant = 2, threads = 1, size = { 1, 8, 16, 32 }, flops = 8192, bytes = 1792,
      time = "3 us" } } }]])
    local one = cluster.load(path)
    local c = one:struct()
    assert.equal(1, c.points)
    assert.equal(16, c.point[0].size[2])
    assert.truthy(math.abs(c.point[0].seconds - 3e-6) < 1e-15)
    has(one:explain(), "1 | stopwatch")
  end)

  it("E1 takes no measured kernel whose sizes count something else than its op's", function()
    refused(kernel('shape = "attention"'), 'kernels.points[1].shape | "attention" | matmul | "product"')
    refused(kernel('op = "attention"'), 'kernels.points[1].shape | "product" | attention | "attention"')
    refused(kernel('op = "add"'), 'kernels.points[1].shape | "product" | add | "other"')
  end)

  it("E1 is listed with its sources by moonshard price --constants", function()
    local ended = program.run({ "price", "--cluster", "h100x8-400g", "--constants" })
    assert.equal(0, ended.status, ended.err)
    has(ended.out, "device.peak.bf16 | 989 TFLOP/s | datasheet | network.rail | 400 Gbit/s")
    program.refused(2, { "price", "--cluster", "h100x8-400", "--constants" }, "h100x8-400g")
    program.refused(2, { "price", "recipes/toy_hsdp.lua" }, "--cluster | h100x8-400g")
  end)
end)
