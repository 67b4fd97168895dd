-- Gradients that shards sum in 8 or 4 bits (mp_policy's reduce_dtype = { shard = "i8" }), and what rounding leaves of
-- them (error_feedback): real ranks train tests/lua/formats/recipes/quantised_sums.lua.

local breadth = require("lua.support.breadth")
local program = require("lua.support.program")
local runs = require("lua.formats.quantised_runs")
local scratch = require("lua.support.scratch")
local trained, measured, parameters = runs.trained, runs.measured, runs.parameters

local DIM = 36
local STEPS = breadth.all and 50 or 25

-- Rows of the chunks into which so many shards cut a parameter in the layout `rows`, and elements of a row.
local function chunk_of(shape, shards) return math.ceil(shape[1] / shards), shape[2] or 1 end

describe("gradients that shards sum in few bits", function()
  teardown(scratch.clear)

  it("Q6 are the same bits in every run, on streams that are threads, and where replicas have copies", function()
    for _, words in ipairs(breadth.few {
      { "mesh=1x4", "replicate=", "shard=i8" }, { "mesh=2x2", "replicate=i8", "shard=i4", "feedback=true" },
      { "mesh=2x2", "replicate=", "shard=i8", "micro=3", "sync=shard", "layout=ragged" },
      { "mesh=2x2", "replicate=i4", "shard=i8", "micro=2", "sync=last", "dtype=bf16" },
      { "mesh=2x2", "replicate=i8", "shard=i8", "micro=2", "feedback=true", "dim=34" },
    }) do
      local first = trained(nil, 4, unpack(words))
      assert.equal(first, (trained(nil, 4, unpack(words))))
      assert.equal(first, (trained("MOONSHARD_STREAMS=threads", 4, unpack(words))))
      words[#words + 1] = "clip=0"
      assert.equal(parameters(4, "shared=false", unpack(words)), parameters(4, unpack(words)))
    end
  end)

  it("Q6 depend only on how many neighbours are on each host, which sum first", function()
    for _, words in ipairs(breadth.few {
      { "mesh=1x4", "replicate=", "shard=i8", "clip=0", "dim=34", "layout=ragged", "micro=2" },
      { "mesh=1x4", "replicate=", "shard=i8", "clip=0", "feedback=true" },
    }) do
      local at_once, in_two_hops = parameters(4, unpack(words)), parameters("a:2,b:2", unpack(words))
      assert.equal(at_once, parameters("a:3,b:1", unpack(words)))
      if breadth.all then assert.equal(at_once, parameters("a:1,b:1,c:1,d:1", unpack(words))) end
      assert.not_equal(at_once, in_two_hops)
      assert.equal(in_two_hops, parameters("a:2,b:2", unpack(words)))
      local with_threads = trained("MOONSHARD_STREAMS=threads", "a:2,b:2", unpack(words))
      assert.equal(in_two_hops, with_threads:match("parameters %S+"))
    end
  end)

  it(("Q6 train as in f32 for %d steps: losses within 1 %% in 8 bits, 5 %% in 4"):format(STEPS), function()
    local f32 = measured(4, "mesh=1x4", "replicate=", "steps=" .. STEPS).losses
    assert.is_true(f32[STEPS] < 0.5 * f32[1], "it learns: " .. f32[STEPS])
    for _, case in ipairs(breadth.all and {
      { 0.01, 4, "shard=i8" }, { 0.05, 4, "shard=i4" }, { 0.05, 4, "shard=i4", "feedback=true" },
      { 0.01, "a:2,b:2", "shard=i8" }, { 0.05, "a:2,b:2", "shard=i4", "feedback=true" },
    } or { { 0.01, 4, "shard=i8" }, { 0.05, "a:2,b:2", "shard=i4", "feedback=true" } }) do
      local losses = measured(case[2], "mesh=1x4", "steps=" .. STEPS, "replicate=", unpack(case, 3)).losses
      for step = 1, STEPS do
        assert.is_true(math.abs(losses[step] - f32[step]) <= case[1] * f32[1],
          ("%s, step %d: %g, not %g"):format(table.concat(case, " ", 2), step, losses[step], f32[step]))
      end
    end
  end)

  it("Q6 move the bytes of their codes and scales, as planned, and over hosts nothing else", function()
    local f32 = { [2] = 0, [3] = 0 }
    for shards in pairs(f32) do
      for _, shape in ipairs(runs.shapes(DIM)) do
        local rows, row = chunk_of(shape, shards)
        f32[shards] = f32[shards] + (shards - 1) * 4 * rows * row
      end
    end
    for bits, number in pairs({ i8 = 8, i4 = 4 }) do
      for shards, whole in pairs(breadth.all and f32 or bits == "i4" and { [2] = f32[2] } or { [3] = f32[3] }) do
        local pieces = 0
        for _, shape in ipairs(runs.shapes(DIM)) do
          local rows, row = chunk_of(shape, shards)
          pieces = pieces + (shards - 1) * runs.bytes_of(number, rows * row)
        end
        local words = { "mesh=1x" .. shards, "replicate=", "steps=1", "shared=false" }
        local hosts = shards == 2 and "a:1,b:1" or "a:1,b:1,c:1"
        local plain, sent = measured(shards, unpack(words)), measured(shards, "shard=" .. bits, unpack(words))
        assert.equal(plain.bytes.shard - whole + pieces, sent.bytes.shard)
        assert.equal(sent.plan.shard, sent.bytes.shard)
        local apart, sent_apart = measured(hosts, unpack(words)), measured(hosts, "shard=" .. bits, unpack(words))
        assert.equal(apart.wire.shard - whole + pieces, sent_apart.wire.shard)
      end
    end
  end)

  it("Q6 move one piece for each other host in two hops, where one hop moves one for each of its ranks", function()
    for bits, number in pairs(breadth.all and { i8 = 8, i4 = 4 } or { i4 = 4 }) do
      local piece, whole = 0, 0
      for _, shape in ipairs(runs.shapes(DIM)) do
        local rows, row = chunk_of(shape, 4)
        piece, whole = piece + runs.bytes_of(number, rows * row), whole + 4 * rows * row
      end
      local words = { "mesh=1x4", "replicate=", "steps=1", "shared=false" }
      local plain, sent = measured("a:2,b:2", unpack(words)), measured("a:2,b:2", "shard=" .. bits, unpack(words))
      -- Within the host two pieces go to the neighbour, one to the rank at the same place of the other host.
      assert.equal(plain.bytes.shard - 3 * whole + 3 * piece, sent.bytes.shard)
      assert.equal(sent.plan.shard, sent.bytes.shard)
      assert.equal(plain.wire.shard - whole + piece, sent.wire.shard)
    end
  end)

  it("Q6 what rounding leaves is kept in so many bytes", function()
    local function kept(mesh, ...)
      local words = { "mesh=" .. mesh, "steps=1", "shared=false", ... }
      return measured(4, "feedback=true", unpack(words)).optimizer - measured(4, unpack(words)).optimizer
    end
    local function up(n, to) return math.ceil(n / to) * to end
    for mesh, sizes in pairs({ ["1x4"] = breadth.all and { 4, 1 } or nil, ["2x2"] = { 2, 2 } }) do
      local shards, replicas, units = sizes[1], sizes[2], {}
      -- Embeddings, the last norm and the head are in the root; each layer is a unit.
      for i, shape in ipairs(runs.shapes(DIM)) do
        local name = i <= 5 and "root" or i <= 21 and "first" or "second"
        local rows, row = chunk_of(shape, shards)
        local elements = up(shards * rows * row, 32) -- of all shards; then the chunk, and the piece of it
        if replicas > 1 then
          elements = elements + up(rows * row, 32) + up(math.ceil(rows * row / replicas), 8)
        end
        units[name] = (units[name] or 0) + elements + 1 -- and the divisor of the step that left them
      end
      local expected = 0
      for _, elements in pairs(units) do expected = expected + up(4 * elements, 64) end
      assert.equal(expected, kept(mesh, "shard=i4", "replicate=" .. (replicas > 1 and "i8" or "")))
    end
  end)

  it("Q6 what rounding leaves is zero after a load: the same steps from a checkpoint give the same bits", function()
    local folder = scratch.folder()
    local words = { "mesh=2x2", "replicate=i8", "shard=i4", "checkpoint=" .. folder .. "/saved" }
    local function from_checkpoint(...)
      local ended = program.run(runs.words_of(4, ...))
      assert.equal(0, ended.status, ended.err)
      local found = {}
      for weight in ended.out:gmatch("from the checkpoint: (%S+)") do found[#found + 1] = weight end
      assert.equal(2, #found)
      assert.equal(found[1], found[2])
      return found[1]
    end
    local with = from_checkpoint("feedback=true", unpack(words))
    words[#words] = "checkpoint=" .. folder .. "/other"
    assert.not_equal(with, from_checkpoint(unpack(words)))
  end)

  it("Q6 train as one rank does, within what their rounding allows: moonshard check", function()
    local _, equals_one_rank = program.checks {
      i8 = { "check", runs.RECIPE, "-n", "4", "mesh=2x2", "replicate=", "shard=i8" },
      both = { "check", runs.RECIPE, "-n", "4", "mesh=2x2", "replicate=i8", "shard=i8", "feedback=true" },
      i4 = { "check", runs.RECIPE, "-n", "3", "mesh=1x3", "replicate=", "shard=i4", "layout=ragged" },
      hops = { "check", runs.RECIPE, "--agent", "tests/fuzz/agent.sh", "--rendezvous", "tcp://127.0.0.1", "--hosts",
        "a:2,b:2", "mesh=1x4", "replicate=", "shard=i8", "feedback=true" },
    }
    equals_one_rank("i8", "both", "i4", "hops")
  end)

  it("Q6 on emulated GPUs they are those of the CPU, bit for bit, in graphs and with windows of NCCL", function()
    local words = { "mesh=2x2", "replicate=i8", "shard=i4", "feedback=true", "gather=all", "clip=0" }
    local all = { cpu = runs.words_of(4, "shared=false", unpack(words)), graph = runs.words_of(4, unpack(words)),
      windows = runs.words_of(4, unpack(words)) }
    for name, option in pairs({ graph = "--cuda-graph", windows = "--nccl-windows" }) do
      for place, word in ipairs({ "--device", "cuda", option }) do table.insert(all[name], 2 + place, word) end
      all[name].environment = program.emulated_cuda("MOONSHARD_EMULATE_JITTER=50")
    end
    local ended = program.run_all(all)
    local function last(name)
      assert.equal(0, ended[name].status, ended[name].err)
      return ended[name].out:match("parameters %S+")
    end
    assert.equal(last("cpu"), last("graph"))
    assert.equal(last("cpu"), last("windows"))
  end)

  it("Q6 in two hops, too, between emulated GPUs of several hosts", function()
    local words = { "mesh=1x4", "replicate=", "shard=i8", "feedback=true", "clip=0", "dim=34" }
    local all = { cpu = runs.words_of("a:2,b:2", "shared=false", unpack(words)),
      cuda = runs.words_of("a:2,b:2", "device=cuda", unpack(words)) }
    all.cuda.environment = program.emulated_cuda("MOONSHARD_EMULATE_JITTER=50")
    local ended, found = program.run_all(all), {}
    for name in pairs(all) do
      assert.equal(0, ended[name].status, ended[name].err)
      found[name] = ended[name].out:match("parameters %S+")
    end
    assert.equal(found.cpu, found.cuda)
  end)
end)
