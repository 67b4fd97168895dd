-- shard_optimizer_over_replicate: masters and optimizer state of a unit sharded over the replicas, too. Real ranks
-- train tests/lua/recipes/parity.lua with it and without. Replicas of one host have a copy of the state each, as those
-- of several hosts do (shared_masters = false).

local breadth = require("lua.support.breadth")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local json = require("moonshard.base.text.json")
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local trained = require("lua.support.trained")
local message, re = fixture.message, ms.re
local world = ms.world()

local OFF = { shared_masters = false, steps = 3 }
-- A clipped step uses the norm of sums over other slices, so it is equal only up to rounding.
local UNCLIPPED = trained.with(OFF, { clip = 0 })

local function run(ranks, settings, over)
  return trained.run(ranks, trained.with(settings, { over_replicate = over or "all" }))
end

local function off(ranks, settings) return trained.run(ranks, settings) end

-- With the option the same bits come out, unless the norm is used.
local function assert_equal_bits(ranks, settings, over)
  settings = trained.with(UNCLIPPED, settings)
  local without, with = off(ranks, settings), run(ranks, settings, over)
  trained.assert_same(trained.with(without, { norms = with.norms }), with)
  trained.assert_close(without.norms, with.norms, 1e-6, "norms")
  if not settings.micro then assert.same(with.plan.comm_bytes, with.comm_bytes) end
  assert.equal(with.plan.peak_bytes, with.peak_bytes)
  assert.equal(0, with.allocations)
  return without, with
end

describe("optimizer state sharded over the replicas", function()
  for _, optimizer in ipairs(breadth.few { "sgd", "adamw" }) do
    it("H11 " .. optimizer .. " takes the updates that every replica takes without it, bit for bit", function()
      for _, more in ipairs(breadth.few { {}, { dtype = "bf16", reduce = "bf16" },
        { layout = "ragged", dtype = "bf16" } }) do
        assert_equal_bits(4, trained.with(more, { mesh = "2x2", optimizer = optimizer }))
        assert_equal_bits(4, trained.with(more, { mesh = "4x1", optimizer = optimizer }))
      end
    end)
  end

  it("H11 clipping by the norm counts each square once: parity #release", function()
    local settings = trained.with(OFF, { mesh = "2x2", dtype = "bf16" })
    for _, over in ipairs(breadth.few { "all", "blocks" }) do
      trained.assert_parity(off(4, settings), run(4, settings, over), 1e-5)
    end
    trained.assert_parity(off(3, { mesh = "1x3", steps = 3 }), run(3, trained.with(OFF, { mesh = "3x1" })), 1e-5)
  end)

  it("H11 gradients accumulate as they do without it, whenever they are summed", function()
    for _, sync in ipairs(breadth.few { "every", "shard", "last" }) do
      assert_equal_bits(4, { mesh = "2x2", micro = 3, sync = sync, dtype = "bf16" })
    end
    if breadth.all then assert_equal_bits(4, { mesh = "4x1", micro = 3, sync = "last", reduce = "bf16" }) end
    assert_equal_bits(4, { mesh = "2x2", micro = 3, reshard_backward = false, dtype = "bf16" })
  end)

  it("H11 frozen, unused and mixed parameters, moments in bf16 and units of their own rules #release", function()
    assert_equal_bits(4, { mesh = "4x1", freeze = "fc1", dtype = "bf16", mixed = true })
    assert_equal_bits(4, { mesh = "2x2", unused = true, spare = true, groups = true, moments = "bf16" }, "blocks")
    if not breadth.all then return end
    assert_equal_bits(4, { mesh = "2x2", freeze = "bias", dtype = "bf16" })
    assert_equal_bits(4, { mesh = "2x2", reshard = "2", mixed = true, dtype = "bf16" })
  end)

  it("H11 replicas that draw frozen parameters into one copy of the chunks draw the same #release", function()
    -- Large enough for every replica to be drawing while another one is.
    local ended = program.run({ "run", "tests/lua/optimizers/recipes/frozen_draws.lua", "-n", "4" })
    assert.equal(0, ended.status, ended.err)
  end)

  it("H11 averages of the weights, for evaluating as well #release", function()
    for _, dtype in ipairs(breadth.few { "f32", "bf16" }) do
      local without, with = assert_equal_bits(4, { mesh = "2x2", ema = 0.9, dtype = dtype })
      assert.same(without.averages, with.averages)
      assert.equal(with.averages.evaluated, with.averages.as_weights)
    end
  end)

  it("H11 a rank keeps its share of the optimizer, and sends a reduce-scatter and a gather #release", function()
    local without, with = assert_equal_bits(4, { mesh = "4x1", layout = "ragged", dtype = "bf16" })
    -- Slices of the three units are rounded up to 64 elements: of gradients, two moments, and masters.
    local rounding = 3 * 64 * 4
    local function assert_share(category, share, slack)
      local whole, got = without.plan.bytes[category], with.plan.bytes[category]
      assert(got >= share * whole - slack and got <= share * whole + slack, category .. ": " .. got .. " of " .. whole)
    end
    assert_share("gradients", 1 / 4, rounding)
    assert_share("optimizer", 1 / 4, 2 * rounding)
    assert_share("parameters", 1 / 4 + 1 / 8, 2 * rounding) -- also bf16 chunks, one copy on this host
    -- 4 bytes up and 4 down; and 4 up and 2 down, 3 slices each way.
    local whole, got = without.plan.comm_bytes.replicate, with.plan.comm_bytes.replicate
    assert(math.abs(got - 3 / 4 * whole) <= 3 * 3 * 64 * (4 + 2), got .. " of " .. whole)
    assert.equal(3, with.plan.collectives.update)
    assert.equal(0, without.plan.collectives.update)
  end)

  it("H11 checkpoints load with the option and without, on other meshes, and go on as the run did", function()
    local folder = scratch.folder()
    for _, over in ipairs(breadth.few { "", "all" }) do
      local saved = folder .. "/" .. over .. "saved"
      local settings = trained.with(UNCLIPPED, { mesh = "2x2", dtype = "bf16", ema = 0.9, steps = 4 })
      local whole = run(4, trained.with(settings, { save = saved, save_at = 2 }), over)
      for _, to in ipairs(breadth.few { { 4, "2x2", "all" }, { 4, "4x1", "blocks" }, { 2, "1x2", "" },
        { 4, "2x2", "" } }) do
        local got = run(to[1], trained.with(settings, { mesh = to[2], load = saved }), to[3])
        for name, values in pairs(whole.params) do
          trained.assert_close(values, got.params[name], to[2] == "2x2" and 0 or 1e-5, name)
        end
        for name, values in pairs(whole.averages.kept) do
          trained.assert_close(values, got.averages.kept[name], to[2] == "2x2" and 0 or 1e-5, name)
        end
        for name, values in pairs(whole.moments) do
          trained.assert_close(values, got.moments[name], to[2] == "2x2" and 0 or 1e-4, name)
        end
      end
    end
  end)

  it("H11 each replica can put back the slices that it was given", function()
    for _, dtype in ipairs(breadth.few { "f32", "bf16" }) do
      local ended = program.run({ "run", "tests/lua/optimizers/recipes/own_slices.lua", "-n", "4", "dtype=" .. dtype })
      assert.equal(0, ended.status, ended.err)
    end
  end)

  it("H11 replicas that share one copy of the state have nothing to shard #release", function()
    local settings = { mesh = "2x2", dtype = "bf16", steps = 3 }
    local without, with = off(4, settings), run(4, settings)
    trained.assert_same(without, with)
    assert.same(without.plan.bytes, with.plan.bytes)
    assert.same(without.plan.comm_bytes, with.plan.comm_bytes)
  end)
end)

describe("rules for it", function()
  before_each(function() world.describe(0, 4) end)

  local function shard(config)
    config.units = { re[[^\d+$]] }
    return ms.fully_shard(ms.nn.sequential { ms.nn.linear(4, 4), ms.nn.linear(4, 4) }, config)
  end

  it("H11 need a dimension that replicates, and are true or false #release", function()
    has(message(function() shard { mesh = 4, shard_optimizer_over_replicate = true } end),
      "shard_optimizer_over_replicate | replicat")
    has(message(function()
      shard { mesh = { 2, 2 }, shard_optimizer_over_replicate = { { "0", "optim" } } }
    end), "shard_optimizer_over_replicate | optim")
    assert(shard { mesh = 4, shard_optimizer_over_replicate = false })
    assert(shard { mesh = { 1, 4 }, shard_optimizer_over_replicate = true })
  end)

  it("H11 cannot be combined with local steps of the replicas #release", function()
    local sync = { every = 2, outer = ms.optim.sgd { lr = 0.7 } }
    for _, over in ipairs { true, { { "0", true }, { re[[.*]], false } } } do
      has(message(function()
        shard { mesh = { 2, 2 }, shard_optimizer_over_replicate = over, replicate_sync = sync }
      end), "replicate_sync | shard_optimizer_over_replicate")
    end
  end)

  it("H11 are explained by unit, with what they cost #release", function()
    local ended = program.run({ "explain", "tests/lua/recipes/parity.lua", "-n", "4", "mesh=2x2",
      "shared_masters=false", "over_replicate=blocks", "--json" })
    assert.equal(0, ended.status, ended.err)
    local rows, by_name = json.decode(ended.out).decisions.shard_optimizer_over_replicate, {}
    for _, row in ipairs(rows) do by_name[row.name] = row end
    assert.same({ false, true, true }, { by_name.root.value, by_name["layers.0"].value, by_name["layers.1"].value })
    assert.equal(0, by_name.root.gathered_bytes)
    assert(by_name["layers.0"].gathered_bytes > 0)
    -- Where nothing else is gathered, the step's total is the units' sum.
    ended = program.run({ "explain", "tests/lua/recipes/parity.lua", "-n", "4", "mesh=4x1", "shared_masters=false",
      "over_replicate=all", "--json" })
    assert.equal(0, ended.status, ended.err)
    local explained, sum = json.decode(ended.out), 0
    for _, row in ipairs(explained.decisions.shard_optimizer_over_replicate) do sum = sum + row.gathered_bytes end
    assert(sum > 0)
    assert.equal(sum, explained.gathered_bytes)
    ended = program.run({ "explain", "tests/lua/recipes/parity.lua", "-n", "2", "mesh=1x2", "--json" })
    assert.is_nil(json.decode(ended.out).decisions.shard_optimizer_over_replicate)
  end)
end)
