-- A classifier of tokens with two mixtures of experts: one with balanced biases and sigmoid scores, and one with an
-- auxiliary loss and a shared expert; some of it divided by a tensor dimension. It prints the biases after each step.

local ms = require "moonshard"
local json = require "moonshard.base.text.json"
local re = ms.re

local cfg = ms.args {
  mesh = "1x-1", steps = 4, dtype = "f32", rows = 6, length = 7, aux = ms.args.real(0), micro = 1, clip = 0.5,
  layout = "rows", optimizer = "adamw", recompute = false, out = "", checkpoint = "", resume = "",
  over = false,
}
local DIM = 16

local Shared = ms.module "Shared"
function Shared:init() self.up, self.down = ms.nn.linear(DIM, 24), ms.nn.linear(24, DIM) end
function Shared:forward(x) return self.down(self.up(x):silu()) end

local Block = ms.module "Block"
function Block:init(options)
  self.norm = ms.nn.rms_norm(DIM)
  self.moe = ms.nn.mixture_of_experts(DIM, 12, options)
end
function Block:forward(x) return x + self.moe(self.norm(x)) end

local Net = ms.module "Net"
function Net:init()
  self.embed = ms.nn.embedding(11, DIM)
  self.layers = {
    Block { experts = 5, top_k = 2, score = "sigmoid", bias_rate = 0.01, route_scale = 1.5 },
    Block { experts = 3, top_k = 2, renormalise = false, aux_loss = cfg.aux, shared = Shared(), shared_gate = true },
  }
  self.head = ms.nn.linear(DIM, 4)
end
function Net:forward(tokens)
  local x = self.embed(tokens)
  for _, layer in ipairs(self.layers) do x = layer(x) end
  return self.head(x)
end

local model = Net()
local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard", "tensor" })
ms.fully_shard(model, {
  mesh = mesh, units = { re[[^layers\.\d+$]] }, mp_policy = { param_dtype = cfg.dtype }, layout = cfg.layout,
  recompute = cfg.recompute, shard_optimizer_over_replicate = cfg.over, shared_masters = not cfg.over,
  placements = {
    { re[[experts\.w[13]$]], { tensor = ms.Shard(1) } }, { re[[experts\.w2$]], { tensor = ms.Shard(2) } },
    { re[[shared\.up]], { tensor = "colwise" } }, { re[[shared\.down]], { tensor = "rowwise" } },
  },
})
local adamw = ms.optim.adamw { lr = 1e-2, eps = 1e-5 }
local muon = ms.optim.muon { lr = 0.02 }
local optimizer = cfg.optimizer == "muon" and { { re[[router\.weight$]], muon }, { re".", adamw } }
  or cfg.optimizer == "adafactor" and ms.optim.adafactor {} or adamw
local train = ms.trainer {
  model = model, optimizer = optimizer, loss = ms.loss.cross_entropy, micro_batches = cfg.micro,
  clip_grad_norm = cfg.clip, checkpoint = { dir = cfg.checkpoint, every = 2, resume = cfg.resume },
}

-- Ranks that differ along the dimension tensor have the same rows; the others divide those of all.
local place, parts = math.floor(mesh:get_index() / mesh:size("tensor")), mesh:size() / mesh:size("tensor")
local rows = cfg.rows * 2 / parts

local function batch_of(step)
  local tokens, targets = {}, {}
  for r = 1, rows do
    local row = place * rows + r
    tokens[r], targets[r] = {}, {}
    for i = 1, cfg.length do
      tokens[r][i] = (31 * step + 5 * row * i + i) % 11
      targets[r][i] = tokens[r][i] % 4
    end
  end
  return { tokens = ms.tensor(tokens, { dtype = "i32" }), targets = ms.tensor(targets, { dtype = "i32" }) }
end

local losses, norms, biases = {}, {}, {}
for step = train.steps_done + 1, cfg.steps do
  local m = train:step(batch_of(step))
  losses[#losses + 1], norms[#norms + 1] = m.loss, m.grad_norm
  biases[#biases + 1] = train:parameter("layers.0.moe.router_bias"):tolist()
  ms.log(step, m)
end
if cfg.out ~= "" and ms.world().rank == 0 then
  local file = assert(io.open(cfg.out, "w"))
  file:write(json.encode { losses = losses, norms = norms, biases = biases })
  file:close()
end
