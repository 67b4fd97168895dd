-- An attention whose weights only QK-clip moves: its optimizer has a learning rate of 0. With mla=true queries and keys
-- are as in latent attention: a part of each head of its own, and one key for all heads. It writes the weights and the
-- largest score of each step.

local ms = require "moonshard"
local clipped = require "lua.muon.recipes.clipped"
local json = require "moonshard.base.text.json"

local cfg = ms.args {
  mesh = "1x-1", threshold = ms.args.real(0.5), alpha = ms.args.real(0.5), micro = 1, sync = "every", mla = false,
  layout = "rows", own = false, over = false, copy = false, dtype = "f32", out = "", documents = false,
}
local of = clipped.sizes(cfg.mla)

local function concat(a, b) return ms.ops.concat(a, b, { axis = 3 }) end

local Net = ms.module "Net"
function Net:init()
  for _, name in ipairs(of.names) do self[name] = ms.parameter { init = "zeros", unpack(of.shapes[name]) } end
end
function Net:forward(x)
  local batch, length = x.shape[1], x.shape[2]
  local function project(weight, heads)
    return ms.ops.matmul(x, weight, { trans_b = 1 }):reshape(batch, length, heads, -1)
  end
  local q, k = project(self.wq, of.heads), project(self.wk, of.groups)
  local query, key = { self.wq }, { self.wk }
  if cfg.mla then
    local shared = ms.ops.broadcast_to(project(self.rope, 1), { shape = { batch, length, of.heads, of.rope } })
    k = concat(k:slice(3, 0, of.own), shared)
    query = { { self.wq, rows = { 0, of.own }, whole = { of.own, of.own + of.rope } } }
    key = { { self.wk, rows = { 0, of.own } } }
  end
  ms.nn.attention_logits(q, k, { query = query, key = key })
  return ms.ops.attention(q, k, k, { causal = 1 }):cast("f32"):mean()
end

local model = Net()
local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard", "tensor" })
ms.fully_shard(model, {
  mesh = mesh, layout = cfg.layout, shared_masters = not cfg.own, shard_optimizer_over_replicate = cfg.over,
  mp_policy = { param_dtype = cfg.dtype, param_copy = cfg.copy },
  placements = { { "wq", { tensor = ms.Shard(0) } }, { "wk", { tensor = ms.Shard(0) } } },
})
local train = ms.trainer {
  model = model, forward = function(net, batch) return net(batch.x:cast(cfg.dtype)) end,
  optimizer = ms.optim.sgd { lr = 0 }, qk_clip = { threshold = cfg.threshold, alpha = cfg.alpha },
  micro_batches = cfg.micro, gradient_sync = cfg.sync,
}
for _, name in ipairs(of.names) do
  train:set_parameter(name, ms.tensor(of.weight(name)):reshape(unpack(of.shapes[name])))
end

local place, parts = math.floor(mesh:get_index() / mesh:size("tensor")), mesh:size() / mesh:size("tensor")
local rows, steps = clipped.ROWS / parts, {}
for step = 1, clipped.STEPS do
  local x = {}
  for r = 1, rows do x[r] = of.input(step, place * rows + r) end
  local m = train:step { x = ms.tensor(x) }
  steps[step] = { max_logit = m.max_logit }
  for _, name in ipairs(of.names) do steps[step][name] = train:parameter(name):reshape(-1):tolist() end
end
if ms.world().rank == 0 and cfg.out ~= "" then
  local file = assert(io.open(cfg.out, "w"))
  file:write(json.encode(steps))
  file:close()
end
