-- Trains by rows that each rank draws for itself, with a data object whose state differs between ranks if asked to.
-- Writes what each rank trained on to out.RANK, a line for each step.

local ms = require "moonshard"

local cfg = ms.args { mesh = "1x2", dir = "", resume = "", upto = 6, every = 0, out = "", async = true,
  own_seed = true, own_rows = true, generator = true, load = "", kept = true }
local rank = ms.world().rank

ms.manual_seed(cfg.own_seed and 100 + rank or 100)
local model = ms.nn.linear(4, 2)
ms.fully_shard(model, { mesh = ms.init_device_mesh("cpu", cfg.mesh, { "replicate", "shard" }) })

-- A stream of rows, of which each rank is at another.
local data = { row = cfg.own_rows and 1000 * rank or 0, seen = {} }
function data:state()
  return { row = self.row, seen = self.seen, best = math.huge, open = not cfg.kept and rank == 1 and print or nil }
end
function data:load_state(state)
  assert(state.best == math.huge)
  self.row, self.seen = state.row, state.seen
end
function data:next()
  self.row = self.row + 1
  self.seen[self.row] = true -- no list: its first key is not 1 on rank 1
  return self.row
end

local train = ms.trainer {
  model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse,
  checkpoint = { dir = cfg.dir, resume = cfg.resume, every = cfg.every, async = cfg.async, data = data },
}
if cfg.load ~= "" then
  ms.checkpoint.load(train, cfg.load, { generator = cfg.generator })
end
local file = cfg.out ~= "" and assert(io.open(("%s.%d"):format(cfg.out, rank), "w"))
for step = train.steps_done + 1, cfg.upto do
  local row, x = data:next(), ms.randn(1, 4)
  local loss = train:step({ inputs = x, targets = ms.zeros(1, 2) }).loss
  local count = 0
  for _ in pairs(data.seen) do count = count + 1 end
  if file then file:write(("%d %.9g %s row %d seen %d\n"):format(step, loss, tostring(x:values()), row, count)) end
end
if file then file:close() end
