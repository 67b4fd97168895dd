-- Saves after saves, in each of which one call by which files are written fails on one rank. After each the last good
-- checkpoint must be all that is there; every rank must have been told the same. Fails where that is not so.

local ms = require "moonshard"
local inject_io = require("lua.support.inject_io")
local engine = require "moonshard.base.ffi"
local folder = require "moonshard.checkpoint.folders.folder"
local C = engine.C

local cfg = ms.args { dir = "", async = false, calls = { "open", "write", "sync", "rename", "mkdir" },
  failures = { "ENOSPC", "EIO" }, mesh = "1x2" }

local rank = ms.world().rank
local model = ms.nn.sequential { ms.nn.linear(8, 16), ms.ops.relu, ms.nn.linear(16, 4) }
ms.fully_shard(model, { mesh = ms.init_device_mesh("cpu", cfg.mesh, { "replicate", "shard" }) })
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.mse }
local batch = { inputs = ms.randn { 6, 8, seed = rank }, targets = ms.zeros(6, 4) }

local function save()
  ms.checkpoint.save(train, cfg.dir, { async = cfg.async })
  return ms.checkpoint.finish(train)
end

-- Nothing but the checkpoints of these steps.
local function assert_folder(steps)
  local names = {}
  for _, name in ipairs(folder.names(cfg.dir)) do
    if name ~= "." and name ~= ".." then names[#names + 1] = name end
  end
  for i, step in ipairs(steps) do steps[i] = ("step-%08d"):format(step) end
  assert(table.concat(names, " ") == table.concat(steps, " "), table.concat(names, " "))
end

local function values()
  local list = {}
  for name in model:named_parameters() do
    list[#list + 1] = table.concat(model:parameter(name):reshape(-1):tolist(), " ")
  end
  return table.concat(list, " ")
end

train:step(batch)
save()
local good = values()
train:step(batch)
local struck = 0
for victim = 0, ms.world().size - 1 do
  for _, call in ipairs(cfg.calls) do
    for _, failure in ipairs(cfg.failures) do
      for number = 1, 100 do
        inject_io(rank == victim and ("%s:%d:%s"):format(call, number, failure) or nil)
        local ok, raised = pcall(save)
        inject_io(nil)
        train.session:gather_numbers(0) -- the first rank has cleared away what was written
        if ok then
          if rank == 0 then engine.check(C.ms_checkpoint_remove(folder.of(cfg.dir, 2))) end
          break
        end
        struck = struck + 1
        local text = tostring(raised)
        assert(text:find(cfg.dir, 1, true), text)
        assert(text:find(failure == "EIO" and "Input/output error" or "No space left", 1, true), text)
        assert(rank == victim or text:find(("rank %d: "):format(victim), 1, true), text)
        if rank == 0 then assert_folder({ 1 }) end
      end
    end
  end
end
assert(struck >= 2 * #cfg.failures * #cfg.calls, "only " .. struck)

-- The run goes on, and the good one loads.
train:step(batch)
local newest = values()
save()
if rank == 0 then assert_folder({ 1, 3 }) end
ms.checkpoint.load(train, folder.of(cfg.dir, 1))
assert(values() == good)
ms.checkpoint.load(train, cfg.dir)
assert(values() == newest and train.steps_done == 3)
if rank == 0 then print(struck) end
