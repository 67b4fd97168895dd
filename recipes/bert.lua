-- Trains a masked language model, a BERT: on text, by bytes, or on token files; from a Hugging Face folder, or a small
-- one. 15 % of the tokens are to be predicted, of which most are hidden by the token of the mask.
--
--   moonshard run recipes/bert.lua -n 4 mesh=2x2
--   moonshard run recipes/bert.lua -n 4 mesh=2x2 folder=bert tokens=train.bin mask=103 save=trained

local ms = require "moonshard"
local re = ms.re

local cfg = ms.args {
  folder = "",                     -- Hugging Face folder with config.json and weights; "": a small model
  ignore = {},                     -- fields of its config.json to load it without: a,b
  tokens = "",                     -- token files of the folder's tokenizer; "": the text of `files`, by bytes
  mask = -1,                       -- the token that hides others; -1: 256, the one after the bytes
  layers = 0, dim = 0, heads = 0,  -- of the small model; 0: 2, 128 and 4
  seq = 32, batch = 16, steps = 1000, lr = 3e-3, mesh = "2x2", seed = 1,
  eval_every = 200, eval_steps = 8,
  checkpoint = "", save_every = 500, resume = "", -- resume=auto continues from the newest checkpoint
  save = "",                       -- Hugging Face folder for the trained model
}
if cfg.save ~= "" then ms.huggingface.check_folder(cfg.save) end -- fail now rather than after training
if cfg.folder ~= "" then
  if cfg.tokens == "" then error("folder=: the model's tokens are its tokenizer's, not bytes: give tokens=FILES") end
  if cfg.layers + cfg.dim + cfg.heads > 0 then error("folder= has a model: leave out layers=, dim= and heads=") end
end
if cfg.tokens ~= "" and cfg.mask < 0 then error("tokens=: give mask=, their tokenizer's number of [MASK]") end
local mask = cfg.mask < 0 and 256 or cfg.mask
local function given(value, default) return value ~= 0 and value or default end

local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" })
local model = cfg.folder ~= "" and ms.huggingface.model(cfg.folder, { ignore = cfg.ignore }) or ms.models.bert {
  vocab = 257, layers = given(cfg.layers, 2), dim = given(cfg.dim, 128), heads = given(cfg.heads, 4), seq = cfg.seq,
  deviation = 0.05, pad_vocab_to_multiple_of = 64,
}
ms.fully_shard(model, {
  mesh = mesh, units = { re[[^layers\.\d+$]] }, mp_policy = { param_dtype = "auto", reduce_dtype = "f32" },
  seed = cfg.seed,
})

local text = { seq = cfg.seq, batch = cfg.batch, seed = cfg.seed, mesh = mesh }
text.files = cfg.tokens ~= "" and cfg.tokens or cfg.files
local data = ms.data.masked {
  cfg.tokens ~= "" and ms.data.tokens(text) or ms.data.text(text),
  mask = mask, vocab = cfg.tokens ~= "" and model.config.vocab or 256, seed = cfg.seed,
}
local train = ms.trainer {
  model = model, loss = ms.loss.cross_entropy, clip_grad_norm = 1.0,
  optimizer = ms.optim.adamw {
    lr = ms.schedule.cosine {
      peak = cfg.lr, warmup = math.min(100, cfg.steps), total = cfg.steps, floor = cfg.lr / 20,
    },
    weight_decay = 0.01, groups = { { re[[norm|bias]], { weight_decay = 0 } } },
  },
  checkpoint = { dir = cfg.checkpoint, every = cfg.save_every, resume = cfg.resume, data = data },
}

for step, batch in data:batches(cfg.steps) do
  local m = train:step(batch)
  if step % cfg.eval_every == 0 or step == cfg.steps then
    m.valid_loss = train:evaluate(data.valid:batches(cfg.eval_steps))
  end
  ms.log(step, m)
end

if cfg.save ~= "" then ms.huggingface.save(train, cfg.save) end
