-- How many blocks make a unit whose all-gather is worth its start: the smallest number at which a collective of the
-- shard group has most of the rate that the largest ones have. Small ones mostly wait for latency; larger ones gain
-- nothing, take memory, and begin later.

local engine = require("moonshard.base.ffi")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

-- The part of the highest rate at which a link counts as saturated.
local SATURATED = 0.9
local LARGEST = 2 ^ 33 -- bytes

-- Ranks of the group, its nodes, and the groups that share the links of a node.
local function group_of(sharding)
  local group, seen, nodes = sharding.mesh:get_group(sharding.shard_dim), {}, 0
  for i = 1, group.size do
    local node = world.node_of(group[i])
    if not seen[node] then
      seen[node], nodes = true, nodes + 1
    end
  end
  local on_node = group.size / nodes
  return group.size, nodes, math.max(1, math.floor(world.node_ranks(world.node_of(group[1])) / on_node))
end

---@param sharding moonshard.Sharding
---@param cluster moonshard.Cluster
---@param block_bytes number gathered bytes of a block
---@param most integer blocks
---@return integer blocks a power of two
return function(sharding, cluster, block_bytes, most)
  if sharding.shard_dim < 0 or sharding.mesh:size(sharding.shard_dim) == 1 or block_bytes == 0 then return 1 end
  local work, seconds = ffi.new("ms_collective_work"), ffi.new("double[1]")
  work.kind = C.MS_LINK_ALL_GATHER
  work.ranks, work.nodes, work.groups = group_of(sharding)
  local function rate(bytes)
    work.bytes, work.inside = bytes, bytes * (work.ranks - 1) / work.ranks
    work.wire = work.nodes > 1 and work.inside * work.groups or 0
    check(C.ms_cluster_collective_time(cluster:struct(), work, ffi.sizeof(work), seconds, nil))
    return bytes / seconds[0]
  end
  local highest, blocks = rate(LARGEST), 1
  while 2 * blocks <= most and rate(blocks * block_bytes) < SATURATED * highest do blocks = 2 * blocks end
  return blocks
end
