-- Trains a GPT on token files, with validation on separate files and a sample at the end.
-- guides/bring_your_data.md shows how to create the files.
--
--   moonshard run recipes/tokens.lua -n 2 mesh=1x2 tokenizer=tokenizer.json files=train_*.bin valid=valid.bin

local ms = require "moonshard"
local re = ms.re

local cfg = ms.args {
  tokenizer = "build/data/tokenizer.json", files = "build/data/train.bin", valid = "build/data/valid.bin",
  vocab = 0,                       -- 0: the tokenizer's; set it to plan before a tokenizer exists
  layers = 4, dim = 192, heads = 6,
  seq = 128, batch = 8,            -- tokens per sequence, sequences per rank
  steps = 300, lr = 2e-3, seed = 1,
  mesh = "1x-1",                   -- replicas x shards; -1: all remaining ranks
  checkpoint = "", save_every = 500, resume = "", -- resume=auto continues from the newest checkpoint
  prompt = "The best way to", sample = 60, stop = "<|endoftext|>", -- sample: tokens to generate; 0: none
}

local tokenizer = cfg.vocab == 0 and ms.tokenizer(cfg.tokenizer)
local model = ms.models.gpt2 {
  vocab = math.ceil((tokenizer and tokenizer.vocab or cfg.vocab) / 64) * 64, -- divides evenly among the shards
  layers = cfg.layers, dim = cfg.dim, heads = cfg.heads, seq = cfg.seq, tied = true,
}
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }),
  units = { re[[^layers\.\d+$]] },  -- each layer is gathered and freed as one
  mp_policy = { param_dtype = "auto", reduce_dtype = "f32" }, -- auto: bf16 if the CPU computes in it
})

local data = ms.data.tokens {
  files = cfg.files, valid_files = cfg.valid ~= "" and cfg.valid or nil, -- valid=: hold out a part of the files
  seq = cfg.seq, batch = cfg.batch, seed = cfg.seed,
}
local opt = ms.optim.adamw {
  lr = ms.schedule.cosine { peak = cfg.lr, warmup = math.min(30, cfg.steps), total = cfg.steps, floor = cfg.lr / 20 },
  weight_decay = 0.1,
}
local train = ms.trainer {
  model = model, optimizer = opt, loss = ms.loss.cross_entropy, clip_grad_norm = 1.0,
  checkpoint = { dir = cfg.checkpoint, every = cfg.save_every, resume = cfg.resume, data = data },
}

for step, batch in data:batches(cfg.steps) do
  local m = train:step(batch)
  if step % 100 == 0 then m.valid_loss = train:evaluate(data.valid:batches(8)) end
  ms.log(step, m)
end

if cfg.sample > 0 and tokenizer then
  local text = ms.generate(train, {
    tokenizer = tokenizer, prompt = cfg.prompt, tokens = cfg.sample, stop = cfg.stop, seed = cfg.seed,
  })
  ms.log.print("\nsample:\n" .. cfg.prompt .. text)
end
