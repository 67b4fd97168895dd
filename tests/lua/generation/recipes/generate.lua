-- Samples from a small model as it begins, with several settings, and writes the texts to a file.

local ms = require "moonshard"

local cfg = ms.args { mesh = "1x1", out = "", vocab = 256, tokenizer = "", family = "gpt2" }

local FAMILIES = {
  gpt2 = { seq = 12 },
  documents = { of = "gpt2", seq = 30, document_start = 32 },
  llama = { seq = 30, kv_heads = 2, ffn = 64, rope_scaling = { factor = 4, low_freq_factor = 1, high_freq_factor = 4,
    original_max_position_embeddings = 16 } },
  qwen3 = { seq = 30, kv_heads = 2, ffn = 64, head_dim = 8 },
  smollm3 = { seq = 30, kv_heads = 2, ffn = 64, head_dim = 8 },
  qwen2_moe = { seq = 30, kv_heads = 2, ffn = 64, experts = 4, experts_per_token = 2, expert_ffn = 12, shared_ffn = 8 },
  deepseek_v3 = { seq = 30, ffn = 64, kv_lora_rank = 12, q_lora_rank = 10, qk_nope_head_dim = 6, qk_rope_head_dim = 4,
    v_head_dim = 5, experts = 4, experts_per_token = 2, expert_ffn = 12, document_start = 32 },
  gpt_oss = { seq = 30, kv_heads = 2, ffn = 12, experts = 4, experts_per_token = 2, window = 5,
    slides = { true, false }, document_start = 32 },
  qwen3_next = { seq = 30, kv_heads = 2, ffn = 64, experts = 4, experts_per_token = 2, expert_ffn = 12, shared_ffn = 8,
    linear_num_key_heads = 2, linear_num_value_heads = 4, linear_key_head_dim = 4, linear_attention = { true, false },
    document_start = 32 },
  gemma2 = { seq = 30, kv_heads = 2, ffn = 64, head_dim = 8, window = 5 },
}

local config = FAMILIES[cfg.family]
local make = ms.models[config.of or cfg.family]
config.vocab, config.layers, config.dim, config.heads, config.of = cfg.vocab, 2, 32, 4, nil
local model = make(config)

local NAMES = {
  { "replicate", "shard" }, { "replicate", "shard", "tensor" }, { "replicate", "shard", "context", "tensor" },
}
local _, crosses = cfg.mesh:gsub("x", "")
local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, NAMES[crosses])
ms.fully_shard(model, {
  mesh = mesh, units = { ms.re[[^layers\.\d+$]] },
  placements = mesh:has("tensor") and ms.rules.tensor_parallel(model) or nil,
})

local tokenizer = cfg.tokenizer ~= "" and ms.tokenizer(cfg.tokenizer) or nil
local texts = {}

local function add(o)
  o.tokenizer = tokenizer
  local text, tokens = ms.generate(model, o)
  if type(text) == "string" then text, tokens = { text }, { tokens } end
  for i = 1, #text do texts[#texts + 1] = ("%s|%s"):format(table.concat(tokens[i], " "), text[i]) end
end

for _, o in ipairs({
  { prompt = "the moon", tokens = 12 }, -- beyond the window of gpt2
  { prompt = "the moon", tokens = 12, seed = 2 },
  { prompt = "the moon", tokens = 4, temperature = 0 },
  { prompt = "the moon", tokens = 8, temperature = 3, top_k = 0, top_p = 0.9 },
}) do
  add(o)
end
-- Of different lengths, three for two ranks, and beyond the length of all families.
if not tokenizer then add { prompt = { "the moon is", { 1, 2, 32, 4 }, "a" }, tokens = 28, temperature = 1 } end
if ms.world().rank == 0 then
  local file = assert(io.open(cfg.out, "wb"))
  file:write(table.concat(texts, "\0"))
  file:close()
end
