-- A GPT of 17 million parameters on real text, to compare FSDP, HSDP and DDP with: the mesh, the types and gradient
-- accumulation are settings. fsdp_vs_hsdp.lua runs it over hosts with slow links between them.
--
--   moonshard run recipes/hybrid.lua -n 4 mesh=2x2
--   moonshard run recipes/hybrid.lua --hosts a:2,b:2 mesh=1x4 dtype=bf16 accumulate=4

local ms = require "moonshard"
local re = ms.re

local cfg = ms.args {
  mesh = "2x2",                     -- replicas x shards: 1x4 is FSDP, 4x1 DDP, anything between HSDP
  dtype = "f32", reduce = "f32",    -- of gathered weights; of gradients while they are summed
  accumulate = 1,                   -- micro-batches of a step
  shard_optimizer = false,          -- over the replicas, too: each host updates a part of the weights
  layers = 5, dim = 512, heads = 8, vocab = 1024,
  seq = 128, batch = 4,             -- tokens per sequence, sequences per rank
  steps = 20, lr = 1e-3,
}

local model = ms.models.gpt2 {
  vocab = cfg.vocab, layers = cfg.layers, dim = cfg.dim, heads = cfg.heads, seq = cfg.seq,
}
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }),
  units = { re[[^layers\.\d+$]] },
  mp_policy = { param_dtype = cfg.dtype, reduce_dtype = cfg.reduce },
  shard_optimizer_over_replicate = cfg.shard_optimizer,
})

local data = ms.data.text { files = cfg.files, seq = cfg.seq, batch = cfg.batch }
local train = ms.trainer {
  model = model, loss = ms.loss.cross_entropy, micro_batches = cfg.accumulate,
  gradient_sync = "shard",          -- over replicas only in the last micro-batch
  optimizer = ms.optim.adamw { lr = cfg.lr, weight_decay = 0.1 },
}
for step, batch in data:batches(cfg.steps) do ms.log(step, train:step(batch)) end
