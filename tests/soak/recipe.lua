-- A small training that does what campaigns ask of one rank at one step: an error of Lua, a lot of output, an end.
--
--   steps     how many; 0 is without end
--   fault     none, or a name in FAULTS
--   rank, step  where the fault is; step 1 is before any training
--   noise     lines that a rank prints in each step
--   noisy     the rank that prints them, or all

local ms = require "moonshard"
local ffi = require "ffi"

local cfg = ms.args { steps = 5, fault = "none", rank = 0, step = 2, noise = 0, noisy = "all", mesh = "" }
local rank = tonumber(os.getenv("RANK")) or 0

local FAULTS = {
  none = function() end,
  error = function() error("on purpose") end,
  index = function()
    local nothing = nil
    return nothing.field
  end,
  control = function() error("\27[2Jon\npurpose\t\r\0\7") end,
  object = function() error({ "on purpose" }) end,
  exit = function() os.exit(7) end,
  exit_well = function() os.exit(0) end,
  kill = function()
    ffi.cdef "int raise(int);"
    ffi.C.raise(9)
  end,
}

local Net = ms.module "Net"

function Net:init()
  self.first, self.last = ms.nn.linear(8, 64), ms.nn.linear(64, 4)
end

function Net:forward(x) return self.last(self.first(x):relu()) end

local model = ms.fully_shard(Net(), { mesh = cfg.mesh ~= "" and cfg.mesh or { -1 } })
local data = ms.data.random { inputs = 8, targets = 4 }
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-3 }, loss = ms.loss.mse }
local noise = ("x"):rep(99) .. "\n"

for step = 1, cfg.steps == 0 and math.huge or cfg.steps do
  if step == cfg.step and rank == cfg.rank then FAULTS[cfg.fault]() end
  ms.log(step, train:step(data:read { rank, rank + 1 }))
  if cfg.noisy == "all" or tonumber(cfg.noisy) == rank then io.write(noise:rep(cfg.noise)) end
end
