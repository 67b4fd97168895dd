-- Local SGD (replicate_sync): numbers by the formulas, bytes, and what is refused.

local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local local_sgd = require("lua.optimizers.local_sgd")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

-- A step with other sums every time: replicas 1 and 2, shards whose rows divide unevenly, every option.
local CASES = {
  { mesh = "2x1" },
  { mesh = "2x2", nesterov = false },
  { mesh = "3x1", every = 2, outer_momentum = 0, outer_lr = 0.5, nesterov = false, clip = 0.5 },
  { mesh = "2x2", layout = "ragged", fragments = 2, alpha = 0.25, steps = 11 },
  { mesh = "2x1", delay = 2, steps = 11 },
  { mesh = "2x1", trainers = 2, every = 6, fragments = 2, steps = 11 },
  { mesh = "4x1", every = 6, fragments = 2, delay = 2, alpha = 1, steps = 15 },
  { mesh = "2x2", hosts = "a:2,b:2", fragments = 2, delay = 1, steps = 9 },
  { mesh = "3x2", hosts = "a:3,b:3", fragments = 2, alpha = 0.25, clip = 0.5, steps = 9 }, -- both have a part of one
  { mesh = "1x2", every = 6, fragments = 2, delay = 2, steps = 15 },
  { mesh = "2x2", every = 8, fragments = 4, delay = 1, alpha = 0.5, steps = 18, shared_masters = false },
  { mesh = "2x1x3", clip = 0.5, fragments = 2, delay = 1 },
  { mesh = "2x2x3", hosts = "a:6,b:6", alpha = 0.25 },
  { mesh = "2x1x2x1", positions = 4, clip = 0.5, fragments = 2 },
  { mesh = "2x1x2x3", positions = 4, hosts = "a:6,b:6", every = 2, delay = 1 },
}

local function describe_case(settings)
  local words = {}
  for name, value in pairs(settings) do words[#words + 1] = ("%s=%s"):format(name, tostring(value)) end
  table.sort(words)
  return table.concat(words, " ")
end

local function assert_close(expected, values, tolerance, what)
  for i, value in ipairs(expected) do
    local off = math.abs(value - values[i])
    assert(off <= tolerance * math.max(1, math.abs(value)),
      ("%s[%d]: %.9g, expected %.9g"):format(what, i, values[i], value))
  end
end

local function assert_all_close(expected, values, tolerance, what)
  for name, list in pairs(expected) do assert_close(list, values[name], tolerance, what .. " of " .. name) end
end

-- The ranks of a replica.
local function ranks_of(mesh)
  local _, shards, context, tensor = local_sgd.sizes_of(mesh)
  return shards * context * tensor
end

-- Elements of each parameter that one of the shards owns, padding included, if it is divided by rows. A tensor
-- dimension divides the columns of two layers.
local function chunk(name, mesh)
  local _, shards, context, tensor = local_sgd.sizes_of(mesh)
  local columns = name == "bias" and 1 or name:find("[02]") and 3 / tensor or 3
  return math.ceil(5 / (shards * context)) * columns
end

describe("local SGD", function()
  local results

  setup(function() results = local_sgd.run_all(breadth.few(CASES)) end)
  teardown(scratch.clear)

  for i, settings in ipairs(breadth.few(CASES)) do
    it("H12 follows the formulas of local steps and an outer SGD: " .. describe_case(settings), function()
      local ranks, of_replica = results[i], ranks_of(settings.mesh)
      local wanted = local_sgd.reference(settings, ranks[1].initial)
      for rank, found in ipairs(ranks) do
        local replica = wanted.replicas[math.floor((rank - 1) / of_replica) + 1]
        assert_close(replica.losses, found.losses, 1e-5, "loss of rank " .. rank)
        assert_close(replica.norms, found.norms, 1e-5, "norm of rank " .. rank)
        assert_all_close(replica.w, found.params, 1e-5, "values")
        assert_all_close(wanted.synced, found.synced, 1e-5, "synced values")
        if wanted.momentum and settings.outer_momentum ~= 0 then
          assert_all_close(wanted.momentum, found.momentum, 1e-5, "outer momentum")
        end
        assert.same(ranks[1].synced, found.synced) -- bit for bit
      end
    end)
  end

  it("H12 one sync per step with an outer SGD of lr 1 without momentum is HSDP", function()
    local runs = {}
    for _, mesh in ipairs({ "2x2", "2x1x3", "2x1x2x1" }) do
      for _, every in ipairs({ 0, 1 }) do
        runs[mesh .. every] = { mesh = mesh, momentum = 0, outer_lr = 1, outer_momentum = 0, nesterov = false,
          every = every, positions = mesh == "2x1x2x1" and 4 or 0 }
      end
    end
    runs = local_sgd.run_all(runs)
    for _, mesh in ipairs({ "2x2", "2x1x3", "2x1x2x1" }) do
      for rank, found in ipairs(runs[mesh .. "1"]) do
        assert_all_close(runs[mesh .. "0"][rank].params, found.params, 1e-6, "values on " .. mesh)
      end
    end
  end)

  it("H12 one replica with an outer SGD of lr 1 trains as without", function()
    local runs = local_sgd.run_all({
      plain = { mesh = "1x2", every = 0, optimizer = "adamw" },
      outer = { mesh = "1x2", every = 2, optimizer = "adamw", outer_lr = 1, outer_momentum = 0, nesterov = false },
    })
    assert_all_close(runs.plain[1].params, runs.outer[1].params, 1e-6, "values")
    assert_close(runs.plain[1].losses, runs.outer[1].losses, 1e-6, "losses")
    for _, bytes in ipairs(runs.outer[1].bytes) do assert.equal(0, bytes.replicate) end
  end)

  for i, settings in ipairs(breadth.few(CASES)) do
    it("H12 sends 2 (R-1)/R f32 in the steps that sync, else none: " .. describe_case(settings), function()
      if settings.layout == "ragged" then return assert.is_true(results[i][1].bytes[2].replicate > 0) end
      local o = setmetatable({}, { __index = function(_, name)
        local value = settings[name]
        if value == nil then value = ({ every = 4, fragments = 1, delay = 0, steps = 8 })[name] end
        return value
      end })
      local replicas = local_sgd.sizes_of(o.mesh)
      local turn = o.every / o.fragments
      for step, bytes in ipairs(results[i][1].bytes) do
        local expected, sent = 0, step - (o.delay > 0 and 1 or 0)
        if sent > 0 and sent % turn == 0 then
          local elements = 0
          for _, name in ipairs(local_sgd.FRAGMENTS[o.fragments][(sent / turn - 1) % o.fragments + 1]) do
            elements = elements + chunk(name, o.mesh)
          end
          expected = 2 * (replicas - 1) / replicas * 4 * elements
        end
        assert(math.abs(expected - bytes.replicate) < 1e-6, ("step %d: %g bytes, expected %g"):format(step,
          bytes.replicate, expected))
      end
    end)
  end

  it("H12 the plan lists the outer step, its bytes and its memory", function()
    local function plan(...)
      local ended = program.run({ "plan", "tests/lua/recipes/local_sgd.lua", "-n", "4", "mesh=2x2", ... })
      assert(ended.status == 0, ended.err)
      return ended.out
    end
    local text = plan()
    local outer = text:match("phase outer:.*")
    has(outer, "5 all_reduce | sub | outer_sgd | over replicate | layers.3")
    has(text, "2 replicas | own copy")
    local late = plan("delay=2")
    assert.is_nil(late:match("phase outer:[^\n]*all_reduce"))
    assert.is_truthy(late:match("phase first:[^\n]*5 all_reduce"))
    -- The momentum of both optimizers and the synced weights; with a delay also the sums: chunks padded to 32 elements.
    local runs = local_sgd.run_all({ {}, { delay = 2 }, { every = 0, shared_masters = false } })
    local chunks = runs[3][1].plan.bytes.optimizer
    assert.equal(3 * chunks, runs[1][1].plan.bytes.optimizer)
    assert.equal(4 * chunks, runs[2][1].plan.bytes.optimizer)
  end)

  it("H12 the memory of a run is planned, and all of it is there from the first step on #release", function()
    for _, settings in ipairs({ {}, { fragments = 2 }, { mesh = "2x2" } }) do
      local ranks = local_sgd.run(settings)
      for step, bytes in ipairs(ranks[1].peaks) do
        assert(bytes == ranks[1].plan.peak_bytes, ("step %d: %d bytes, planned %d"):format(step, bytes,
          ranks[1].plan.peak_bytes))
      end
    end
  end)

  it("H12 units that sync always stay equal, and are clipped alike on all replicas", function()
    local ranks = local_sgd.run({ mesh = "2x2", always = "layers", clip = 0.5, micro = 2, steps = 7 })
    for rank, found in ipairs(ranks) do
      for k = 0, 3 do
        local name = ("layers.%d.weight"):format(k)
        assert.same(ranks[1].params[name], found.params[name])
      end
      assert.equal(rank < 3, table.concat(ranks[1].params.bias, " ") == table.concat(found.params.bias, " "))
    end
    assert.equal(nil, ranks[1].synced["layers.0.weight"])
    -- At the first step the gradients of all ranks are those without local SGD.
    local runs = local_sgd.run_all({
      some = { mesh = "2x1", always = "layers", steps = 1 }, none = { mesh = "2x1", every = 0, steps = 1 },
    })
    local gradients = runs.none[1].gradients
    assert_close(gradients["layers.2.weight"], runs.some[1].gradients["layers.2.weight"], 1e-6, "gradient")
    for i, value in ipairs(gradients.bias) do
      local both = (runs.some[1].gradients.bias[i] + runs.some[2].gradients.bias[i]) / 2
      assert_close({ value }, { both }, 1e-6, "gradient of bias")
    end
  end)

  -- The ranks of a mesh, from 1, replica by replica.
  for mesh, replicas in pairs({ ["2x2"] = { { 1, 2 }, { 3, 4 } }, ["2x1x3"] = { { 1, 2, 3 }, { 4, 5, 6 } } }) do
    it("H12 ranks of a replica agree, with AdamW, averages, bf16 and micro-batches; replicas after a sync: " .. mesh,
      function()
        local settings = { mesh = mesh, optimizer = "adamw", ema = 0.9, dtype = "bf16", micro = 2, fragments = 2,
          delay = 1, freeze = "layers.1", steps = 7, evaluate = true }
        local ranks = local_sgd.run(settings)
        for _, replica in ipairs(replicas) do
          for _, rank in ipairs(replica) do
            for _, key in ipairs({ "params", "moments", "ema", "losses", "evaluated", "gradients" }) do
              assert.same(ranks[replica[1]][key], ranks[rank][key])
            end
          end
        end
        local other = replicas[2][1]
        assert.same(ranks[1].synced, ranks[other].synced)
        assert.equal(ranks[1].evaluated, ranks[other].evaluated)
        assert.not_same(ranks[1].params, ranks[other].params)
        assert.not_same(ranks[1].moments, ranks[other].moments)
        assert.not_same(ranks[1].losses, ranks[other].losses)
        -- After step 7 the second fragment was just synced (sent after step 4 of each turn, applied one later).
        settings.steps = 5
        local synced = local_sgd.run(settings)
        assert.same(synced[1].params["layers.3.weight"], synced[other].params["layers.3.weight"])
        assert.not_same(synced[1].params.bias, synced[other].params.bias)
      end)
  end

  it("H12 between syncs no replica waits for another one", function()
    -- The second replica begins step 2 when the first has done step 3.
    for _, mesh in ipairs({ "2x2", "2x1x3" }) do
      local ranks = local_sgd.run({ mesh = mesh, lead = scratch.path() })
      assert.equal(8, #ranks[4].losses)
    end
  end)

  it("H12 setting a parameter moves the point of the last sync, too", function()
    local ranks = local_sgd.run({ steps = 6, set = 6, every = 4 })
    assert.same({ 1, 2, 3, 4, 5 }, ranks[1].synced.bias)
    assert.not_same(ranks[1].synced.bias, ranks[1].params.bias)
  end)

  it("H12 a parameter that is set is not moved by a sum that is on its way", function()
    -- The sum of step 4 is sent in step 5 and applied at the end of step 6.
    for _, settings in ipairs({
      { set = 6 }, { dict = 6 }, { set = 6, mesh = "2x1x3" }, { set = 7, delay = 3, fragments = 1, steps = 7 },
    }) do
      settings.every, settings.delay, settings.steps = 4, settings.delay or 2, settings.steps or 6
      for _, rank in ipairs(local_sgd.run(settings)) do
        assert.same({ 1, 2, 3, 4, 5 }, rank.synced.bias)
        assert.same({ 1, 2, 3, 4, 5 }, rank.params.bias)
        assert.same({ 0, 0, 0, 0, 0 }, rank.sums.bias)
        assert.not_same(rank.initial["layers.1.weight"], rank.synced["layers.1.weight"]) -- whose sum is applied
      end
    end
  end)

  it("H12 replicas' own weights are refused where a sum on its way would replace them #release", function()
    local ended = local_sgd.ended({ every = 4, delay = 2, steps = 6, dict = 6, own = true })
    assert.equal(3, ended.status)
    has(ended.err, "load_state_dict | bias | update 6 | update 5 | delay = 2")
    local ranks = local_sgd.run({ every = 4, delay = 2, steps = 5, dict = 5, own = true }) -- in the sum of step 5
    assert.not_same(ranks[1].params.bias, ranks[2].params.bias)
  end)

  it("H12 a value that is not finite ends the run and names the rank of that replica", function()
    for _, mesh in ipairs({ "2x2", "2x1x3" }) do
      for _, step in ipairs({ 2, 5 }) do -- step 5 also sends the sums of step 4
        local ended = local_sgd.ended({ mesh = mesh, delay = 2, spoil = step })
        assert.not_equal(0, ended.status)
        has(ended.err, "nan | inputs | rank 0 | step " .. step)
      end
    end
  end)

  it("H12 trains on the device cuda as on the CPU", function()
    local settings = { mesh = "2x2", fragments = 2, delay = 1, alpha = 0.25, steps = 7 }
    local cuda = { device = "cuda", environment = program.emulated_cuda() }
    for name, value in pairs(settings) do cuda[name] = value end
    local runs = local_sgd.run_all({ cpu = settings, cuda = cuda })
    for rank, found in ipairs(runs.cuda) do
      assert_all_close(runs.cpu[rank].params, found.params, 1e-5, "values")
      assert_all_close(runs.cpu[rank].synced, found.synced, 1e-5, "synced values")
      assert.same(runs.cpu[rank].bytes, found.bytes)
    end
  end)

  local REFUSED = {
    { "fragments | 3 | divide | 4", { fragments = 3 } },
    { "fragments | 8 | 5 units", { every = 8, fragments = 8 } },
    { "delay | 2 | below", { every = 4, fragments = 2, delay = 2 } },
    { "delay | -1", { delay = -1 } },
    { "alpha | 1.5", { alpha = 1.5 } },
    { "momentum", { outer_momentum = 0, nesterov = true } },
  }
  for _, case in ipairs(breadth.few(REFUSED)) do
    it("H12 refuses an invalid schedule: " .. case[1], function()
      local ended = local_sgd.ended(case[2])
      assert.equal(2, ended.status)
      has(ended.err, case[1])
    end)
  end

  it("H12 refuses other options, optimizers and meshes, and schedules that differ #release", function()
    local fixture, ms = require("lua.support.fixture"), require("moonshard")
    local outer = ms.optim.sgd { lr = 0.7 }
    local function refuse(facts, value, mesh)
      local model = ms.nn.sequential { ms.nn.linear(5, 7), ms.nn.linear(7, 3) }
      has(fixture.message(function()
        ms.fully_shard(model, { mesh = mesh or ms.init_device_mesh("cpu", { 1, 1 }, { "replicate", "shard" }),
          units = { "0", "1" }, replicate_sync = value })
      end), facts)
    end
    refuse("unknown | steps | every", { every = 4, outer = outer, steps = 2 })
    refuse("outer | missing", { every = 4 })
    refuse("every | missing", { outer = outer })
    refuse("ms.optim.sgd", { every = 4, outer = ms.optim.adamw { lr = 1 } })
    refuse("dampening | weight_decay | groups", { every = 4, outer = ms.optim.sgd { lr = 1, weight_decay = 0.1 } })
    refuse("always | every", "never")
    refuse("dimension replicate | shard", { every = 4, outer = outer }, ms.init_device_mesh("cpu", { 1 }, { "shard" }))
    refuse("unit 1 | unit 0 | one schedule",
      { { "0", { every = 4, outer = outer } }, { "1", { every = 8, outer = outer } } })
  end)

  it("H12 moonshard check refuses to compare it with one rank #release", function()
    local ended = program.run({ "check", "tests/lua/recipes/local_sgd.lua", "-n", "2" })
    assert.not_equal(0, ended.status)
    has(ended.err .. ended.out, "replicate_sync | one rank")
  end)
end)
