-- Trains a small network whose matrices take Muon, with sums of gradients in the given types, for moonshard check.
--
-- A mistake is made on the ranks only, not on the single one:
--   rows    one half of the rows of a weight has half of its gradient, as if a chunk were averaged once more
--   place   what a step adds to a weight goes to the other half of its rows, as if chunks came back to other ranks
--   owner   what a step adds to a weight is that of the other weight of its size, as if an owner took another matrix

local ms = require "moonshard"
local re = ms.re

local cfg = ms.args {
  mesh = "1x4", shard = "f32", replicate = "", layout = "rows", rows = 16, dim = 24, steps = 5, dtype = "f32",
  mistake = "", muon_dtype = "f32", adjust = "original", nesterov = true, feedback = false, seed = 1,
}
local mistake = not require("moonshard.shard.reference").active and cfg.mistake or ""

local Block = ms.module "Block"

function Block:init(dim)
  self.fc1, self.fc2 = ms.nn.linear(dim, 2 * dim), ms.nn.linear(2 * dim, dim)
end

function Block:forward(x, wrong)
  local weight = self.fc1.weight
  if wrong then
    local half = weight:size(0) / 2
    local first, second = weight:slice(0, 0, half), weight:slice(0, half, 2 * half)
    weight = ms.ops.concat(first, second * 0.5 + second:detach() * 0.5, { axis = 0 })
  end
  return x + self.fc2((x:matmul(weight:t()) + self.fc1.bias):gelu())
end

local Net = ms.module "Net"

function Net:init(dim)
  self.layers, self.head = { Block(dim), Block(dim) }, ms.nn.linear(dim, 8)
end

function Net:forward(x)
  for i, layer in ipairs(self.layers) do x = layer(x, i == 1 and mistake == "rows") end
  return self.head(x)
end

local rank, dim = ms.world().rank, cfg.dim
local model = Net(dim)
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }), units = { re[[^layers\.\d+$]] },
  layout = cfg.layout, seed = cfg.seed, mp_policy = { param_dtype = cfg.dtype, reduce_dtype = { shard = cfg.shard,
    replicate = cfg.replicate ~= "" and cfg.replicate or nil, error_feedback = cfg.feedback or nil } },
})
local train = ms.trainer {
  model = model, loss = ms.loss.mse, optimizer = {
    { re[[fc\d\.weight$]], ms.optim.muon { lr = 0.02, dtype = cfg.muon_dtype, adjust = cfg.adjust,
      nesterov = cfg.nesterov } },
    { re".", ms.optim.adamw { lr = 3e-3 } },
  },
}

local function batch(step)
  local inputs = ms.randn { cfg.rows, dim, seed = 1000 * cfg.seed + 10 * step + rank }
  local targets = inputs:slice(1, 0, 8) * inputs:slice(1, 8, 16)
  return { inputs = inputs, targets = targets }
end

local FIRST, SECOND = "layers.0.fc1.weight", "layers.1.fc1.weight"
local function halves(x)
  local half = x:size(0) / 2
  return x:slice(0, 0, half), x:slice(0, half, 2 * half)
end

for step = 1, cfg.steps do
  local before = train:parameter(FIRST)
  local other = train:parameter(SECOND)
  train:step(batch(step))
  if mistake == "place" then
    local first, second = halves(train:parameter(FIRST) - before)
    train:set_parameter(FIRST, before + ms.ops.concat(second, first, { axis = 0 }))
  elseif mistake == "owner" then
    train:set_parameter(FIRST, before + (train:parameter(SECOND) - other))
  end
end
