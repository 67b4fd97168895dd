-- Trains a sum of four linear layers and a bias with replicate_sync, and writes what every rank ended with, for specs
-- that compute the same by hand. Rank r writes OUT.r: losses and norms, bytes by mesh dimension and step, and values of
-- its replica by parameter. A third size of the mesh is that of a tensor dimension, which divides two of the layers;
-- with four sizes the third divides the positions of one sample, whose length is `positions`.

local ms = require "moonshard"
local ffi = require "ffi"
local json = require "moonshard.base.text.json"
local re = ms.re

local cfg = ms.args {
  mesh = "2x1", steps = 8, out = "", seed = 3,
  every = 4, fragments = 1, delay = 0, alpha = ms.args.real(0), outer_lr = ms.args.real(0.7),
  outer_momentum = ms.args.real(0.9), nesterov = true,
  always = "", optimizer = "sgd", momentum = 0.9, clip = ms.args.real(0), micro = 1, layout = "rows", dtype = "f32",
  shared_masters = true, freeze = "", ema = ms.args.real(0),
  save = "", save_at = 0, load = "", spoil = 0, evaluate = false, set = 0, dict = 0, own = false, lead = "",
  positions = 0, copy = false, trainers = 1, first = 0,
}

local Sum = ms.module "Sum"

function Sum:init()
  self.layers = {}
  for i = 1, 4 do self.layers[i] = ms.nn.linear(3, 5, { bias = false }) end
  self.bias = ms.parameter { 5, init = "zeros" }
end

function Sum:forward(x)
  local y = self.layers[1](x)
  for i = 2, 4 do y = y + self.layers[i](x) * (i / 2) end
  return y + self.bias
end

local local_sgd = cfg.every > 0 and {
  every = cfg.every, fragments = cfg.fragments, delay = cfg.delay, alpha = cfg.alpha,
  outer = ms.optim.sgd { lr = cfg.outer_lr, momentum = cfg.outer_momentum, nesterov = cfg.nesterov },
} or nil
local model = Sum()
local NAMES = {
  [2] = { "replicate", "shard" }, [3] = { "replicate", "shard", "tensor" },
  [4] = { "replicate", "shard", "context", "tensor" },
}
local names = NAMES[select(2, cfg.mesh:gsub("x", "")) + 1]
local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, names)
ms.fully_shard(model, {
  placements = names[3] and { { re[=[layers\.[02]]=], { tensor = "rowwise" } } } or nil,
  mesh = mesh, units = { re[[^layers\.\d$]] }, layout = cfg.layout, seed = cfg.seed,
  mp_policy = { param_dtype = cfg.dtype, param_copy = cfg.copy }, shared_masters = cfg.shared_masters,
  freeze = cfg.freeze ~= "" and { { re(cfg.freeze), true } } or nil,
  replicate_sync = cfg.always ~= "" and { { re(cfg.always), "always" }, { re[[.*]], local_sgd } } or local_sgd,
})

local optimizer = cfg.optimizer == "sgd" and ms.optim.sgd { lr = 0.05, momentum = cfg.momentum }
  or ms.optim.adamw { lr = 0.01 }
-- Several take turns.
local trainers = {}
for i = 1, cfg.trainers do
  trainers[i] = ms.trainer {
    model = model, optimizer = optimizer, loss = ms.loss.mse, clip_grad_norm = cfg.clip, micro_batches = cfg.micro,
    ema = cfg.ema,
  }
end
local train = trainers[1]

local place, data_place = mesh:get_index(), mesh:slice({ "replicate", "shard" }):get_index()
local rows = cfg.positions > 0 and cfg.positions or 2

-- Multiples of 1/64, which are exact in f32.
local function random(step, row, column)
  local x = math.sin(step * 12.9898 + row * 78.233 + column * 37.719) * 43758.5453
  return math.floor(64 * (x - math.floor(x))) / 64
end

local function batch_of(step)
  local inputs, targets = ffi.new("float[?]", 3 * rows), ffi.new("float[?]", 5 * rows)
  for row = 0, rows - 1 do
    for c = 0, 2 do inputs[3 * row + c] = random(step, rows * data_place + row, c) - 0.5 end
    for c = 0, 4 do targets[5 * row + c] = 4 * random(step, rows * data_place + row, 10 + c) end
  end
  if step == cfg.spoil and data_place == 0 then inputs[0] = 0 / 0 end
  local function shape(columns) return cfg.positions > 0 and { 1, rows, columns } or { rows, columns } end
  return { inputs = { data = inputs, dtype = "f32", shape = shape(3) },
    targets = { data = targets, dtype = "f32", shape = shape(5) } }
end

local function values(read)
  local by_name = {}
  for name, parameter in model:named_parameters() do
    local ok, value = pcall(read, name, parameter)
    if ok then by_name[name] = value:reshape(-1):tolist() end
  end
  return by_name
end

local result = { losses = {}, norms = {}, bytes = {}, peaks = {} }
if not require("moonshard.distributed.world").plan_only then
  result.initial = values(function(name) return train:parameter(name) end)
end
if cfg.load ~= "" then ms.checkpoint.load(train, cfg.load) end

ffi.cdef "int usleep(unsigned microseconds);"

-- With `lead` the other replicas wait in step 2 until the first one has done step 3.
local function keep_distance(step)
  local is_first = mesh:get_local_rank("replicate") == 0
  if is_first and step == 4 and place == 0 then assert(io.open(cfg.lead, "w")):close() end
  while not is_first and step == 2 and not io.open(cfg.lead) do ffi.C.usleep(1000) end
end

for step = cfg.first > 0 and cfg.first or train.steps_done + 1, cfg.steps do
  if cfg.lead ~= "" then keep_distance(step) end
  if step == cfg.set then train:set_parameter("bias", ms.tensor { 1, 2, 3, 4, 5 }) end
  if step == cfg.dict then
    local dict = model:state_dict()
    for i = 0, dict.bias.shape[1] - 1 do dict.bias.data[i] = i + 1 + (cfg.own and data_place or 0) end
    model:load_state_dict(dict)
  end
  local metrics = trainers[(step - 1) % #trainers + 1]:step(batch_of(step))
  result.losses[#result.losses + 1], result.norms[#result.norms + 1] = metrics.loss, metrics.grad_norm
  result.bytes[#result.bytes + 1], result.peaks[#result.peaks + 1] = metrics.comm_bytes, metrics.peak_bytes
  if step == cfg.save_at then ms.checkpoint.save(train, cfg.save) end
end
result.params = values(function(name) return train:parameter(name) end)
result.synced = values(function(name) return train:optimizer_state(name, "synced") end)
result.sums = values(function(name) return train:optimizer_state(name, "outer_sum") end)
result.momentum = values(function(name) return train:optimizer_state(name, "outer_momentum") end)
result.moments = values(function(name)
  return train:optimizer_state(name, cfg.optimizer == "sgd" and "momentum" or "exp_avg")
end)
if cfg.ema > 0 then result.ema = values(function(name) return train:optimizer_state(name, "ema") end) end
result.gradients = values(function(name) return train:gradient(name) end)
if cfg.evaluate then
  result.evaluated = train:evaluate(coroutine.wrap(function() coroutine.yield(1, batch_of(1)) end))
end
result.plan = train:plan() and train:plan():summary()
local file = assert(io.open(cfg.out .. "." .. place, "w"))
file:write(json.encode(result))
file:close()
