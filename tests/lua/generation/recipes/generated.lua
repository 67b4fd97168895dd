-- Trains a small GPT of bytes for a few steps, keeps a checkpoint, and writes what it generates then; with the averages
-- of its weights too, if it keeps some. What it prints itself is none of what `moonshard generate` prints.

local ms = require "moonshard"

local cfg = ms.args { mesh = "1x-1", steps = 8, checkpoint = "", out = "", ema = ms.args.real(0) }

local model = ms.models.gpt2 { vocab = 256, layers = 2, dim = 32, heads = 4, seq = 16 }
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }), units = { ms.re[[^layers\.\d+$]] },
})
print(model)
local data = ms.data.text { files = cfg.files, seq = 16, global_batch = 8 }
local train = ms.trainer {
  model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.adamw { lr = 1e-2 }, ema = cfg.ema,
}
for _, batch in data:batches(cfg.steps) do train:step(batch) end
ms.checkpoint.save(train, cfg.checkpoint)

local function write(path, ema)
  local text = ms.generate(train, { prompt = "the", tokens = 10, seed = 4, ema = ema })
  if ms.world().rank ~= 0 then return end
  local file = assert(io.open(path, "wb"))
  file:write("the", text, "\n")
  file:close()
end

write(cfg.out, false)
if cfg.ema > 0 then write(cfg.out .. ".ema", true) end
