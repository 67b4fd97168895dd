-- Trains the small mixed model of tests/fixtures/updates/make.py, and writes what every step changed of each parameter.
--
-- It is one of norms, parameter groups, clipping, ignored targets, a tied weight, a layer that never runs and one that
-- runs in even steps. The altered recipes (wrong=...) leave out one of these: a comparison must find each of them.

local ms = require "moonshard"
local ffi = require "ffi"
local json = require "moonshard.base.text.json"
local re = ms.re

local cfg = ms.args {
  mesh = "1x1", out = "", optimizer = "adamw", layout = "rows", micro = 1, sync = "every", reshard = "default",
  wrong = "", save = "", save_at = 0, load = "", shared_masters = true, chunk = 0,
}
local STEPS, ROWS, LENGTH, VOCAB, DIM, INNER = 6, 12, 5, 11, 8, 12

local Block = ms.module "Block"

function Block:init()
  self.norm, self.fc1, self.fc2 = ms.nn.layer_norm(DIM), ms.nn.linear(DIM, INNER), ms.nn.linear(INNER, DIM)
end

function Block:forward(x) return x + self.fc2(self.fc1(self.norm(x)):gelu()) end

local Mixed = ms.module "Mixed"

function Mixed:init()
  self.embed, self.layers = ms.nn.embedding(VOCAB, DIM), { Block(), Block(), Block() }
  self.spare, self.norm = ms.nn.linear(DIM, 3), ms.nn.rms_norm(DIM)
  self.head = ms.nn.linear(DIM, VOCAB, { bias = false })
  self.head.weight = self.embed.weight
end

function Mixed:forward(tokens, even)
  local x = self.embed(tokens)
  for i, layer in ipairs(self.layers) do
    if i ~= 2 or even then x = layer(x) end
  end
  return self.head(self.norm(x))
end

local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" })
local model = Mixed()
ms.fully_shard(model, {
  mesh = mesh, units = { re[[^layers\.\d+$]] }, layout = cfg.layout, shared_masters = cfg.shared_masters,
  reshard_after_forward = cfg.reshard == "true" or "default",
  freeze = cfg.wrong == "norms" and { { re[[norm]], true } } or nil,
})
-- The kind of each optimizer that is not a kind itself.
local KINDS = { muon = "adamw", groups = "adamw", clipped = "sgd", momenta = "sgd" }
local kind = KINDS[cfg.optimizer] or cfg.optimizer
local settings = {
  lr = 2e-2, weight_decay = 0.1,
  groups = cfg.wrong ~= "groups" and { { re[[norm|bias]], { weight_decay = 0, lr_scale = 0.5 } } } or nil,
}
if kind == "sgd" then settings.momentum, settings.nesterov = 0.9, true
elseif kind ~= "adafactor" then settings.betas = { 0.9, 0.95 } end
if cfg.optimizer == "groups" then
  settings.lr = ms.schedule.linear { peak = 2e-2, warmup = 2, total = 8 }
  settings.groups = {
    { re[[norm|bias]],
      { lr = 1e-2, betas = cfg.wrong ~= "betas" and { 0.8, 0.99 } or nil, eps = 1e-3, weight_decay = 0 } },
    { "embed", { lr = cfg.wrong ~= "lr" and 4e-2 or nil, eps = cfg.wrong ~= "eps" and 1e-2 or nil } },
  }
end
if cfg.optimizer == "lion" and cfg.wrong ~= "betas" then settings.groups[1][2].betas = { 0.8, 0.98 } end
if cfg.optimizer == "momenta" and cfg.wrong ~= "momentum" then
  settings.groups[1][2].momentum = 0.5
  settings.groups[2] = { "embed", { momentum = 0 } }
  settings.groups[3] = { re"spare", { momentum = 0 } }
end
local optimizer = ms.optim[kind](settings)
if cfg.optimizer == "muon" or cfg.optimizer == "momenta" then
  local groups = cfg.optimizer == "momenta" and cfg.wrong ~= "momentum"
    and { { re[[^layers\.2]], { momentum = 0.5 } } } or nil
  local muon = ms.optim.muon { lr = 1e-2, momentum = 0.9, weight_decay = 0.1, groups = groups }
  optimizer = { { re[[fc\d\.weight$]], muon }, { re".", optimizer } }
end
local limits = cfg.wrong ~= "clipping" and 0.5 or nil
if cfg.optimizer == "clipped" then
  limits = { { re[[norm]], 0.3 }, { re[[fc]], cfg.wrong ~= "norm" and 3 or 0 } }
end
local train = ms.trainer {
  model = model, optimizer = optimizer, micro_batches = cfg.micro, gradient_sync = cfg.sync,
  clip_grad_norm = limits, clip_grad_value = cfg.optimizer == "clipped" and cfg.wrong ~= "value" and 0.1 or nil,
  forward = function(net, batch)
    local loss = ms.loss.cross_entropy
    if cfg.chunk > 0 then loss = ms.loss.cross_entropy { fused = true, chunk = cfg.chunk } end
    if cfg.wrong == "tokens" then loss = ms.loss.cross_entropy { reduction = "mean" } end
    return loss(net(batch.tokens, batch.even), batch.targets)
  end,
}

local file = ms.safetensors.open(("tests/fixtures/updates/%s.safetensors"):format(cfg.optimizer))
local place, ranks = mesh:get_index(), mesh:size()
local mine = ROWS / ranks

-- The rows of the global batch that are this rank's: micro-batch m of all ranks together is its m-th part.
local function rows_of(name)
  local all, rows = ffi.cast("const int32_t *", file:data(name)), ffi.new("int32_t[?]", mine * LENGTH)
  local micro_rows = mine / cfg.micro
  for i = 0, mine - 1 do
    local row = (math.floor(i / micro_rows) * ranks + place) * micro_rows + i % micro_rows
    ffi.copy(rows + i * LENGTH, all + row * LENGTH, 4 * LENGTH)
  end
  return { data = rows, dtype = "i32", shape = { mine, LENGTH } }
end

local function batch_of(step)
  local even = step % 2 == 0 and { data = ffi.new("float[?]", cfg.micro), dtype = "f32", shape = { cfg.micro } } or nil
  return { tokens = rows_of("tokens." .. step), targets = rows_of("targets." .. step), even = even }
end

local function values_of()
  local values = {}
  for name in model:named_parameters() do values[name] = train:parameter(name):reshape(-1):tolist() end
  return values
end

if cfg.load ~= "" then
  ms.checkpoint.load(train, cfg.load)
else
  for name, parameter in model:named_parameters() do
    local first = ms.zeros(parameter.shape)
    file:read_f32("init." .. name, nil, 0, first:reshape(-1).shape[1], first.data)
    train:set_parameter(name, first)
  end
end

local result = { losses = {}, norms = {}, group_norms = {}, updates = {}, counts = {}, first = train.steps_done + 1 }
local before = values_of()
for step = train.steps_done + 1, STEPS do
  local m, update = train:step(batch_of(step)), {}
  local after = values_of()
  for name, values in pairs(after) do
    update[name] = {}
    for i, value in ipairs(values) do update[name][i] = value - before[name][i] end
  end
  result.losses[#result.losses + 1], result.norms[#result.norms + 1] = m.loss, m.grad_norm
  for _, norm in ipairs(m.grad_norms or {}) do table.insert(result.group_norms, norm) end
  result.updates[#result.updates + 1], before = update, after
  if step == cfg.save_at then ms.checkpoint.save(train, cfg.save) end
end
ms.checkpoint.finish(train)
local function evaluated(step) return coroutine.wrap(function() coroutine.yield(1, batch_of(step)) end) end
if cfg.micro == 1 then result.evaluated = train:evaluate(evaluated(3)) end
for name in model:named_parameters() do
  if cfg.wrong ~= "norms" then result.counts[name] = train:optimizer_state(name, "step"):item() end
end
if place == 0 then
  local out = assert(io.open(cfg.out, "w"))
  out:write(json.encode(result))
  out:close()
end
