-- Trains where frozen weights stay gathered for the whole run (reshard=run), or do not, through all that writes or
-- moves them, and prints what it computed: the same, bit for bit.
--
--   moonshard run tests/lua/sharding/recipes/resident.lua -n 2 mesh=1x2 reshard=run

local ms = require "moonshard"
local re = ms.re
local cfg = ms.args { mesh = "1x1", reshard = "run", dtype = "f32", layout = "rows", storage = "f32", gather = "",
  adapters = false, over = false, folder = "" }
local model = ms.models.gpt2 { vocab = 32, layers = 3, dim = 16, heads = 2, seq = 8 }
local adapted = cfg.adapters and ms.lora(model, { { re[[\.(wq|wv|fc1)$]], { rank = 2 } } })
local frozen = adapted and re[[^layers\.\d+$]] or re[[^layers\.[01]$]]
local RESHARD = cfg.reshard == "run" and "run" or cfg.reshard == "always"
local function rules(value) return { { frozen, value }, { re"", true } } end
local stored = { { re[[^layers\.[01]\.mlp\.fc2\.weight$]], cfg.storage }, { re"", "f32" } }
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }), units = { re[[^layers\.\d+$]] },
  layout = cfg.layout,
  mp_policy = { param_dtype = cfg.dtype }, reshard_after_forward = rules(RESHARD),
  freeze = adapted and {} or { re[[^layers\.[01]\.]] }, storage = stored,
  gather_dtype = cfg.gather ~= "" and { { re[[^layers\.[01]\.attn\.w[kv]\.weight$]], cfg.gather }, { re"", false } }
    or nil,
  shard_optimizer_over_replicate = cfg.over or nil,
})
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.cross_entropy,
  ema = 0.9 }
local world = ms.world()

local function batch(n)
  local tokens, targets = {}, {}
  for i = 1, 16 do tokens[i], targets[i] = (7 * i * n + world.rank) % 32, (5 * i + n * n) % 32 end
  local i32 = { dtype = "i32" }
  return { tokens = ms.tensor(tokens, i32):reshape(2, 8), targets = ms.tensor(targets, i32):reshape(2, 8) }
end
local function report(what)
  for n = 1, 2 do
    local metrics = train:step(batch(n))
    if world.rank == 0 then print(("%s %.17g %.17g"):format(what, metrics.loss, metrics.grad_norm)) end
  end
end
local function collectives()
  local counted = train.session:counters("train").collectives
  return counted.first, counted.gather
end

report "first"
local before = collectives()
report "second"
local after, gathers = collectives()
local moved = (after - before) / 2
io.stderr:write(("rank %d: %d collectives in forward and backward, %d gathers\n"):format(world.rank, moved, gathers))
local name, stored_name = "layers.0.mlp.fc1.bias", "layers.1.mlp.fc2.weight"
local values = model:parameter(name)
if cfg.folder ~= "" then ms.checkpoint.save(train, cfg.folder) end
model:set_parameter(name, values + 1)
report "written"
model:set_parameter(stored_name, model:parameter(stored_name) * 1.5)
report "weight written"
local dict = model:state_dict { full = true }
dict[name] = world.rank == 0 and dict[name] * 0.5 or nil
model:load_state_dict(dict, { full = true })
report "state dict"
if cfg.folder ~= "" then
  ms.checkpoint.load(train, cfg.folder)
  report "loaded"
end
ms.with_full_params(model, function(params) params[name] = params[name] - 2 end)
report "full parameters"
local function evaluate()
  local n = 0
  return train:evaluate(function()
    n = n + 1
    if n < 3 then return n, batch(n) end
  end)
end
local loss = evaluate()
if world.rank == 0 then print(("evaluated %.17g"):format(loss)) end
local averages = train:with_ema(evaluate)
if world.rank == 0 then print(("averages %.17g"):format(averages)) end
ms.set_rules(model, { reshard_after_forward = rules(false) })
report "never"
model:set_parameter(name, values - 1)
ms.set_rules(model, { reshard_after_forward = rules(RESHARD) })
report "again"
