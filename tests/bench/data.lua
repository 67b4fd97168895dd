-- How much of a step is spent waiting for data: a small GPT on a token file, so that steps are short.
--
--   moonshard run tests/bench/data.lua files=tokens.bin
--
-- Rank 0 prints one JSON line: data_share, the waits of all steps after the first five as a share of their time, and
-- step_ms and data_ms, their medians.

local ms = require "moonshard"

local cfg = ms.args { files = "", vocab = 16384, layers = 2, dim = 128, heads = 4, seq = 128, batch = 4, steps = 65 }

local model = ms.models.gpt2 { vocab = cfg.vocab, layers = cfg.layers, dim = cfg.dim, heads = cfg.heads, seq = cfg.seq }
ms.fully_shard(model, {})
local train = ms.trainer { model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.adamw { lr = 1e-3 } }
local data = ms.data.tokens { files = cfg.files, seq = cfg.seq, batch = cfg.batch }

local waits, steps, waited, all = {}, {}, 0, 0
for step, batch in data:batches(cfg.steps) do
  local m = train:step(batch)
  if step > 5 then
    waits[#waits + 1], steps[#steps + 1] = m.data_ms, m.step_ms
    waited, all = waited + m.data_ms, all + m.data_ms + m.step_ms
  end
end
table.sort(waits)
table.sort(steps)
local middle = math.ceil(#waits / 2)
print(('{"data_share":%.6g,"step_ms":%.4g,"data_ms":%.4g}'):format(waited / all, steps[middle], waits[middle]))
