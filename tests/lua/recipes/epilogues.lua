-- Trains two GPT-2 blocks in bf16, whose gelu is that of matrix products' epilogues; writes losses, norms, weights.
-- reduce: what gradients are summed over ranks in; recompute: what blocks make again.

local ms = require "moonshard"
local json = require "moonshard.base.text.json"
local re = ms.re

local cfg = ms.args {
  out = "", mesh = "1x1", reduce = "f32", recompute = false, steps = 2,
  rematerialize = ms.args.any(true), limit = "1GiB",
}

local Block = ms.module "Block"

function Block:init(dim)
  self.norm = ms.nn.layer_norm { dim }
  self.fc1 = ms.nn.linear(dim, 4 * dim)
  self.fc2 = ms.nn.linear(4 * dim, dim)
end

function Block:forward(x) return x + self.fc2(self.fc1(self.norm(x)):gelu_tanh()) end

local model = ms.nn.sequential { ms.nn.linear(8, 16), Block(16), Block(16), ms.nn.linear(16, 4) }
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }),
  units = { re[[^[12]$]] },
  recompute = cfg.recompute and { { re[[^[12]$]], true } } or nil,
  mp_policy = { param_dtype = "bf16", reduce_dtype = cfg.reduce },
})
local train = ms.trainer {
  model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse, rematerialize = cfg.rematerialize,
  memory_limit = cfg.limit,
}
local data = ms.data.random { inputs = 8, targets = 4 }
local sampler = ms.data.sampler { length = data.length }

local result = { losses = {}, norms = {}, params = {} }
for step, batch in data:batches(sampler, 12) do
  local m = train:step(batch)
  result.losses[step], result.norms[step] = m.loss, m.grad_norm
  if step == cfg.steps then break end
end
for _, name in ipairs({ "1.fc1.weight", "1.fc1.bias", "2.fc2.weight" }) do
  result.params[name] = train:parameter(name):reshape(-1):tolist()
end
local file = assert(io.open(cfg.out, "w"))
file:write(json.encode(result))
file:close()
