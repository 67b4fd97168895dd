-- Notes for meshes that send more between nodes than they have to: shard groups that cross nodes although another mesh
-- of the same ranks sends fewer bytes, and tensor groups that cross nodes. The other mesh is compiled like any plan, so
-- its bytes are counted and not estimated.

local engine_model = require("moonshard.shard.engine_model")
local meshes = require("moonshard.distributed.mesh")
local plans = require("moonshard.engine.plan")
local roles = require("moonshard.shard.roles")
local session = require("moonshard.engine.session")
local progress = require("moonshard.base.text.progress")
local world = require("moonshard.distributed.world")

local better_mesh = {}

---@class moonshard.BetterMesh
---@field mesh string "4x2"
---@field over string names of its dimensions: "replicate, shard"
---@field now number bytes per step that this rank's node sends to others, or receives from them if that is more
---@field bytes number the same with the better mesh

-- A smaller saving is not worth another mesh.
local WORTH = 0.95

---@class moonshard.MeshSizes a mesh of all ranks in their order
---@field size table<string, integer> by the name of a dimension
---@field names string[] from the outermost

-- The dimensions along which weights are gathered.
local GATHERS = { shard = true, context = true }

-- The coordinates of a rank along dimensions that `wanted` has, or has not, as one number.
local function place(mesh, rank, wanted)
  local at, stride = 0, 1
  for i = #mesh.names, 1, -1 do
    local name, size = mesh.names[i], mesh.size[mesh.names[i]]
    if wanted(name) then at, stride = at + rank % size * stride, stride * size end
    rank = math.floor(rank / size)
  end
  return at
end

-- Whether ranks that differ only along some dimensions are on several nodes.
local function crosses(mesh, along)
  local node_of = {}
  for rank = 0, world.size - 1 do
    local group = place(mesh, rank, function(name) return not along(name) end)
    node_of[group] = node_of[group] or world.node_of(rank)
    if node_of[group] ~= world.node_of(rank) then return true end
  end
  return false
end

local function gathers_cross(mesh) return crosses(mesh, function(name) return GATHERS[name] end) end

-- The same mesh with other sizes of replicate and shard, in the usual order or with the replicas inside. The other
-- dimensions stay: with other sizes, ranks would train on other batches.
local function with(now, replicate, shard, replicas_inside)
  local size, names, outer = {}, {}, { "replicate", "shard", "context" }
  if replicas_inside then outer = { "shard", "context", "replicate" } end
  for _, list in ipairs({ outer, { "tensor" } }) do
    for _, name in ipairs(list) do
      local ranks = name == "replicate" and replicate or name == "shard" and shard or now.size[name]
      if ranks then
        names[#names + 1], size[name] = name, ranks
      end
    end
  end
  return { size = size, names = names }
end

-- Other sizes keep shard groups on a node only if these have room for one: the next larger and the next smaller.
local function other_sizes(now, most)
  local found, both = {}, now.size.replicate * now.size.shard
  for _, step in ipairs({ 1, -1 }) do
    local shard = now.size.shard + step
    while shard >= 1 and shard <= most do
      local candidate = both % shard == 0 and shard * (now.size.context or 1) > 1 and with(now, both / shard, shard)
      if candidate and not gathers_cross(candidate) then
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
  if now.size.replicate > 1 then
    list[1] = with(now, now.size.replicate, now.size.shard, now.names[1] == "replicate")
  end
  for node = 0, world.nodes() - 1 do most = math.max(most, world.node_ranks(node)) end
  if now.size.shard * (now.size.context or 1) <= most then
    for _, candidate in ipairs(other_sizes(now, most)) do list[#list + 1] = candidate end
  end
  return list
end

-- The present mesh, if it has all ranks in their order.
local function read(sharding)
  local mesh = sharding.mesh
  if mesh:size() ~= world.size or sharding.shard_dim < 0 then return nil end
  for i, rank in ipairs(mesh:ranks(sharding.rank)) do
    if rank ~= i - 1 then return nil end
  end
  local now = { size = {}, names = {} }
  for dim = 0, mesh.ndim - 1 do
    for _, role in ipairs(roles.all) do
      if sharding[role.name .. "_dim"] == dim then
        now.names[#now.names + 1], now.size[role.name] = role.name, mesh:size(dim)
      end
    end
  end
  if not now.size.replicate then
    table.insert(now.names, 1, "replicate")
    now.size.replicate = 1
  end
  return now
end

-- Bytes between nodes of this rank's node in a step.
local function between_nodes(plan)
  local bytes = 0
  for _, moved in pairs(plan:traffic()) do bytes = bytes + plans.wire_bytes(moved.node) end
  return bytes
end

-- Compiles the step for another mesh. Raises if it cannot be sharded so, as when groups of a given size do not fit.
local function compile(of_model, candidate, trainer, batch)
  local sharding, sizes = of_model.sharding, {}
  for i, name in ipairs(candidate.names) do sizes[i] = candidate.size[name] end
  local mesh = meshes.init_device_mesh(sharding.mesh.device, sizes, candidate.names)
  local other = setmetatable({ mesh = mesh }, { __index = sharding })
  roles.assign(other, roles.dims(mesh))
  other.built = engine_model.build(other, sharding.optimizer)
  of_model.sharding = other
  local ok, compiled = pcall(trainer.compile, trainer, batch)
  of_model.sharding = sharding
  return ok and compiled or error(compiled, 0), table.concat(sizes, "x")
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
  if not now or not gathers_cross(now) then return nil end
  local bytes_now, best = between_nodes(plan), nil
  for _, candidate in ipairs(candidates_of(now)) do
    world.check_interrupt()
    local ok, compiled, sizes = pcall(compile, of_model, candidate, trainer, batch)
    local bytes = ok and between_nodes(compiled) or math.huge
    if ok then compiled:free() end
    if bytes < WORTH * (best and best.bytes or bytes_now) then
      best = { mesh = sizes, over = table.concat(candidate.names, ", "), now = bytes_now, bytes = bytes }
    end
  end
  return best
end

---@class moonshard.TensorAcrossNodes
---@field ranks integer of the tensor dimension
---@field most integer the largest size that divides it and fits on a node
---@field bytes number per step over it that this rank's node sends to others, or receives from them if that is more

---What the tensor dimension moves between nodes; nil if each of its groups is on one. Its collectives are on the way of
---every layer, so they are the last ones that should leave a node.
---@param plan moonshard.Plan
---@param sharding moonshard.Sharding
---@return moonshard.TensorAcrossNodes?
function better_mesh.tensor_across_nodes(plan, sharding)
  if world.nodes() == 1 or sharding.tensor_dim < 0 then return nil end
  local moved = plan:traffic()[sharding.mesh:dim_name(sharding.tensor_dim)].node
  local bytes, ranks, most = plans.wire_bytes(moved), sharding.mesh:size(sharding.tensor_dim), 1
  if bytes == 0 then return nil end
  for size = 1, math.min(ranks, world.node_ranks(world.node_of(sharding.rank))) do
    if ranks % size == 0 then most = size end
  end
  return { ranks = ranks, most = most, bytes = bytes }
end

---@param found moonshard.TensorAcrossNodes
---@return string
function better_mesh.text_of_tensor(found)
  return ("note: tensor groups of %d ranks cross nodes: %s a step between nodes for each node, and every layer waits "
    .. "for them; a tensor size of %d, as the last dimension of the mesh, stays on a node"):format(found.ranks,
    progress.size(found.bytes), found.most)
end

---@param found moonshard.BetterMesh
---@return string
function better_mesh.text(found)
  return ("note: shard groups cross nodes: %s a step between nodes for each node; with mesh %s over %s: %s"):format(
    progress.size(found.now), found.mesh, found.over, progress.size(found.bytes))
end

return better_mesh
