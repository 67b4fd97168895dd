-- Trains one linear layer on random data, with SGD and a sampler that reshuffles every epoch.
--
--   moonshard run recipes/random_linear.lua -n 2

local ms = require "moonshard"

local cfg = ms.args { epochs = 5, batch = 32, lr = 0.5, samples = 2048 }

local model = ms.nn.linear(128, 10)
ms.fully_shard(model)

local data = ms.data.random { length = cfg.samples, inputs = 128, targets = 10 }
local sampler = ms.data.sampler { length = data.length, drop_last = true }
local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = cfg.lr }, loss = ms.loss.mse }

local per_epoch = math.floor(sampler:count() / cfg.batch)
ms.log.expect(cfg.epochs * per_epoch)
for epoch = 0, cfg.epochs - 1 do
  sampler:set_epoch(epoch)
  for i, batch in data:batches(sampler, cfg.batch) do
    ms.log(epoch * per_epoch + i, train:step(batch))
  end
end
