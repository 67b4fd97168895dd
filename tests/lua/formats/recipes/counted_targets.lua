-- Steps with error_feedback of which every second one counts `keep` of 32 targets; see error_feedback_spec.lua.

local ms = require "moonshard"

local cfg = ms.args { mesh = "1x2", keep = 4, error_feedback = true, reduction = "tokens" }
local model = ms.nn.sequential { ms.nn.linear(64, 16, { bias = false }) }
ms.fully_shard(model, {
  mesh = cfg.mesh,
  mp_policy = { reduce_dtype = {
    shard = cfg.mesh == "1x2" and "i4" or nil, replicate = cfg.mesh == "2x1" and "i4" or nil,
    error_feedback = cfg.error_feedback,
  } },
})
local train = ms.trainer {
  model = model, optimizer = ms.optim.sgd { lr = 1e-3 }, loss = ms.loss.cross_entropy { reduction = cfg.reduction },
}
for step = 1, 4 do
  local targets = {}
  for i = 1, 32 do targets[i] = step % 2 == 0 and i > cfg.keep and -100 or i % 16 end
  train:step { inputs = ms.randn { 32, 64, seed = 1 }, targets = ms.tensor(targets, { dtype = "i32" }) }
end
