-- Trains a small network whose sizes divide by nothing, and writes what came out, for specs that compare meshes.
--
-- Every mesh sees the same global batches. Rank 0 writes one JSON object: losses, norms, every parameter in full,
-- the engine's counters of collectives and bytes next to the plan's, the arenas' bytes next to the plan's, and the
-- most memory that was resident.

local ms = require "moonshard"
local ffi = require "ffi"
local json = require "moonshard.base.text.json"
local world = require "moonshard.distributed.world"
local re = ms.re

local cfg = ms.args {
  mesh = "1x1", rows = 12, steps = 10, out = "", optimizer = "adamw", units = true, layout = "rows", dtype = "f32",
  moments = "f32",
  reshard = "default", micro = 1, prefetch = 1, clip = 0.5, freeze = "", groups = false, reduce = "f32", unused = false,
  mixed = false, momentum = 0.9, nesterov = false, decay = 0.1, seed = 3, spare = false,
  shared_masters = true,
  ahead = "", recompute = "", dropout = false, sync = "every", reshard_backward = true, build = "native",
  samples = 0, strategy = "", tail = "", by_layer = false, output = "",
  load = "", save = "", save_at = 0, async = false, ema = ms.args.real(0), ema_warmup = false,
  wrong = "", wrong_at = 0, alone = false, over_replicate = "", copy = false, whole = "",
}

local mistake = not (cfg.alone and require("moonshard.shard.reference").active) and cfg.wrong

local Block = ms.module "Block"

function Block:init(inner)
  self.fc1 = ms.nn.linear(17, inner)
  self.fc2 = ms.nn.linear(inner, 17)
  self.gain = ms.parameter { 1, init = "ones" }
  if cfg.spare then self.spare = ms.nn.linear(3, 2) end
end

function Block:forward(x)
  local h = self.fc1(x):gelu()
  if cfg.dropout then h = ms.ops.dropout(h, { p = 0.25 }) end
  return x + self.fc2(h) * self.gain
end

local Net = ms.module "Net"

function Net:init()
  self.embed = ms.nn.linear(15, 17)
  self.layers = { Block(16), Block(7) }
  if cfg.wrong == "half" then self.shadow = Block(7) end
  self.norm = ms.nn.layer_norm { 17 }
  self.head = ms.nn.linear(17, 3)
  if cfg.tail == "" then return end
  -- Two layers: with one weight ("tied"), in a unit of both ("grouped"), or one layer that runs twice ("twice").
  local first = ms.nn.linear(17, 17)
  self.tail = { first, cfg.tail == "twice" and first or ms.nn.linear(17, 17) }
  if cfg.tail ~= "twice" then self.tail[2].weight, self.tail[2].bias = first.weight, first.bias end
end

function Net:forward(x)
  x = self.embed(x)
  for i, layer in ipairs(self.layers) do
    x = i == 2 and mistake == "half" and layer(x) * 0.5 + self.shadow(x) * 0.5 or layer(x)
  end
  for _, layer in ipairs(self.tail or {}) do x = x + layer(x):gelu() end
  return self.head(self.norm(x))
end

-- Also: the first block alone; and inside of the blocks some ops alone, but nothing of fc2.
local RECOMPUTE = {
  blocks = true, first = { { "layers.0", true } },
  ops = { { re[[fc2$]], false }, { re[[^layers\.\d+$]], { "matmul", "gelu", "mul", "dropout" } } },
}

-- The mesh of these sizes: all ranks; one of two copies, side by side or interleaved; over groups made by hand.
local NAMES = { "replicate", "shard" }
local BUILD = {}

function BUILD.native()
  return ms.init_device_mesh(cfg.device, cfg.mesh, NAMES)
end

function BUILD.slice()
  return ms.init_device_mesh(cfg.device, "2x" .. cfg.mesh, { "pipe", "replicate", "shard" }):slice(NAMES)
end

function BUILD.interleaved()
  return ms.init_device_mesh(cfg.device, cfg.mesh .. "x2", { "replicate", "shard", "tensor" }):slice(NAMES)
end

function BUILD.unflattened()
  return ms.init_device_mesh(cfg.device, -1, { "data" }):unflatten("data", cfg.mesh, NAMES)
end

-- first, second: the ranks of two copies of a 2x2 mesh, or of one.
local function by_hand(...)
  local replicate, shard = {}, {}
  for _, ranks in ipairs({ ... }) do
    for i = 1, 2 do
      replicate[#replicate + 1] = ms.new_group { ranks[i], ranks[i + 2] }
      shard[#shard + 1] = ms.new_group { ranks[2 * i - 1], ranks[2 * i] }
    end
  end
  return ms.mesh_from_groups({ replicate, shard }, NAMES)
end

function BUILD.groups() return by_hand({ 0, 1, 2, 3 }) end
function BUILD.shuffled_groups() return by_hand({ 2, 0, 3, 1 }) end
function BUILD.two_meshes() return by_hand({ 0, 5, 2, 7 }, { 4, 1, 6, 3 }) end

function BUILD.fsdp() return ms.init_device_mesh(cfg.device, cfg.mesh, { "shard" }) end
function BUILD.ddp() return ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate" }) end

local mesh = BUILD[cfg.build]()
local is_second = ms.world().size > mesh:size() and mesh:ranks()[1] ~= 0 -- of two copies
local samples = cfg.samples + (is_second and 1000 or 0) -- the second trains on others

-- Depths by unit; or names: both layers while the embedding runs, the second first, and none ahead in backward.
local AHEAD = {
  depths = { { "layers.0", 2 }, { re[[.*]], 0 } },
  names = { { "root", { forward = { "layers.1", "layers.0" }, backward = {} } }, { re[[.*]], { backward = {} } } },
}

-- Units that every rank has whole: all, the blocks, or everything but one block.
local WHOLE = { all = false, blocks = { { re[[^layers]], false } }, rest = { { "layers.0", true }, { re".", false } } }

-- Units whose optimizer state is sharded over the replicas.
local OVER_REPLICATE = { all = true, blocks = { { re[[^layers]], true }, { "root", false } } }

local RESHARD = { ["true"] = true, ["false"] = false, default = "default", ["2"] = 2, ["1"] = 1,
  blocks = { { "root", false }, { re[[.*]], true } } }
local TAIL = { grouped = { "tail.0", "tail.1" }, twice = "tail.0" }
local freeze = cfg.wrong == "half" and "^shadow" or cfg.freeze
local model = Net()
ms.fully_shard(model, {
  mesh = mesh,
  units = cfg.units and { re[[^layers\.\d+$]], TAIL[cfg.tail] } or nil,
  strategy = cfg.strategy ~= "" and cfg.strategy or nil,
  reshard_after_forward = RESHARD[cfg.strategy == "" and cfg.reshard or "none"],
  layout = cfg.layout,
  freeze = freeze ~= "" and { { re(freeze), true } } or nil,
  param_dtype = cfg.mixed and { { re[[norm|fc1\.bias|gain|head]], "f32" } } or nil,
  mp_policy = cfg.by_layer and { { "layers.0", { param_dtype = "bf16", reduce_dtype = "bf16", param_copy = cfg.copy } },
    { "layers.1", { param_dtype = "bf16", output_dtype = "f32" } } }
    or { param_dtype = cfg.dtype, reduce_dtype = cfg.reduce, output_dtype = cfg.output ~= "" and cfg.output or nil,
      param_copy = cfg.copy },
  seed = cfg.seed,
  shared_masters = cfg.shared_masters,
  shard = WHOLE[cfg.whole],
  shard_optimizer_over_replicate = OVER_REPLICATE[cfg.over_replicate],
  recompute = RECOMPUTE[cfg.recompute],
  prefetch = AHEAD[cfg.ahead],
})

local groups = cfg.groups and { { re[[bias|norm]], { weight_decay = 0, lr_scale = 0.5 } } } or nil
local opt = cfg.optimizer ~= "sgd"
  and ms.optim.adamw { lr = 1e-2, weight_decay = cfg.decay, groups = groups, moments = cfg.moments }
  or ms.optim.sgd {
    lr = 5e-2, momentum = cfg.momentum, nesterov = cfg.nesterov, weight_decay = cfg.decay, groups = groups,
  }
if cfg.optimizer == "adafactor" then opt = ms.optim.adafactor { lr = 2e-2, weight_decay = cfg.decay } end
if cfg.optimizer == "muon" then
  local muon = ms.optim.muon { lr = 2e-2, momentum = cfg.momentum, weight_decay = cfg.decay }
  opt = { { re[[fc\d\.weight$|^tail.*weight$]], muon }, { re".", opt } }
end
local function trainer_of(clip)
  return ms.trainer {
    model = model, optimizer = opt, loss = ms.loss.cross_entropy, clip_grad_norm = clip,
    micro_batches = cfg.micro, prefetch = cfg.prefetch, gradient_sync = cfg.sync,
    reshard_after_backward = cfg.reshard_backward,
    ema = cfg.ema > 0 and { decay = cfg.ema, warmup = cfg.ema_warmup } or nil,
  }
end
local train = trainer_of(cfg.clip)

-- The rows of a global batch that belong to this rank: one rank's follow the other's, so any mesh and any number of
-- micro-batches average the same rows.
local place, ranks = mesh:get_index(), mesh:size()
local mine = cfg.rows / ranks
assert(mine % cfg.micro == 0, "rows do not divide")

local function random(step, row, column)
  local x = math.sin(step * 12.9898 + row * 78.233 + column * 37.719) * 43758.5453
  return x - math.floor(x)
end

local function batch_of(step)
  local inputs, targets = ffi.new("float[?]", mine * 15), ffi.new("int32_t[?]", mine)
  step = step + samples
  for i = 0, mine - 1 do
    local row = place * mine + i
    for c = 0, 14 do inputs[i * 15 + c] = 2 * random(step, row, c) - 1 end
    targets[i] = math.floor(3 * random(step, row, 99))
  end
  return {
    inputs = { data = inputs, dtype = "f32", shape = { mine, 15 } },
    targets = { data = targets, dtype = "i32", shape = { mine } },
  }
end

-- The averages of the weights next to the same computed from what every step left, and what is evaluated with them.
local averages = { plain = {}, kept = {} }

local function follow_averages(step)
  local decay = cfg.ema_warmup and math.min(cfg.ema, (1 + step) / (10 + step)) or cfg.ema
  for name in model:named_parameters() do
    local values, plain = train:parameter(name):reshape(-1):tolist(), averages.plain[name]
    for i, value in ipairs(values) do values[i] = plain and decay * plain[i] + (1 - decay) * value or value end
    averages.plain[name] = values
  end
end

local function evaluate_averages(batch)
  local function batches() return coroutine.wrap(function() coroutine.yield(1, batch) end) end
  train:with_ema(function()
    for name in model:named_parameters() do averages.kept[name] = train:parameter(name):reshape(-1):tolist() end
  end)
  averages.evaluated, averages.weights = train:evaluate(batches(), { ema = true }), train:evaluate(batches())
  for name, parameter in model:named_parameters() do
    train:set_parameter(name, ms.tensor(averages.kept[name]):reshape(unpack(parameter.shape)))
  end
  averages.as_weights = train:evaluate(batches())
end

-- ---- mistakes that a comparison must find -------------------------------------------------------------------------
--
--   norm   the norm's weight and bias are not updated in step wrong_at
--   clip   step wrong_at does not clip
--   half   the second block's gradient is half of what it is: its other half goes to a frozen copy
--
-- wrong_at = 0 is every step. With `alone` they are made on the ranks of a check, and not on the single one.

local function copy_to_shadow()
  if cfg.wrong ~= "half" then return end
  for name in model:named_parameters() do
    local original = name:match("^shadow(.*)")
    if original then train:set_parameter(name, train:parameter("layers.1" .. original)) end
  end
end

local unclipped -- another trainer of the same weights and state

local function take_step(step)
  local wrong = (cfg.wrong_at == 0 or step == cfg.wrong_at) and mistake
  local metrics, weight, bias
  if wrong == "norm" then weight, bias = train:parameter("norm.weight"), train:parameter("norm.bias") end
  if wrong == "clip" then
    unclipped = unclipped or trainer_of(0)
    unclipped.steps_done = step - 1
    metrics, train.steps_done = unclipped:step(batch_of(step)), step
  else
    metrics = train:step(batch_of(step))
  end
  if wrong == "norm" then
    train:set_parameter("norm.weight", weight)
    train:set_parameter("norm.bias", bias)
  end
  copy_to_shadow()
  return metrics
end

-- ---- what every step changes --------------------------------------------------------------------------------------

-- All ranks gather, and the one that writes them keeps them.
local function values_of()
  local values = {}
  for name in model:named_parameters() do
    local value = not name:find("^shadow") and train:parameter(name)
    if value and place == 0 then values[name] = value:reshape(-1):tolist() end
  end
  return values
end

-- Each parameter's updates as text, numbers between spaces: lists of them took longer to encode than the steps took.
local function updates_of(before, after)
  local updates = {}
  for name, values in pairs(after) do
    local update = {}
    for i, value in ipairs(values) do update[i] = ("%.9g"):format(value - before[name][i]) end
    updates[name] = table.concat(update, " ")
  end
  return updates
end

-- What the optimizer averaged of each parameter's gradients. AdamW's updates do not show how large those are.
local MOMENT = { adamw = "exp_avg", muon = "momentum", sgd = cfg.momentum > 0 and "momentum" or nil }

local function moments_of()
  local moments = {}
  for _, param in ipairs(MOMENT[cfg.optimizer] and train.session.sharding.params or {}) do
    if not param.frozen then
      local kind = cfg.optimizer == "muon" and train.optimizer:part_of(param.fqn).kind or cfg.optimizer
      moments[param.fqn] = train:optimizer_state(param.fqn, MOMENT[kind]):reshape(-1):tolist()
    end
  end
  return moments
end

local result = { losses = {}, norms = {}, updates = {}, optimizer = cfg.optimizer }
if cfg.load ~= "" then ms.checkpoint.load(train, cfg.load) end
copy_to_shadow()
local before = not world.plan_only and values_of() or nil -- where only a plan is made there are none
for step = train.steps_done + 1, cfg.steps do
  local m = take_step(step)
  result.params = values_of()
  result.updates[#result.updates + 1], before = updates_of(before, result.params), result.params
  table.insert(result.losses, m.loss)
  table.insert(result.norms, m.grad_norm)
  if cfg.ema > 0 then follow_averages(step) end
  if step == cfg.save_at then ms.checkpoint.save(train, cfg.save, { async = cfg.async }) end
  result.peak_bytes, result.comm_bytes, result.step_ms = m.peak_bytes, m.comm_bytes, m.step_ms
end
result.moments = moments_of()
ms.checkpoint.finish(train)
local summary = train:plan():summary()
local counters = train.session:counters("train")
result.plan = summary
result.bytes_by_rank = {}
for category, bytes in pairs(summary.bytes) do
  result.bytes_by_rank[category] = train.session:gather_numbers(bytes, "of bytes")
end
result.collectives, result.allocations = counters.collectives, counters.allocations
result.evaluated = train:evaluate(coroutine.wrap(function() coroutine.yield(1, batch_of(1)) end))
if cfg.ema > 0 then
  evaluate_averages(batch_of(1))
  result.averages = averages
end
local status = assert(io.open("/proc/self/status"))
result.resident_bytes = 1024 * tonumber(status:read("*a"):match("VmHWM:%s*(%d+)"))
status:close()
if place == 0 then
  local file = assert(io.open(is_second and cfg.out .. ".second" or cfg.out, "w"))
  file:write(json.encode(result))
  file:close()
end
