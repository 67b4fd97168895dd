-- Trains two blocks whose gradients are sums of products: three layers read a block's input, and a weight is applied
-- twice; writes losses, norms, weights.

local ms = require "moonshard"
local json = require "moonshard.base.text.json"
local re = ms.re

local cfg = ms.args { out = "", mesh = "1x1", dtype = "bf16", recompute = false, micro_batches = 1, steps = 2 }
local DIM = 16

local Block = ms.module "Block"

function Block:init()
  self.norm = ms.nn.layer_norm { DIM }
  for _, name in ipairs({ "a", "b", "c" }) do self[name] = ms.nn.linear(DIM, DIM) end
end

function Block:forward(x)
  local h = self.norm(x)
  return x + self.a(h):tanh() * self.b(h):sigmoid() + self.c(h):relu()
end

local Twice = ms.module "Twice"
function Twice:init() self.weight = ms.parameter { DIM, DIM, init = ms.init.normal(0, 0.2) } end
function Twice:forward(x)
  local function apply(y) return ms.ops.matmul(y, self.weight, { trans_b = 1 }) end
  return apply(apply(x):tanh()):tanh() + x
end

local model = ms.nn.sequential { ms.nn.linear(8, DIM), Block(), Block(), Twice(), ms.nn.linear(DIM, 4) }
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }),
  units = { re[[^[123]$]] },
  recompute = cfg.recompute and { { re[[^[12]$]], true } } or nil,
  mp_policy = { param_dtype = cfg.dtype, reduce_dtype = "f32" },
})
local train = ms.trainer {
  model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse, micro_batches = cfg.micro_batches,
}
local data = ms.data.random { inputs = 8, targets = 4 }
local sampler = ms.data.sampler { length = data.length }

local result = { losses = {}, norms = {}, params = {} }
for step, batch in data:batches(sampler, 12) do
  local m = train:step(batch)
  result.losses[step], result.norms[step] = m.loss, m.grad_norm
  if step == cfg.steps then break end
end
for _, name in ipairs({ "1.a.weight", "1.c.bias", "0.weight", "3.weight" }) do
  result.params[name] = train:parameter(name):reshape(-1):tolist()
end
if cfg.out ~= "" then
  local file = assert(io.open(cfg.out, "w"))
  file:write(json.encode(result))
  file:close()
end
