-- Begins a save in the background by hand, and ends as `how` says while the writes are slow.

local ms = require "moonshard"
local inject_io = require("lua.support.inject_io")
local ffi = require "ffi"

ffi.cdef "int getpid(void); int getppid(void); int kill(int, int);"
local SIGINT, SIGTERM, SIGKILL = 2, 15, 9

local cfg = ms.args { dir = "", how = "" }
local rank = ms.world().rank
local batch = { inputs = ms.ones(2, 4), targets = ms.ones(2, 2) }
local train

local function go_on() for _ = 1, 1e6 do train:step(batch) end end

-- In a function of its own, after which nothing but the save refers to the first trainer.
local function save()
  local model = ms.nn.sequential { ms.nn.linear(4, 64), ms.nn.linear(64, 2) }
  ms.fully_shard(model, { mesh = ms.init_device_mesh("cpu", "1x2", { "replicate", "shard" }) })
  local one = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 0.1 }, loss = ms.loss.mse }
  one:step(batch)
  inject_io(cfg.how:find("full", 1, true) and rank == 1 and "write:1+:ENOSPC" or "write:1+:slow")
  ms.checkpoint.save(one, cfg.dir, { async = true })
  if cfg.how ~= "forgotten" then train = one end
end
save()

local ENDS = {
  forgotten = function() collectgarbage() collectgarbage() end,
  full = function() end,
  error = function() error("a mistake") end,
  ["error alone"] = function() if rank == 1 then error("a mistake") end go_on() end,
  exit = function() os.exit(0) end,
  ["full exit"] = function() os.exit(0) end,
  ["exit 7"] = function() os.exit(7) end,
  ["Ctrl-C"] = function() if rank == 0 then ffi.C.kill(ffi.C.getppid(), SIGINT) end go_on() end,
  SIGTERM = function() if rank == 0 then ffi.C.kill(ffi.C.getppid(), SIGTERM) end go_on() end,
  killed = function() if rank == 1 then ffi.C.kill(ffi.C.getpid(), SIGKILL) end go_on() end,
}
if ENDS[cfg.how] then ENDS[cfg.how]() end
