-- A model whose forward uses constants of every kind where the mesh divides positions or features: numbers, eager
-- tensors, what ms.zeros and ms.arange make, masks, tables of positions, and one that is divided by hand.

local ms = require "moonshard"
local re = ms.re

local cfg = ms.args {
  mesh = "1x1x1x1", steps = 2, only = "", sequence_parallel = false, micro_batches = 1, recompute = false,
}
local ROWS, SEQ, DIM, HEADS = 4, 16, 8, 2
local ops = ms.ops

local table_of_positions = ms.randn { SEQ, DIM, seed = 11 }
local wide, narrow = ms.randn { DIM, 6, seed = 12 }, ms.randn { 6, DIM, seed = 13 }

local uses = {
  triangle = function(_, h) return ops.einsum("bid,bjd->bij", h, h):tril():sum(2):unsqueeze(-1) end,
  mask = function(_, h)
    local x = h:reshape(ROWS, SEQ, HEADS, DIM / HEADS)
    local mask = ms.randn { 1, 1, SEQ, SEQ, seed = 14 }
    return ms.nn.masked_attention(x, x, x, { mask = mask }):reshape(ROWS, SEQ, DIM)
  end,
  by_rows = function(_, h)
    local x = h:reshape(ROWS, SEQ, HEADS, DIM / HEADS)
    local mask = ms.randn { ROWS, HEADS, 1, SEQ, seed = 15 }
    return ms.nn.masked_attention(x, x, x, { mask = mask }):reshape(ROWS, SEQ, DIM)
  end,
  channels = function(_, h) return h * ms.full({ 1, 1, DIM }, 0.5) + ms.full({ 1, 1 }, 0.25) end,
  positions = function(_, h) return (h + table_of_positions):tanh() end,
  projected = function(_, h) return h:matmul(wide):matmul(narrow) * 0.1 end,
  whole = function(_, h) return h * ops.matmul(ms.ones(1, 3), ms.full({ 3, DIM }, 0.1)) end,
  weight = function(self, h) return h:matmul(self.mix * ms.full({ DIM, DIM }, 0.5)) end,
  counted = function(_, h) return h * ms.arange(SEQ):to("f32"):reshape(1, SEQ, 1) * (1 / SEQ) end,
  picked = function(_, h) return ops.where(ms.randn({ 1, SEQ, 1, seed = 16 }):gt(0), h, ms.zeros(1, 1, DIM)) end,
  rows = function(_, h) return h / ms.full({ ROWS, 1, 1 }, 2) end,
  by_hand = function(_, h)
    local part = { tensor = ms.Shard(2) }
    local ones = ms.randn { ROWS, SEQ, DIM, seed = 18 }
    return (h:to_local(part) * ones:to_local(part)):from_local(part)
  end,
}
local names = {}
for name in pairs(uses) do
  if cfg.only == "" or cfg.only == name then names[#names + 1] = name end
end
table.sort(names)

local Block = ms.module "Block"
function Block:init()
  self.up, self.down = ms.nn.linear(DIM, 2 * DIM), ms.nn.linear(2 * DIM, DIM)
  self.mix = ms.parameter { DIM, DIM, init = ms.init.uniform(-0.3, 0.3) }
end
function Block:forward(h)
  local inner = self.up(h) * ms.full({ 2 * DIM }, 0.5) + ms.randn { SEQ, 2 * DIM, seed = 17 }
  h = h + self.down(inner:tanh()) + ms.full({ DIM }, 0.125)
  for _, name in ipairs(names) do h = h + uses[name](self, h):tanh() * 0.2 end
  return h
end

local Net = ms.module "Net"
function Net:init()
  self.first, self.last = ms.nn.linear(3, DIM), ms.nn.linear(DIM, 2)
  self.layers = { Block(), Block() }
end
function Net:forward(x)
  local h = self.first(x)
  for _, block in ipairs(self.layers) do h = block(h) end
  return self.last(h)
end

local model = Net()
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard", "context", "tensor" }),
  units = { re[[layers\.\d+]] }, sequence_parallel = cfg.sequence_parallel,
  recompute = cfg.recompute,
  placements = { { re[[\.up\.]], { tensor = "colwise" } }, { re[[\.down\.]], { tensor = "rowwise" } } },
})
local train = ms.trainer {
  model = model, optimizer = ms.optim.sgd { lr = 0.05 }, loss = ms.loss.mse, micro_batches = cfg.micro_batches,
}
for step = 1, cfg.steps do
  local result = train:step {
    inputs = ms.randn { ROWS * cfg.micro_batches, SEQ, 3, seed = step },
    targets = ms.zeros(ROWS * cfg.micro_batches, SEQ, 2),
  }
  if ms.world().rank == 0 then print("loss", result.loss) end
end
