-- A model with parameters of shape {}: a scale and a shift in a unit of their own, a temperature, and one that is all
-- that its module has. `product` trains a scalar alone, whose updates have closed forms.

local ms = require "moonshard"
local re = ms.re

local cfg = ms.args {
  mesh = "1x1x1x1", steps = 3, optimizer = "adamw", moments = "f32", dtype = "f32", layout = "rows", micro_batches = 1,
  product = false, lr = 0.1, muon = false, ema = false, loads = "", saves = "", restores = false, sliced = false,
}
local DIM = 8
local linear = ms.nn.linear

local Gate = ms.module "Gate"
function Gate:init()
  self.scale = ms.parameter { shape = {}, init = 0.5 }
  self.shift = ms.parameter { {}, init = ms.init.normal(0, 1) }
end
function Gate:forward(x) return x * self.scale + self.shift end

local Net = ms.module "Net"
function Net:init()
  self.up, self.gate, self.down = linear(3, DIM), Gate(), linear(DIM, 2)
  self.temperature = ms.parameter { shape = {}, init = "ones" }
  self.fixed = ms.parameter { shape = {}, init = 2, frozen = true }
end
function Net:forward(x)
  return self.down(self.gate(self.up(x):tanh())) * self.fixed / self.temperature:exp()
end

local Product = ms.module "Product"
function Product:init() self.s = ms.parameter { shape = {}, init = 3 } end
function Product:forward(x) return x * self.s end

local model = cfg.product and Product() or Net()
local own = ms.optim[cfg.optimizer]
local optimizer = own(cfg.moments == "f32" and { lr = cfg.lr } or { lr = cfg.lr, moments = cfg.moments })
if cfg.muon then optimizer = { { re[[(up|down)\.weight]], ms.optim.muon { lr = cfg.lr } }, { re".", optimizer } } end
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard", "context", "tensor" }),
  units = not cfg.product and { "gate" } or nil, mp_policy = { param_dtype = cfg.dtype }, layout = cfg.layout,
  shard_optimizer_over_replicate = cfg.sliced, shared_masters = not cfg.sliced,
  placements = not cfg.product and {
    { re[[^(up|gate|temperature)]], { tensor = "colwise" } }, { re[[^down]], { tensor = "rowwise" } },
  } or nil,
})
local train = ms.trainer {
  model = model, optimizer = optimizer, loss = ms.loss.mse, micro_batches = cfg.micro_batches,
  ema = cfg.ema and 0.5 or nil,
}
if cfg.loads ~= "" then ms.checkpoint.load(train, cfg.loads) end
for step = 1, cfg.steps do
  local inputs, targets = ms.randn { 4, 8, 3, seed = step }, ms.ones(4, 8, 2)
  if cfg.product then inputs, targets = ms.ones(4, 8, 2), ms.zeros(4, 8, 2) end
  local result = train:step { inputs = inputs, targets = targets }
  local s = cfg.product and train:parameter("s"):item()
  if ms.world().rank == 0 then print(("loss %.9g norm %.9g s %.9g"):format(result.loss, result.grad_norm, s or 0)) end
end
if cfg.saves ~= "" then ms.checkpoint.save(train, cfg.saves) end
if cfg.restores then
  local before, parts = model:parameter("gate.scale"):item(), model:state_dict()
  local full = model:state_dict { full = true }
  assert(ms.world().rank > 0 or #full["gate.scale"].shape == 0 and full["gate.scale"]:item() == before)
  train:set_parameter("gate.scale", ms.tensor(7))
  assert(model:parameter("gate.scale"):item() == 7)
  model:load_state_dict(parts)
  assert(model:parameter("gate.scale"):item() == before)
  train:set_parameter("gate.scale", ms.tensor(7))
  model:load_state_dict(full, { full = true })
  assert(model:parameter("gate.scale"):item() == before)
  local whole = model:unshard()["gate.scale"]
  assert(ms.world().rank > 0 or whole:item() == before)
  local own_part = model:local_parameter("gate.scale")
  assert(own_part:numel() == 0 or own_part:item() == before)
  ms.with_full_params(model, function(params) params["gate.scale"] = params["gate.scale"] * 2 end)
  assert(model:parameter("gate.scale"):item() == 2 * before)
  if ms.world().rank == 0 then print("restored") end
end
