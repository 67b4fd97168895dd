-- Changes placements and sequence parallelism between steps. `moonshard check` compares the losses and parameters with
-- one rank, which knows neither; on the ranks, the values that the change moves must be the same before and after it.

local ms = require "moonshard"

local cfg = ms.args {
  mesh = "1x2x2", layout = "rows", moments = "f32", over_replicate = false, mistakes = false,
}
local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard", "tensor" })
local model = ms.models.gpt2 { vocab = 256, layers = 2, dim = 32, heads = 4, seq = 16, dropout = 0.1 }
ms.fully_shard(model, {
  mesh = mesh, units = { ms.re[[^layers\.\d+$]] }, layout = cfg.layout, freeze = { "pos" },
  shard_optimizer_over_replicate = cfg.over_replicate,
})
local data = ms.data.text { files = "tests/lua/recipes/text.txt", seq = 16, batch = 2, mesh = mesh }
local train = ms.trainer {
  model = model, optimizer = ms.optim.adamw { lr = 1e-2, moments = cfg.moments }, loss = ms.loss.cross_entropy,
  clip_grad_norm = 1, ema = 0.9,
}

local function values()
  local list = {}
  for name, parameter in model:named_parameters() do
    list[name] = train:parameter(name):reshape(-1):tolist()
    for _, kind in ipairs(parameter.frozen and {} or { "exp_avg", "exp_avg_sq", "ema" }) do
      list[kind .. " " .. name] = train:optimizer_state(name, kind):reshape(-1):tolist()
    end
    list["step " .. name] = { train:optimizer_state(name, "step"):item() }
  end
  return list
end

-- The plan before and after a change that moves the state.
local function moved(rules)
  local before, plan = values(), train:plan()
  local after = train:set_rules(rules)
  for name, list in pairs(values()) do
    for i, value in ipairs(list) do assert(value == before[name][i], name) end
  end
  return plan, after
end

local function show(what, ok, raised) print(("%s: %s %s"):format(what, tostring(ok), tostring(raised))) end

-- Each is refused on all ranks, and the old rules stay.
local function try_mistakes()
  local rank, plan = ms.world().rank, train:plan()
  local function refused(what, rules) show(what, pcall(train.set_rules, train, rules)) end
  refused("style", { placements = { { "head", { tensor = "colwize" } } } })
  refused("axis", { placements = { { "head", { tensor = ms.Shard(2) } } } })
  refused("heads", { placements = { { ms.re[[norm\.weight]], { tensor = ms.Shard(0) } } } })
  refused("alone", { placements = rank == 1 and ms.rules.tensor_parallel(model) or nil })
  refused("unlike", { placements = { { ms.re"fc1", { tensor = rank == 1 and "rowwise" or "colwise" } } } })
  train:with_ema(function() refused("averages", { placements = {} }) end)
  assert(train:plan() == plan, "a mistake has changed the plan")
end

for step, batch in data:batches(5) do
  ms.log(step, train:step(batch))
  if step == 1 then
    local before, after = moved { placements = ms.rules.tensor_parallel(model) }
    if ms.world().rank == 0 and after then print(before:compare(after)) end
    show("gradient", pcall(train.gradient, train, "head.weight"))
  elseif step == 2 then
    local plan = train:plan()
    local divided = train:set_rules { sequence_parallel = true }
    assert(train:set_rules { sequence_parallel = false } == plan, "the plan was not kept")
    assert(train:set_rules { sequence_parallel = true } == divided, "the plan was not kept")
    if ms.world().rank == 0 then print("sequence", plan:compare(divided)) end
    if cfg.mistakes then try_mistakes() end
  elseif step == 4 then
    moved { placements = {}, sequence_parallel = false, reshard_after_forward = false }
  end
end
