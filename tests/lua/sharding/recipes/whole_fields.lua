-- Fields of a batch whose second size is 1 on a mesh with context: every rank has all of them.

local ms = require "moonshard"
local mse = ms.loss.mse

local cfg = ms.args { mesh = "1x1", what = "mask", micro = 1 }

local Net = ms.module "Net"
function Net:init()
  local linear = ms.nn.linear
  self.a, self.q, self.k, self.v, self.o = linear(6, 8), linear(8, 8), linear(8, 8), linear(8, 8), linear(8, 5)
end
function Net:forward(x, mask)
  local h = self.a(x):tanh()
  local rows, length = unpack(h.shape)
  local function heads(y) return y:reshape(rows, length, 2, 4):transpose(1, 2) end
  if mask then
    local scores = heads(self.q(h)):matmul(heads(self.k(h)), { trans_b = true }) + mask
    h = h + scores:softmax():matmul(heads(self.v(h))):transpose(1, 2):reshape(rows, length, 8)
  end
  return self.o(h)
end

local model = Net()
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "shard", "context" }), units = { ms.re[[^(q|k|v)$]] },
})

local LOSSES = {
  mask = function(net, b) return mse(net(b.x, b.mask), b.y) end,
  position = function(net, b) return mse(net(b.x1), b.y1) end,
  class = function(net, b) return ms.loss.cross_entropy(net(b.x):mean(1), b.class:reshape(-1)) end,
  scale = function(net, b) return mse(net(b.x) * b.scale, b.y) end,
  both = function(net, b) return mse(net(b.x), b.y) + mse(net(b.x1), b.y1) end,
  counted = function(net, b) return ms.loss.cross_entropy(net(b.x1), b.class) end,
}
local FIELDS = {
  mask = "x mask y", position = "x1 y1", class = "x class", scale = "x scale y", both = "x y x1 y1",
  counted = "x1 class",
}

local train = ms.trainer {
  model = model, optimizer = ms.optim.adamw { lr = 0.01 }, micro_batches = cfg.micro, forward = LOSSES[cfg.what],
}
for step = 1, 3 do
  local function drawn(kind, ...) return ms.randn({ 4, ... }, { seed = 100 * kind + step }) end
  local all, batch = {
    x = drawn(1, 8, 6), y = drawn(2, 8, 5), mask = drawn(3, 1, 8, 8), scale = drawn(4, 1, 1), x1 = drawn(5, 1, 6),
    y1 = drawn(6, 1, 5), class = ms.tensor { dtype = "i32", { 1 }, { 0 }, { 3 }, { 4 } },
  }, {}
  for name in FIELDS[cfg.what]:gmatch("%S+") do batch[name] = all[name] end
  local m = train:step(batch)
  if step == 3 then print("found", m.loss, m.grad_norm, (model:parameter("o.weight") ^ 2):sum():item()) end
end
