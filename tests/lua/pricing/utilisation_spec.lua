-- MFU counts the tokens that a model reads, whatever its targets are.

local program = require("lua.support.program")

local RECIPE = [[
local ms = require "moonshard"
local cfg = ms.args { kind = "tokens" }
local model = ms.models.gpt2 { vocab = 64, layers = 2, dim = 64, heads = 4, seq = 32 }
ms.fully_shard(model, { mesh = "1" })
local cross_entropy = ms.loss.cross_entropy
local KINDS = {
  tokens = { ms.zeros { 8, 32, dtype = "i32" }, function(y, targets) return cross_entropy(y, targets) end },
  classes = { ms.zeros { 8, dtype = "i32" }, function(y, targets) return cross_entropy(y:mean(1), targets) end },
  vectors = { ms.randn { 8, 32, 64, seed = 1 }, function(y, targets) return ((y - targets) ^ 2):mean() end },
}
local targets, loss = unpack(KINDS[cfg.kind])
local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 },
  forward = function(net, batch) return loss(net(batch.tokens), batch.targets) end }
local m = train:step { tokens = ms.zeros { 8, 32, dtype = "i32" }, targets = targets }
print(("%.9g"):format(m.mfu * m.step_ms))
]]

describe("MFU", function()
  it("is of the tokens that the model reads", function()
    local recipe, of = program.recipe(RECIPE), {}
    for _, kind in ipairs({ "tokens", "classes", "vectors" }) do
      local ended = program.run { "run", recipe, "--cluster", "cpu-example", "kind=" .. kind }
      assert.equal(0, ended.status, ended.err)
      of[kind] = tonumber(ended.out)
    end
    os.remove(recipe)
    assert.is_true(of.tokens > 0)
    assert.near(of.tokens, of.classes, 1e-7 * of.tokens)
    assert.near(of.tokens, of.vectors, 1e-7 * of.tokens)
  end)
end)
