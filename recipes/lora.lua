-- Fine-tunes a GPT-2 or Llama from a Hugging Face folder through low-rank adapters (LoRA); its weights stay the same.
--
--   moonshard run recipes/lora.lua -n 2 folder=path/to/llama tokens=train.bin adapters=adapted     # a folder for PEFT
--   moonshard run recipes/lora.lua -n 4 mesh=1x2x2 folder=path/to/llama save=merged                # the whole model
--   moonshard run recipes/lora.lua -n 2 folder=path/to/llama storage=nf4                           # QLoRA
--   moonshard plan recipes/lora.lua -n 8 mesh=1x8 size=8B seq=4096 batch=1                         # memory only

local ms = require "moonshard"
local re = ms.re

local cfg = ms.args {
  folder = "",                     -- Hugging Face folder with config.json and weights; "": random weights
  ignore = {},                     -- fields of its config.json to load it without: a,b
  size = "tiny",                   -- without a folder, a Llama: tiny, 1B, 3B, 7B, 8B, 13B, 70B or 405B
  modules = [[attn\.(wq|wv)$]],    -- the linear layers that get an adapter
  rank = 8, alpha = ms.args.real(16), dropout = ms.args.real(0), use_dora = false,
  storage = "f32",                 -- how weights that do not train are kept: f32, bf16, i8 or nf4 (QLoRA)
  stored = [[^layers\..*\.(w\w|fc\d)\.weight$]], -- which of them; "": all matrices, also embedding and head
  start = "",                      -- folder of adapters to go on from, such as one that PEFT saved, instead of new ones
  tokens = "",                     -- token files (moonshard tokenize); "": the text of `files`, by bytes
  seq = 256, batch = 4,            -- tokens per sequence, sequences per rank
  steps = 200, lr = 1e-3,
  mesh = "1x-1",                   -- replicas x shards, then x tensor; -1: all remaining ranks
  dtype = "auto",                  -- type of gathered weights: f32, bf16, or auto (bf16 if the CPU computes in it)
  eval_steps = 4,                  -- batches of the validation before and after training
  checkpoint = "", save_every = 100, resume = "", -- resume=auto continues from the newest checkpoint
  adapters = "",                   -- folder for the adapters alone
  save = "",                       -- Hugging Face folder for the model with the adapters merged
}
if cfg.adapters ~= "" then ms.lora.check_folder(cfg.adapters) end -- fail now rather than after training
if cfg.save ~= "" then ms.huggingface.check_folder(cfg.save) end
if cfg.save ~= "" and cfg.save == cfg.adapters then error("adapters and save are one folder: give each its own", 0) end

local tiny = { vocab = 256, layers = 4, dim = 256, heads = 8, kv_heads = 4, ffn = 704, seq = cfg.seq }
local model = cfg.folder ~= "" and ms.huggingface.model(cfg.folder, { ignore = cfg.ignore })
  or ms.models.llama(cfg.size == "tiny" and tiny or { cfg.size })
if cfg.start ~= "" then
  ms.lora.load(model, cfg.start)
else
  local adapter = { rank = cfg.rank, alpha = cfg.alpha, dropout = cfg.dropout, use_dora = cfg.use_dora }
  ms.lora(model, { { re(cfg.modules), adapter } })
end

local names = { [2] = { "replicate", "shard" }, [3] = { "replicate", "shard", "tensor" } }
local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, names[select(2, cfg.mesh:gsub("x", "")) + 1] or names[2])

ms.fully_shard(model, {
  mesh = mesh,
  placements = mesh:has("tensor") and ms.rules.tensor_parallel(model) or nil, -- adapters follow their layers
  units = { re[[^layers\.\d+$]] },  -- each layer is gathered and freed as one, with its adapters
  storage = cfg.storage ~= "f32" and (cfg.stored == "" and cfg.storage or { { re(cfg.stored), cfg.storage } }) or nil,
  mp_policy = { param_dtype = cfg.size == "tiny" and cfg.dtype or "bf16", reduce_dtype = "f32" }, -- masters are f32
})

local data = cfg.tokens ~= "" and ms.data.tokens { files = cfg.tokens, seq = cfg.seq, batch = cfg.batch, mesh = mesh }
  or ms.data.text { files = cfg.files, seq = cfg.seq, batch = cfg.batch, mesh = mesh }
local train = ms.trainer {
  model = model, loss = ms.loss.cross_entropy, clip_grad_norm = 1.0,
  optimizer = ms.optim.adamw {
    lr = ms.schedule.cosine { peak = cfg.lr, warmup = math.min(20, cfg.steps), total = cfg.steps, floor = cfg.lr / 10 },
    weight_decay = 0,
  },
  checkpoint = { dir = cfg.checkpoint, every = cfg.save_every, resume = cfg.resume, data = data },
}

local before = train:evaluate(data.valid:batches(cfg.eval_steps))
for step, batch in data:batches(cfg.steps) do
  ms.log(step, train:step(batch))
end
local after = train:evaluate(data.valid:batches(cfg.eval_steps))
ms.log.print(("validation %.4f, before %.4f"):format(after, before))

if cfg.adapters ~= "" then ms.lora.save(train, cfg.adapters, { base = cfg.folder ~= "" and cfg.folder or nil }) end
if cfg.save ~= "" then ms.huggingface.save(train, cfg.save) end
