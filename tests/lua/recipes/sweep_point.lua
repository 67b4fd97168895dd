-- A recipe that sweeps run: a few steps of a small network, and what the spec wants to know of each run.
--
-- `trace` is a file that every run adds a line to: its settings, its process group, its process and the sweep's. `on`
-- names a setting (key=value) with which the run does not end by itself, but for the first `after` such runs; with
-- `signal` that is sent to the sweep, once: a file named as `trace` with ".sent" after it tells that it was, and the
-- next run is an ordinary one.

local ms = require "moonshard"
local ffi = require "ffi"
local world = require "moonshard.distributed.world"

ffi.cdef [[
int getppid(void); int getpgrp(void); int getpid(void); int kill(int pid, int signal); int usleep(unsigned);
]]

local cfg = ms.args {
  mesh = "1x1", reshard = ms.args.any(true), batch = 4, steps = 3, lr = 1e-2, trace = "", on = "", signal = 0,
  after = 0, score = false,
}

local model = ms.nn.sequential { ms.nn.linear(10, 16), ms.ops.relu, ms.nn.linear(16, 5) }
ms.fully_shard(model, {
  mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }),
  units = { ms.re[[^0$]] },
  reshard_after_forward = cfg.reshard,
})

local function sweep_pid()
  local file = assert(io.open(("/proc/%d/stat"):format(ffi.C.getppid())))
  local parent = file:read("*a"):match("^%d+ %b() %a (%d+)")
  file:close()
  return tonumber(parent)
end

local function was_sent()
  local sent = cfg.signal ~= 0 and io.open(cfg.trace .. ".sent")
  if sent then sent:close() end
  return sent
end

local function send()
  assert(io.open(cfg.trace .. ".sent", "w")):close()
  ffi.C.kill(sweep_pid(), cfg.signal)
end

local function trace()
  if cfg.trace == "" or world.plan_only or world.rank ~= 0 then return end
  local file = assert(io.open(cfg.trace, "a"))
  file:write(("mesh=%s reshard=%s batch=%d group=%d pid=%d sweep=%d\n"):format(cfg.mesh, tostring(cfg.reshard),
    cfg.batch, ffi.C.getpgrp(), ffi.C.getpid(), sweep_pid()))
  file:close()
end

-- Runs of this batch size in the trace, this one left out.
local function runs_before()
  local runs, file = -1, assert(io.open(cfg.trace))
  for line in file:lines() do
    if line:find((" batch=%d "):format(cfg.batch), 1, true) then runs = runs + 1 end
  end
  file:close()
  return runs
end

local function is_chosen()
  local key, text = cfg.on:match("^(%w+)=(.*)$")
  if not key or tostring(cfg[key]) ~= text or world.plan_only then return false end
  return cfg.after == 0 or runs_before() >= cfg.after
end

trace()
if is_chosen() and not was_sent() then
  world.barrier() -- all ranks have looked
  if cfg.signal ~= 0 and world.rank == 0 then send() end
  while true do
    world.check_interrupt()
    ffi.C.usleep(10000)
  end
end

local data = ms.data.random { inputs = 10, targets = 5 }
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = cfg.lr }, loss = ms.loss.mse }
local step = 0
for _, batch in data:batches(ms.data.sampler { length = data.length }, cfg.batch) do
  step = step + 1
  local m = train:step(batch)
  if cfg.score then m.score = cfg.batch * step end
  ms.log(step, m)
  if step == cfg.steps then break end
end
