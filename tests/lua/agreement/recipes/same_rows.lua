-- A small GPT over any mesh, with batches made by hand, of which one input of one step is drawn differently on one
-- rank. Specs check that the ranks which compute the same samples notice.

local ms = require "moonshard"

local cfg = ms.args {
  mesh = "1x2x2", names = "replicate shard tensor", steps = 3, own = "", on = 1, at = 1, evaluate = false, call = false,
  every = 0, files = "",
}

local names = {}
for name in cfg.names:gmatch("%a+") do names[#names + 1] = name end
local mesh, rank = ms.init_device_mesh(cfg.device, cfg.mesh, names), ms.world().rank
local model = ms.models.gpt2 { vocab = 256, layers = 1, dim = 16, heads = 2, seq = 8 }
ms.fully_shard(model, {
  mesh = mesh, placements = mesh:has("tensor") and ms.rules.tensor_parallel(model) or nil,
  replicate_sync = cfg.every > 0 and { every = cfg.every, outer = ms.optim.sgd { lr = 1 } } or nil,
})
local factor = ms.tensor(cfg.own == "factor" and rank == cfg.on and 2 or 1)
local train = ms.trainer {
  model = model, optimizer = ms.optim.adamw { lr = 1e-2 },
  loss = function(logits, targets) return ms.loss.cross_entropy(logits, targets) * factor end,
}

local function draw(name, step)
  local seed = 10 * step + (name == "targets" and 1 or 2)
  if name == cfg.own and step == cfg.at and rank == cfg.on then seed = seed + 1000 end
  return (ms.rand { 2, 8, seed = seed } * 255):cast("i32")
end

local function batch_of(step)
  local differs = step == cfg.at and rank == cfg.on
  return { tokens = draw("tokens", step), targets = draw("targets", step),
    first_row = differs and cfg.own == "first_row" and 2 or 0,
    row_step = differs and cfg.own == "row_step" and 2 or 1 }
end

if cfg.files ~= "" then -- one for each rank
  local files = {}
  for file in cfg.files:gmatch("[^,]+") do files[#files + 1] = file end
  local data = ms.data.text { files = files[rank + 1], seq = 8, batch = 2, mesh = mesh }
  for step, batch in data:batches(cfg.steps) do ms.log(step, train:step(batch)) end
else
  for step = 1, cfg.steps do ms.log(step, train:step(batch_of(step))) end
end
if cfg.evaluate then
  local function batches()
    for i = 1, 2 do
      local counted = cfg.own == "counted_rows" and (i == cfg.at and rank == cfg.on and 2 or 1) or nil
      coroutine.yield(i, { tokens = draw("evaluated", i), targets = draw("targets", i), counted_rows = counted })
    end
  end
  ms.log.print(("evaluated %.4f"):format(train:evaluate(coroutine.wrap(batches))))
end
if cfg.call then model(draw("called", 1)) end
