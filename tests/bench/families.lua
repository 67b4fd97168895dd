-- A modern decoder against a plain one of equal flops a token: both train in turns in one process.
--
--   moonshard run tests/bench/families.lua family=qwen3 dtype=bf16
--
-- family: qwen3 (norms of queries and keys) or qwen2 (their biases), with half as many key heads as query heads,
-- against a GPT; mla (latent keys and values) or sinks (attention sinks) against a Llama with plain attention. Its
-- feed-forward is as wide as makes the weights of a layer's products, and so their flops, as many as the plain one's.
-- Rank 0 prints one JSON line: the result of pairs.lua, with the names family and plain, and tokens_per_step.

local ms = require("moonshard")
local in_turn = dofile("tests/bench/pairs.lua")

local cfg = ms.args {
  family = "qwen3", layers = 6, dim = 384, heads = 6, seq = 256, batch = 8, vocab = 256, mesh = "1x1", dtype = "f32",
  pairs = 20, window = 1, warmup = 2,
}

-- Options of a decoder whose attention has so many weights in a layer: a GPT has 4 dim^2, and 2 dim (4 dim) besides.
local function sizes(attention, more)
  local o = { vocab = cfg.vocab, layers = cfg.layers, dim = cfg.dim, heads = cfg.heads, seq = cfg.seq }
  for name, value in pairs(more or {}) do o[name] = value end
  o.ffn = attention and (12 * cfg.dim ^ 2 - attention) / (3 * cfg.dim)
  assert(not o.ffn or o.ffn % 1 == 0, "no width of the feed-forward gives equal flops")
  return o
end

local dim, heads, head = cfg.dim, cfg.heads, cfg.dim / cfg.heads
-- Half of a head's elements are rotated. Scores and values have as many elements as those of plain attention.
local latent = { kv_lora_rank = 64, qk_nope_head_dim = head / 2, qk_rope_head_dim = head / 2, v_head_dim = head }
local of_latent = 2 * dim ^ 2 + dim * (latent.kv_lora_rank + head / 2) + latent.kv_lora_rank * heads * 1.5 * head

local FAMILIES = {
  qwen3 = { "qwen3", sizes(3 * dim ^ 2, { kv_heads = heads / 2 }), plain = "gpt2" },
  qwen2 = { "qwen2", sizes(3 * dim ^ 2, { kv_heads = heads / 2 }), plain = "gpt2" },
  mla = { "llama", sizes(of_latent, latent), plain = "llama" },
  sinks = { "llama", sizes(4 * dim ^ 2, { sinks = true }), plain = "llama" },
}
local family = assert(FAMILIES[cfg.family], "family: qwen3, qwen2, mla or sinks")
local plain = sizes(family.plain ~= "gpt2" and 4 * dim ^ 2 or nil)

local train = {
  plain = in_turn.trainer(ms.models[family.plain](plain), cfg, cfg.mesh),
  family = in_turn.trainer(ms.models[family[1]](family[2]), cfg, cfg.mesh),
}
local result = in_turn.compare({ "family", "plain" }, train, in_turn.tokens(cfg), cfg)
if ms.world().rank == 0 then
  result.name, result.dtype, result.tokens_per_step = cfg.family, cfg.dtype, cfg.batch * cfg.seq * ms.world().size
  print(require("moonshard.base.text.json").encode(result))
end
