-- A run with everything that a checkpoint must bring back: dropout, a schedule, text in random order, ms.rand in the
-- loop. It stops after step `stop`, or after `more` steps, as if it had died there: without a last save. `inject` goes
-- wrong on the rank `victim`.

local ms = require "moonshard"
local inject_io = require("lua.support.inject_io")

local cfg = ms.args {
  steps = 9, stop = 0, mesh = "2x2", checkpoint = "", save_every = 3, resume = ms.args.any(false), async = true,
  keep_last = 2, seed = 5, out = "", more = 0, inject = "", victim = 0,
}

local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" })
local model = ms.models.gpt2 { vocab = 256, layers = 2, dim = 16, heads = 2, seq = 8, dropout = 0.1 }
ms.fully_shard(model, { mesh = mesh, units = { ms.re[[^layers\.\d+$]] }, seed = cfg.seed })

ms.manual_seed(cfg.seed)
local data = ms.data.text { files = "LICENSE", seq = 8, global_batch = 12, seed = cfg.seed }
local train = ms.trainer {
  model = model, loss = ms.loss.cross_entropy, clip_grad_norm = 1, seed = cfg.seed,
  optimizer = ms.optim.adamw { lr = ms.schedule.cosine { peak = 1e-2, warmup = 4, total = cfg.steps + 3 } },
  checkpoint = {
    dir = cfg.checkpoint, every = cfg.save_every, resume = cfg.resume, async = cfg.async, keep_last = cfg.keep_last,
    data = data,
  },
}

local file = cfg.out ~= "" and ms.world().rank == 0 and assert(io.open(cfg.out, "w"))
if cfg.inject ~= "" and ms.world().rank == cfg.victim then
  inject_io(cfg.inject)
end
local stop = cfg.more > 0 and train.steps_done + cfg.more or cfg.stop
for step, batch in data:batches(cfg.steps) do
  local drawn = ms.rand(1):item()
  local m = train:step(batch)
  if file then file:write(("%d %.17g %.17g %.17g %.17g\n"):format(step, m.loss, m.grad_norm, m.lr, drawn)) end
  if step == stop then
    if file then file:close() end
    ms.checkpoint.finish(train)
    os.exit(0)
  end
end
for name in model:named_parameters() do
  local values = model:parameter(name):reshape(-1):tolist()
  for i, value in ipairs(values) do values[i] = ("%.9g"):format(value) end
  if file then file:write(name, " ", table.concat(values, " "), "\n") end
end
if file then file:close() end
