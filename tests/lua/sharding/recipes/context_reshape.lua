-- Reshapes [4,T], of which `context` divides T, to [a,b] or [a,b,c], and back.

local ms = require "moonshard"

local cfg = ms.args { ranks = 2, a = 8, b = 8, c = 0, t = 16 }
local ROWS, DIM = 4, 4

local Net = ms.module "Net"
function Net:init() self.first, self.last = ms.nn.linear(3, DIM), ms.nn.linear(DIM, 2) end
function Net:forward(x)
  local h = self.first(x)
  local other = cfg.c > 0 and h:reshape(cfg.a, cfg.b, cfg.c, DIM) or h:reshape(cfg.a, cfg.b, DIM)
  return self.last(other:tanh():reshape(ROWS, cfg.t, DIM))
end

local model = Net()
ms.fully_shard(model, { mesh = ms.init_device_mesh(cfg.device, { 1, cfg.ranks }, { "shard", "context" }) })
local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
local result = train:step { inputs = ms.randn { ROWS, cfg.t, 3, seed = 1 }, targets = ms.zeros(ROWS, cfg.t, 2) }
print(("loss %.6f"):format(result.loss))
