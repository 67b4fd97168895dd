-- Tokens that a model of random weights generates in a second, with a prompt of as many tokens: keeping keys and
-- values, and, if asked, by passes over whole texts.
--
--   moonshard run tests/bench/generate.lua family=qwen3 batch=1 prompt=64 tokens=64 whole=true
--
-- Rank 0 prints one JSON line: the tokens of each second over all texts, of the fastest of some calls. The peer's is
-- peer_generate.py.

local ms = require("moonshard")
local clock = require("moonshard.base.clock")

local cfg = ms.args { family = "gpt2", batch = 1, prompt = 64, tokens = 64, rounds = 3, mesh = "1x1", dtype = "f32",
  whole = false }

local CONFIGS = {
  gpt2 = { "124M" },
  qwen3 = { vocab = 32000, layers = 12, dim = 768, heads = 12, kv_heads = 4, head_dim = 64, ffn = 2048, seq = 1024 },
}

local model = ms.models[cfg.family](CONFIGS[cfg.family])
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }), units = { ms.re[[^layers\.\d+$]] },
  mp_policy = { param_dtype = cfg.dtype },
})

local prompts = {}
for i = 1, cfg.batch do
  prompts[i] = {}
  for t = 1, cfg.prompt do prompts[i][t] = (31 * t + 7 * i) % 1000 end
end

local function speed(cache)
  local o = { prompt = prompts, tokens = cfg.tokens, temperature = 0, cache = cache,
    tokenizer = { decode = function() return "" end } }
  local best = math.huge
  for _ = 0, cfg.rounds do -- the first call compiles
    local began = clock.now()
    ms.generate(model, o)
    best = math.min(best, clock.now() - began)
  end
  return cfg.batch * cfg.tokens / best
end

local result = { family = cfg.family, batch = cfg.batch, kept_tokens_per_s = speed(true) }
if cfg.whole then result.whole_tokens_per_s = speed(false) end
if ms.world().rank == 0 then print(require("moonshard.base.text.json").encode(result)) end
