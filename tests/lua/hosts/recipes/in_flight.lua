-- Everything that can follow a step whose update leaves gathers in flight (shard_optimizer_over_replicate over hosts):
-- the next step, a step of another model, an evaluation, a state dict and its loading, averages, a recovery, and the
-- end. Prints what it reads to the last bit, so that a run without the option prints the same.
local engine = require "moonshard.base.ffi"
local ms = require "moonshard"
local cfg = ms.args { mesh = "2x2", dtype = "f32", sliced = false, layers = 3 }
local mesh = ms.init_device_mesh("cpu", cfg.mesh, { "replicate", "shard" })
local function make(layers)
  local model = ms.models.gpt2 { vocab = 40, layers = layers, dim = 24, heads = 2, seq = 8 }
  ms.fully_shard(model, {
    mesh = mesh, units = { ms.re[[^layers\.\d+$]] }, mp_policy = { param_dtype = cfg.dtype },
    shard_optimizer_over_replicate = cfg.sliced,
  })
  return model, ms.trainer {
    model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.adamw { lr = 1e-2 }, ema = { decay = 0.9 },
  }
end
local model, train = make(cfg.layers)
local _, train_other = make(2) -- its collectives use the same channels

local function draw(seed)
  local data, drawn = engine.ffi.new("int32_t[32]"), ms.rand { 32, seed = seed }:tolist()
  for i = 1, 32 do data[i - 1] = math.floor(40 * drawn[i]) end
  return { data = data, dtype = "i32", shape = { 4, 8 } }
end

local steps = 0
local function step(of)
  steps = steps + 1
  local seed = 100 * steps + ms.world().rank
  local m = (of or train):step { tokens = draw(seed), targets = draw(seed + 50) }
  ms.log.print(("step %d: %.17g"):format(steps, m.loss))
end
local function evaluate(what)
  local batch = { tokens = draw(7), targets = draw(8) }
  local value = train:evaluate(coroutine.wrap(function() coroutine.yield(1, batch) end))
  ms.log.print(("%s: %.17g"):format(what, value))
  return value
end

step(); step() -- joined by the second one
evaluate("evaluated")
step(); step(train_other); step(); step(train_other)
local kept = model:state_dict()
step()
model:load_state_dict(kept) -- overwrites what is arriving
local loaded = evaluate("loaded")
step(); step()
model:load_state_dict(kept)
assert(evaluate("loaded again") == loaded)
step()
train:with_ema(function() evaluate("averages") end)
evaluate("weights")
step()
engine.check(engine.C.ms_world_recover(ms.world().handle)) -- drops what is in flight
step()
evaluate("after a recovery")
step() -- nothing joins the last ones
