-- Two meshes of the same ranks compared: the GPT of train.lua is sharded over both, and they train in turns.
--
--   moonshard run tests/bench/hybrid.lua -n 4 mesh=2x2 beside=1x4 dtype=bf16
--
-- A pair is `window` steps over each mesh, every other pair the other way round, so that what else the machine does
-- meets both of one; ranks begin a window together, and it ends with the last of them. Rank 0 prints one JSON line: for
-- each mesh ms and cpu_ms of a step (the median; of all ranks' processors together), and of the pairs' ratios, mesh to
-- beside, the median and the quartiles: of time (ratio, ratio_low, ratio_high), of the processors' (cpu_ratio, ...).

local ffi = require("ffi")
local clock = require("moonshard.base.clock")
local ms = require("moonshard")
local re = ms.re

local cfg = ms.args {
  layers = 6, dim = 384, heads = 6, seq = 256, batch = 4, vocab = 256, mesh = "2x2", beside = "1x4", dtype = "f32",
  pairs = 20, window = 1, warmup = 2,
}

local function trainer(mesh)
  local model = ms.models.gpt2 {
    vocab = cfg.vocab, layers = cfg.layers, dim = cfg.dim, heads = cfg.heads, seq = cfg.seq,
  }
  ms.fully_shard(model, {
    mesh = ms.init_device_mesh(cfg.device, mesh, { "replicate", "shard" }), units = { re[[^layers\.\d+$]] },
    mp_policy = { param_dtype = cfg.dtype, reduce_dtype = "f32" },
  })
  return ms.trainer {
    model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.adamw { lr = 1e-3, weight_decay = 0.1 },
  }
end

local count = cfg.batch * cfg.seq
local tokens = ffi.new("int32_t[?]", count)
for i = 0, count - 1 do tokens[i] = (i * 7 + ms.world().rank) % cfg.vocab end
local array = { data = tokens, dtype = "i32", shape = { cfg.batch, cfg.seq } }
local batch = { tokens = array, targets = array }

local function sum(list)
  local total = 0
  for _, number in ipairs(list) do total = total + number end
  return total
end

-- Milliseconds of a step of a window, and those of all ranks' processors.
local function window(train)
  train.session:gather_numbers(0)
  local began, worked = clock.now(), os.clock()
  for _ = 1, cfg.window do train:step(batch) end
  worked = os.clock() - worked
  local cpu = sum(train.session:gather_numbers(worked))
  return 1e3 * (clock.now() - began) / cfg.window, 1e3 * cpu / cfg.window
end

-- The value below which a share of the list lies.
local function quantile(list, share)
  local sorted = { unpack(list) }
  table.sort(sorted)
  local at = 1 + share * (#sorted - 1)
  local low = math.floor(at)
  return sorted[low] + (at - low) * ((sorted[low + 1] or sorted[low]) - sorted[low])
end

local train = { [cfg.mesh] = trainer(cfg.mesh), [cfg.beside] = trainer(cfg.beside) }
for _ = 1, cfg.warmup do
  window(train[cfg.mesh])
  window(train[cfg.beside])
end
local took, worked, ratio, cpu_ratio = { mesh = {}, beside = {} }, { mesh = {}, beside = {} }, {}, {}
for i = 1, cfg.pairs do
  for _, which in ipairs(i % 2 == 0 and { "mesh", "beside" } or { "beside", "mesh" }) do
    took[which][i], worked[which][i] = window(train[cfg[which]])
  end
  ratio[i], cpu_ratio[i] = took.mesh[i] / took.beside[i], worked.mesh[i] / worked.beside[i]
end
if ms.world().rank == 0 then
  local result = { mesh = cfg.mesh, beside = cfg.beside, dtype = cfg.dtype, pairs = cfg.pairs, window = cfg.window }
  for _, which in ipairs({ "mesh", "beside" }) do
    result[which .. "_ms"], result[which .. "_cpu_ms"] = quantile(took[which], 0.5), quantile(worked[which], 0.5)
  end
  for name, list in pairs({ ratio = ratio, cpu_ratio = cpu_ratio }) do
    result[name] = quantile(list, 0.5)
    result[name .. "_low"], result[name .. "_high"] = quantile(list, 0.25), quantile(list, 0.75)
  end
  print(require("moonshard.base.json").encode(result))
end
