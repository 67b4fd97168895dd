-- Two copies of a slice of the mesh, of which only one saves, and SIGTERM to the launcher or to one rank of either; see
-- terminate_spec.lua. With when=idle the one that does not save trains nothing, and is at its end long before. With
-- `after` the signal is sent once that file is there.

local ms = require "moonshard"
local ffi = require "ffi"

ffi.cdef "int getpid(void); int getppid(void); int kill(int, int);"
local SIGTERM = 15

local cfg = ms.args { dir = "", to = "launcher", when = "step", saves = 0, epochs = 1000, after = "" }
local rank = ms.world().rank
local copy = math.floor(rank / 2)

-- The copy that saves has made a step, which is what there is to save.
local begun = cfg.dir .. ".begun"

local function wait_for(path)
  local file
  repeat file = io.open(path) until file
  file:close()
end

local function send()
  if copy ~= cfg.saves and cfg.to == "rank " .. rank then wait_for(cfg.after ~= "" and cfg.after or begun) end
  if cfg.to == "launcher" and rank == 2 * cfg.saves then ffi.C.kill(ffi.C.getppid(), SIGTERM) end
  if cfg.to == "rank " .. rank then ffi.C.kill(ffi.C.getpid(), SIGTERM) end
end

-- A rank that still starts does not catch the signal yet and dies of it, which ends the run without a save.
require("moonshard.distributed.world").barrier()
local mesh = ms.init_device_mesh(cfg.device, "2x1x2", { "copy", "replicate", "shard" })
if cfg.when == "idle" and copy ~= cfg.saves then return end
local model = ms.nn.linear(8, 4)
ms.fully_shard(model, { mesh = mesh:slice { "replicate", "shard" } })
local train = ms.trainer {
  model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.mse,
  checkpoint = copy == cfg.saves and { dir = cfg.dir } or nil,
}
local data = ms.data.random { inputs = 8, targets = 4 }

local function endless_batches()
  local n = 0
  return function()
    n = n + 1
    if n == 3 then send() end
    return n, data:read { 0, 1 }
  end
end

for _ = 1, cfg.epochs do
  for _, batch in data:batches(ms.data.sampler { length = data.length }, 4) do
    train:step(batch)
    if train.steps_done == 1 and rank == 2 * cfg.saves then assert(io.open(begun, "w")):close() end
    if train.steps_done == 3 then
      if cfg.when == "evaluate" and copy ~= cfg.saves then train:evaluate(endless_batches()) end
      send()
    end
  end
end
