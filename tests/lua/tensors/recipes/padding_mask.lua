-- A classifier of sentences that are padded with token 0: the mask is made of the tokens inside of the model, hides
-- padding from a softmax over positions, and leaves it out of a mean and of a maximum over them.

local ms = require "moonshard"

local cfg = ms.args { mesh = "1x-1", steps = 4, dtype = "f32", rows = 6, length = 7 }

local Net = ms.module "Net"

function Net:init()
  self.embed = ms.nn.embedding(11, 13)
  self.score = ms.nn.linear(13, 1)
  self.head = ms.nn.linear(3 * 13, 3)
end

function Net:forward(tokens)
  local padded = tokens:eq(0)
  local h = self.embed(tokens)
  local present = padded:logical_not():cast(h.dtype):unsqueeze(-1)
  local weights = self.score(h):masked_fill(padded:unsqueeze(-1), -1e4):softmax(1)
  local attended = (h * weights):sum(1)
  local mean = (h * present):sum(1) / present:sum(1):clamp(1)
  local largest = h:masked_fill(padded:unsqueeze(-1), -10):max(1)
  return self.head(ms.ops.cat({ attended, mean, largest }, -1))
end

local model = Net()
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }), units = { "embed", "head" },
  mp_policy = { param_dtype = cfg.dtype },
})
local train = ms.trainer {
  model = model, optimizer = ms.optim.sgd { lr = 0.1 },
  loss = function(logits, targets) return ms.ops.cross_entropy(logits, targets) end,
}

-- Sentence r of a step has r % length + 1 tokens; its class is one of them.
local function batch_of(step)
  local rank, tokens, targets = ms.world().rank, {}, {}
  for r = 1, cfg.rows do
    local seed = 31 * step + 7 * rank + r
    tokens[r] = {}
    for i = 1, cfg.length do tokens[r][i] = i <= r % cfg.length + 1 and (seed * i) % 10 + 1 or 0 end
    targets[r] = tokens[r][1] % 3
  end
  return { inputs = ms.tensor(tokens, { dtype = "i32" }), targets = ms.tensor(targets, { dtype = "i32" }) }
end

for step = 1, cfg.steps do ms.log(step, train:step(batch_of(step))) end
