-- A GPT that learns English, byte by byte, from the jokes and quotations of Debian's `fortunes` package.
--
--   moonshard run recipes/quickstart.lua -n 4
--   moonshard run recipes/quickstart.lua -n 2 mesh=1x2 steps=100 files=my.txt
--
-- Four ranks form a mesh of two replicas of two shards (HSDP). Every block is a unit: its weights are gathered just
-- before it runs and freed afterwards, except those of block 0, which are kept for the backward pass.

local ms = require "moonshard"
local re = ms.re

local cfg = ms.args {
  layers = 4, dim = 256, heads = 4, seq = 128, batch = 2, steps = 4500, lr = 1e-3, mesh = "2x2", seed = 1,
  eval_every = 500, eval_steps = 16, sample = 300, svg = ms.args.output("build/train/loss.svg"),
  checkpoint = "", save_every = 500, resume = "",
}

local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" })
local model = ms.models.gpt2 { vocab = 256, layers = cfg.layers, dim = cfg.dim, heads = cfg.heads, seq = cfg.seq }

ms.fully_shard(model, {
  mesh = mesh,
  units = { re[[^layers\.\d+$]] },
  reshard_after_forward = { { re[[^layers\.0$]], false }, { re[[.*]], "default" } },
  mp_policy = { param_dtype = "auto", reduce_dtype = "f32" }, -- auto: bf16 if the CPU computes in it
  seed = cfg.seed,
})

local opt = ms.optim.adamw {
  lr = ms.schedule.cosine { peak = cfg.lr, warmup = math.min(100, cfg.steps), total = cfg.steps, floor = cfg.lr / 20 },
  betas = { 0.9, 0.95 },
  weight_decay = 0.1,
  groups = { { re[[norm|bias|embed|pos]], { weight_decay = 0 } } },
}
local data = ms.data.text { files = cfg.files, seq = cfg.seq, batch = cfg.batch, seed = cfg.seed }
local train = ms.trainer {
  model = model, optimizer = opt, loss = ms.loss.cross_entropy, clip_grad_norm = 1.0,
  checkpoint = { dir = cfg.checkpoint, every = cfg.save_every, resume = cfg.resume, data = data },
}

for step, batch in data:batches(cfg.steps) do
  local m = train:step(batch)
  if step % cfg.eval_every == 0 and step < cfg.steps then
    m.valid_loss = train:evaluate(data.valid:batches(cfg.eval_steps))
  end
  if step == cfg.steps then m.valid_loss = train:evaluate(data.valid:batches()) end
  ms.log(step, m)
end

ms.log.curve { title = "loss, nats per byte", svg = cfg.svg }
if cfg.sample > 0 then
  ms.log.print("\nsample:\n" .. ms.generate(train, { prompt = "\n%\n", bytes = cfg.sample, seed = cfg.seed }))
end
