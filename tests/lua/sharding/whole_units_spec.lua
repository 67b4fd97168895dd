-- shard = false: units that every rank of the shard dimension has whole, whose gradients are summed and not scattered.
-- Real ranks train tests/lua/recipes/parity.lua with such units and without; the updates are those of sharded units up
-- to the order of sums.

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

local STEPS = { steps = 4 }

local function both(ranks, settings, whole, tolerance)
  settings = trained.with(STEPS, settings)
  local sharded, got = trained.run(ranks, settings), trained.run(ranks, trained.with(settings, { whole = whole }))
  trained.assert_parity(sharded, got, tolerance or 1e-5)
  assert.equal(0, got.allocations)
  return sharded, got
end

describe("units that are whole on every rank", function()
  for _, mesh in ipairs(breadth.few { { 4, "2x2" }, { 3, "1x3" }, { 4, "1x4" } }) do
    it("S1 take the updates of sharded ones on " .. mesh[2], function()
      for _, whole in ipairs(breadth.few { "all", "blocks", "rest" }) do both(mesh[1], { mesh = mesh[2] }, whole) end
      for _, more in ipairs(breadth.few { { dtype = "bf16", layout = "ragged" }, { dtype = "bf16", mixed = true } }) do
        both(mesh[1], trained.with(more, { mesh = mesh[2] }), "blocks", 2e-3)
      end
    end)
  end

  it("S1 also where replicas have a copy of the state each", function()
    both(4, { mesh = "2x2", shared_masters = false }, "rest")
    both(4, { mesh = "2x2", shared_masters = false, dtype = "bf16" }, "all", 2e-3)
  end)

  it("S5 accumulate whenever gradients are summed", function()
    for _, sync in ipairs(breadth.few { "shard", "every", "last" }) do
      both(4, { mesh = "2x2", micro = 3, sync = sync }, "blocks")
    end
    both(4, { mesh = "1x4", micro = 3, reshard_backward = false, dtype = "bf16" }, "rest", 2e-3)
  end)

  it("S8 with frozen, unused and grouped parameters, sgd, copies, recomputation and averages", function()
    if breadth.all then both(4, { mesh = "2x2", freeze = "bias", recompute = "blocks" }, "blocks") end
    both(3, { mesh = "1x3", freeze = "fc1", dtype = "bf16", mixed = true }, "rest", 2e-3)
    both(4, { mesh = "2x2", unused = true, spare = true, groups = true, optimizer = "sgd" }, "all")
    if breadth.all then both(4, { mesh = "2x2", dtype = "bf16", copy = true }, "blocks", 2e-3) end
    local sharded, got = both(4, { mesh = "2x2", ema = 0.9 }, "blocks")
    trained.assert_close({ sharded.averages.evaluated }, { got.averages.evaluated }, 1e-5, "averages")
    assert.equal(got.averages.evaluated, got.averages.as_weights)
  end)

  it("S3 gather nothing, and reduce-scatter nothing", function()
    local sharded, got = both(4, { mesh = "1x4", dtype = "bf16" }, "all", 2e-3)
    assert(sharded.plan.bytes.gathered > 0)
    local alone = trained.run(1, trained.with(STEPS, { mesh = "1x1", dtype = "bf16" }))
    for _, category in ipairs { "gradients", "optimizer" } do
      assert.equal(alone.plan.bytes[category], got.plan.bytes[category])
      assert(sharded.plan.bytes[category] < got.plan.bytes[category])
    end
    local ended = program.run({ "explain", "tests/lua/recipes/parity.lua", "-n", "4", "mesh=1x4", "dtype=bf16",
      "whole=blocks", "--json" })
    assert.equal(0, ended.status, ended.err)
    for _, row in ipairs(json.decode(ended.out).decisions.shard) do
      local whole = row.name ~= "root"
      assert.equal(not whole, row.value)
      assert.equal(whole, row.gathered_bytes == 0)
      assert(row.reduced_bytes > 0)
    end
  end)

  it("S14 checkpoints load with the option and without, on other meshes", function()
    local folder = scratch.folder()
    for _, whole in ipairs(breadth.few { "blocks", "" }) do
      local saved = folder .. "/" .. whole .. "saved"
      local settings = { mesh = "2x2", ema = 0.9, steps = 4 }
      local run = trained.run(4, trained.with(settings, { whole = whole, save = saved, save_at = 2 }))
      for _, to in ipairs { { 4, "2x2", "rest" }, { 2, "1x2", "all" }, { 3, "1x3", "" } } do
        local got = trained.run(to[1], trained.with(settings, { mesh = to[2], load = saved, whole = to[3] }))
        for name, values in pairs(run.params) do trained.assert_close(values, got.params[name], 1e-5, name) end
        for name, values in pairs(run.moments) do trained.assert_close(values, got.moments[name], 1e-4, name) end
      end
    end
  end)
end)

describe("copies of units that are whole", function()
  it("S14 are given alike by all ranks, or refused", function()
    local path = program.recipe([[
      local ms = require "moonshard"
      local cfg = ms.args { names = "replicate shard", on = 1 }
      local names = {}
      for name in cfg.names:gmatch("%S+") do names[#names + 1] = name end
      local mesh = ms.init_device_mesh("cpu", #names == 1 and { 2 } or { 2, 2 }, names)
      local model = ms.nn.sequential { ms.nn.linear(4, 6), ms.nn.linear(6, 4) }
      ms.fully_shard(model, { mesh = mesh, units = { ms.re"^[01]$" }, shard = { { "0", false } } })
      local dict = model:state_dict()
      local ok, raised = pcall(model.load_state_dict, model, dict)
      assert(ok, raised)
      if ms.world().rank == cfg.on then dict["0.bias"] = dict["0.bias"] + 1 end
      print(pcall(model.load_state_dict, model, dict))
    ]])
    local ended = program.run_all {
      shards = { "run", path, "-n", "4", "on=3" }, context = { "run", path, "-n", "2", "names=context" },
      equal = { "run", path, "-n", "4", "on=-1" },
    }
    os.remove(path)
    has(ended.equal.out, "true")
    for _, name in ipairs { "shards", "context" } do
      has(ended[name].out, "false | load_state_dict | 0.bias | rank 0")
      assert.is_nil(ended[name].out:find("%f[%w]true\n"))
    end
  end)
end)

describe("rules for it", function()
  before_each(function() world.describe(0, 4) end)

  local function shard(config)
    config.units = { re[[^\d+$]] }
    return ms.fully_shard(ms.nn.sequential { ms.nn.linear(4, 4), ms.nn.linear(4, 4) }, config)
  end

  it("S1 are true or false, and name units", function()
    has(message(function() shard { mesh = 4, shard = 1 } end), "shard | true or false | 1")
    has(message(function() shard { mesh = 4, shard = { { "norm", false } } } end), "norm")
    assert(shard { mesh = 4, shard = false })
    assert(shard { mesh = { 4, 1 }, shard = { { "1", false } } })
  end)

  it("S1 exclude parts that replicas divide, Muon, and hosts that would sum copies in other orders", function()
    local function plan(...) return program.run({ "plan", "tests/lua/recipes/parity.lua", "whole=blocks", ... }) end
    local function refused(facts, ...)
      local ended = plan(...)
      assert(ended.status ~= 0)
      has(ended.err, facts)
    end
    refused("layers.0 | shard_optimizer_over_replicate | shard", "-n", "4", "mesh=2x2", "over_replicate=all")
    refused("muon | layers.0.fc1.weight | whole", "-n", "4", "mesh=1x4", "optimizer=muon")
    refused("3x2 | shard | a multiple of 2 ranks", "-n", "6", "--ranks-per-node", "3", "mesh=3x2")
    assert.equal(0, plan("-n", "6", "--ranks-per-node", "2", "mesh=3x2").status)
  end)
end)
