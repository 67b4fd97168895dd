-- Ranks of which one has no target in a micro-batch.
--
--   moonshard run tests/lua/models/recipes/without_targets.lua -n 2 mesh=1x2 loss=mean
--
-- loss=mean: the mean of the means of ranks and micro-batches; own: a loss made of such a mean. alike: how many ranks
-- have the same rows. empty: the row, of all rows of all ranks, that begins the micro-batch without a target; -1: none.
-- apart=true: the mean of the means of each two rows that have targets, before any step, from evaluations of these.

local ms = require "moonshard"
local cfg = ms.args { mesh = "1x2", names = "replicate shard", loss = "mean", alike = 1, empty = 6, rows = 4,
  evaluate = false, apart = false }

local names = {}
for name in cfg.names:gmatch("%S+") do names[#names + 1] = name end
local model = ms.nn.sequential { ms.nn.embedding(7, 6), ms.nn.linear(6, 8), ms.ops.gelu, ms.nn.linear(8, 5) }
ms.fully_shard(model, {
  mesh = ms.init_device_mesh("cpu", cfg.mesh, names),
  placements = cfg.names:find("tensor") and { { "1", { tensor = "colwise" } }, { "3", { tensor = "rowwise" } } } or nil,
})
local mean = ms.loss.cross_entropy { reduction = "mean" }
local train = ms.trainer {
  model = model, optimizer = ms.optim.sgd { lr = 0.5 }, micro_batches = cfg.rows / 2,
  loss = cfg.loss == "mean" and mean or function(x, y) return mean(x, y) + (x * x):mean() end,
}
local place = math.floor(ms.world().rank / cfg.alike)
local tokens, targets = { dtype = "i32" }, { dtype = "i32" }
for i = 0, cfg.rows - 1 do
  local row = place * cfg.rows + i
  local without = row == cfg.empty or row == cfg.empty + 1
  tokens[i + 1], targets[i + 1] = {}, {}
  for t = 1, 4 do
    tokens[i + 1][t] = (3 * row + t) % 7
    targets[i + 1][t] = (without or t == 3) and -100 or (row + 2 * t) % 5
  end
end
local function batch_of(first, count)
  local some, to = { dtype = "i32" }, { dtype = "i32" }
  for i = 1, count do some[i], to[i] = tokens[first + i], targets[first + i] end
  return { tokens = ms.tensor(some), targets = ms.tensor(to) }
end
if cfg.apart then
  local sum, count = 0, 0
  for first = 0, cfg.rows - 2, 2 do
    if first ~= cfg.empty then
      local function rows() coroutine.yield(1, batch_of(first, 2)) end
      sum, count = sum + train:evaluate(coroutine.wrap(rows)), count + 1
    end
  end
  print(("%.6f"):format(sum / count))
  return
end
local batch = batch_of(0, cfg.rows)
local numbers = {}
if not cfg.evaluate then
  for _ = 1, 2 do
    local m = train:step(batch)
    numbers[#numbers + 1] = ("%.6f %.5f"):format(m.loss, m.grad_norm)
  end
end
numbers[#numbers + 1] = ("%.6f"):format(train:evaluate(coroutine.wrap(function() coroutine.yield(1, batch) end)))
if ms.world().rank == 0 then print(table.concat(numbers, " ")) end
