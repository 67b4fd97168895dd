-- An evaluation with averages that fails, on some ranks later than on others, and one with the weights after it; see
-- ema_spec.lua.

local ms = require "moonshard"
local clock = require "moonshard.base.clock"

local cfg = ms.args { mesh = "2x2" }
local model = ms.nn.sequential { ms.nn.linear(16, 32), ms.ops.relu, ms.nn.linear(32, 8) }
ms.fully_shard(model, { mesh = cfg.mesh })
local train = ms.trainer {
  model = model, optimizer = ms.optim.adamw { lr = 0.1 }, loss = ms.loss.mse, ema = 0.9,
}
local batch = { inputs = ms.randn { 8, 16, seed = 1 }, targets = ms.randn { 8, 8, seed = 2 } }

local function once() return coroutine.wrap(function() coroutine.yield(1, batch) end) end

local function failing()
  return coroutine.wrap(function()
    local late = ms.world().rank >= 2 and clock.now() + 0.3 or 0
    while clock.now() < late do end
    error("no more batches")
  end)
end

for _ = 1, 3 do train:step(batch) end
local before = train:evaluate(once())
assert(not pcall(train.evaluate, train, failing(), { ema = true }))
local after = train:evaluate(once())
if ms.world().rank == 0 then print(before == after and "the same" or ("%.9g then %.9g"):format(before, after)) end
