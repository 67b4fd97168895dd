-- Gradients that replicas sum in 8 or 4 bits (mp_policy's reduce_dtype = { shard = "f32", replicate = "i8" }): real
-- ranks train tests/lua/formats/recipes/quantised_sums.lua.

local breadth = require("lua.support.breadth")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local json = require("moonshard.base.text.json")
local ms = require("moonshard")
local program = require("lua.support.program")
local runs = require("lua.formats.quantised_runs")
local scratch = require("lua.support.scratch")
local message, re = fixture.message, ms.re

local RECIPE, words_of = runs.RECIPE, runs.words_of
local STEPS = breadth.all and 50 or 25
local trained, measured, bytes_of_piece = runs.trained, runs.measured, runs.bytes_of_piece

describe("gradients that replicas sum in few bits", function()
  it("Q6 are the same bits on all replicas, in every run and on streams that are threads", function()
    for _, words in ipairs(breadth.few {
      { "replicate=i4", "layout=ragged" }, { "replicate=i8", "micro=3", "sync=shard", "dtype=bf16" },
      { "replicate=i8", "micro=2", "sync=every", "blocks_only=true" }, { "replicate=i8", "dim=34" },
    }) do
      for mesh, ranks in pairs({ ["2x2"] = breadth.all and 4 or nil, ["3x1"] = 3 }) do
        local first, replicas = trained(nil, ranks, "mesh=" .. mesh, "shared=false", unpack(words))
        assert.equal(tonumber(mesh:match("%d")), replicas)
        assert.equal(first, (trained(nil, ranks, "mesh=" .. mesh, "shared=false", unpack(words))))
        assert.equal(first, (trained("MOONSHARD_STREAMS=threads", ranks, "mesh=" .. mesh, "shared=false",
          unpack(words))))
      end
    end
  end)

  -- Losses and norms are sums in f32, whose order is that of hosts.
  it("Q6 do not depend on which replicas share a host, or a copy of the state #release", function()
    local function parameters(...) return (trained(nil, ...):match("parameters .*")) end
    for _, bits in ipairs(breadth.few { "i8", "i4" }) do
      local words = { "mesh=4x1", "clip=0", "replicate=" .. bits }
      local together = parameters(4, unpack(words))
      assert.equal(together, parameters(4, "shared=false", unpack(words)))
      for _, hosts in ipairs(breadth.few({ "a:2,b:2", "a:1,b:1,c:1,d:1", "a:3,b:1" })) do
        assert.equal(together, parameters(hosts, unpack(words)))
      end
    end
  end)

  it(("Q6 train as in f32 for %d steps: losses within 1 %% in 8 bits, 5 %% in 4 #release"):format(STEPS), function()
    for _, mesh in ipairs(breadth.few { "2x2", "4x1" }) do
      local f32 = measured(4, "mesh=" .. mesh, "replicate=", "steps=" .. STEPS).losses
      assert.is_true(f32[STEPS] < 0.5 * f32[1], "it learns: " .. f32[STEPS])
      for bits, bound in pairs({ i8 = 0.01, i4 = 0.05 }) do
        local losses = measured(4, "mesh=" .. mesh, "replicate=" .. bits, "steps=" .. STEPS).losses
        for step = 1, STEPS do
          assert.is_true(math.abs(losses[step] - f32[step]) <= bound * f32[1],
            ("%s, step %d: %g, not %g"):format(bits, step, losses[step], f32[step]))
        end
      end
    end
  end)

  it("Q6 move the bytes of their codes and scales, as planned, and over hosts nothing else #release", function()
    -- A parameter of each size: [dim, dim] and [4 dim, dim] weights, biases and norms, embeddings.
    local dim, sizes = 36, {}
    for _, size in ipairs({ 41 * dim, 9 * dim, dim, dim, 41 * dim }) do sizes[#sizes + 1] = size end
    for _ = 1, 2 do
      for _, size in ipairs({ dim, dim, dim, dim, 4 * dim * dim, 4 * dim, 4 * dim * dim, dim }) do
        sizes[#sizes + 1] = size
      end
      for _ = 1, 4 do
        sizes[#sizes + 1] = dim * dim
        sizes[#sizes + 1] = dim
      end
    end
    for bits, number in pairs({ i8 = 8, i4 = 4 }) do
      for _, replicas in ipairs(breadth.all and { 2, 3 } or { bits == "i8" and 3 or 2 }) do
        local expected = 0
        for _, size in ipairs(sizes) do
          expected = expected + 2 * (replicas - 1) * bytes_of_piece(number, size, replicas)
        end
        local mesh = "mesh=" .. replicas .. "x1"
        local one = measured(replicas, mesh, "replicate=" .. bits, "steps=1")
        local totals = one.bytes.replicate - expected -- the norm and the loss
        assert.is_true(totals >= 0 and totals <= 32, one.bytes.replicate .. ", not " .. expected)
        assert.equal(one.plan.replicate, one.bytes.replicate)
        local hosts = replicas == 2 and "a:1,b:1" or "a:1,b:1,c:1"
        local over_hosts = measured(hosts, mesh, "replicate=" .. bits, "steps=1")
        assert.is_true(over_hosts.wire.replicate >= expected and over_hosts.wire.replicate <= expected + 32,
          over_hosts.wire.replicate .. ", not " .. expected)
      end
    end
  end)

  it("Q6 of ranks whose slices have padding in other places have plans that agree #release", function()
    trained(nil, 3, "mesh=3x1", "replicate=i4", "dim=6", "layout=ragged", "steps=1")
  end)

  it("Q6 train as one rank does, within what their rounding allows: moonshard check", function()
    local _, equals_one_rank = program.checks {
      i8 = { "check", RECIPE, "-n", "4", "mesh=2x2", "replicate=i8" },
      i4 = { "check", RECIPE, "-n", "3", "mesh=3x1", "replicate=i4", "layout=ragged" },
      accumulated = { "check", RECIPE, "-n", "4", "mesh=2x2", "replicate=i8", "micro=2", "sync=shard" },
    }
    equals_one_rank("i8", "i4", "accumulated")
  end)

  it("Q6 on emulated GPUs they are those of the CPU, bit for bit, in graphs and with windows of NCCL", function()
    local commands = { cpu = words_of(4, "mesh=2x2", "shared=false"), graph = words_of(4, "mesh=2x2"),
      windows = words_of(4, "mesh=2x2") }
    for name, option in pairs({ graph = "--cuda-graph", windows = "--nccl-windows" }) do
      for place, word in ipairs({ "--device", "cuda", option }) do table.insert(commands[name], 2 + place, word) end
      commands[name].environment = program.emulated_cuda("MOONSHARD_EMULATE_JITTER=50")
    end
    local ended = program.run_all(commands)
    local function parameters(name)
      assert.equal(0, ended[name].status, ended[name].err)
      return ended[name].out:match("parameters %S+")
    end
    assert.equal(parameters("cpu"), parameters("graph"))
    assert.equal(parameters("cpu"), parameters("windows"))
  end)

  it("Q6 on emulated GPUs they move the bytes of the CPU #release", function()
    local words = { "mesh=2x2", "steps=3", "clip=0" }
    for _, bits in ipairs(breadth.few({ "i8", "i4" })) do
      local out = { cpu = os.tmpname(), cuda = os.tmpname() }
      local commands = {}
      for device, path in pairs(out) do
        commands[device] = words_of(4, "replicate=" .. bits, "out=" .. path, unpack(words))
      end
      table.insert(commands.cuda, 3, "--device")
      table.insert(commands.cuda, 4, "cuda")
      commands.cuda.environment = program.emulated_cuda("MOONSHARD_EMULATE_JITTER=50")
      local ended, read = program.run_all(commands), {}
      for device, path in pairs(out) do
        assert.equal(0, ended[device].status, ended[device].err)
        read[device] = json.decode(scratch.read(path))
        os.remove(path)
      end
      for step = 1, 3 do
        assert.is_true(math.abs(read.cpu.losses[step] - read.cuda.losses[step]) <= 1e-3 * read.cpu.losses[1])
      end
      assert.same(read.cpu.bytes.replicate, read.cuda.bytes.replicate)
    end
  end)
end)

-- Gradients that are finite on each rank, and whose sum is not.
local OVERFLOW = [[
  local ms = require "moonshard"
  local cfg = ms.args { mesh = "2x1", replicate = "i8", shard = "f32" }
  local Net = ms.module "Net"
  function Net:init() self.a, self.b = ms.nn.linear(16, 32), ms.nn.linear { 32, 16, bias = false } end
  function Net:forward(x) return self.b(self.a(x)) end
  local model = Net()
  ms.fully_shard(model, { mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }),
    units = { "a", "b" }, mp_policy = { reduce_dtype = { replicate = cfg.replicate, shard = cfg.shard } } })
  local function loss(y, t) return ms.ops.sum((y - ms.ops.detach(y)) * t, { all = true }) end
  local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1 }, loss = loss }
  train:step { inputs = ms.ones({ 4, 16 }) * 0.01, targets = ms.ones({ 4, 16 }) * 7e37 }
]]

describe("a sum in few bits that overflows", function()
  it("Q6 ends the run, and is reported by parameter, type and dimension", function()
    local path = program.recipe(OVERFLOW)
    for words, facts in pairs({
      ["mesh=2x1"] = "summed in i8 over replicate", ["mesh=2x1 replicate=i4"] = "summed in i4 over replicate",
      ["mesh=1x2 replicate=f32 shard=i8"] = "summed in i8 over shard",
      ["mesh=2x1 replicate=f32"] = "summed",
    }) do
      local command = { "run", path, "-n", "2" }
      for word in words:gmatch("%S+") do command[#command + 1] = word end
      local ended = program.run(command)
      assert.equal(3, ended.status, ended.err)
      has(ended.err, "step 1 | gradient of a.bias | element | " .. facts)
      assert.is_nil(ended.err:find("_pieces", 1, true), ended.err)
    end
    os.remove(path)
  end)
end)

describe("mp_policy with a type for replicas", function()
  local function shard(reduce_dtype, more)
    local options = { mesh = ms.init_device_mesh("cpu", { 1, 1 }, { "replicate", "shard" }), units = { "0" },
      mp_policy = { reduce_dtype = reduce_dtype } }
    for name, value in pairs(more or {}) do options[name] = value end
    return ms.fully_shard(ms.nn.sequential { ms.nn.linear(4, 4) }, options).sharding
  end
  local function refuses(reduce_dtype, expected, more)
    has(message(shard, reduce_dtype, more), expected)
  end

  it("Q5 says what a dimension cannot do #release", function()
    refuses("i8", 'reduce_dtype must be "f32", "bf16" or "auto", not "i8" | { shard = "f32", replicate = "i8" }')
    refuses("i2", 'reduce_dtype | "i2" | "i8" or "i4"')
    has(message(shard, "f32", { error_feedback = true }), "error_feedback | reduce_dtype")
    refuses({ shard = "i8", replicate = "bf16" }, 'replicate must be "i8" or "i4" | "f32" | shard | not "bf16"')
    refuses({ shard = "nf4" }, 'shard must be "f32", "bf16" or "auto", not "nf4"')
    refuses({ shard = "bf16", error_feedback = true }, 'error_feedback | sums in "i8" or "i4" | shard or replicate')
    refuses({ shard = "i8", error_feedback = 1 }, "error_feedback must be true or false, not 1")
    refuses({ shard = "i4" }, 'shard = "i4" | mesh 1 (replicate) | shards',
      { mesh = ms.init_device_mesh("cpu", { 1 }, { "replicate" }) })
    refuses({ shard = "f32", replicate = "bf16" }, 'replicate must be "i8" or "i4" | "f32" | not "bf16"')
    refuses({ replicate = "nf4" }, 'replicate must be "i8" or "i4" | not "nf4"')
    refuses({ tensor = "i8" }, 'unknown field tensor | replicate, shard | { shard = "f32", replicate = "i8" }')
    refuses({ replicat = "i8" }, "unknown field replicat: | replicate?")
    refuses({ replicate = "i8" }, 'replicate = "i8" | mesh 1 (shard) | replicates',
      { mesh = ms.init_device_mesh("cpu", { 1 }, { "shard" }) })
  end)

  it("Q5 refuses units that sum their gradients otherwise #release", function()
    for option, value in pairs({ shard_optimizer_over_replicate = true,
      replicate_sync = { every = 4, outer = ms.optim.sgd { lr = 0.7 } } }) do
      local model = ms.nn.sequential { ms.nn.linear(4, 4) }
      has(message(function()
        ms.fully_shard(model, { mesh = ms.init_device_mesh("cpu", { 1, 1 }, { "replicate", "shard" }),
          mp_policy = { reduce_dtype = { replicate = "i4" } }, [option] = value })
        return ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 1 } }:step {
          inputs = ms.randn { 2, 4 }, targets = ms.randn { 2, 4 } }
      end), 'reduce_dtype.replicate | i4 | root | ' .. option)
    end
  end)

  it("Q5 is a rule like any other, which explain tells #release", function()
    local sharding = shard({ shard = "bf16", replicate = "i8" })
    assert.equal("bf16", sharding.units[1].reduce_dtype)
    assert.equal("i8", sharding.units[1].replicate_dtype)
    assert.is_nil(shard({ shard = "bf16", replicate = "bfloat16" }).units[1].replicate_dtype)
    assert.equal("i8", shard(nil, { mp_policy = { { re[[^0$]], { reduce_dtype = { replicate = "int8" } } } } })
      .units[1].replicate_dtype)
    local ended = program.run({ "explain", RECIPE, "-n", "4", "blocks_only=true" })
    assert.equal(0, ended.status, ended.err)
    has(ended.out, "params f32, reduce f32, over replicate i8 | params f32, reduce f32")
    assert.is_nil(ended.out:find("one rank", 1, true))
    -- A sum of one rank is none, which sweeps over shapes of meshes have, too.
    ended = program.run({ "explain", RECIPE, "-n", "2", "mesh=1x2", "blocks_only=true" })
    assert.equal(0, ended.status, ended.err)
    has(ended.out, "params f32, reduce f32, over replicate i8 (one rank: no sum)")
  end)
end)
