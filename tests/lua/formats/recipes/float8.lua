-- Trains a small GPT-2, Llama or Mixtral, whose sizes are multiples of what 8-bit products need, and writes what came
-- out, for specs that compare recipes, meshes and devices. Every mesh sees the same global batches.

local ffi = require("ffi")
local json = require("moonshard.base.text.json")
local ms = require("moonshard")
local re = ms.re

local cfg = ms.args {
  mesh = "1x1x1", steps = 10, out = "", fp8 = "", dtype = "bf16", model = "gpt2", micro = 1, rows = 8, seq = 16,
  rule = [[layers\.\d+\..*weight$]], recompute = false, sequence = false,
  excepted = "norm|embed", vocab = 64, moments = "f32", replicate = "f32", whole = "",
  save = "", save_at = 0, load = "", dim = 64, ffn = 96, layers = 2, gather = "",
}

local size = { vocab = cfg.vocab, layers = cfg.layers, dim = cfg.dim, heads = 2, seq = cfg.seq }
if cfg.model ~= "gpt2" then size.kv_heads, size.ffn = 2, cfg.ffn end
if cfg.model == "mixtral" then size.experts, size.experts_per_token = 3, 2 end
local model = ms.models[cfg.model](size)
local NAMES = { [3] = { "replicate", "shard", "tensor" }, [4] = { "replicate", "shard", "context", "tensor" } }
local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, NAMES[select(2, cfg.mesh:gsub("x", "")) + 1])
local placements = mesh:size("tensor") > 1 and ms.rules.tensor_parallel(model) or nil
if placements and cfg.whole ~= "" then
  table.insert(placements, 1, { re(cfg.whole), { tensor = "replicate" } })
end
ms.fully_shard(model, {
  mesh = mesh, units = { re[[^layers\.\d+$]] },
  mp_policy = { param_dtype = cfg.dtype, reduce_dtype = { shard = "f32", replicate = cfg.replicate } },
  gather_dtype = cfg.gather ~= "" and { { re(cfg.rule), cfg.gather } } or nil,
  fp8 = cfg.fp8 ~= "" and { { re(cfg.excepted), false }, { re(cfg.rule), cfg.fp8 } } or nil,
  placements = placements,
  sequence_parallel = cfg.sequence,
  recompute = cfg.recompute and true or nil,
})
local train = ms.trainer {
  model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.adamw { lr = 3e-3, moments = cfg.moments },
  micro_batches = cfg.micro, clip_grad_norm = 1,
}

-- Rows of an arithmetic progression in the vocabulary, whose next token can be learnt.
-- Ranks of tensor and context have the same rows.
local together = mesh:size("tensor") * (mesh:has("context") and mesh:size("context") or 1)
local ranks = mesh:size() / together
local place = math.floor(mesh:get_index() / together)
local mine = cfg.rows / ranks

local function batch_of(step)
  local tokens, targets = ffi.new("int32_t[?]", mine * cfg.seq), ffi.new("int32_t[?]", mine * cfg.seq)
  for i = 0, mine - 1 do
    local row = step * cfg.rows + place * mine + i
    local first, stride = row * 17 % cfg.vocab, 1 + row % 3
    for t = 0, cfg.seq - 1 do
      tokens[i * cfg.seq + t] = (first + stride * t) % cfg.vocab
      targets[i * cfg.seq + t] = (first + stride * (t + 1)) % cfg.vocab
    end
  end
  local function of(data) return { data = data, dtype = "i32", shape = { mine, cfg.seq } } end
  return { tokens = of(tokens), targets = of(targets) }
end

local result = { losses = {}, norms = {} }
if cfg.load ~= "" then ms.checkpoint.load(train, cfg.load) end
for step = train.steps_done + 1, cfg.steps do
  local m = train:step(batch_of(step))
  if step == cfg.save_at then ms.checkpoint.save(train, cfg.save) end
  table.insert(result.losses, m.loss)
  table.insert(result.norms, m.grad_norm)
  result.peak_bytes = m.peak_bytes
end
result.evaluated = train:evaluate(coroutine.wrap(function() coroutine.yield(1, batch_of(1)) end))
result.plan = train:plan():summary()
if ms.world().rank == 0 and cfg.out ~= "" then
  local file = assert(io.open(cfg.out, "w"))
  file:write(json.encode(result))
  file:close()
end
