-- Two networks of one model, each trained by a trainer of its own: the generator's loss goes through the discriminator,
-- which it does not train. Weights begin as sines, so that other libraries can repeat the run.

local ms = require "moonshard"

local cfg = ms.args {
  mesh = "1x1x1", optimizer = "adamw", rounds = 3, dtype = "f32", layout = "rows", micro_batches = 1, recompute = false,
  clip = ms.args.real(0), decay = ms.args.real(0), frozen = "d", saves = "", loads = "",
}
local linear, mse = ms.nn.linear, ms.loss.mse

local Net = ms.module "Net"
function Net:init(inputs, outputs) self.up, self.down = linear(inputs, 8), linear(8, outputs) end
function Net:forward(x) return self.down(self.up(x):tanh()) end

local Pair = ms.module "Pair"
function Pair:init() self.g, self.d = Net(2, 4), Net(4, 1) end
function Pair:forward(x) return self.d(self.g(x)) end

local model = Pair()
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard", "tensor" }),
  units = { "g", "d.up", "d.down" },
  mp_policy = { param_dtype = cfg.dtype }, layout = cfg.layout, recompute = cfg.recompute,
  placements = { { ms.re[[\.up\.]], { tensor = "colwise" } }, { ms.re[[\.down\.]], { tensor = "rowwise" } } },
})
local optimizer = ms.optim[cfg.optimizer] { lr = 0.05, weight_decay = 0.1 }
local function trainer(frozen, forward)
  return ms.trainer { model = model, optimizer = optimizer, freeze = { frozen }, micro_batches = cfg.micro_batches,
    clip_grad_norm = cfg.clip, forward = forward, ema = cfg.decay > 0 and cfg.decay or nil }
end
local judge = trainer("g", function(net, b)
  return mse(net(b.inputs), b.targets * 0) + mse(net.d(b.real), b.targets)
end)
local forge = trainer(cfg.frozen, function(net, b) return mse(net(b.inputs), b.targets) end)

local at, names = 0, {}
for name, parameter in model:named_parameters() do
  local values = {}
  for i = 1, parameter.numel do
    at = at + 1
    values[i] = 0.5 * math.sin(at)
  end
  names[#names + 1] = name
  judge:set_parameter(name, ms.tensor(values):reshape(unpack(parameter.shape)))
end
if cfg.loads ~= "" then
  ms.checkpoint.load(judge, cfg.loads)
  ms.checkpoint.load(forge, cfg.loads)
end

local function values_of(prefix)
  local list = {}
  for _, name in ipairs(names) do
    if name:sub(1, 2) == prefix then
      for _, value in ipairs(model:parameter(name):reshape(-1):tolist()) do list[#list + 1] = value end
    end
  end
  return list
end

local function equal(a, b)
  for i, value in ipairs(a) do
    if b[i] ~= value then return false end
  end
  return true
end

local function sines(from, ...)
  local n, values = 1, {}
  for _, size in ipairs({ ... }) do n = n * size end
  for i = 1, n do values[i] = math.sin(from + i) end
  return ms.tensor(values):reshape(...)
end

for round = judge.steps_done + 1, judge.steps_done + cfg.rounds do
  local inputs, targets = sines(10 * round, 4, 2), ms.ones(4, 1)
  local g, d = values_of("g."), values_of("d.")
  local judged = judge:step { inputs = inputs, targets = targets, real = sines(100 * round, 4, 4) }
  assert(equal(g, values_of("g.")) and not equal(d, values_of("d.")), "only d trains in a step of judge")
  d = values_of("d.")
  local forged = forge:step { inputs = inputs, targets = targets }
  assert(equal(d, values_of("d.")) and not equal(g, values_of("g.")), "only g trains in a step of forge")
  if ms.world().rank == 0 then
    print(("round %d: %.7g %.7g %.7g %.7g"):format(round, judged.loss, judged.grad_norm, forged.loss, forged.grad_norm))
  end
end
if cfg.saves ~= "" then ms.checkpoint.save(judge, cfg.saves) end
