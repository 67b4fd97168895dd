-- A decoder of today beside a GPT of equal flops a token: both train in turns in one process.
--
--   moonshard run tests/bench/families.lua family=qwen3 dtype=bf16
--
-- family: qwen3 (norms of queries and keys) or qwen2 (their biases), with half as many key heads as query heads. Its
-- feed-forward is as wide as makes the weights of a layer's products, and so their flops, as many as the GPT's: 1152 of
-- 384. Rank 0 prints one JSON line: the result of pairs.lua, with the names family and gpt, and tokens_per_step.

local ffi = require("ffi")
local ms = require("moonshard")
local compare = dofile("tests/bench/pairs.lua").compare
local re = ms.re

local cfg = ms.args {
  family = "qwen3", layers = 6, dim = 384, heads = 6, seq = 256, batch = 8, vocab = 256, mesh = "1x1", dtype = "f32",
  pairs = 20, window = 1, warmup = 2,
}

-- Weights of a layer: 4 dim^2 + 2 dim (4 dim) of the GPT; 3 dim^2 + 3 dim ffn here.
local ffn = 3 * cfg.dim
local sizes = { vocab = cfg.vocab, layers = cfg.layers, dim = cfg.dim, heads = cfg.heads, seq = cfg.seq }

local function with(more)
  local all = {}
  for _, source in ipairs({ sizes, more }) do
    for key, value in pairs(source) do all[key] = value end
  end
  return all
end

local function trainer(model)
  ms.fully_shard(model, {
    mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }), units = { re[[^layers\.\d+$]] },
    mp_policy = { param_dtype = cfg.dtype, reduce_dtype = "f32" },
  })
  return ms.trainer {
    model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.adamw { lr = 1e-3, weight_decay = 0.1 },
  }
end

local count = cfg.batch * cfg.seq
local tokens = ffi.new("int32_t[?]", count)
for i = 0, count - 1 do tokens[i] = (i * 7 + ms.world().rank) % cfg.vocab end
local array = { data = tokens, dtype = "i32", shape = { cfg.batch, cfg.seq } }
local batch = { tokens = array, targets = array }

local train = {
  gpt = trainer(ms.models.gpt2(sizes)),
  family = trainer(ms.models[cfg.family](with { kv_heads = cfg.heads / 2, ffn = ffn })),
}
local result = compare({ "family", "gpt" }, train, batch, cfg)
if ms.world().rank == 0 then
  result.name, result.dtype, result.tokens_per_step = cfg.family, cfg.dtype, count * ms.world().size
  print(require("moonshard.base.json").encode(result))
end
