-- Trains parameters whose gradients are given numbers of few bits, so that every mesh of 2^n ranks sums them exactly,
-- and writes all weights and moments as text: files of runs that did the same are the same.

local ms = require "moonshard"
local json = require "moonshard.base.text.json"

local cfg = ms.args {
  mesh = "1x1", layout = "rows", moments = "i8", steps = 6, out = "", load = "", save = "", save_at = 0, units = true,
  over_replicate = false, shared_masters = true, ema = ms.args.real(0),
}

-- Rows that fill blocks of 256, rows that do not, a last block of few elements, and one that is too small for 8 bits.
local SHAPES = { even = { 96, 64 }, odd = { 70, 61 }, long = { 5000 }, small = { 60, 50 } }
local NAMES = { "even", "odd", "long", "small" }

local Part = ms.module "Part"

function Part:init(name)
  self.w = ms.parameter(SHAPES[name])
  self.still = ms.parameter { 5, frozen = true } -- after what trains, in all buffers
end

function Part:forward(x) return (self.w * x):sum() + self.still:sum() end

local model = ms.module { forward = function(self, batch)
  local loss
  for _, name in ipairs(NAMES) do
    local one = self[name](batch[name])
    loss = loss and loss + one or one
  end
  return loss
end }
for _, name in ipairs(NAMES) do model[name] = Part(name) end

ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }),
  units = cfg.units and { "even", ms.re[[odd|small]] } or nil, layout = cfg.layout, seed = 5,
  shard_optimizer_over_replicate = cfg.over_replicate or nil, shared_masters = cfg.shared_masters,
})
local train = ms.trainer {
  model = model, optimizer = ms.optim.adamw { lr = 1e-2, weight_decay = 0.1, moments = cfg.moments },
  forward = function(net, batch) return net(batch) end,
  ema = cfg.ema > 0 and { decay = cfg.ema } or nil,
}

local function batch_of(step)
  local batch = {}
  for place, name in ipairs(NAMES) do
    local values, n = {}, 1
    for _, size in ipairs(SHAPES[name]) do n = n * size end
    for i = 1, n do values[i] = ((i * 7919 + step * 4099 + place * 31) % 129 - 64) * 2 ^ -(6 + i % 9) end
    batch[name] = ms.tensor(values):reshape(unpack(SHAPES[name]))
  end
  return batch
end

if cfg.load ~= "" then ms.checkpoint.load(train, cfg.load) end
local metrics
for step = train.steps_done + 1, cfg.steps do
  metrics = train:step(batch_of(step))
  if step == cfg.save_at then ms.checkpoint.save(train, cfg.save) end
end

local lines = {}
for _, name in ipairs(NAMES) do
  local fqn = name .. ".w"
  local kinds = { { "param", train:parameter(fqn) }, { "still", train:parameter(name .. ".still") } }
  for _, kind in ipairs { "exp_avg", "exp_avg_sq" } do
    kinds[#kinds + 1] = { kind, train:optimizer_state(fqn, kind) }
  end
  for _, kind in ipairs(kinds) do
    for i, value in ipairs(kind[2]:reshape(-1):tolist()) do
      lines[#lines + 1] = ("%s %s %d %a"):format(fqn, kind[1], i, value)
    end
  end
end
local summary = train:plan():summary()
if ms.world().rank == 0 and cfg.out ~= "" then
  local file = assert(io.open(cfg.out, "w"))
  file:write(table.concat(lines, "\n"), "\n")
  file:close()
  file = assert(io.open(cfg.out .. ".json", "w"))
  file:write(json.encode({ optimizer = summary.bytes.optimizer, plan = summary.peak_bytes, peak = metrics.peak_bytes }))
  file:close()
end
