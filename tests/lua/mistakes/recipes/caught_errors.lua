-- Step 2 fails on a rank and is caught on all; then training goes on, or is refused.

local ms = require "moonshard"

local cfg = ms.args { mesh = "1x2", bad = "none" }

local Net = ms.module "Net"
function Net:init() self.embed, self.head = ms.nn.embedding(5, 4), ms.nn.linear(4, 5) end
function Net:forward(tokens) return self.head(self.embed(tokens)) end

local model = ms.fully_shard(Net(), { mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }) })
local train = ms.trainer {
  model = model, optimizer = ms.optim.adamw { lr = 0.1 },
  forward = function(net, batch) return batch.scale * ms.loss.cross_entropy(net(batch.tokens), batch.targets) end,
}

local function batch(step)
  local tokens = { dtype = "i32", { step % 5, 1, 2 } }
  return { tokens = ms.tensor(tokens), targets = ms.tensor { dtype = "i32", { 1, 2, step % 5 } }, scale = 1 }
end

for step = 1, 3 do
  train:step(batch(step))
  if step == 1 and cfg.bad ~= "none" then
    local other = batch(9)
    if cfg.bad == "tokens" or cfg.bad == "token" and ms.world().rank == 1 then
      other.tokens = ms.tensor { dtype = "i32", { 7, 1, 2 } }
    end
    if cfg.bad == "loss" and ms.world().rank == 1 then other.scale = 0 / 0 end
    if cfg.bad == "shape" then other.targets = ms.tensor { dtype = "i32", { 1, 2 } } end
    local ok, raised = pcall(train.step, train, other)
    print("caught", ok, raised)
  end
end
print("weights", table.concat(model:parameter("head.weight"):reshape(-1):tolist(), " "))
