-- Trains a small GPT of odd sizes, whose shards and replicas sum gradients in the given types, and gather weights in
-- one (gather=i8: matrices; gather=all: every parameter). Every rank prints its last loss and what its parameters are,
-- to the last bit; with out=PATH the first one writes losses, and bytes by mesh dimension.

local ffi = require "ffi"
local ms = require "moonshard"
local re = ms.re

local cfg = ms.args {
  mesh = "2x2", replicate = "i8", shard = "f32", dtype = "f32", layout = "rows", shared = true, steps = 3,
  micro = 1, sync = "every", clip = 1.0, blocks_only = false, dim = 36, out = "", feedback = false, gather = "",
  reshard = 0, sliced = false, lr = 3e-3, checkpoint = "",
}

local rank = ms.world().rank
local policy = {
  param_dtype = cfg.dtype,
  reduce_dtype = { shard = cfg.shard, replicate = cfg.replicate ~= "" and cfg.replicate or nil,
    error_feedback = cfg.feedback or nil },
}
local model = ms.models.gpt2 { vocab = 41, layers = 2, dim = cfg.dim, heads = 2, seq = 9 }
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }), units = { re[[^layers\.\d+$]] },
  layout = cfg.layout, shared_masters = cfg.shared,
  gather_dtype = cfg.gather == "all" and { { re".", "i8" } } or cfg.gather ~= "" and cfg.gather or nil,
  reshard_after_forward = cfg.reshard > 0 and cfg.reshard or nil, shard_optimizer_over_replicate = cfg.sliced,
  mp_policy = cfg.blocks_only and { { re[[^layers]], policy }, { re[[.]], { param_dtype = cfg.dtype } } } or policy,
})
local train = ms.trainer {
  model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.adamw { lr = cfg.lr }, micro_batches = cfg.micro,
  gradient_sync = cfg.sync, clip_grad_norm = cfg.clip > 0 and cfg.clip or nil,
}

-- The next token is the token's multiple, which can be learned.
local function batch(step)
  local rows = 4 * cfg.micro
  local count, drawn = rows * 9, ms.rand { rows * 9, seed = 100 * step + rank }:tolist()
  local tokens, targets = ffi.new("int32_t[?]", count), ffi.new("int32_t[?]", count)
  for i = 0, count - 1 do
    tokens[i] = math.floor(41 * drawn[i + 1])
    targets[i] = tokens[i] * 7 % 41
  end
  local function array(data) return { data = data, dtype = "i32", shape = { rows, 9 } } end
  return { tokens = array(tokens), targets = array(targets) }
end

local losses, norms, bytes, wire = {}, {}, {}, {}
for step = 1, cfg.steps do
  local m = train:step(batch(step))
  losses[step], norms[step], bytes, wire = m.loss, m.grad_norm, m.comm_bytes, m.wire_bytes or {}
end

-- The same two steps twice, both from the checkpoint.
for again = 1, cfg.checkpoint ~= "" and 2 or 0 do
  if again == 1 then ms.checkpoint.save(train, cfg.checkpoint) end
  ms.checkpoint.load(train, cfg.checkpoint)
  for step = 1, 2 do train:step(batch(step)) end
  local first = model:parameter("layers.0.mlp.fc1.weight"):flatten():tolist()
  if rank == 0 then io.write(("from the checkpoint: %.17g\n"):format(first[1])) end
end

local sum, words = 0, {}
for name in model:named_parameters() do
  for _, x in ipairs(train:parameter(name):flatten():tolist()) do sum = sum + x * (#words % 7 + 1) end
  words[#words + 1] = name
end
io.write(("replica %d: loss %.17g norm %.17g parameters %.17g\n"):format(
  math.floor(rank / tonumber(cfg.mesh:match("x(%d+)"))), losses[#losses], norms[#norms], sum))

if cfg.out ~= "" and rank == 0 then
  local file = assert(io.open(cfg.out, "w"))
  file:write(require("moonshard.base.text.json").encode({
    losses = losses, norms = norms, bytes = bytes, wire = wire, plan = train:plan():summary().comm_bytes,
    optimizer = train:plan():summary().bytes.optimizer,
  }), "\n")
  assert(file:close())
end
