-- An evaluation with averages that fails, on some ranks later than on others, and functions that fail on one rank
-- alone; then evaluations and reads of the weights; see ema_spec.lua.

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

-- What all ranks know of a function that one rank failed in.
local weights = train:parameter("0.weight"):tolist()
for rank = 0, ms.world().size - 1, ms.world().size - 1 do
  local ok, raised = pcall(train.with_ema, train, function()
    if ms.world().rank == rank then error("nobody else") end
  end)
  assert(not ok and tostring(raised):find("nobody else"), raised)
  local now = train:parameter("0.weight"):tolist()
  for i, row in ipairs(weights) do
    for j, value in ipairs(row) do assert(now[i][j] == value, "weights are others") end
  end
end
assert(train:with_ema(function() return train:evaluate(once()) end) ~= after)
assert(train:step(batch))
if ms.world().rank == 0 then print(before == after and "the same" or ("%.9g then %.9g"):format(before, after)) end
