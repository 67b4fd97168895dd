-- Where an op has a kink, the gradient is a choice: it is PyTorch's, the least of those that are possible.

local ms = require("moonshard")

local function gradient(make)
  local Net = ms.module "Net"
  function Net:init() self.w = ms.parameter { 5 } end
  function Net:forward() return make(self.w):sum() end
  local train = ms.trainer {
    model = ms.fully_shard(Net(), {}), optimizer = ms.optim.sgd { lr = 0 }, forward = function(net) return net() end,
  }
  train:set_parameter("w", { -2, -1, 0, 1, 2 })
  train:step { inputs = ms.zeros(1) }
  return train:gradient("w"):tolist()
end

describe("the gradient of an element", function()
  it("at a bound of clamp is 0, as that of relu at 0", function()
    assert.same({ 0, 0, 1, 0, 0 }, gradient(function(w) return w:clamp(-1, 1) end))
    assert.same({ 0, 0, 1, 1, 1 }, gradient(function(w) return w:clamp(-1) end))
    assert.same({ 1, 1, 1, 0, 0 }, gradient(function(w) return w:clamp { max = 1 } end))
    assert.same({ 0, 0, 0, 1, 1 }, gradient(function(w) return w:relu() end))
    assert.same({ -1, -1, 0, 1, 1 }, gradient(function(w) return w:abs() end))
  end)

  it("that is equal to another one is shared by both", function()
    assert.same({ 0, 0, 0.5, 1, 1 }, gradient(function(w) return w:maximum(0) end))
    assert.same({ 1, 1, 0.5, 0, 0 }, gradient(function(w) return w:minimum(0) end))
  end)
end)
