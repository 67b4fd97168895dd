-- Plans compiled for one rank of meshes that are never launched: how long compiling takes, and how near packed arenas
-- come to what no packing could go below. Prints one JSON line a figure, with the target that it is to keep:
--
--   luajit tests/bench/plans.lua          with LUA_PATH and MOONSHARD_LIB as tests/run.sh sets them
--
-- Two bounds. The least of each memory: what a rank has alone or shows its peers, and what its group gathers together,
-- is different memory, so their fullest moments add up. The most in use: all of it at one instruction, which would
-- take one memory for everything.

local engine = require("moonshard.base.ffi")
local ms = require("moonshard")
local session = require("moonshard.engine.session")
local C, ffi, re = engine.C, engine.ffi, ms.re

local function say(name, unit, ours, target)
  print(('{"name":"%s","unit":"%s","ours":%.4g,"target":%g}'):format(name, unit, ours, target))
end

local function trainer(kind, config, mesh, dtype)
  ms.world().describe(0, mesh[1] * mesh[2])
  local model = ms.models[kind](config)
  ms.fully_shard(model, {
    mesh = mesh, units = { re[[^layers\.\d+$]] }, mp_policy = { param_dtype = dtype, reduce_dtype = "f32" },
  })
  return ms.trainer {
    model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.adamw { lr = 1e-3 }, clip_grad_norm = 1,
  }
end

local function tokens(batch, length)
  local function rows() return { data = 0, dtype = "i32", shape = { batch, length } } end
  return { tokens = rows(), targets = rows() }
end

-- The best of several, in ms of this process's time: what else runs on the machine costs nothing here.
local function best(times, call)
  local least = math.huge
  for i = 1, times do
    local begin = os.clock()
    call(i)
    least = math.min(least, 1e3 * (os.clock() - begin))
  end
  return least
end

local function compile_speed(name, train, batch)
  local plan
  local traced = best(10, function() plan = train:compile(batch) end)
  local changed = best(20, function(i)
    ms.set_rules(train.model, { reshard_after_forward = { { "layers." .. i, false }, { re".", true } } })
    session.of(train.model):compile("train", plan.graph, plan.settings)
  end)
  say(name .. "/traced and compiled", "ms", traced, 50)
  say(name .. "/one rule changed", "ms", changed, 10)
end

local function packing(name, kind, config, mesh, batch)
  for _, dtype in ipairs({ "f32", "bf16" }) do
    local plan = trainer(kind, config, mesh, dtype):compile(tokens(batch, config.seq))
    local numbers = ffi.new("ms_plan_summary")
    engine.check(C.ms_plan_summarize(plan.handle, numbers, ffi.sizeof(numbers)))
    local peak = numbers.peak
    local arenas = plan:summary().peak_bytes
    local label = ("%s %dx%d %s, %d x %d tokens"):format(name, mesh[1], mesh[2], dtype, batch, config.seq)
    say(label .. "/peak of the least of each memory", "fraction", arenas / tonumber(peak.min_bytes), 1.05)
    say(label .. "/peak of the most in use", "fraction", arenas / tonumber(peak.total_bytes), 1.05)
  end
end

compile_speed("plan of 100 GPT layers", trainer("gpt2", { vocab = 64, layers = 100, dim = 16, heads = 2, seq = 8 },
  { 1, 4 }, "bf16"), tokens(2, 8))
packing("gpt2 124M", "gpt2", { "124M", seq = 1024 }, { 1, 4 }, 1)
packing("gpt2 124M", "gpt2", { "124M", seq = 1024 }, { 2, 2 }, 4)
packing("gpt2 124M", "gpt2", { "124M", seq = 1024 }, { 1, 2 }, 1)
packing("llama 1B", "llama", { "1B", seq = 1024 }, { 1, 8 }, 1)
packing("llama 1B", "llama", { "1B", seq = 4096 }, { 1, 8 }, 1)
packing("llama tiny", "llama", { vocab = 256, layers = 4, dim = 256, heads = 8, kv_heads = 4, ffn = 704, seq = 256 },
  { 1, 2 }, 4)
