-- A note for meshes whose shard groups cross nodes although another mesh of the same ranks sends fewer bytes between
-- nodes. Such a mesh is compiled like any plan, so its bytes are counted and not estimated.

local engine_model = require("moonshard.shard.engine_model")
local meshes = require("moonshard.distributed.mesh")
local plans = require("moonshard.engine.plan")
local session = require("moonshard.engine.session")
local size = require("moonshard.base.progress").size
local world = require("moonshard.distributed.world")

local better_mesh = {}

---@class moonshard.BetterMesh
---@field mesh string "4x2"
---@field over string names of its dimensions: "replicate, shard"
---@field now number bytes per step that this rank's node sends to others, or receives from them if that is more
---@field bytes number the same with the better mesh

-- A smaller saving is not worth another mesh.
local WORTH = 0.95

-- Whether a shard group has ranks on several nodes, if the ranks 0, 1, ... fill the mesh in rows.
local function crosses(candidate)
  local stride = candidate.names[2] == "shard" and 1 or candidate.replicate
  for rank = 0, world.size - 1 do
    local place = math.floor(rank / stride) % candidate.shard
    if world.node_of(rank) ~= world.node_of(rank - place * stride) then return true end
  end
  return false
end

local function mesh_of(replicate, shard, shard_first)
  return { replicate = replicate, shard = shard, names = shard_first and { "shard", "replicate" }
    or { "replicate", "shard" }, sizes = shard_first and { shard, replicate } or { replicate, shard } }
end

-- Other sizes keep shard groups on a node only if these have room for one: the next larger and the next smaller.
local function other_sizes(now, most)
  local found = {}
  for _, step in ipairs({ 1, -1 }) do
    local shard = now.shard + step
    while shard > 1 and shard <= most do
      local candidate = world.size % shard == 0 and mesh_of(world.size / shard, shard)
      if candidate and not crosses(candidate) then
        found[#found + 1] = candidate
        break
      end
      shard = shard + step
    end
  end
  return found
end

-- The mesh in the other order first, because ranks then keep their memory.
local function candidates_of(now)
  local list, most = {}, 0
  if now.replicate > 1 then list[1] = mesh_of(now.replicate, now.shard, now.names[1] ~= "shard") end
  for node = 0, world.nodes() - 1 do most = math.max(most, world.node_ranks(node)) end
  if now.shard <= most then
    for _, candidate in ipairs(other_sizes(now, most)) do list[#list + 1] = candidate end
  end
  return list
end

-- The present mesh, if it has all ranks in their order.
local function read(sharding)
  local mesh = sharding.mesh
  if mesh:size() ~= world.size or sharding.shard_dim < 0 or mesh.ndim > 2 then return nil end
  for i, rank in ipairs(mesh:ranks(sharding.rank)) do
    if rank ~= i - 1 then return nil end
  end
  local shard = mesh:size(sharding.shard_dim)
  return mesh_of(world.size / shard, shard, sharding.shard_dim < sharding.replicate_dim)
end

-- Bytes between nodes of this rank's node in a step.
local function between_nodes(plan)
  local bytes = 0
  for _, moved in pairs(plan:traffic()) do bytes = bytes + plans.wire_bytes(moved.node) end
  return bytes
end

-- Compiles the step for another mesh. Raises if it cannot be sharded so, as when groups of a given size do not fit.
local function compile(of_model, candidate, trainer, batch)
  local sharding = of_model.sharding
  local other = setmetatable({
    mesh = meshes.init_device_mesh(sharding.mesh.device, candidate.sizes, candidate.names),
    replicate_dim = candidate.names[1] == "replicate" and 0 or 1,
    shard_dim = candidate.names[1] == "shard" and 0 or 1,
  }, { __index = sharding })
  other.built = engine_model.build(other, sharding.optimizer)
  of_model.sharding = other
  local ok, compiled = pcall(trainer.compile, trainer, batch)
  of_model.sharding = sharding
  return ok and compiled or error(compiled, 0)
end

---The mesh of the same ranks that sends fewest bytes between nodes; nil if no shard group of the present one crosses
---nodes, or if none of those tried is better.
---@param plan moonshard.Plan
---@param trainer moonshard.Trainer
---@param batch table the batch that the plan was compiled for
---@return moonshard.BetterMesh?
function better_mesh.of(plan, trainer, batch)
  if world.nodes() == 1 then return nil end
  local of_model = session.of(trainer.model)
  local now = read(of_model.sharding)
  if not now or not crosses(now) then return nil end
  local bytes_now, best = between_nodes(plan), nil
  for _, candidate in ipairs(candidates_of(now)) do
    local ok, compiled = pcall(compile, of_model, candidate, trainer, batch)
    local bytes = ok and between_nodes(compiled) or math.huge
    if ok then compiled:free() end
    if bytes < WORTH * (best and best.bytes or bytes_now) then
      best = { mesh = table.concat(candidate.sizes, "x"), over = table.concat(candidate.names, ", "), now = bytes_now,
        bytes = bytes }
    end
  end
  return best
end

---@param found moonshard.BetterMesh
---@return string
function better_mesh.text(found)
  return ("note: shard groups cross nodes: %s a step between nodes for each node; with mesh %s over %s: %s"):format(
    size(found.now), found.mesh, found.over, size(found.bytes))
end

return better_mesh
