-- A run that saves, and to which SIGTERM comes at a moment that the settings choose; see terminate_spec.lua.

local ms = require "moonshard"
local inject_io = require("lua.support.inject_io")
local ffi = require "ffi"

ffi.cdef "int getpid(void); int getppid(void); int kill(int, int);"
local SIGTERM = 15

local cfg = ms.args {
  mesh = "1x2", steps = 8, dir = "", every = 0, async = true, ema = false,
  to = "launcher", -- whom the signal comes to: the launcher, "rank 0" or "rank 1"
  -- "trace" (of the first step); after step `at`: "save" (while it is saved), "step", "evaluate", "stuck" (rank 1 is)
  when = "",
  at = 3,
  inject = "", -- errors of the calls that write files
}
if cfg.inject ~= "" then inject_io(cfg.inject) end

local function send()
  local rank = ms.world().rank
  if cfg.to == "launcher" and rank == 0 then ffi.C.kill(ffi.C.getppid(), SIGTERM) end
  if cfg.to == "rank " .. rank then ffi.C.kill(ffi.C.getpid(), SIGTERM) end
end

local Net = ms.module "Net"

function Net:init()
  self.first, self.last = ms.nn.linear(8, 12), ms.nn.linear(12, 4)
end

function Net:forward(x)
  if cfg.when == "trace" then send() end
  return self.last(ms.ops.dropout(self.first(x):relu(), { p = 0.1 }))
end

local model = Net()
ms.fully_shard(model, { mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }) })
local data = ms.data.random { inputs = 8, targets = 4 }
local sampler = ms.data.sampler { length = data.length }
local train
-- What a checkpoint saves of the data; every rank is asked for it while it saves, and once after its first step.
local position = {
  state = function()
    if cfg.when == "save" and train.steps_done == cfg.at then send() end
    return data:state()
  end,
  load_state = function(_, state) data:load_state(state) end,
}
train = ms.trainer {
  model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.mse, ema = cfg.ema and 0.9 or nil,
  checkpoint = { dir = cfg.dir, every = cfg.every, async = cfg.async, data = position,
    resume = cfg.dir ~= "" and "auto" or "" },
}

local function spin()
  local x = 0
  for i = 1, math.huge do x = x + i end -- compiled: no hook is seen, and nothing asks the engine
  return x
end

-- An evaluation that would take for ever.
local function endless_batches()
  local valid, n = ms.data.random { inputs = 8, targets = 4, seed = 2 }, 0
  return function()
    n = n + 1
    if n == 3 then send() end
    return n, valid:read { 0, 1 }
  end
end

ms.log.expect(cfg.steps)
for _, batch in data:batches(sampler, 4) do
  if train.steps_done == cfg.steps then break end
  local m = train:step(batch)
  if train.steps_done == cfg.at and cfg.when == "step" then send() end
  if train.steps_done == cfg.at and cfg.when == "evaluate" then
    m.valid_loss = train:evaluate(endless_batches(), { ema = cfg.ema })
  end
  ms.log(train.steps_done, m)
  if train.steps_done == cfg.at and cfg.when == "stuck" then
    if ms.world().rank == 1 then spin() end
    send()
  end
end
