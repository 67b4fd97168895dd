-- The smallest HSDP run: Linear-ReLU-Linear, 10-10-5, on two replicas of two shards.
--
--   moonshard run recipes/toy_hsdp.lua -n 4

local ms = require "moonshard"

local cfg = ms.args { mesh = { 2, 2 }, steps = 100, batch = 8, lr = 1e-2 }

local model = ms.nn.sequential { ms.nn.linear(10, 10), ms.ops.relu, ms.nn.linear(10, 5) }
ms.fully_shard(model, { mesh = cfg.mesh })

local data = ms.data.random { inputs = 10, targets = 5 }
local sampler = ms.data.sampler { length = data.length }
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = cfg.lr }, loss = ms.loss.mse }

ms.log.expect(cfg.steps)
local step = 0
while step < cfg.steps do
  for _, batch in data:batches(sampler, cfg.batch) do
    step = step + 1
    ms.log(step, train:step(batch))
    if step == cfg.steps then break end
  end
  sampler:set_epoch(sampler.epoch + 1)
end
