-- Reads parameters and state right after each step, and once more when all ranks have met: both are the same, and later
-- than the step before. Layers have sizes of which some ranks own nothing.

local ms = require "moonshard"

local cfg = ms.args {
  mesh = "2x1x1", optimizer = "adamw", steps = 6, shared = true, sliced = false, layout = "rows", dtype = "f32",
  own_copies = false, ema = false, muon = false, last = 1,
}
local linear = ms.nn.linear

local Net = ms.module "Net"
function Net:init()
  self.a, self.b, self.c = linear(8, 8), linear(8, 8), linear(8, 8)
  self.d = linear(8, cfg.last)
end
function Net:forward(x) return self.d(self.c(self.b(self.a(x):tanh()):tanh()):tanh()) end

local model = Net()
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard", "tensor" }), units = { "a", "b", "c", "d" },
  shared_masters = cfg.shared, shard_optimizer_over_replicate = cfg.sliced, layout = cfg.layout,
  mp_policy = { param_dtype = cfg.dtype, param_copy = cfg.own_copies or nil },
  placements = {
    { "a", { tensor = "colwise" } }, { "b", { tensor = "rowwise" } }, { "c", { tensor = "colwise" } },
  },
})
local optimizer = ms.optim[cfg.optimizer] { lr = 0.05 }
if cfg.muon then optimizer = { { ms.re[[^[bc]\.weight]], ms.optim.muon { lr = 0.05 } }, { ms.re".", optimizer } } end
local train = ms.trainer { model = model, optimizer = optimizer, loss = ms.loss.mse, ema = cfg.ema and 0.5 or nil }

local NAMES = { "d.weight", "d.bias", "c.weight", "b.bias", "a.weight" }

-- What this rank has of them, without a collective.
local function parts()
  local list = {}
  for _, name in ipairs(NAMES) do
    local part = model:local_parameter(name)
    for _, value in ipairs(part:numel() > 0 and part:reshape(-1):tolist() or {}) do list[#list + 1] = value end
  end
  return list
end

local function count_differences(a, b)
  local n = 0
  for i, value in ipairs(a) do n = n + (b[i] == value and 0 or 1) end
  return n
end

local stale, still, before = 0, 0, nil
for step = 1, cfg.steps do
  train:step { inputs = ms.randn { 4, 8, seed = step }, targets = ms.randn { 4, cfg.last, seed = 500 + step } }
  local now = parts()
  for _, name in ipairs(NAMES) do model:parameter(name) end -- some are divided: all ranks take part
  local later = parts()
  stale = stale + count_differences(now, later)
  if before and #now > 0 and count_differences(before, now) == 0 then still = still + 1 end
  before = now
end
print(("rank %d older %d still %d"):format(ms.world().rank, stale, still))
