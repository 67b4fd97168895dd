-- The closed forms by which guides choose between FSDP and HSDP: bytes over bandwidth, without latency, computation or
-- overlap. They are printed next to simulated prices, which show what these leave out.
--
--   V_shard     = (S - 1) / S * P * (gathers * e_gather + e_reduce)   bytes of a rank in a step, over S shards
--   V_replicate = 2 (R - 1) / R * (P / S) * e_reduce                  over R replicas
--   T           = V_shard / B + V_replicate / B
--
-- P parameters are gathered in e_gather bytes each and reduced in e_reduce bytes each. B is the bandwidth of a group:
-- that of a rank inside its node for a group that is on one node, and otherwise its part of a node's bandwidth to other
-- nodes. A ring that crosses nodes enters and leaves each of them once, however many of its ranks are there: a shard
-- group of whole nodes has all of the bandwidth, and the replicate groups of S shards on a node divide it among them.
-- With one replica this is FSDP. A plan counts both V exactly (moonshard plan, "a step over ...").

local closed_forms = {}

---@class moonshard.ClosedFormCase
---@field parameters number
---@field shards integer
---@field replicas integer
---@field gathers integer all-gathers of every parameter in a step
---@field gather_bytes number per parameter
---@field reduce_bytes number per parameter

---Bytes that a rank moves in a step.
---@param case moonshard.ClosedFormCase
---@return number over the shards
---@return number over the replicas
function closed_forms.bytes(case)
  local s, r = case.shards, case.replicas
  return (s - 1) / s * case.parameters * (case.gathers * case.gather_bytes + case.reduce_bytes),
    2 * (r - 1) / r * case.parameters / s * case.reduce_bytes
end

---@class moonshard.ClosedFormLinks
---@field inside number bytes/s of a rank to its node
---@field between number bytes/s of a node to other nodes
---@field ranks_per_node integer

---Seconds of a step's communication.
---@param shard_bytes number
---@param replicate_bytes number
---@param shards integer neighbours in their order on the nodes
---@param replicas integer
---@param links moonshard.ClosedFormLinks
---@return number
function closed_forms.seconds(shard_bytes, replicate_bytes, shards, replicas, links)
  -- ranks: neighbours that the group spans; groups: of them on a node
  local function over(ranks, groups)
    return ranks > links.ranks_per_node and links.between / groups or links.inside
  end
  return shard_bytes / over(shards, 1)
    + replicate_bytes / over(shards * replicas, math.min(shards, links.ranks_per_node))
end

return closed_forms
