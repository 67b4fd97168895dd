-- Weights that are used more than once, or not at all: tied parameters, layers that run twice, layers that do not run.

local breadth = require("lua.support.breadth")
local fixture = require("lua.support.fixture")
local ms = require("moonshard")
local has = require("lua.support.message").has
local scratch = require("lua.support.scratch")
local trained = require("lua.support.trained")
local assert_close = trained.assert_close
local message, re = fixture.message, ms.re

local MESHES = breadth.few { { 2, "2x1" }, { 4, "2x2" }, { 3, "1x3" } }

local function run(ranks, settings) return trained.run(ranks, trained.with({ steps = 3 }, settings)) end

teardown(scratch.clear)

describe("tied parameters", function()
  it("S9 train with parity, in one unit of both and in the root, in every layout", function()
    for layout, dtype in pairs { rows = "f32", ragged = "bf16" } do
      local settings = { layout = layout, dtype = dtype }
      local alone = run(1, trained.with(settings, { mesh = "1x1", tail = "tied" }))
      for _, mesh in ipairs(MESHES) do
        for _, tail in ipairs(breadth.few { "tied", "grouped" }) do
          local got = run(mesh[1], trained.with(settings, { mesh = mesh[2], tail = tail, reshard = "true" }))
          if dtype == "f32" then trained.assert_parity(alone, got, 1e-5) end
          assert_close(alone.losses, got.losses, 2e-2, "losses")
        end
      end
    end
  end)

  it("S9 are kept, and reduced, once", function()
    local tied, twice = run(2, { mesh = "1x2", tail = "grouped" }), run(2, { mesh = "1x2", tail = "twice" })
    assert.same(twice.plan.bytes.parameters, tied.plan.bytes.parameters)
    assert.same(twice.comm_bytes, tied.comm_bytes)
    assert.is_nil(tied.params["tail.1.weight"])
  end)

  it("S9 of two units are refused, and the error's own advice is taken", function()
    local model = ms.nn.sequential { ms.nn.linear(3, 3), ms.nn.linear(3, 3) }
    model[2].weight = model[1].weight
    local text = message(ms.fully_shard, model, { units = { re[[^\d$]] } })
    has(text, "0.weight | 1.weight | two units | 0 and 1")
    local advice = assert(load("return " .. text:match("units = (%b{})"):gsub(", %.%.%. }", " }"))())
    ms.fully_shard(model, { units = advice })
    assert.equal(1, #model.sharding.units)
  end)
end)

-- w x + w (w x), with the squared error of a target of 0: the gradient by hand.
local function scalar(forward)
  local Net = ms.module "Net"
  function Net:init()
    self.w, self.unused = ms.parameter { 1, init = 0.5 }, ms.parameter { 3, init = "ones" }
  end
  Net.forward = forward
  local model = ms.fully_shard(Net(), {})
  local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 1 } }
  train:step { inputs = ms.full({ 1, 1 }, 2), targets = ms.zeros { 1, 1 } }
  return train
end

describe("layers", function()
  it("S18 that run twice train with parity, and as two layers with the same weights", function()
    local alone = run(1, { mesh = "1x1", tail = "twice" })
    for _, mesh in ipairs(MESHES) do
      local got = run(mesh[1], { mesh = mesh[2], tail = "twice" })
      trained.assert_parity(alone, got, 1e-5)
      trained.assert_same(got, run(mesh[1], { mesh = mesh[2], tail = "grouped" }))
    end
  end)

  it("S18 that run twice accumulate the gradient that is written by hand", function()
    local train = scalar(function(self, x) return x * self.w * self.w end)
    -- (2 w w)^2: its derivative is 16 w^3.
    assert.near(16 * 0.5 ^ 3, train:gradient("w"):item(), 1e-6)
  end)

  it("S18 that do not run get a gradient of zeros, and stay", function()
    local train = scalar(function(self, x) return x * self.w end)
    assert.same({ 0, 0, 0 }, train:gradient("unused"):tolist())
    assert.same({ 1, 1, 1 }, train:parameter("unused"):tolist())
  end)

  it("S18 that do not run are left out of the update: no decay, on any mesh, in every layout", function()
    for _, settings in ipairs(breadth.few { { layout = "rows" }, { layout = "ragged" }, { dtype = "bf16" },
      { layout = "ragged", optimizer = "sgd" }, { moments = "bf16", shared_masters = false } }) do
      settings.spare, settings.decay = true, 0.1
      local first = run(1, trained.with(settings, { mesh = "1x1", steps = 1 }))
      local alone = run(1, trained.with(settings, { mesh = "1x1" }))
      assert.same(first.params["layers.1.spare.weight"], alone.params["layers.1.spare.weight"])
      for _, mesh in ipairs(MESHES) do
        local got = run(mesh[1], trained.with(settings, { mesh = mesh[2] }))
        trained.assert_parity(alone, got, settings.dtype and 2e-2 or 1e-5)
        assert.same(first.params["layers.1.spare.bias"], got.params["layers.1.spare.bias"])
      end
    end
  end)

  it("S18 that do not run in some steps get zeros in these, and their gradient in the others", function()
    local Net = ms.module "Net"
    function Net:init() self.w, self.sometimes = ms.parameter { 1, init = 0.5 }, ms.parameter { 1, init = 3 } end
    function Net:forward(x, skips)
      local h = x * self.w
      return skips and h or h * self.sometimes
    end
    local train = ms.trainer {
      model = ms.fully_shard(Net(), {}), optimizer = ms.optim.sgd { lr = 0 },
      forward = function(model, batch) return (model(batch.inputs, batch.skips) ^ 2):mean() end,
    }
    local x = ms.full({ 1, 1 }, 2)
    for _, skips in ipairs { false, true, false } do
      train:step { inputs = x, skips = skips and x or nil }
      -- (2 w s)^2 with w = 0.5 and s = 3, or without s.
      assert.near(skips and 0 or 6, train:gradient("sometimes"):item(), 1e-6)
      assert.near(skips and 4 or 36, train:gradient("w"):item(), 1e-5)
    end
  end)

  -- w s, or w alone, of which the mean square is to be small: s has a gradient in the steps that do not skip it.
  local function sometimes(optimizer, ema)
    local Net = ms.module "Net"
    function Net:init() self.w, self.s = ms.parameter { 2, init = 0.5 }, ms.parameter { 2, init = 3 } end
    function Net:forward(x, skips) return skips and x * self.w or x * self.w * self.s end
    return ms.trainer {
      model = ms.fully_shard(Net(), {}), optimizer = optimizer, ema = ema,
      forward = function(model, batch) return (model(batch.inputs, batch.skips) ^ 2):mean() end,
    }
  end

  local X = ms.full({ 1, 2 }, 2)

  it("S18 that do not run in some steps keep their values and their state, and begin with a first step of their own",
    function()
      local skipped = { true, false, true, true, false }
      local function values(train, kinds)
        local list = { train:parameter("s"):tolist() }
        for _, kind in ipairs(kinds) do list[#list + 1] = train:optimizer_state("s", kind):tolist() end
        return list
      end
      for kinds, optimizer in pairs {
        [{ "exp_avg", "exp_avg_sq", "step" }] = ms.optim.adamw { lr = 0.1, weight_decay = 0.1 },
        [{ "momentum", "step" }] = ms.optim.sgd { lr = 0.1, momentum = 0.9, weight_decay = 0.1 },
      } do
        local train, updates = sometimes(optimizer), 0
        for _, skips in ipairs(skipped) do
          local before = train.steps_done > 0 and values(train, kinds) or nil
          local was = train.steps_done > 0 and train:parameter("s"):tolist()[1] or 3
          train:step { inputs = X, skips = skips and X or nil }
          if skips then
            if before then assert.same(before, values(train, kinds)) end
          else
            updates = updates + 1
            local g, now = train:gradient("s"):tolist()[1], train:parameter("s"):tolist()[1]
            if updates == 1 then -- the first: by the sign of the gradient, or by the gradient
              local step = kinds[1] == "exp_avg" and 0.1 * 0.1 * was + 0.1 or 0.1 * (g + 0.1 * was)
              assert.near(was - step, now, 1e-5)
            end
          end
          assert.equal(updates, train:optimizer_state("s", "step"):item())
          assert.equal(train.steps_done, train:optimizer_state("w", "step"):item())
        end
      end
    end)

  it("S18 that do not run in some steps continue exactly from a checkpoint", function()
    local function optimizer() return ms.optim.adamw { lr = 0.1, weight_decay = 0.1 } end
    local function steps(train, from, to)
      for step = from, to do train:step { inputs = X, skips = step % 3 ~= 0 and X or nil } end
    end
    local whole, first, second = sometimes(optimizer()), sometimes(optimizer()), sometimes(optimizer())
    steps(whole, 1, 9)
    local folder = scratch.path()
    steps(first, 1, 5)
    ms.checkpoint.save(first, folder)
    ms.checkpoint.load(second, folder)
    assert.equal(1, second:optimizer_state("s", "step"):item())
    assert.equal(5, second:optimizer_state("w", "step"):item())
    steps(second, 6, 9)
    assert.same(whole:parameter("s"):tolist(), second:parameter("s"):tolist())
    assert.same(whole:parameter("w"):tolist(), second:parameter("w"):tolist())
  end)

  it("S18 that do not run are averaged with the rest", function()
    local train = sometimes(ms.optim.sgd { lr = 0.1 }, 0.5)
    train:step { inputs = X, skips = X }
    assert.same({ 3, 3 }, train:optimizer_state("s", "ema"):tolist())
  end)

  it("S18 of two trainers of one model count their own updates", function()
    local Net = ms.module "Net"
    function Net:init() self.a, self.b = ms.parameter { 2, init = 0.5 }, ms.parameter { 2, init = 3 } end
    local model, optimizer = ms.fully_shard(Net(), {}), ms.optim.adamw { lr = 0.1 }
    local function of(name)
      return ms.trainer { model = model, optimizer = optimizer,
        forward = function(net, batch) return ((batch.inputs * net[name]) ^ 2):mean() end }
    end
    local a, b = of "a", of "b"
    for _ = 1, 2 do
      a:step { inputs = X }
      b:step { inputs = X }
    end
    assert.same({ 2, 2 }, { a:optimizer_state("a", "step"):item(), a:optimizer_state("b", "step"):item() })
    for name, first in pairs { a = 0.5, b = 3 } do
      assert.near(first - 0.2, a:parameter(name):tolist()[1], 1e-2)
    end
  end)
end)
