-- Samples from a small GPT as it begins, with several settings, and writes the texts to a file.

local ms = require "moonshard"

local cfg = ms.args { mesh = "1x1", out = "", vocab = 256, tokenizer = "" }

local model = ms.models.gpt2 { vocab = cfg.vocab, layers = 2, dim = 32, heads = 4, seq = 12 }
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }), units = { ms.re[[^layers\.\d+$]] },
})

local tokenizer = cfg.tokenizer ~= "" and ms.tokenizer(cfg.tokenizer) or nil
local texts = {}
for _, o in ipairs({
  { prompt = "the moon", tokens = 12 }, -- beyond the window
  { prompt = "the moon", tokens = 12, seed = 2 },
  { prompt = "the moon", tokens = 4, temperature = 0 },
  { prompt = "the moon", tokens = 8, temperature = 3, top_k = 0, top_p = 0.9 },
}) do
  o.tokenizer = tokenizer
  local text, tokens = ms.generate(model, o)
  texts[#texts + 1] = ("%s|%s"):format(table.concat(tokens, " "), text)
end
if ms.world().rank == 0 then
  local file = assert(io.open(cfg.out, "wb"))
  file:write(table.concat(texts, "\0"))
  file:close()
end
