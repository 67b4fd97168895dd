-- Each rank puts back its slices of the parameters of units whose optimizer is sharded over the replicas: evaluations
-- before and after are equal, which reads the weights that other replicas put back.
local ms = require "moonshard"
local cfg = ms.args { dtype = "bf16" }
local model = ms.nn.sequential { ms.nn.linear(12, 40), ms.nn.linear(40, 7) }
ms.fully_shard(model, {
  mesh = { 2, 2 }, units = { ms.re[[^\d+$]] }, mp_policy = { param_dtype = cfg.dtype }, shared_masters = false,
  shard_optimizer_over_replicate = true,
})
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.mse }
local function batch() return { inputs = ms.randn { 4, 12 }, targets = ms.randn { 4, 7 } } end
local b = batch()
train:step(b)
local function evaluate() return train:evaluate(coroutine.wrap(function() coroutine.yield(1, b) end)) end
local kept, before = model:state_dict(), evaluate()
train:step(b); train:step(b)
assert(evaluate() ~= before)
model:load_state_dict(kept)
assert(evaluate() == before, "local")
local full = model:state_dict { full = true }
train:step(b)
model:load_state_dict(full, { full = true })
assert(evaluate() == before, "full")
