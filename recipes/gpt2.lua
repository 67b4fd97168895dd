-- Trains a GPT-2: from a Hugging Face folder, of a published size, or small enough for a laptop.
--
--   moonshard run recipes/gpt2.lua -n 2 mesh=1x2                                     # tiny, on text
--   moonshard run recipes/gpt2.lua -n 4 mesh=2x2 folder=path/to/gpt2 tokens=train.bin save=trained
--   moonshard plan recipes/gpt2.lua -n 8 mesh=1x8 size=1.5B seq=1024 batch=4         # memory and collectives only

local ms = require "moonshard"
local re = ms.re

local cfg = ms.args {
  folder = "",                     -- Hugging Face folder with config.json and weights; "": random weights
  ignore = {},                     -- fields of its config.json to load it without: a,b
  size = "tiny",                   -- without a folder: tiny, 124M, 355M, 774M or 1.5B
  pad_vocab = 64,                  -- rows of the embedding are a multiple of this
  dropout = ms.args.real(0),
  tokens = "",                     -- token files (moonshard tokenize); "": the text of `files`, by bytes
  seq = 256, batch = 4,            -- tokens per sequence, sequences per rank
  steps = 200, warmup = 20, lr = 6e-4,
  optimizer = "adamw",             -- adam, lion (lr / 10), adafactor (lr 2e-2), muon (for layers' matrices; else AdamW)
  muon_lr = 0.01,
  ema = ms.args.real(0),           -- decay of the averages of the weights; 0: none
  mesh = "1x-1",                   -- replicas x shards; -1: all remaining ranks
  dtype = "auto",                  -- type of gathered weights: f32, bf16, or auto (bf16 if the CPU computes in it)
  copy = false,                    -- bf16 weights that updates write next to f32 masters: 2 bytes an element, no casts
  reshard = ms.args.any("default"), -- free gathered weights between forward and backward: true, false or a group size
  rematerialize = ms.args.any(true), -- backward computes gelu and norms again: true, false or auto (if need be)
  memory_limit = "1TiB",           -- of a rank, which auto fits
  fused = ms.args.any(false),      -- loss without whole logits in memory: true, false or auto (where that saves memory)
  checkpoint = "", save_every = 500, resume = "", -- resume=auto continues from the newest checkpoint
  save = "",                       -- Hugging Face folder for the trained model
}
if cfg.save ~= "" then ms.huggingface.check_folder(cfg.save) end -- fail now rather than after training

local model
if cfg.folder ~= "" then
  model = ms.huggingface.model(cfg.folder, {
    ignore = cfg.ignore, dropout = cfg.dropout, pad_vocab_to_multiple_of = cfg.pad_vocab,
  })
else
  local config = cfg.size == "tiny" and { vocab = 256, layers = 4, dim = 256, heads = 4, seq = cfg.seq, tied = true }
    or { cfg.size }
  config.dropout, config.pad_vocab_to_multiple_of = cfg.dropout, cfg.pad_vocab
  model = ms.models.gpt2(config)
end

ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }),
  units = { re[[^layers\.\d+$]] },  -- each layer is gathered and freed as one
  reshard_after_forward = cfg.reshard,
  mp_policy = { param_dtype = cfg.dtype, reduce_dtype = "f32", param_copy = cfg.copy }, -- gradients and masters are f32
})

local warmup = math.min(cfg.warmup, cfg.steps)
local function schedule(peak)
  return ms.schedule.cosine { peak = peak, warmup = warmup, total = cfg.steps, floor = peak / 10 }
end
local opt = ms.optim[cfg.optimizer == "muon" and "adamw" or cfg.optimizer] {
  lr = schedule(cfg.lr),
  betas = cfg.optimizer ~= "adafactor" and { 0.9, 0.95 } or nil, -- Adafactor has none
  weight_decay = 0.1,
  groups = { { re[[norm|bias|embed|pos]], { weight_decay = 0 } } }, -- decay only matrices
}
if cfg.optimizer == "muon" then
  opt = { { re[[^layers\..*\.(w\w|fc\d)\.weight$]], ms.optim.muon { lr = schedule(cfg.muon_lr) } }, { re".", opt } }
end
local data = cfg.tokens ~= "" and ms.data.tokens { files = cfg.tokens, seq = cfg.seq, batch = cfg.batch }
  or ms.data.text { files = cfg.files, seq = cfg.seq, batch = cfg.batch }
local train = ms.trainer {
  model = model, optimizer = opt, loss = ms.loss.cross_entropy { fused = cfg.fused },
  clip_grad_norm = 1.0, ema = cfg.ema, rematerialize = cfg.rematerialize, memory_limit = cfg.memory_limit,
  checkpoint = { dir = cfg.checkpoint, every = cfg.save_every, resume = cfg.resume, data = data },
}

for step, batch in data:batches(cfg.steps) do
  ms.log(step, train:step(batch))
end

if cfg.save ~= "" then ms.huggingface.save(train, cfg.save, { ema = cfg.ema > 0 }) end
