-- param_copy: weights that are kept in bf16 next to their f32 masters, and that updates write with them. Real ranks
-- train tests/lua/recipes/parity.lua with it and without: every number has the same bits.

local breadth = require("lua.support.breadth")
local emulated_runs = require("lua.support.emulated_runs")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local json = require("moonshard.base.text.json")
local local_sgd = require("lua.optimizers.local_sgd")
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local trained = require("lua.support.trained")
local message = fixture.message
local world = ms.world()

local USUAL = { dtype = "bf16", steps = 3 }

local function without(ranks, settings) return trained.run(ranks, trained.with(USUAL, settings)) end
local function with(ranks, settings) return without(ranks, trained.with(settings, { copy = true })) end

local function assert_equal_bits(ranks, settings)
  local plain, kept = without(ranks, settings), with(ranks, settings)
  trained.assert_same(plain, kept)
  assert.equal(plain.evaluated, kept.evaluated)
  assert.same(plain.averages, kept.averages)
  assert.same(plain.comm_bytes, kept.comm_bytes)
  assert.equal(kept.plan.peak_bytes, kept.peak_bytes)
  assert.equal(0, kept.allocations)
  return plain.plan.bytes, kept.plan.bytes
end

describe("weights that are kept in bf16 next to their masters", function()
  for _, optimizer in ipairs(breadth.few { "adamw", "sgd", "muon", "adafactor" }) do
    it("S7 S12 train to the same bits on every mesh: " .. optimizer, function()
      for _, mesh in ipairs(breadth.few { { 1, "1x1" }, { 2, "1x2" }, { 4, "2x2" } }) do
        assert_equal_bits(mesh[1], { mesh = mesh[2], optimizer = optimizer })
        assert_equal_bits(mesh[1], { mesh = mesh[2], optimizer = optimizer, layout = "ragged", momentum = 0 })
      end
      assert_equal_bits(4, { mesh = "2x2", optimizer = optimizer, shared_masters = false, layout = "ragged" })
    end)
  end

  it("S4 S5 S6 S17 whenever weights are freed and gathered, ahead or not, in micro-batches #release", function()
    for _, reshard in ipairs(breadth.few { "true", "false", "2" }) do
      assert_equal_bits(4, { mesh = "1x4", reshard = reshard, micro = 3 })
    end
    for _, case in ipairs(breadth.few {
      { 1, { mesh = "1x1", reshard = "false", micro = 3, reshard_backward = false } },
      { 2, { mesh = "1x2", prefetch = 0, recompute = "blocks" } },
      { 3, { mesh = "1x3", prefetch = 3, reduce = "bf16" } },
      { 4, { mesh = "2x2", ahead = "names", micro = 3, sync = "last", reshard_backward = false } },
    }) do
      assert_equal_bits(case[1], case[2])
    end
  end)

  it("S7 S8 S9 in units of several dtypes, frozen, tied and unused parameters, and moments in few bits", function()
    for _, case in ipairs(breadth.few {
      { 1, { mesh = "1x1", mixed = true, freeze = "fc2|bias", groups = true } },
      { 2, { mesh = "1x2", by_layer = true, tail = "grouped" } },
      { 1, { mesh = "1x1", tail = "tied", unused = true, spare = true, moments = "bf16" } },
      { 2, { mesh = "1x2", moments = "i8", tail = "twice", output = "f32" } },
      { 4, { mesh = "2x2", mixed = true, freeze = "fc1", layout = "ragged" } },
    }) do
      assert_equal_bits(case[1], case[2])
    end
  end)

  it("S7 with averages of the weights, which evaluation reads, and values that a program sets #release", function()
    for _, mesh in ipairs(breadth.few { { 1, "1x1" }, { 4, "2x2" } }) do
      assert_equal_bits(mesh[1], { mesh = mesh[2], ema = 0.9, optimizer = "muon" })
      assert_equal_bits(mesh[1], { mesh = mesh[2], wrong = "norm", wrong_at = 2, shared_masters = false })
    end
    local kept = with(4, { mesh = "2x2", ema = 0.9, optimizer = "muon" }).averages
    assert.equal(kept.evaluated, kept.as_weights)
  end)

  it("H11 S7 where replicas shard the optimizer: the chunks that they keep anyway #release", function()
    for _, mesh in ipairs(breadth.few { "4x1", "2x2" }) do
      local plain, kept = assert_equal_bits(4,
        { mesh = mesh, over_replicate = "all", shared_masters = false, ema = 0.9 })
      assert.equal(plain.parameters, kept.parameters)
      assert.equal(mesh == "4x1" and 0 or plain.gathered, kept.gathered)
    end
  end)

  it("H1 H11 S7 over hosts, also where the next step joins the gathers of an update", function()
    local runs, outs = {}, {}
    local CASES = breadth.all and {
      ["a:1,b:1"] = { "mesh=2x1", "over_replicate=all", "micro=3" }, ["a:2,b:1"] = { "mesh=1x3" },
      ["a:2,b:2"] = { "mesh=4x1", "over_replicate=all", "ema=0.9" },
    } or { ["a:1,b:1"] = { "mesh=2x1", "over_replicate=all", "micro=3", "ema=0.9" } }
    for hosts, words in pairs(CASES) do
      for _, copy in ipairs { "false", "true" } do
        local name = hosts .. copy
        outs[name] = scratch.path()
        runs[name] = { "run", "tests/lua/recipes/parity.lua", "--hosts", hosts, "--agent", "tests/fuzz/agent.sh",
          "--rendezvous", "tcp://127.0.0.1", "dtype=bf16", "steps=3", "copy=" .. copy, "out=" .. outs[name],
          unpack(words) }
      end
    end
    for name, ended in pairs(program.run_all(runs)) do assert.equal(0, ended.status, name .. ended.err) end
    for hosts in pairs(CASES) do
      local plain = json.decode(scratch.read(outs[hosts .. "false"]))
      local kept = json.decode(scratch.read(outs[hosts .. "true"]))
      for _, what in ipairs { "losses", "norms", "updates", "params", "evaluated", "averages" } do
        assert.same(plain[what], kept[what], hosts .. ": " .. what)
      end
      assert.equal(kept.plan.peak_bytes, kept.peak_bytes)
    end
  end)

  it("M1 S7 take 2 bytes an element, and one rank that owns all needs no gathered weights #release", function()
    local plain, kept = assert_equal_bits(1, { mesh = "1x1", layout = "ragged" })
    assert(plain.gathered > 0)
    assert.equal(0, kept.gathered)
    assert.equal(plain.parameters / 2, kept.parameters - plain.parameters)
    plain, kept = assert_equal_bits(4, { mesh = "2x2", layout = "ragged" })
    assert.equal(plain.gathered, kept.gathered)
    assert.equal(plain.parameters / 2, kept.parameters - plain.parameters)
  end)

  it("S7 adapters have them, below which weights are stored in few bits #all", function()
    local runs = {}
    for _, mesh in ipairs { "1x1", "1x2" } do
      for _, copy in ipairs { "false", "true" } do
        runs[mesh .. copy] = { "run", "tests/lua/recipes/stored.lua", "-n", mesh:sub(3), "mesh=" .. mesh, "dtype=bf16",
          "copy=" .. copy, "ema=true", "facts=" .. scratch.path() }
      end
    end
    local facts = {}
    for name, ended in pairs(program.run_all(runs)) do
      assert.equal(0, ended.status, ended.err)
      facts[name] = scratch.read(runs[name][#runs[name]]:sub(7))
    end
    for _, mesh in ipairs { "1x1", "1x2" } do assert.equal(facts[mesh .. "false"], facts[mesh .. "true"]) end
  end)

  it("S7 local SGD keeps them when replicas meet #all", function()
    local cases = {
      { mesh = "2x1", dtype = "bf16" }, { mesh = "2x2", dtype = "bf16", fragments = 2, delay = 1, ema = 0.9 },
      { mesh = "1x2", dtype = "bf16", optimizer = "adamw", layout = "ragged", every = 2 },
    }
    local runs = {}
    for i, settings in ipairs(breadth.few(cases)) do
      runs[i .. " without"], runs[i .. " with"] = settings, trained.with(settings, { copy = true })
    end
    local results = local_sgd.run_all(runs)
    for name, of_ranks in pairs(results) do
      for rank, got in ipairs(of_ranks) do
        local plain = results[name:gsub(" with$", " without")][rank]
        for _, what in ipairs { "losses", "norms", "params", "synced", "momentum", "ema" } do
          assert.same(plain[what], got[what], name .. ": " .. what)
        end
      end
    end
  end)

  it("K1 S7 checkpoints load with them and without, on other meshes, and go on as the run did", function()
    local folder = scratch.folder()
    for _, copy in ipairs(breadth.few { false, true }) do
      local saved = ("%s/%s"):format(folder, copy)
      local settings = { mesh = "2x2", ema = 0.9, steps = 4, copy = copy }
      local whole = without(4, trained.with(settings, { save = saved, save_at = 2, async = copy }))
      for _, to in ipairs(breadth.few { { 4, "2x2", copy }, { 1, "1x1", true }, { 2, "1x2", not copy },
        { 4, "2x2", not copy } }) do
        local got = without(to[1], trained.with(settings, { mesh = to[2], load = saved, copy = to[3] }))
        local tolerance = to[2] == "2x2" and 0 or 2e-2
        for name, values in pairs(whole.params) do trained.assert_close(values, got.params[name], tolerance, name) end
        if tolerance == 0 then
          assert.same({ whole.losses[3], whole.losses[4] }, got.losses)
          assert.equal(whole.evaluated, got.evaluated)
        end
      end
      local one = without(1, trained.with(settings, { mesh = "1x1", load = saved, copy = false }))
      trained.assert_same(one, without(1, trained.with(settings, { mesh = "1x1", load = saved, copy = true })))
    end
  end)
end)

if os.getenv("MOONSHARD_CONFIG") ~= "thread" then
  describe("on the device cuda, emulated, they", function()
    local runs = emulated_runs.of("tests/lua/recipes/parity.lua")
    local CASES = { -- where not all run, those of which no other has more
      adamw = breadth.all and { "1", "mesh=1x1" } or nil,
      sgd = breadth.all and { "1", "mesh=1x1", "optimizer=sgd", "momentum=0", "layout=ragged" } or nil,
      muon = { "2", "mesh=1x2", "optimizer=muon", "ema=0.9" },
      packed = breadth.all and { "2", "mesh=2x1", "moments=i8" } or nil,
      hsdp = breadth.all and { "4", "mesh=2x2", "moments=bf16", "micro=3" } or nil,
      sliced = { "4", "mesh=2x2", "over_replicate=all", "layout=ragged" },
    }
    setup(function()
      for name, words in pairs(CASES) do
        for _, copy in ipairs { "false", "true" } do
          runs:case(name .. copy, { "-n", words[1], "--device", "cuda", "dtype=bf16", "steps=3", "copy=" .. copy,
            unpack(words, 2) }, "")
        end
      end
    end)
    teardown(function() runs:remove() end)

    it("A1 S7 train to the same bits, in the bytes of the plan #release", function()
      for name in pairs(CASES) do
        local plain, kept = runs:result(name .. "false"), runs:result(name .. "true")
        for _, what in ipairs { "losses", "norms", "updates", "params", "moments", "evaluated", "averages" } do
          assert.same(plain[what], kept[what], name .. ": " .. what)
        end
        assert.equal(kept.plan.peak_bytes, kept.peak_bytes)
      end
    end)
  end)
end

describe("param_copy", function()
  before_each(function() world.describe(0, 2) end)

  local function shard(options)
    options.mesh = options.mesh or 2
    local model = ms.nn.sequential { ms.nn.linear(64, 64), ms.nn.linear(64, 64) }
    ms.fully_shard(model, options)
    return model
  end

  local function refuses(options, wanted)
    options.mp_policy = options.mp_policy or { param_dtype = "bf16", param_copy = true }
    has(message(function()
      local train = ms.trainer { model = shard(options), optimizer = ms.optim.sgd { lr = 1 }, loss = ms.loss.mse }
      train:plan()
    end), wanted)
  end

  it("S7 is true or false, of parameters in bf16 #release", function()
    refuses({ mp_policy = { param_dtype = "bf16", param_copy = "bf16" } },
      "mp_policy | param_copy | true or false | bf16")
    refuses({ mp_policy = { param_copy = true } }, 'param_copy | f32 | param_dtype = "bf16"')
    refuses({ mp_policy = { { "0", { param_dtype = "float32", param_copy = true } }, { ms.re[[.*]], {} } } },
      "mp_policy | param_copy | f32")
    has(message(function() shard { param_copy = true } end), "param_copy | field of mp_policy")
    assert(shard { mp_policy = { param_dtype = "auto", param_copy = true } })
    assert(shard { mp_policy = { param_dtype = "f32", param_copy = false } })
  end)

  local function explained(...)
    local ended = program.run({ "explain", "tests/lua/recipes/parity.lua", "mesh=1x1", "dtype=bf16", ... })
    assert.equal(0, ended.status, ended.err)
    return ended.out
  end

  it("S7 is explained, with its bytes #release", function()
    has(explained("copy=true"), "params bf16 and a copy, reduce f32")
    local sums = {}
    for _, copy in ipairs { "false", "true" } do
      local sum = 0
      for _, row in ipairs(json.decode(explained("copy=" .. copy, "--json")).decisions.units) do
        sum = sum + row.kept_bytes.parameters
      end
      sums[copy] = sum
    end
    assert.equal(1.5 * sums["false"], sums["true"])
  end)

  it("S7 leaves a plan without casts of weights, and its price with fewer bytes #release", function()
    local function planned(copy)
      local ended = program.run({ "plan", "recipes/gpt2.lua", "-n", "1", "--device", "cuda", "mesh=1x1", "size=124M",
        "dtype=bf16", "copy=" .. copy })
      assert.equal(0, ended.status, ended.err)
      return select(2, ended.out:gsub("compute   cast state", "")), select(2, ended.out:gsub("gathered%+", ""))
    end
    local casts, gathered = planned("false")
    assert(casts >= 25 and gathered > 0)
    casts, gathered = planned("true")
    assert.same({ 0, 0 }, { casts, gathered })
  end)
end)
