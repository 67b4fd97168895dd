-- Attention under a mask that the op `attention` does not know, with fewer heads of keys than ranks of `tensor`.

local ms = require "moonshard"
local re = ms.re

local cfg = ms.args {
  mesh = "1x1", names = "shard tensor", heads = 4, kv_heads = 1, prefix = 2, softcap = ms.args.real(0), steps = 2,
  sequence_parallel = false, own_mask = false, sinks = false,
}
local DIM, SEQ, ROWS, SIZE = 16, 8, 2, 4

local Layer = ms.module "Layer"
function Layer:init()
  self.q = ms.nn.linear(DIM, cfg.heads * SIZE, { bias = false })
  self.k = ms.nn.linear(DIM, cfg.kv_heads * SIZE, { bias = false })
  self.v = ms.nn.linear(DIM, cfg.kv_heads * SIZE, { bias = false })
  self.o = ms.nn.linear(cfg.heads * SIZE, DIM, { bias = false })
  if cfg.sinks then self.sinks = ms.parameter { cfg.heads } end
end
function Layer:forward(x)
  local q = self.q(x):reshape(ROWS, SEQ, cfg.heads, SIZE)
  local k, v = self.k(x):reshape(ROWS, SEQ, cfg.kv_heads, SIZE), self.v(x):reshape(ROWS, SEQ, cfg.kv_heads, SIZE)
  local y = ms.nn.masked_attention(q, k, v, {
    prefix = cfg.prefix > 0 and cfg.prefix or nil, softcap = cfg.softcap > 0 and cfg.softcap or nil,
    sinks = rawget(self, "sinks"), mask = cfg.own_mask and ms.randn { 1, cfg.heads, SEQ, SEQ, seed = 5 } or nil,
  })
  return x + self.o(y:reshape(ROWS, SEQ, cfg.heads * SIZE))
end

local Net = ms.module "Net"
function Net:init()
  self.first, self.last = ms.nn.linear(3, DIM), ms.nn.linear(DIM, 2)
  self.layers = { Layer(), Layer() }
end
function Net:forward(x)
  local h = self.first(x)
  for _, layer in ipairs(self.layers) do h = layer(h) end
  return self.last(h)
end

local names = {}
for name in cfg.names:gmatch("%w+") do names[#names + 1] = name end
local model = Net()
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, names), sequence_parallel = cfg.sequence_parallel,
  placements = {
    { re[[\.q\.]], { tensor = "colwise", heads = cfg.heads } },
    { re[[\.[kv]\.]], { tensor = "colwise", kv_heads = cfg.kv_heads } },
    { re[[\.o\.]], { tensor = "rowwise" } },
  },
})
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 0.01 }, loss = ms.loss.mse }
for step = 1, cfg.steps do
  local result = train:step { inputs = ms.randn { ROWS, SEQ, 3, seed = step }, targets = ms.zeros(ROWS, SEQ, 2) }
  if ms.world().rank == 0 then print("loss", result.loss) end
end
