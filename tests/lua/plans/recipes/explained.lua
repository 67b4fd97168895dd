-- Four blocks under rules of every policy, most of them from a preset: some decide, one is shadowed, one finds nothing.

local ms = require "moonshard"
local re = ms.re

local cfg = ms.args { mesh = "1x2", batch = 64, micro_batches = 1, depth = 2 }

local Block = ms.module "Block"

function Block:init(dim)
  self.norm = ms.nn.layer_norm { dim }
  self.fc1, self.fc2 = ms.nn.linear(dim, 4 * dim), ms.nn.linear(4 * dim, dim)
end

function Block:forward(x) return x + self.fc2(self.fc1(self.norm(x)):gelu_tanh()) end

local Net = ms.module "Net"

function Net:init(dim)
  self.embed = ms.nn.linear(16, dim)
  self.layers = { Block(dim), Block(dim), Block(dim), Block(dim) }
  self.head = ms.nn.linear(dim, 8, { bias = false })
end

function Net:forward(x)
  x = self.embed(x)
  for _, layer in ipairs(self.layers) do x = layer(x) end
  return self.head(x)
end

local model = Net(32)
local preset = ms.rules.load "block_rules.lua"
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }),
  units = preset.units,
  reshard_after_forward = ms.rules.join({ { "layers.3", false } }, preset.reshard_after_forward),
  mp_policy = { { re[[^layers]], { param_dtype = "bf16" } } },
  prefetch = { { "layers.0", cfg.depth } },
  recompute = { { re[[^layers\.0$]], true }, { re[[^layers\.1$]], { "gelu_tanh" } } },
  freeze = preset.freeze,
  param_dtype = { { re[[norm\.]], "f32" } },
})

local data = ms.data.random { inputs = 16, targets = 8 }
local sampler = ms.data.sampler { length = data.length }
local optimizer = ms.optim.adamw { lr = 1e-3, groups = { { re[[norm|bias]], { weight_decay = 0 } } } }
local train = ms.trainer { model = model, optimizer = optimizer, loss = ms.loss.mse, micro_batches = cfg.micro_batches }
for step, batch in data:batches(sampler, cfg.batch) do
  train:step(batch)
  if step == 10 then break end
end
