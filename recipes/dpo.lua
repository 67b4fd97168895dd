-- Trains a policy on pairs of answers by direct preference optimisation (DPO): it learns to prefer the chosen answer to
-- the rejected one more than a frozen reference does, which is the model that it begins as.
--
--   moonshard run recipes/dpo.lua -n 2 files=pairs.jsonl folder=path/to/model save=aligned
--   moonshard run recipes/dpo.lua -n 4 mesh=2x2 folder=path/to/model reference=nf4    # the reference in 4 bits
--   moonshard plan recipes/dpo.lua -n 8 mesh=1x8 folder=path/to/model seq=2048        # memory only

local ms = require "moonshard"
local re = ms.re

local cfg = ms.args {
  files = "",                      -- JSON lines with prompt, chosen and rejected
  folder = "",                     -- Hugging Face folder of both models; "": small, with random weights
  ignore = {},                     -- fields of its config.json to load it without: a,b
  tokenizer = "",                  -- tokenizer.json or its folder; "": the folder's, or else a token is a byte
  template = "chatml",             -- how messages become text
  seq = 128, batch = 4,            -- tokens per answer with its prompt, pairs per rank
  steps = 100, lr = 1e-3,          -- for random weights; trained ones take 5e-7 to 5e-6
  beta = 0.1, label_smoothing = ms.args.real(0),
  reference = "bf16",              -- how the reference's weights are kept: f32, bf16, i8 or nf4
  mesh = "1x-1",                   -- replicas x shards; -1: all remaining ranks
  dtype = "auto",                  -- type of gathered weights: f32, bf16, or auto (bf16 if the CPU computes in it)
  micro_batches = 1, seed = 0,
  checkpoint = "", save_every = 100, resume = "", -- resume=auto continues from the newest checkpoint
  save = "",                       -- Hugging Face folder for the trained policy
}
if cfg.save ~= "" then ms.huggingface.check_folder(cfg.save) end -- fail now rather than after training

local function load()
  if cfg.folder ~= "" then return ms.huggingface.model(cfg.folder, { ignore = cfg.ignore }) end
  return ms.models.llama { vocab = 256, layers = 2, dim = 64, heads = 4, kv_heads = 2, ffn = 160, seq = cfg.seq }
end

local Pair = ms.module "Pair"
function Pair:init() self.policy, self.reference = load(), load() end
function Pair:forward(tokens) return self.policy(tokens), self.reference(tokens) end

local model = Pair()
local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" })
ms.fully_shard(model, {
  mesh = mesh,
  units = { re[[^(policy|reference)$]], re[[\.layers\.\d+$]] },
  freeze = { re[[^reference\.]] },  -- no gradients, no optimizer state
  storage = cfg.reference ~= "f32" and cfg.reference or nil, -- of matrices, and of frozen parameters alone
  reshard_after_forward = { { re[[^reference]], true }, { re[[.]], "default" } },
  mp_policy = { param_dtype = cfg.dtype, reduce_dtype = "f32" },
  seed = cfg.seed,
})

local tokenizer = cfg.tokenizer ~= "" and ms.tokenizer(cfg.tokenizer)
  or cfg.folder ~= "" and ms.huggingface.tokenizer(cfg.folder) or nil
if not tokenizer and model.policy.config.vocab > 256 then
  error(("the model has %d tokens, so they are not bytes: give tokenizer=..."):format(model.policy.config.vocab), 0)
end

local data = ms.data.preferences {
  files = cfg.files, tokenizer = tokenizer, template = cfg.template,
  seq = cfg.seq, batch = cfg.batch, mesh = mesh, seed = cfg.seed,
}
local loss = ms.loss.dpo { beta = cfg.beta, label_smoothing = cfg.label_smoothing }
local train = ms.trainer {
  model = model, micro_batches = cfg.micro_batches, clip_grad_norm = 1.0,
  forward = function(pair, batch)
    local policy, reference = pair(batch.tokens)
    return loss(policy, reference, batch.targets)
  end,
  optimizer = ms.optim.adamw {
    lr = ms.schedule.cosine {
      peak = cfg.lr, warmup = math.min(10, cfg.steps), total = math.max(1, cfg.steps), floor = cfg.lr / 10,
    },
    weight_decay = 0,
  },
  checkpoint = { dir = cfg.checkpoint, every = cfg.save_every, resume = cfg.resume, data = data },
}

-- Random weights depend on names, so those of the two models differ; a folder gives both the same.
if cfg.folder == "" and train.steps_done == 0 and not ms.world().plan_only then
  for name in model.policy:named_parameters() do
    train:set_parameter("reference." .. name, train:parameter("policy." .. name))
  end
end

for step, batch in data:batches(cfg.steps) do ms.log(step, train:step(batch)) end

if cfg.save ~= "" then ms.huggingface.save(model.policy, cfg.save) end
