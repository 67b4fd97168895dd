-- How near the prices of plans are to measured steps on this machine.
--
--   moonshard calibrate -n 4 --out build/cpu.lua
--   moonshard run tests/bench/price/measured.lua -n 2 cluster=build/cpu.lua       on 1, 2 and 4 ranks
--   moonshard run tests/bench/price/measured.lua cluster=build/gpu.lua device=cuda
--
-- Trains configurations of GPT and Llama on meshes of the world's ranks: some steps of each, in rounds, so that what
-- else the machine does slows all of them alike. Rank 0 prints a line of JSON for each: its name, the price and the
-- measured step in ms (the median of each round, of which the fastest counts; and the median of all steps).
-- measured_table.lua makes a table of these lines.

local engine = require("moonshard.base.ffi")
local json = require("moonshard.base.text.json")
local ms = require("moonshard")
local re = ms.re
local C, ffi, check = engine.C, engine.ffi, engine.check

local cfg = ms.args { cluster = "", device = "cpu", rounds = 4, steps = 3, warmup = 1, only = "" }
local described = require("moonshard.price.cluster").load(cfg.cluster)

local MESHES = { [1] = { "1x1" }, [2] = { "1x2", "2x1", "1x1x2", "1x1x2x1" }, [4] = { "2x2", "1x4", "4x1", "1x2x2" } }
local NAMES = { [2] = { "replicate", "shard" }, [3] = { "replicate", "shard", "tensor" },
  [4] = { "replicate", "shard", "context", "tensor" } }

-- None of these sizes is one of the calibration's trainings.
local MODELS = {}
MODELS.cpu = {
  { model = "gpt", layers = 4, dim = 192, heads = 4, seq = 96, batch = 4, dtype = "bf16" },
  { model = "gpt", layers = 3, dim = 320, heads = 4, seq = 192, batch = 3, dtype = "f32" },
  { model = "llama", layers = 4, dim = 256, heads = 4, ffn = 640, seq = 192, batch = 2, dtype = "bf16" },
  { model = "llama", layers = 2, dim = 448, heads = 8, ffn = 1152, seq = 256, batch = 2, dtype = "f32" },
  { model = "gpt", layers = 6, dim = 384, heads = 6, seq = 128, batch = 2, dtype = "bf16", recompute = true },
  { model = "llama", layers = 3, dim = 320, heads = 4, ffn = 896, seq = 160, batch = 4, dtype = "f32", keep = true },
  { model = "llama", layers = 2, dim = 512, heads = 8, ffn = 1728, seq = 128, batch = 3, dtype = "bf16" },
  { model = "gpt", layers = 5, dim = 128, heads = 2, seq = 128, batch = 6, dtype = "f32" },
}
MODELS.cuda = {
  { model = "gpt", layers = 12, dim = 768, heads = 12, seq = 1024, batch = 32, dtype = "bf16", vocab = 50304 },
  { model = "gpt", layers = 12, dim = 768, heads = 12, seq = 1024, batch = 8, dtype = "bf16", vocab = 50304 },
  { model = "gpt", layers = 6, dim = 640, heads = 10, seq = 512, batch = 16, dtype = "f32", vocab = 8192 },
  { model = "llama", layers = 8, dim = 1280, heads = 20, ffn = 3456, seq = 1024, batch = 8, dtype = "bf16",
    vocab = 32000 },
  { model = "llama", layers = 3, dim = 2560, heads = 20, ffn = 6912, seq = 2048, batch = 4, dtype = "bf16",
    vocab = 32000 },
  { model = "gpt", layers = 8, dim = 1152, heads = 18, seq = 768, batch = 8, dtype = "bf16", vocab = 32000,
    recompute = true },
  { model = "llama", layers = 6, dim = 896, heads = 14, ffn = 2432, seq = 512, batch = 12, dtype = "f32",
    vocab = 8192 },
  { model = "llama", layers = 8, dim = 2048, heads = 32, ffn = 8192, seq = 1024, batch = 4, dtype = "bf16",
    vocab = 32000 },
  { model = "gpt", layers = 20, dim = 896, heads = 14, seq = 1024, batch = 4, dtype = "bf16", vocab = 50304 },
  { model = "gpt", layers = 4, dim = 384, heads = 6, seq = 256, batch = 4, dtype = "bf16", vocab = 8192 },
  { model = "llama", layers = 4, dim = 256, heads = 4, ffn = 704, seq = 256, batch = 8, dtype = "f32", vocab = 8192 },
}

local function make(t)
  local sizes = { vocab = t.vocab or 512, layers = t.layers, dim = t.dim, heads = t.heads, seq = t.seq }
  if t.model == "gpt" then return ms.models.gpt2(sizes) end
  sizes.kv_heads, sizes.ffn = t.heads / 2, t.ffn
  return ms.models.llama(sizes)
end

local function name_of(t, mesh)
  return ("%s %s %dx%d seq %d batch %d %s%s%s"):format(mesh, t.model, t.layers, t.dim, t.seq, t.batch, t.dtype,
    t.recompute and " recompute" or "", t.keep and " no reshard" or "")
end

local function configure(t, shape)
  local mesh = ms.init_device_mesh(cfg.device, shape, NAMES[select(2, shape:gsub("x", "")) + 1])
  local model = make(t)
  local reshard = nil
  if t.keep then reshard = false end
  ms.fully_shard(model, {
    mesh = mesh, units = { re[[^layers\.\d+$]] }, recompute = t.recompute, reshard_after_forward = reshard,
    placements = mesh:has("tensor") and ms.rules.tensor_parallel(model) or nil,
    mp_policy = { param_dtype = t.dtype, reduce_dtype = "f32" },
  })
  local train = ms.trainer { model = model, loss = ms.loss.cross_entropy, clip_grad_norm = 1,
    optimizer = ms.optim.adamw { lr = 1e-4, weight_decay = 0.1 } }
  return { name = name_of(t, shape), train = train, rounds = {}, all = {} }
end

local function batch_of(t, reader)
  local function rows(shift)
    local data = ffi.new("int32_t[?]", t.batch * t.seq)
    for i = 0, t.batch * t.seq - 1 do data[i] = (i * 7919 + shift + 31 * reader) % 509 end
    return { data = data, dtype = "i32", shape = { t.batch, t.seq } }
  end
  return { tokens = rows(0), targets = rows(7919) }
end

local function median(values)
  table.sort(values)
  local n = #values
  return (values[math.floor((n + 1) / 2)] + values[math.floor(n / 2) + 1]) / 2
end

local function price_ms(train)
  local price = ffi.new("ms_price")
  check(C.ms_plan_price(train:plan().handle, described:struct(), 1, 1, price, ffi.sizeof("ms_price")))
  return 1e3 * price.step
end

local world = ms.world()
local runs = {}
for _, shape in ipairs(assert(MESHES[world.size], "this benchmark runs on 1, 2 or 4 ranks")) do
  for _, t in ipairs(MODELS[cfg.device]) do
    if name_of(t, shape):find(cfg.only, 1, true) then
      local run = configure(t, shape)
      local _, reader = run.train.session:data_ranks()
      run.batch = batch_of(t, reader)
      runs[#runs + 1] = run
    end
  end
end

for _ = 1, cfg.rounds do
  for _, run in ipairs(runs) do
    local steps = {}
    for step = 1, cfg.warmup + cfg.steps do
      local m = run.train:step(run.batch)
      if step > cfg.warmup then
        steps[#steps + 1] = m.step_ms
        run.all[#run.all + 1] = m.step_ms
      end
    end
    run.rounds[#run.rounds + 1] = median(steps)
  end
end

for _, run in ipairs(runs) do
  table.sort(run.rounds)
  if world.rank == 0 then
    local counted = run.train.session:counters("train").seconds
    local steps = cfg.rounds * (cfg.warmup + cfg.steps)
    print(json.encode({ name = run.name, ranks = world.size, predicted = price_ms(run.train), measured = run.rounds[1],
      median = median(run.all), kernels = 1e3 * counted.kernels / steps,
      collectives = 1e3 * counted.collectives / steps, waits = 1e3 * counted.waits / steps }))
  end
end
