-- A small training in which one rank makes trouble: it sleeps, is killed or stopped, or does something else than the
-- others. The specs of the flight recorder check the reports about it.
--
--   where: start (before the mesh), first (before the first step), trace (in the first step, while the model is
--   traced), middle (before step 4), data (while the batch of step 4 is made), inside (half a second later, wherever it
--   is then), layer (half a second later, as soon as it computes a layer), end (after the last step)
--   how: none, sleep (100 s), kill, stop, quit (it ends its program early), evaluate (instead of the step), rate
--   (another learning rate), shape (other parameters), mesh (another one), more (a step that the others do not take)
--   evaluated: all ranks evaluate once before they train; pause_ms: sleep in every step

local ffi = require("ffi")
local ms = require("moonshard")
local re = ms.re
local world = require "moonshard.distributed.world"

ffi.cdef "int usleep(unsigned microseconds); int kill(int process, int signal); int getpid(void);"

local cfg = ms.args {
  mesh = "1x2", rank = 1, where = "middle", how = "none", steps = 8, dim = 16, blocks = 2, rows = 4, pause_ms = 0,
  evaluated = false, micro_batches = 1,
}
local SIGKILL, SIGSTOP = 9, 19 -- Linux
local TROUBLED_STEP = 4

local function sleep(seconds)
  for _ = 1, 1e3 * seconds do ffi.C.usleep(1000) end
end

-- Shell commands that stop this process at a time when `moonshard ps` finds it amid the kernels of a layer. Only a
-- stopped process stays where it was seen, so it is stopped first and goes on if it was elsewhere.
local STOP_IN_LAYER = [[
while kill -STOP PID; do
  /proc/PID/exe ps | grep -q ' PID .* phase first  *layers[.0-9a-z]*  *[0-9.]* m*s$' && break
  kill -CONT PID
  sleep 0.02
done]]

local function signal(number)
  local commands = ("kill -%d PID"):format(number)
  if cfg.where == "layer" then commands = STOP_IN_LAYER end
  if cfg.where == "inside" or cfg.where == "layer" then
    os.execute(("(sleep 0.5; %s) </dev/null >/dev/null 2>&1 &"):format(commands:gsub("PID", ffi.C.getpid())))
  else
    sleep(0.5) -- until the others wait
    ffi.C.kill(ffi.C.getpid(), number)
  end
end

local actions = {
  none = function() end,
  sleep = function() sleep(100) end,
  kill = function() signal(SIGKILL) end,
  stop = function() signal(SIGSTOP) end,
}

local function at(where)
  return cfg.where == where and tonumber(os.getenv("RANK") or 0) == cfg.rank
end

local function trouble(where)
  if at(where) and actions[cfg.how] then actions[cfg.how]() end
end

trouble("start")
local Block = ms.module "Block"
function Block:init(dim) self.fc = ms.nn.linear(dim, dim) end
function Block:forward(x) return x + self.fc(x):relu() end

local Net = ms.module "Net"
function Net:init(dim)
  self.enter = ms.nn.linear(8, dim)
  self.layers = {}
  for i = 1, cfg.blocks do self.layers[i] = Block(dim) end
  self.leave = ms.nn.linear(dim, 4)
end
function Net:forward(x)
  trouble("trace")
  x = self.enter(x)
  for _, layer in ipairs(self.layers) do x = layer(x) end
  return self.leave(x)
end

local shape = cfg.how == "mesh" and at("start") and "-1x1" or cfg.mesh
local model = Net(cfg.how == "shape" and at("first") and 2 * cfg.dim or cfg.dim)
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, shape, { "replicate", "shard" }),
  units = { re[[^layers\.\d+$]] },
})

local data = ms.data.random { inputs = 8, targets = 4 }
local valid = ms.data.random { inputs = 8, targets = 4, length = cfg.rows * ms.world().size, seed = 2 }
local sampler, valid_sampler = ms.data.sampler { length = data.length }, ms.data.sampler { length = valid.length }

local function learning_rate(step)
  return step == TROUBLED_STEP and at("middle") and cfg.how == "rate" and 0.5 or 0.01
end

local train = ms.trainer {
  model = model, loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = learning_rate }, micro_batches = cfg.micro_batches,
}

local function evaluate() train:evaluate(valid:batches(valid_sampler, cfg.rows)) end

trouble("first")
if cfg.evaluated then evaluate() end
local _, batch = data:batches(sampler, cfg.rows)()
for step = 1, cfg.steps do
  if step == TROUBLED_STEP then
    world.set_activity("data")
    trouble("data")
    world.set_activity(nil)
    trouble("middle")
    trouble("inside")
    trouble("layer")
    if at("middle") and cfg.how == "quit" then break end
    if at("middle") and cfg.how == "evaluate" then evaluate() end
  end
  sleep(cfg.pause_ms / 1e3)
  ms.log(step, train:step(batch))
end
trouble("end")
if at("end") and cfg.how == "more" then train:step(batch) end
