-- Steps with sums in 4 bits of which every second one counts `keep` of 32 targets; see error_feedback_spec.lua.

local ms = require "moonshard"
local json = require "moonshard.base.text.json"

local cfg = ms.args {
  mesh = "1x2", keep = 2, sums = "i4", error_feedback = true, steps = 8, micro = 1, sync = "every", out = "",
  reduction = "tokens",
}
local model = ms.nn.sequential { ms.nn.linear(64, 16, { bias = false }) }
local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" })
local in_few_bits = cfg.sums ~= "f32"
ms.fully_shard(model, {
  mesh = mesh, seed = 1,
  mp_policy = { reduce_dtype = in_few_bits and {
    shard = mesh:size("shard") > 1 and cfg.sums or nil, replicate = mesh:size("replicate") > 1 and cfg.sums or nil,
    error_feedback = cfg.error_feedback,
  } or "f32" },
})
local sgd = ms.optim.sgd { lr = 1e-2 }
local function trainer(micro)
  return ms.trainer {
    model = model, optimizer = sgd, micro_batches = micro, gradient_sync = cfg.sync,
    loss = ms.loss.cross_entropy { reduction = cfg.reduction },
  }
end
-- With a loss of means the divisor is the number of ranks and micro-batches, which two trainers can have differently.
local one = trainer(cfg.micro)
local other = cfg.reduction == "mean" and trainer(8 * cfg.micro) or one
for step = 1, cfg.steps do
  local targets, few = {}, step % 2 == 0 and cfg.reduction ~= "mean"
  for i = 1, 32 do targets[i] = few and i > cfg.keep and -100 or (5 * i + ms.world().rank) % 16 end
  local train = step % 2 == 0 and other or one
  train:step {
    inputs = ms.randn { 32, 64, seed = 7 + ms.world().rank }, targets = ms.tensor(targets, { dtype = "i32" }),
  }
end
local weights = one:parameter("0.weight"):reshape(-1):tolist()
if ms.world().rank == 0 and cfg.out ~= "" then
  local file = assert(io.open(cfg.out, "w"))
  file:write(json.encode(weights))
  file:close()
end
