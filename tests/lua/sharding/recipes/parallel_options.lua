-- A GPT-2 over replicate, shard, context and tensor with the options of training that meshes change: when gradients are
-- summed, where the optimizer's state is, what it keeps. With `out` the first rank writes what it reads of the model
-- after each step; with `spoil` a value is not finite in step 2. Specs compare meshes with one rank.

local ms = require "moonshard"
local json = require "moonshard.base.text.json"
local re = ms.re

local cfg = ms.args {
  mesh = "1x1x1x2", rows = 4, micro_batches = 1, steps = 3, layout = "rows", dtype = "f32", strategy = "",
  gradient_sync = "every", keep_weights = false, over_replicate = false, shared_masters = true,
  optimizer = "adamw", moments = "f32", groups = false, clip = ms.args.real(1), ema = ms.args.real(0),
  sequence_parallel = false, out = "", spoil = false,
}

local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard", "context", "tensor" })
local model = ms.models.gpt2 { vocab = 256, layers = 2, dim = 32, heads = 4, seq = 16 }
ms.fully_shard(model, {
  mesh = mesh, units = { re[[^layers\.\d+$]] }, placements = ms.rules.tensor_parallel(model),
  sequence_parallel = cfg.sequence_parallel, layout = cfg.layout, mp_policy = { param_dtype = cfg.dtype },
  strategy = cfg.strategy ~= "" and cfg.strategy or nil, shared_masters = cfg.shared_masters,
  shard_optimizer_over_replicate = cfg.over_replicate,
})
local groups = cfg.groups and { { re[[norm|bias|embed|pos]], { weight_decay = 0, lr_scale = 0.5 } } } or nil
local optimizer = cfg.optimizer == "sgd" and ms.optim.sgd { lr = 0.1, momentum = 0.9, groups = groups }
  or ms.optim.adamw { lr = 1e-2, weight_decay = 0.1, moments = cfg.moments, groups = groups }
local data = ms.data.text { files = "tests/lua/recipes/text.txt", seq = 16,
  global_batch = cfg.rows * cfg.micro_batches, mesh = mesh }
local train = ms.trainer {
  model = model, optimizer = optimizer, loss = ms.loss.cross_entropy, clip_grad_norm = cfg.clip, ema = cfg.ema,
  micro_batches = cfg.micro_batches, gradient_sync = cfg.gradient_sync, reshard_after_backward = not cfg.keep_weights,
}

-- Colwise, rowwise, by rows of the vocabulary, whole.
local NAMES = { "layers.0.attn.wq.weight", "layers.1.mlp.fc2.weight", "embed.weight", "layers.0.norm1.weight" }
local FC2 = NAMES[2]

local function list_of(x) return x:reshape(-1):tolist() end

local function read()
  local found = { gradients = {}, parameters = {}, moments = {}, averages = {}, unsharded = {} }
  local full = model:unshard("layers.0")
  for _, name in ipairs(NAMES) do
    found.gradients[name] = list_of(train:gradient(name))
    found.parameters[name] = list_of(train:parameter(name))
    found.moments[name] = list_of(train:optimizer_state(name, "exp_avg"))
    found.averages[name] = list_of(train:optimizer_state(name, "ema"))
    if name:find("^layers.0") then found.unsharded[name] = list_of(full[name]) end
  end
  model:reshard()
  found.evaluated = train:evaluate(data:batches(1), { ema = true })
  found.text = ms.generate(train, { prompt = "the ", bytes = 8, temperature = 0 })
  return found
end

-- Row 4, column 127: the last rank of tensor has it.
local function set_fc2(value)
  local rows = train:parameter(FC2):tolist()
  local before = rows[5][128]
  rows[5][128] = value
  train:set_parameter(FC2, ms.tensor(rows))
  return before
end

local steps = {}
for step, batch in data:batches(cfg.steps) do
  if cfg.spoil and step == 2 then
    local before = set_fc2(0 / 0)
    local moments, count = list_of(train:optimizer_state(NAMES[1], "exp_avg")), train.steps_done
    local ok, raised = pcall(train.step, train, batch)
    assert(not ok and train.steps_done == count)
    io.write(("rank %d: %s\n"):format(ms.world().rank, tostring(raised)))
    for i, value in ipairs(list_of(train:optimizer_state(NAMES[1], "exp_avg"))) do assert(value == moments[i]) end
    set_fc2(before)
  end
  ms.log(step, train:step(batch))
  if cfg.out ~= "" then steps[step] = read() end
end
if cfg.out ~= "" and ms.world().rank == 0 then
  local file = assert(io.open(cfg.out, "w"))
  file:write(json.encode(steps))
  file:close()
end
