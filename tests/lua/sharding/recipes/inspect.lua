-- Trains a small network for some steps, changes a rule on the way, and writes what can be seen of it: for specs that
-- compare a run whose rule changed with one that had the rule from the start.

local ms = require "moonshard"
local json = require "moonshard.base.text.json"
local re = ms.re

local cfg = ms.args {
  mesh = "2x2", out = "", first = "default", second = "", change_at = 1, steps = 4, layout = "rows", micro = 1,
  optimizer = "adamw",
}

local RULES = {
  default = "default", never = false, always = true, pairs = 2,
  mixed = { { re[[^1$]], false }, { re[[.*]], true } },
}

local Block = ms.module "Block"

function Block:init(dim)
  self.norm = ms.nn.layer_norm { dim }
  self.fc = ms.nn.linear(dim, dim)
end

function Block:forward(x) return x + self.fc(self.norm(x)):gelu() end

local model = ms.nn.sequential { ms.nn.linear(7, 10), Block(10), Block(10), ms.nn.linear(10, 5) }
ms.fully_shard(model, {
  mesh = cfg.mesh, units = { re[[^\d+$]] }, reshard_after_forward = RULES[cfg.first], layout = cfg.layout,
})
local train = ms.trainer {
  model = model, loss = ms.loss.mse, clip_grad_norm = 0.5, micro_batches = cfg.micro,
  optimizer = cfg.optimizer == "adamw" and ms.optim.adamw { lr = 1e-2, weight_decay = 0.1 }
    or ms.optim.sgd { lr = 1e-2, momentum = 0.9, weight_decay = 0.1 },
}

local world = ms.world()

-- This rank's rows of a global batch of 24.
local function batch_of(step)
  local x, y = ms.randn { 24, 7, seed = step }, ms.randn { 24, 5, seed = 1000 + step }
  local rows = 24 / world.size
  local first = rows * world.rank
  return { inputs = x:slice(0, first, first + rows), targets = y:slice(0, first, first + rows) }
end

local states = cfg.optimizer == "adamw" and { "exp_avg", "exp_avg_sq" } or { "momentum" }
local result = { losses = {}, plans = {}, gradients = {}, parameters = {}, states = {}, before = {} }
for name in model:named_parameters() do result.before[name] = train:parameter(name):tolist() end
for step = 1, cfg.steps do
  local m = train:step(batch_of(step))
  result.losses[step], result.norm = m.loss, m.grad_norm
  result.plans[step] = train:plan():summary().fingerprint
  if step == cfg.change_at and cfg.second ~= "" then
    result.changed = train:set_rules { reshard_after_forward = RULES[cfg.second] }:summary()
  end
end
for name in model:named_parameters() do
  result.gradients[name] = train:gradient(name):tolist()
  result.parameters[name] = train:parameter(name):tolist()
  result.states[name] = {}
  for _, state in ipairs(states) do result.states[name][state] = train:optimizer_state(name, state):tolist() end
end
-- How many elements all ranks' parts have, and what they sum up to.
result.parts = {}
for name in model:named_parameters() do
  local part, count, total = train:local_gradient(name), 0, 0
  for _, numel in ipairs(train.session:gather_numbers(part:numel())) do count = count + numel end
  local mine = part:numel() > 0 and part:sum():item() or 0
  for _, sum in ipairs(train.session:gather_numbers(mine)) do total = total + sum end
  result.parts[name] = { count = count, total = total }
end
result.collectives = train:plan():summary().collectives
result.tree = tostring(model)
if world.rank == 0 then
  local file = assert(io.open(cfg.out, "w"))
  file:write(json.encode(result))
  file:close()
end
