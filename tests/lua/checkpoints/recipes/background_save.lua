-- Saves in the background, with writes that are slow on purpose. Fails where training had to wait for them, where what
-- is saved is not what was copied, and where an error does not come up at the next save.

local ms = require "moonshard"
local inject_io = require("lua.support.inject_io")
local engine = require "moonshard.base.ffi"
local C = engine.C

local cfg = ms.args { dir = "" }

local rank = ms.world().rank
local model = ms.nn.sequential { ms.nn.linear(8, 64), ms.ops.relu, ms.nn.linear(64, 4) }
ms.fully_shard(model, { mesh = ms.init_device_mesh("cpu", "1x2", { "replicate", "shard" }) })
local train = ms.trainer {
  model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.mse,
  checkpoint = { dir = cfg.dir, every = 0 },
}
local batch = { inputs = ms.randn { 6, 8, seed = rank }, targets = ms.zeros(6, 4) }

local function values()
  local list = {}
  for name in model:named_parameters() do
    list[#list + 1] = table.concat(model:parameter(name):reshape(-1):tolist(), " ")
  end
  return table.concat(list, " ")
end

local m = train:step(batch)
assert(m.snapshot_bytes >= 4 * 3 * model:num_parameters() / 2 - 64, "the copy is counted")
local copied = values()
inject_io("write:1+:slow")
ms.checkpoint.save(train, cfg.dir, { async = true })
local running = C.ms_save_running(train.session.saver.handle)
assert(running == 1, "it writes while training goes on")
for _ = 1, 5 do train:step(batch) end
assert(values() ~= copied)
-- A second save waits for the first, which is there then.
local second = ms.checkpoint.save(train, cfg.dir, { async = true, keep_last = 2 })
assert(ms.checkpoint.latest(cfg.dir) == cfg.dir .. "/step-00000001")
assert(ms.checkpoint.finish(train) == second)
assert(ms.checkpoint.finish(train) == nil, "nothing is under way")
local newest = values()
inject_io(nil)
ms.checkpoint.load(train, cfg.dir .. "/step-00000001")
assert(values() == copied and train.steps_done == 1)
ms.checkpoint.load(train, cfg.dir)
assert(values() == newest and train.steps_done == 6)

-- What goes wrong on one rank comes up on all, at the next save; the old ones stay.
train:step(batch)
if rank == 1 then inject_io("write:3:EIO") end
ms.checkpoint.save(train, cfg.dir, { async = true, keep_last = 1 })
train:step(batch)
local ok, raised = pcall(ms.checkpoint.save, train, cfg.dir, { async = true })
assert(not ok and tostring(raised):find("Input/output error", 1, true), tostring(raised))
assert(ms.checkpoint.latest(cfg.dir) == cfg.dir .. "/step-00000006")
-- The end of the run saves step 8, and removes none of the two newest.
