-- Trains a small mixture of experts on text: of each layer's experts, a router chooses some for every token.
--
--   moonshard run recipes/mixture_of_experts.lua -n 2                                  # balanced by biases
--   moonshard run recipes/mixture_of_experts.lua -n 2 bias_rate=0 score=softmax aux_loss=0.01 save=trained
--   moonshard run recipes/mixture_of_experts.lua -n 4 mesh=1x2x2                       # each expert over two ranks
--   moonshard plan recipes/mixture_of_experts.lua -n 8 experts=64 active=6             # memory and collectives only

local ms = require "moonshard"
local re = ms.re

local cfg = ms.args {
  experts = 8, active = 2,          -- experts of a layer, and those of a token
  score = "sigmoid",                -- of the router: sigmoid or softmax
  bias_rate = ms.args.real(0.01),   -- step of the biases that balance loads; 0: no biases
  aux_loss = ms.args.real(0),       -- factor of the auxiliary loss that balances loads
  layers = 4, dim = 128, ffn = 192, seq = 128, batch = 8,
  steps = 100, lr = 3e-3,
  mesh = "1x-1",                    -- replicas x shards, then x tensor; -1: all remaining ranks
  save = "",                        -- folder for the trained model in the layout of Mixtral: softmax, without biases
}
if cfg.save ~= "" then ms.huggingface.check_folder(cfg.save) end

local model = ms.models.mixtral {
  vocab = 256, layers = cfg.layers, dim = cfg.dim, heads = 4, kv_heads = 2, ffn = cfg.ffn, seq = cfg.seq,
  experts = cfg.experts, experts_per_token = cfg.active, expert_score = cfg.score, bias_rate = cfg.bias_rate,
  aux_loss = cfg.aux_loss, rope_theta = 10000,
}
if cfg.save ~= "" then ms.huggingface.config(model) end -- fail now if a folder cannot say what the model is

local _, crosses = cfg.mesh:gsub("x", "")
local mesh = ms.init_device_mesh(cfg.device, cfg.mesh,
  crosses == 2 and { "replicate", "shard", "tensor" } or { "replicate", "shard" })
ms.fully_shard(model, {
  mesh = mesh, units = { re[[^layers\.\d+$]] },
  placements = mesh:has("tensor") and ms.rules.tensor_parallel(model) or nil,
})

local data = ms.data.text { files = cfg.files, seq = cfg.seq, batch = cfg.batch, mesh = mesh }
local train = ms.trainer {
  model = model, loss = ms.loss.cross_entropy, clip_grad_norm = 1.0,
  optimizer = ms.optim.adamw {
    lr = ms.schedule.cosine { peak = cfg.lr, warmup = math.min(10, cfg.steps), total = cfg.steps, floor = 3e-4 },
  },
}

-- The gradient of a router's biases is how far each load is above the mean, times their number.
local function print_loads()
  local mean = cfg.batch * cfg.seq * cfg.active
  for i = 0, cfg.layers - 1 do
    local loads = train:gradient(("layers.%d.mlp.router_bias"):format(i)):tolist()
    for e, excess in ipairs(loads) do loads[e] = ("%.2f"):format(1 + excess / mean) end
    if mesh:get_index() == 0 then print(("layer %d  loads %s"):format(i, table.concat(loads, "  "))) end
  end
end

for step, batch in data:batches(cfg.steps) do
  ms.log(step, train:step(batch))
  if cfg.bias_rate > 0 and (step == 1 or step == cfg.steps) then print_loads() end
end

if cfg.save ~= "" then ms.huggingface.save(train, cfg.save) end
