-- Trains a Llama: from a Hugging Face folder, of a published size, or small enough for a laptop.
--
--   moonshard run recipes/llama.lua -n 2 mesh=1x2                                    # tiny, on text
--   moonshard run recipes/llama.lua -n 4 mesh=2x2 folder=path/to/llama tokens=train.bin save=trained
--   moonshard run recipes/llama.lua -n 4 mesh=1x2x2                                  # each layer over two ranks
--   moonshard run recipes/llama.lua -n 4 mesh=1x2x2x1                                # each sample over two ranks
--   moonshard plan recipes/llama.lua -n 128 mesh=16x8 size=8B seq=4096 batch=1       # memory and collectives only

local ms = require "moonshard"
local re = ms.re

local cfg = ms.args {
  folder = "",                     -- Hugging Face folder with config.json and weights; "": random weights
  ignore = {},                     -- fields of its config.json to load it without: a,b
  size = "tiny",                   -- without a folder: tiny, 1B, 3B, 7B, 8B, 13B, 70B or 405B
  tokens = "",                     -- token files (moonshard tokenize); "": the text of `files`, by bytes
  seq = 256, batch = 4,            -- tokens per sequence, sequences per rank
  steps = 200, lr = 1e-3,
  ema = ms.args.real(0),           -- decay of the averages of the weights; 0: none
  mesh = "1x-1",                   -- replicas x shards, then x tensor or x context x tensor; -1: all remaining ranks
  sequence_parallel = false,       -- with tensor: divide activations between layers, too
  reshard = ms.args.any("default"), -- free gathered weights between forward and backward: true, false or a group size
  prefetch = 1,                    -- layers gathered ahead of their use
  dtype = "",                      -- type that kernels read: f32 or bf16; "": bf16, but tiny where it is fast
  fused = ms.args.any(false),      -- loss without whole logits in memory: true, false or auto (where that saves memory)
  checkpoint = "", save_every = 500, resume = "", -- resume=auto continues from the newest checkpoint
  save = "",                       -- Hugging Face folder for the trained model
}
if cfg.save ~= "" then ms.huggingface.check_folder(cfg.save) end -- fail now rather than after training

local tiny = { vocab = 256, layers = 4, dim = 256, heads = 8, kv_heads = 4, ffn = 704, seq = cfg.seq }
local model = cfg.folder ~= "" and ms.huggingface.model(cfg.folder, { ignore = cfg.ignore })
  or ms.models.llama(cfg.size == "tiny" and tiny or { cfg.size })

local names = { [2] = { "replicate", "shard" }, [3] = { "replicate", "shard", "tensor" },
  [4] = { "replicate", "shard", "context", "tensor" } }
local _, crosses = cfg.mesh:gsub("x", "")
local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, names[crosses + 1] or names[2])

local dtype = cfg.dtype ~= "" and cfg.dtype or cfg.size == "tiny" and "auto" or "bf16"
ms.fully_shard(model, {
  mesh = mesh,
  placements = mesh:has("tensor") and ms.rules.tensor_parallel(model) or nil, -- attention and MLPs, head by head
  sequence_parallel = cfg.sequence_parallel,
  units = { re[[^layers\.\d+$]] },  -- each layer is gathered and freed as one
  reshard_after_forward = cfg.reshard,
  mp_policy = { param_dtype = dtype, reduce_dtype = "f32" }, -- masters are f32
})

local opt = ms.optim.adamw {
  lr = ms.schedule.cosine { peak = cfg.lr, warmup = math.min(20, cfg.steps), total = cfg.steps, floor = cfg.lr / 10 },
  betas = { 0.9, 0.95 },
  weight_decay = 0.1,
}
local data = cfg.tokens ~= "" and ms.data.tokens { files = cfg.tokens, seq = cfg.seq, batch = cfg.batch, mesh = mesh }
  or ms.data.text { files = cfg.files, seq = cfg.seq, batch = cfg.batch, mesh = mesh }
local train = ms.trainer {
  model = model, optimizer = opt, loss = ms.loss.cross_entropy { fused = cfg.fused },
  clip_grad_norm = 1.0, prefetch = cfg.prefetch, ema = cfg.ema,
  checkpoint = { dir = cfg.checkpoint, every = cfg.save_every, resume = cfg.resume, data = data },
}

for step, batch in data:batches(cfg.steps) do
  ms.log(step, train:step(batch))
end

if cfg.save ~= "" then ms.huggingface.save(train, cfg.save, { ema = cfg.ema > 0 }) end
