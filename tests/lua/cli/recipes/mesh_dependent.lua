-- A network whose loss is scaled by a constant unless one rank computes all: what no mesh may change, changes. `from`
-- is the first step in which it does; `scale` by how much. `feed` says how batches come about.

local ms = require "moonshard"
local reference = require "moonshard.shard.reference"

local cfg = ms.args {
  scale = ms.args.real(0), from = 1, steps = 6, mesh = "1x-1", lr = ms.args.real(1e-2), micro = 1, feed = "random",
  train = true, dropout = ms.args.real(0),
}

local model = ms.nn.sequential { ms.nn.linear(6, 5), ms.ops.gelu, ms.nn.dropout(cfg.dropout), ms.nn.linear(5, 3) }
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }), units = { "0" },
})

local rank = ms.world().rank
local optimizer = ms.optim.sgd { lr = cfg.lr }

-- Two trainers of one model share its weights: the second one's loss is the scaled one.
local function trainer(factor)
  return ms.trainer {
    model = model, optimizer = optimizer, micro_batches = cfg.micro,
    loss = function(y, targets) return ms.loss.mse(y, targets) * ms.tensor(factor) end,
  }
end
local honest, scaled = trainer(1), trainer(reference.active and 1 or 1 + cfg.scale)

-- By hand, from a generator that ranks share: no loader could tell which rows are whose.
local function by_hand(step)
  return {
    inputs = ms.randn { 4 * cfg.micro, 6, seed = 100 * step + rank },
    targets = ms.randn { 4 * cfg.micro, 3, seed = 100 * step + rank + 50 },
  }
end

local data = ms.data.random { inputs = 6, targets = 3 }
local loaded = data:batches(ms.data.sampler { length = data.length }, 4 * cfg.micro)

for step = 1, cfg.train and cfg.steps or 0 do
  local batch = by_hand(step)
  if cfg.feed == "random" then batch = select(2, loaded()) end
  (step < cfg.from and honest or scaled):step(batch)
  print("step", step)
end
