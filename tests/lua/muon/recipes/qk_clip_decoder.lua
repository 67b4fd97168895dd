-- A decoder trained with QK-clip below its first scores, so that every step clips: its losses, largest scores, and the
-- projections of queries and keys after each step. attention=chunked: layers attend within chunks of the text and to
-- all of it by turns; documents: texts share a row. Ranks of context have parts of the same rows.

local json = require "moonshard.base.text.json"
local ms = require "moonshard"
local re = ms.re

local cfg = ms.args { mesh = "1x1x1", attention = "plain", documents = false, micro = 1, threshold = ms.args.real(0.02),
  out = "" }
local SEQ, ROWS, VOCAB, START, STEPS = 16, 4, 23, 2, 3

local options = { vocab = VOCAB, layers = 2, dim = 16, heads = 4, kv_heads = 2, ffn = 24, seq = SEQ,
  document_start = cfg.documents and START or nil }
local model
if cfg.attention == "chunked" then
  options.attention_chunk_size, options.chunked, options.rotates = 5, { true, false }, { true, false }
  options.qk_norm, options.experts, options.experts_per_token, options.expert_ffn = false, 2, 1, 8
  options.shared_ffn = 8
  model = ms.models.llama4_text(options)
else
  model = ms.models.llama(options)
end
local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard", "context" })
ms.fully_shard(model, { mesh = mesh, units = { re[[^layers\.\d+$]] } })
local train = ms.trainer {
  model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.adamw { lr = 1e-2, eps = 1e-5 },
  qk_clip = { threshold = cfg.threshold, alpha = 0.25 }, micro_batches = cfg.micro,
}

local place, parts = math.floor(mesh:get_index() / mesh:size("context")), mesh:size() / mesh:size("context")
local rows, steps = ROWS / parts, {}
for step = 1, STEPS do
  local tokens, targets = {}, {}
  for r = 1, rows do
    local row = place * rows + r
    tokens[r], targets[r] = {}, {}
    for i = 1, SEQ do
      tokens[r][i] = (7 * step + 5 * row * i + i) % VOCAB
      targets[r][i] = (3 * tokens[r][i] + 1) % VOCAB
    end
  end
  local function of(rows_of) return ms.tensor(rows_of, { dtype = "i32" }) end
  local m = train:step { tokens = of(tokens), targets = of(targets) }
  local found = { loss = { m.loss }, max_logit = { m.max_logit } }
  for layer = 0, 1 do
    for _, name in ipairs { "wq", "wk" } do
      local weight = ("layers.%d.attn.%s.weight"):format(layer, name)
      found[weight] = train:parameter(weight):reshape(-1):tolist()
    end
  end
  steps[step] = found
end
if ms.world().rank == 0 and cfg.out ~= "" then
  local file = assert(io.open(cfg.out, "w"))
  file:write(json.encode(steps))
  file:close()
end
