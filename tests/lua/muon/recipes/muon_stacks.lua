-- Trains stacks of matrices, and projections by heads, with Muon. The loss is the sum of the weights times inputs, so
-- their gradients are the inputs, which a spec can compute too. It writes the weights after each step.

local ms = require "moonshard"
local json = require "moonshard.base.text.json"
local stacks = require "lua.muon.recipes.stacks"

local cfg = ms.args {
  mesh = "1x-1", steps = 3, adjust = "original", layout = "rows", dtype = "f32", axis = 1, own = false, over = false,
  out = "",
}

local names = {}
for name in pairs(stacks) do names[#names + 1] = name end
table.sort(names)

local Net = ms.module "Net"
function Net:init()
  for _, name in ipairs(names) do self[name] = ms.parameter { init = "zeros", unpack(stacks[name].shape) } end
end
function Net:forward(inputs)
  local sum
  for _, name in ipairs(names) do
    local own = (self[name] * inputs[name]):sum()
    sum = sum and sum + own or own
  end
  return sum
end

local model = Net()
local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard", "tensor" })
local placements, groups = {}, {}
for _, name in ipairs(names) do
  local of = stacks[name]
  local axis = math.min(cfg.axis, #of.shape - 1)
  local fits = of.shape[axis + 1] % mesh:size("tensor") == 0
  placements[#placements + 1] = fits and { name, { tensor = ms.Shard(axis) } } or nil
  if of.heads then groups[#groups + 1] = { name, { heads = of.heads } } end
end
ms.fully_shard(model, {
  mesh = mesh, placements = placements, layout = cfg.layout, shared_masters = not cfg.own,
  shard_optimizer_over_replicate = cfg.over,
})
local train = ms.trainer {
  model = model, forward = function(net, batch) return net(batch) end,
  optimizer = ms.optim.muon {
    lr = 0.5, momentum = 0.9, weight_decay = 0.1, adjust = cfg.adjust, dtype = cfg.dtype, groups = groups,
  },
}

local after = {}
for step = 1, cfg.steps do
  local inputs = {}
  for name, of in pairs(stacks) do
    inputs[name] = ms.tensor(of.gradient(step)):reshape(unpack(of.shape))
  end
  train:step(inputs)
  after[step] = {}
  for name in pairs(stacks) do after[step][name] = train:parameter(name):reshape(-1):tolist() end
end
if ms.world().rank == 0 and cfg.out ~= "" then
  local file = assert(io.open(cfg.out, "w"))
  file:write(json.encode(after))
  file:close()
end
