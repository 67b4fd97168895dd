-- Fine-tunes a Hugging Face folder on conversations, with a loss on the answers only, and evaluates it before and
-- after.
--
--   moonshard run recipes/chat.lua -n 2 folder=path/to/qwen files="chats/*.jsonl" save=tuned
--   moonshard run recipes/chat.lua -n 4 mesh=2x2 folder=path/to/qwen document_start="<|endoftext|>" questions=arc.jsonl
--   moonshard run recipes/chat.lua -n 4 mesh=2x2 folder=path/to/qwen template=tokenizer rank=16 adapters=tuned  # LoRA
--   moonshard plan recipes/chat.lua -n 8 mesh=1x8 folder=path/to/qwen seq=4096 batch=1        # memory only

local ms = require "moonshard"
local re = ms.re

local cfg = ms.args {
  folder = "",                     -- Hugging Face folder; "": a small model of bytes with random weights
  ignore = {},                     -- fields of its config.json to load it without: a,b
  files = "",                      -- conversations, JSON lines
  tokenizer = "",                  -- tokenizer.json or its folder; "": the folder's, or else a token is a byte
  template = "chatml",             -- chatml, llama3, gemma, phi3, plain; tokenizer: the folder's own; a .jinja file
  train_on = "assistant",          -- what the loss counts: all answers; last: those after the last question; all
  document_start = "",             -- a token that begins conversations: several share a row; "": one in a row
  seq = 256, batch = 4,            -- tokens per row, rows per rank
  steps = 200, lr = 1e-4, seed = 0,
  rank = 0, alpha = ms.args.real(16), -- of low-rank adapters (LoRA), which train alone; rank=0: all weights train
  modules = [[(attn|mlp)\.w\w$]],  -- the linear layers that get one
  start = "",                      -- folder of adapters to go on from, such as one that PEFT saved, instead of new ones
  valid = ms.args.real(0.1),       -- fraction of the rows for validation
  text = "",                       -- files of text whose perplexity is reported
  questions = "",                  -- JSON lines with context, choices and label: how many are answered rightly
  mesh = "1x-1",                   -- replicas x shards, then x tensor; -1: all remaining ranks
  dtype = "auto",                  -- type of gathered weights: f32, bf16, or auto (bf16 if the CPU computes in it)
  checkpoint = "", save_every = 500, resume = "", -- resume=auto continues from the newest checkpoint
  prompt = "", sample = 60,        -- a user's message to answer at the end, in at most so many tokens
  save = "",                       -- Hugging Face folder for the trained model, with adapters merged
  adapters = "",                   -- folder for the adapters alone
}
local adapts = cfg.rank > 0 or cfg.start ~= ""
if cfg.save ~= "" then ms.huggingface.check_folder(cfg.save) end -- fail now rather than after training
if cfg.adapters ~= "" then ms.lora.check_folder(cfg.adapters) end
if cfg.adapters ~= "" and not adapts then error("adapters=" .. cfg.adapters .. " needs rank= or start=", 0) end
if cfg.save ~= "" and cfg.save == cfg.adapters then error("adapters and save are one folder: give each its own", 0) end

local tokenizer = cfg.tokenizer ~= "" and ms.tokenizer(cfg.tokenizer)
  or cfg.folder ~= "" and ms.huggingface.tokenizer(cfg.folder) or nil

local names = { [2] = { "replicate", "shard" }, [3] = { "replicate", "shard", "tensor" } }
local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, names[select(2, cfg.mesh:gsub("x", "")) + 1] or names[2])
local start = cfg.document_start
local data = ms.data.chat {
  files = cfg.files, tokenizer = tokenizer, template = cfg.template, train_on = cfg.train_on,
  document_start = start ~= "" and (tokenizer and start or tonumber(start) or start) or nil,
  seq = cfg.seq, batch = cfg.batch, valid_fraction = cfg.valid, seed = cfg.seed, mesh = mesh,
}

local model = cfg.folder ~= "" and ms.huggingface.model(cfg.folder, {
    ignore = cfg.ignore, document_start = data.document_start,
  })
  or ms.models.qwen3 { vocab = 256, layers = 2, dim = 64, heads = 4, kv_heads = 2, ffn = 192, seq = cfg.seq,
    document_start = data.document_start }
if not tokenizer and model.config.vocab > 256 then
  error(("the model has %d tokens, so they are not bytes: give tokenizer=..."):format(model.config.vocab), 0)
end
if cfg.start ~= "" then
  ms.lora.load(model, cfg.start)
elseif adapts then
  ms.lora(model, { { re(cfg.modules), { rank = cfg.rank, alpha = cfg.alpha } } })
end
ms.fully_shard(model, {
  mesh = mesh,
  placements = mesh:has("tensor") and ms.rules.tensor_parallel(model) or nil,
  units = { re[[^layers\.\d+$]] },  -- each layer is gathered and freed as one
  mp_policy = { param_dtype = cfg.dtype, reduce_dtype = "f32" }, -- masters are f32
})

local train = ms.trainer {
  model = model, loss = ms.loss.cross_entropy, clip_grad_norm = 1.0,
  optimizer = ms.optim.adamw {
    lr = ms.schedule.cosine {
      peak = cfg.lr, warmup = math.min(10, cfg.steps), total = math.max(1, cfg.steps), floor = cfg.lr / 10,
    },
    weight_decay = 0,
  },
  checkpoint = { dir = cfg.checkpoint, every = cfg.save_every, resume = cfg.resume, data = data },
}

local function report(when)
  if ms.world().plan_only then return end
  local parts = {}
  if data.valid then parts[1] = ("validation loss %.4f"):format(train:evaluate(data.valid:batches())) end
  if cfg.text ~= "" then
    local text = ms.evaluate.perplexity(train, { files = cfg.text, tokenizer = tokenizer, seq = cfg.seq })
    parts[#parts + 1] = ("perplexity %.2f"):format(text.perplexity)
  end
  if cfg.questions ~= "" then
    local answers = ms.evaluate.multiple_choice(train, {
      files = cfg.questions, tokenizer = tokenizer, template = cfg.template, seq = cfg.seq,
    })
    parts[#parts + 1] = ("acc %.3f  acc_norm %.3f of %d questions"):format(answers.acc, answers.acc_norm,
      answers.questions)
  end
  if parts[1] then ms.log.print(("%s: %s"):format(when, table.concat(parts, "  "))) end
end

report("before")
for step, batch in data:batches(cfg.steps) do ms.log(step, train:step(batch)) end
if cfg.steps > 0 then report("after") end

if cfg.prompt ~= "" then
  local text = ms.generate(train, {
    prompt = ms.data.chat_prompt(cfg.prompt, {
      template = cfg.template, tokenizer = tokenizer, document_start = data.document_start,
    }),
    tokenizer = tokenizer, tokens = cfg.sample, temperature = 0,
  })
  ms.log.print("answer: " .. text)
end
if cfg.adapters ~= "" then ms.lora.save(train, cfg.adapters, { base = cfg.folder ~= "" and cfg.folder or nil }) end
if cfg.save ~= "" then ms.huggingface.save(train, cfg.save) end
