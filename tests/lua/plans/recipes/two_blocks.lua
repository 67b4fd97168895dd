-- Two residual blocks between two layers: the model of the example in runtime/guides/passes.md.

local ms = require "moonshard"
local re = ms.re

local cfg = ms.args { mesh = "1x2", batch = 64, dim = 128, steps = 10 }

local Block = ms.module "Block"

function Block:init(dim)
  self.norm = ms.nn.layer_norm { dim }
  self.fc1 = ms.nn.linear(dim, 4 * dim)
  self.fc2 = ms.nn.linear(4 * dim, dim)
end

function Block:forward(x)
  return x + self.fc2(self.fc1(self.norm(x)):gelu_tanh())
end

local model = ms.nn.sequential {
  ms.nn.linear(32, cfg.dim), Block(cfg.dim), Block(cfg.dim), ms.nn.linear(cfg.dim, 8),
}
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }),
  units = { re[[^[12]$]] },
  reshard_after_forward = { { re[[^[12]$]], true }, { "root", false } },
  mp_policy = { param_dtype = "bf16", reduce_dtype = "f32" },
})

local data = ms.data.random { inputs = 32, targets = 8 }
local sampler = ms.data.sampler { length = data.length }
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-3 }, loss = ms.loss.mse }
for step, batch in data:batches(sampler, cfg.batch) do
  ms.log(step, train:step(batch))
  if step == cfg.steps then break end
end
