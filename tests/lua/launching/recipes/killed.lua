-- Trains, and kills one process of its own run at a chosen moment, as `kill -9` would.
--
--   victim  launcher, or a rank
--   phase   start: before the ranks have met; first: while the first step is traced; middle: at any place in a later
--           step; finish: when the other ranks have nothing left to do

local ms = require "moonshard"
local ffi = require "ffi"

ffi.cdef "int getpid(void); int getppid(void); int kill(int process, int signal); int sleep(unsigned seconds);"

local SIGKILL = 9
local cfg = ms.args { victim = "launcher", phase = "start" }
local rank = tonumber(os.getenv("RANK"))
local killer = tonumber(cfg.victim) or 0
local victim = cfg.victim == "launcher" and ffi.C.getppid() or ffi.C.getpid()

local function strike(phase)
  if phase ~= cfg.phase or rank ~= killer then return end
  ffi.C.kill(victim, SIGKILL)
  ffi.C.sleep(100) -- the launcher's end is this rank's
end

strike("start")

local Net = ms.module "Net"

function Net:init()
  self.first, self.last = ms.nn.linear(8, 64), ms.nn.linear(64, 4)
end

function Net:forward(x)
  strike("first")
  return self.last(self.first(x):relu())
end

local model = ms.fully_shard(Net(), { mesh = { -1 } })
local data = ms.data.random { inputs = 8, targets = 4 }
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-3 }, loss = ms.loss.mse }

for step = 1, cfg.phase == "middle" and math.huge or 3 do
  train:step(data:read { rank, rank + 1 })
  if step == 3 and cfg.phase == "middle" and rank == killer then
    os.execute(("{ sleep 0.2; kill -9 %d; } >/dev/null 2>&1 &"):format(victim))
  end
end
strike("finish")
