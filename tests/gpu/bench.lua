-- The Moonshard side of `make bench-gpu`: trains a GPT-2 or a Llama on random tokens, in bf16, like peer_torch.py; or a
-- mixture of eight experts, of which each token takes two.
--
--   moonshard run tests/gpu/bench.lua device=cuda model=gpt2 batch=32
--   moonshard run tests/gpu/bench.lua device=cuda model=gpt2 batch=32 fused=true     no whole logits in memory
--   moonshard run tests/gpu/bench.lua device=cuda model=llama batch=4 fp8=rowwise    layers multiply in 8 bits
--   moonshard run tests/gpu/bench.lua device=cuda rematerialize=false                results of gelu and norms are kept
--   moonshard run tests/gpu/bench.lua device=cuda copy=true                          the update writes bf16 weights
--   moonshard run tests/gpu/bench.lua device=cuda model=mixtral batch=8 seq=2048     experts
--
-- Rank 0 prints one JSON line: tokens_per_s and step_ms (median after the warm-up), flops_per_token (6 parameters, of a
-- token's experts alone, + 12 layers dim seq: counts masked scores, but no recomputation), the bytes inside and outside
-- the arenas, the host's microseconds for each collective that it gives to NCCL (0: none), and the losses of the first
-- and the last step.

local ffi = require("ffi")
local ms = require("moonshard")
local re = ms.re

local cfg = ms.args {
  model = "gpt2", batch = 32, seq = 1024, steps = 30, warmup = 10, dtype = "bf16", mesh = "1x1", layers = 0, lr = 1e-4,
  vocab = 0, name = "moonshard", fused = ms.args.any(false), chunk = 0, fp8 = "",
  rematerialize = ms.args.any(true), copy = false,
}

local SIZES = {
  gpt2 = { vocab = 50304, layers = 12, dim = 768, heads = 12 },
  llama = { vocab = 128256, layers = 16, dim = 2048, heads = 32, kv_heads = 8, ffn = 8192 },
  mixtral = { vocab = 32000, layers = 8, dim = 1024, heads = 16, kv_heads = 8, ffn = 3584, experts = 8,
    experts_per_token = 2 },
}
local size = assert(SIZES[cfg.model], "model=" .. cfg.model .. ": it must be gpt2, llama or mixtral")
size.seq = cfg.seq
if cfg.layers > 0 then size.layers = cfg.layers end
if cfg.vocab > 0 then size.vocab = cfg.vocab end

local model = ms.models[cfg.model](size)
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }),
  units = { re[[^layers\.\d+$]] },
  mp_policy = { param_dtype = cfg.dtype, reduce_dtype = "f32", param_copy = cfg.copy },
  fp8 = cfg.fp8 ~= "" and { { re[[^layers\.\d+\..*\.(wq|wk|wv|wo|fc1|fc2|w1|w2|w3)\.weight$]], cfg.fp8 } } or nil,
})
local train = ms.trainer {
  model = model, loss = ms.loss.cross_entropy { fused = cfg.fused, chunk = cfg.chunk > 0 and cfg.chunk or nil },
  optimizer = ms.optim.adamw { lr = cfg.lr, weight_decay = 0.1 }, rematerialize = cfg.rematerialize,
}

math.randomseed(1 + ms.world().rank)
local words = ffi.new("int32_t[?]", cfg.batch * (cfg.seq + 1))
for i = 0, cfg.batch * (cfg.seq + 1) - 1 do words[i] = math.random(0, size.vocab - 1) end

local function rows(shift)
  local data = ffi.new("int32_t[?]", cfg.batch * cfg.seq)
  for row = 0, cfg.batch - 1 do
    ffi.copy(data + row * cfg.seq, words + row * (cfg.seq + 1) + shift, 4 * cfg.seq)
  end
  return { data = data, dtype = "i32", shape = { cfg.batch, cfg.seq } }
end

local batch = { tokens = rows(0), targets = rows(1) }
local step_ms, first, last = {}, nil, nil
for step = 1, cfg.steps do
  last = train:step(batch)
  first = first or last
  if step > cfg.warmup then step_ms[#step_ms + 1] = last.step_ms end
end
table.sort(step_ms)
local median = step_ms[math.floor((#step_ms + 1) / 2)]

local parameters = 0
for name, parameter in model:named_parameters() do
  local n = name:find("%.experts%.") and size.experts_per_token / size.experts or 1
  for _, dim in ipairs(parameter.shape) do n = n * dim end
  parameters = parameters + n
end
local issued = train.session:counters("train").issued
local collective_us = issued.collectives > 0 and 1e6 * issued.seconds / issued.collectives or 0
if ms.world().rank == 0 then
  print(('{"name":"%s","model":"%s","tokens_per_s":%.1f,"step_ms":%.3f,"flops_per_token":%.0f,"peak_bytes":%.0f,'
    .. '"outside_bytes":%.0f,"collective_us":%.1f,"losses":[%.4f,%.4f]}'):format(cfg.name, cfg.model,
    last.tokens / median * 1e3, median, 6 * parameters + 12 * size.layers * size.dim * cfg.seq, last.peak_bytes,
    last.outside_bytes or 0, collective_us, first.loss, last.loss))
end
