-- A GPT of 12 layers, as small as they can be: how many calls a step takes depends on layers, not on their sizes.

local ms = require "moonshard"

local cfg = ms.args { mesh = "1x-1", steps = 4 }

local model = ms.models.gpt2 { vocab = 256, layers = 12, dim = 32, heads = 2, seq = 8, tied = true }
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }),
  units = { ms.re[[^layers\.\d+$]] },
  mp_policy = { param_dtype = "bf16", reduce_dtype = "f32" },
})
local data = ms.data.text { files = "README.md", seq = 8, batch = 2 }
local train = ms.trainer {
  model = model, optimizer = ms.optim.adamw { lr = 1e-3 }, loss = ms.loss.cross_entropy(), clip_grad_norm = 1.0,
}
for _, batch in data:batches(cfg.steps) do train:step(batch) end
