-- A Llama whose frozen weights are kept in few bits, with adapters that train. Its matrices have one to three records
-- of nf4 (16384 elements), so chunks of two and four ranks have whole ones, padding, or nothing.
-- Ranks of a tensor dimension have runs of their elements, in shorter records; from step `whole` on all of them.

local ms = require "moonshard"
local re = ms.re

local cfg = ms.args {
  mesh = "1x-1", storage = "nf4", dtype = "f32", layout = "rows", reshard = 0, recompute = false, micro_batches = 1,
  steps = 3, batch = 4, sliced = false, ema = false, folder = "", dir = "", resume = "", seed = 0, facts = "",
  shared = true, dim = 128, ffn = 336, whole = 0, copy = false,
}

local names = { [2] = { "replicate", "shard" }, [3] = { "replicate", "shard", "tensor" } }
local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, names[select(2, cfg.mesh:gsub("x", "")) + 1])
local tiny = { vocab = 256, layers = 2, dim = cfg.dim, heads = 4, kv_heads = 2, ffn = cfg.ffn, seq = 16 }
local model = cfg.folder ~= "" and ms.huggingface.model(cfg.folder) or ms.models.llama(tiny)
ms.lora(model, { { re[[attn\.(wq|wv)$]], { rank = 4 } } })
ms.fully_shard(model, {
  mesh = mesh, units = { re[[^layers\.\d+$]] }, seed = cfg.seed, layout = cfg.layout, recompute = cfg.recompute,
  reshard_after_forward = cfg.reshard > 0 and cfg.reshard or nil,
  mp_policy = { param_dtype = cfg.dtype, param_copy = cfg.copy },
  storage = { { re[[\.w\w\.weight$]], cfg.storage }, { "embed", "bf16" } },
  placements = mesh:has("tensor") and ms.rules.tensor_parallel(model) or nil,
  shard_optimizer_over_replicate = cfg.sliced, shared_masters = cfg.shared,
})

local data = ms.data.text {
  files = "tests/lua/recipes/text.txt", seq = 16, batch = cfg.batch / mesh:size(), mesh = mesh,
}
local train = ms.trainer {
  model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.adamw { lr = 1e-2 }, clip_grad_norm = 1,
  micro_batches = cfg.micro_batches, ema = cfg.ema and { decay = 0.9 } or nil,
  checkpoint = { dir = cfg.dir, every = 2, resume = cfg.resume, data = data },
}

-- What the first rank writes: losses as hexadecimal floats, and a hash of each stored parameter's values.
local lines = {}
for step, batch in data:batches(cfg.steps) do
  if step == cfg.whole then ms.set_rules(model, { placements = {} }) end
  local m = train:step(batch)
  ms.log(step, m)
  lines[#lines + 1] = ("loss %d %a"):format(step, m.loss)
end
local shown = { "layers.0.attn.wk.weight", "layers.1.mlp.w2.weight", "embed.weight" }
for _, name in ipairs(cfg.facts ~= "" and shown or {}) do
  local sum, weighted = 0, 0
  for i, value in ipairs(model:parameter(name):reshape(-1):tolist()) do
    sum, weighted = sum + value, weighted + (i % 97) * value
  end
  lines[#lines + 1] = ("%s %a %a"):format(name, sum, weighted)
end
if cfg.facts ~= "" and ms.world().rank == 0 then
  local file = assert(io.open(cfg.facts, "wb"))
  file:write(table.concat(lines, "\n"), "\n")
  file:close()
end
