-- Trains a Llama of one block with grouped queries in bf16 (dtype=f32: in f32), and writes its losses and the norms of
-- its gradients.
-- documents=true: token 3 begins a document; window=N: a query sees so many keys; softcap=C: scores are capped.

local ms = require "moonshard"
local ffi = require "ffi"
local json = require "moonshard.base.text.json"

local cfg = ms.args { out = "", dtype = "bf16", documents = false, window = 0, softcap = 0, steps = 2, seq = 70 }
local BATCH, VOCAB = 2, 19

local model = ms.models.llama {
  vocab = VOCAB, layers = 1, dim = 64, heads = 4, kv_heads = 2, ffn = 96, seq = cfg.seq,
  document_start = cfg.documents and 3 or nil, window = cfg.window > 0 and cfg.window or nil,
  attention_softcap = cfg.softcap > 0 and cfg.softcap or nil,
}
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, "1x1", { "replicate", "shard" }),
  mp_policy = { param_dtype = cfg.dtype, reduce_dtype = "f32" },
})
local train = ms.trainer {
  model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.cross_entropy, clip_grad_norm = 1.0,
}

local function tokens_of(step)
  local inputs, targets = ffi.new("int32_t[?]", BATCH * cfg.seq), ffi.new("int32_t[?]", BATCH * cfg.seq)
  for i = 0, BATCH * cfg.seq - 1 do
    inputs[i] = (i * i * 7 + step * 13) % VOCAB
    targets[i] = (inputs[i] * 3 + 1) % VOCAB
  end
  local shape = { BATCH, cfg.seq }
  return {
    inputs = { data = inputs, dtype = "i32", shape = shape },
    targets = { data = targets, dtype = "i32", shape = shape },
  }
end

local result = { losses = {}, norms = {} }
for step = 1, cfg.steps do
  local m = train:step(tokens_of(step))
  result.losses[step], result.norms[step] = m.loss, m.grad_norm
end
local file = assert(io.open(cfg.out, "w"))
file:write(json.encode(result))
file:close()
