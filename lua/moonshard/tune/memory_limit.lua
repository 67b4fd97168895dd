-- The bytes that a plan may take: those of a device, or as many as the user allows, less what a description reserves
-- for CUDA's context and the communicators.

local errors = require("moonshard.base.error")
local progress = require("moonshard.base.text.progress")
local size = progress.size

---@class moonshard.MemoryLimit
---@field bytes number that the arenas of a rank may take
---@field device number of a rank's device; on the CPU its share of a node
---@field allowed number of those that the run may take
---@field reserved number

---@param cluster moonshard.Cluster
---@param allowed number? bytes of a rank's device that the run may take; nil: all
---@param who string for messages: "--memory"
---@return moonshard.MemoryLimit
return function(cluster, allowed, who)
  local ranks = cluster:sharing()
  local device, reserved = cluster.memory / ranks, cluster.reserved / ranks
  allowed = allowed or device
  if allowed > device then
    errors.invalid("%s: %s is more than the %s that a rank has on cluster %s", who, size(allowed), size(device),
      cluster.name)
  end
  if allowed <= reserved then
    errors.invalid("%s: %s leaves nothing for a plan: cluster %s reserves %s of each rank's memory", who,
      size(allowed), cluster.name, size(reserved))
  end
  return { bytes = allowed - reserved, device = device, allowed = allowed, reserved = reserved }
end
