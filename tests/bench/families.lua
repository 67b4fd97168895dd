-- A modern decoder against a GPT of equal flops a token: both train in turns in one process.
--
--   moonshard run tests/bench/families.lua family=qwen3 dtype=bf16
--
-- family: qwen3 (norms of queries and keys) or qwen2 (their biases), with half as many key heads as query heads. Its
-- feed-forward is as wide as makes the weights of a layer's products, and so their flops, as many as the GPT's: 1152 of
-- 384. Rank 0 prints one JSON line: the result of pairs.lua, with the names family and gpt, and tokens_per_step.

local ms = require("moonshard")
local in_turn = dofile("tests/bench/pairs.lua")

local cfg = ms.args {
  family = "qwen3", layers = 6, dim = 384, heads = 6, seq = 256, batch = 8, vocab = 256, mesh = "1x1", dtype = "f32",
  pairs = 20, window = 1, warmup = 2,
}

local function sizes()
  return { vocab = cfg.vocab, layers = cfg.layers, dim = cfg.dim, heads = cfg.heads, seq = cfg.seq }
end

-- Weights of a layer: 4 dim^2 + 2 dim (4 dim) of the GPT; 3 dim^2 + 3 dim ffn here.
local of_family = sizes()
of_family.kv_heads, of_family.ffn = cfg.heads / 2, 3 * cfg.dim

local train = {
  gpt = in_turn.trainer(ms.models.gpt2(sizes()), cfg, cfg.mesh),
  family = in_turn.trainer(ms.models[cfg.family](of_family), cfg, cfg.mesh),
}
local result = in_turn.compare({ "family", "gpt" }, train, in_turn.tokens(cfg), cfg)
if ms.world().rank == 0 then
  result.name, result.dtype, result.tokens_per_step = cfg.family, cfg.dtype, cfg.batch * cfg.seq * ms.world().size
  print(require("moonshard.base.text.json").encode(result))
end
