-- Local SGD in checkpoints: its settings in the manifest, and on which replicas the weights and moments of each replica
-- can go on.
--
-- Between two syncs every replica has values of its own, and a checkpoint contains all of them, so the same number of
-- replicas resumes bit for bit. Another number can only start from weights that all replicas have.

local errors = require("moonshard.base.error")
local owned_ranges = require("moonshard.engine.owned_ranges")
local replicate_sync = require("moonshard.shard.policies.replicate_sync")

local replicas = {}

---What the manifest records.
---@param sharding moonshard.Sharding
---@return table? nil without local SGD
function replicas.describe(sharding)
  local sync = sharding.local_sync
  if not sync then return nil end
  local units = {}
  for _, unit in ipairs(sharding.units) do
    if unit.fragment then units[#units + 1] = unit.name end
  end
  return { replicas = select(2, owned_ranges.replica(sharding)), every = sync.every, fragments = sync.fragments,
    delay = sync.delay, alpha = sync.alpha, momentum = sync.outer.momentum, units = units }
end

local function refuse(path, format, ...)
  errors.invalid("checkpoint %s " .. format .. "; or load only the model, ms.checkpoint.load(model, path)", path, ...)
end

-- Sums that were sent and not yet applied belong to a schedule, so with a delay it must be the same.
local function check_schedule(path, saved, mine)
  local same = saved.delay == mine.delay
  if same and mine.delay > 0 then same = saved.every == mine.every and saved.fragments == mine.fragments end
  if not same then
    refuse(path, "was saved with replicate_sync every = %d, fragments = %d, delay = %d, the trainer has %d, %d, %d: "
      .. "give the same", saved.every, saved.fragments, saved.delay, mine.every, mine.fragments, mine.delay)
  end
  if (saved.momentum ~= 0) ~= (mine.momentum ~= 0) then
    refuse(path, "was saved with momentum %g of the outer optimizer, the trainer has %g: give the same", saved.momentum,
      mine.momentum)
  end
  if table.concat(saved.units, ", ") ~= table.concat(mine.units, ", ") then
    refuse(path, "was saved with other units that follow replicate_sync: %s, here %s", table.concat(saved.units, ", "),
      table.concat(mine.units, ", "))
  end
end

---The saved replica from whose values this rank goes on. Raises MS_EINVAL when it cannot.
---@param read moonshard.Manifest
---@param path string
---@param sharding moonshard.Sharding
---@return integer? replica from 0; nil: the checkpoint has no values of single replicas
function replicas.source(read, path, sharding)
  local saved, mine = read.replicate_sync, replicas.describe(sharding)
  if not saved then return nil end
  if not mine then
    refuse(path, "was saved with replicate_sync, so its %d replicas have optimizer states of their own: give the "
      .. "trainer's model the same", saved.replicas)
  end
  check_schedule(path, saved, mine)
  local place = owned_ranges.replica(sharding)
  if mine.replicas == saved.replicas then return place end
  if saved.fragments > 1 or saved.delay > 0 or saved.alpha > 0 then
    refuse(path, "has the weights of %d replicas, which with fragments, delay or alpha are never the same, but there "
      .. "are %d: resume on %d replicas", saved.replicas, mine.replicas, saved.replicas)
  end
  if not replicate_sync.is_common(saved, read.updates or read.step) then
    refuse(path, "is from step %d, between two syncs, when its %d replicas have different weights, but there are %d: "
      .. "resume on %d replicas, or from a checkpoint of a multiple of %d steps", read.step, saved.replicas,
      mine.replicas, saved.replicas, saved.every)
  end
  return place % saved.replicas
end

return replicas
