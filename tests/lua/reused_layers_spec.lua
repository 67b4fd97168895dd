-- Weights that are used more than once, or not at all: tied parameters, layers that run twice, layers that do not run.

local fixture = require("lua.fixture")
local ms = require("moonshard")
local trained = require("lua.trained")
local assert_close = trained.assert_close
local message, re = fixture.message, ms.re

local MESHES = trained.few { { 2, "2x1" }, { 4, "2x2" }, { 3, "1x3" } }

local function run(ranks, settings) return trained.run(ranks, trained.with({ steps = 3 }, settings)) end

describe("tied parameters", function()
  it("S9 train with parity, in one unit of both and in the root, in every layout", function()
    for layout, dtype in pairs { rows = "f32", ragged = "bf16" } do
      local settings = { layout = layout, dtype = dtype }
      local alone = run(1, trained.with(settings, { mesh = "1x1", tail = "tied" }))
      for _, mesh in ipairs(MESHES) do
        for _, tail in ipairs(trained.few { "tied", "grouped" }) do
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
    assert.truthy(text:find("parameter 0.weight is also 1.weight, and belongs to two units, 0 and 1", 1, true), text)
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
    local spare = run(2, { mesh = "1x2", spare = true, decay = 0, steps = 2 })
    local first = run(2, { mesh = "1x2", spare = true, decay = 0, steps = 1 })
    assert.same(first.params["layers.1.spare.bias"], spare.params["layers.1.spare.bias"])
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
end)
