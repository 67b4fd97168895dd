-- A classifier with ops of powers, order and indices inside: a router that gives each token to two of three experts by
-- topk, gather and scatter_add, running sums over positions, a learned power, variances, and products by letters. With
-- `wrong`, an index is outside of its axis.

local ms = require "moonshard"
local json = require "moonshard.base.text.json"

local cfg = ms.args { mesh = "1x-1", steps = 4, dtype = "f32", rows = 6, length = 7, wrong = false, out = "" }
local ops, EXPERTS, DIM = ms.ops, 3, 12

local Net = ms.module "Net"

function Net:init()
  self.embed = ms.nn.embedding(11, DIM)
  self.up, self.down = ms.nn.linear(DIM, 16, { bias = false }), ms.nn.linear(16, DIM, { bias = false })
  self.router = ms.nn.linear(DIM, EXPERTS)
  self.experts = ms.parameter { EXPERTS, DIM, DIM, init = ms.init.normal(0, 0.3) }
  self.power = ms.parameter { DIM, init = "ones" }
  self.head = ms.nn.linear(2 * DIM, 4)
end

-- Each token's sum over the two experts with the largest scores, weighted by the softmax of these.
function Net:mix(h)
  local best, which = self.router(h):topk(2)
  local weights = best - best:logsumexp(-1, true)
  local none = ops.fill { shape = { h.shape[1], h.shape[2], EXPERTS }, out_dtype = h.dtype }
  local dense = none:scatter_add(-1, which, weights:exp())
  local all = ops.einsum("bti,eij->btej", h, self.experts)
  return ops.einsum("bte,btej->btj", dense, all)
end

function Net:forward(tokens)
  local h = self.embed(tokens)
  h = h + self.down(self.up(h):roll(3, 2):cumsum(1):tanh())
  h = h + self:mix(h)
  local index = cfg.wrong and (tokens:float() * 2):cast("i32") or tokens
  local chosen = h:gather(2, index:unsqueeze(-1))
  local spread = (h:var(1) + 0.1) ^ self.power
  local seen = h:tril(2):cumsum(1):mean(1) * (chosen:abs() + 1):pow(1.3):mean(1)
  return self.head(ops.cat({ spread, seen }, -1))
end

local model = Net()
local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard", "tensor" })
ms.fully_shard(model, {
  mesh = mesh, units = { "embed", "head" }, mp_policy = { param_dtype = cfg.dtype },
  placements = {
    { ms.re[[up\.weight]], { tensor = ms.Shard(0) } }, { ms.re[[down\.weight]], { tensor = ms.Shard(1) } },
    { "head.weight", { tensor = ms.Shard(0) } }, { "head.bias", { tensor = ms.Shard(0) } },
  },
})
local train = ms.trainer {
  model = model, optimizer = ms.optim.sgd { lr = 0.1 },
  loss = function(logits, targets) return ops.cross_entropy(logits, targets) end,
}

-- Ranks that differ along the dimension tensor have the same rows.
local place = math.floor(mesh:get_index() / mesh:size("tensor"))

local function batch_of(step)
  local tokens, targets = {}, {}
  for r = 1, cfg.rows do
    tokens[r] = {}
    for i = 1, cfg.length do tokens[r][i] = (31 * step + 7 * place + 5 * r * i + i) % 11 end
    targets[r] = tokens[r][1] % 4
  end
  return { inputs = ms.tensor(tokens, { dtype = "i32" }), targets = ms.tensor(targets, { dtype = "i32" }) }
end

local losses, norms = {}, {}
for step = 1, cfg.steps do
  local m = train:step(batch_of(step))
  losses[step], norms[step] = m.loss, m.grad_norm
  ms.log(step, m)
end
if cfg.out ~= "" and ms.world().rank == 0 then
  local file = assert(io.open(cfg.out, "w"))
  file:write(json.encode { losses = losses, norms = norms })
  file:close()
end
