-- The ranks of this run. The process joins once, when something first reads the rank or the size; until then
-- `moonshard plan` can describe a world instead, so that any rank's plan can be compiled without launching ranks.

local errors = require("moonshard.base.error")
local engine = require("moonshard.base.ffi")
local strict = require("moonshard.base.checks.strict")
local C, ffi = engine.C, engine.ffi

---@class moonshard.World
---@field rank integer this process's rank, 0 first
---@field size integer number of ranks
---@field handle ffi.cdata* ms_world*, nil in plan mode
---@field plan_only boolean true if the world is described, not joined
---@field described boolean true if some of the ranks do not exist
---@field ranks_of_node integer ranks per node of a described world
---@field training boolean true once a step has run
---@field private info ffi.cdata*? ms_world_info, as it was when the process joined
local world = { plan_only = false, described = false, training = false }

local function join()
  local out = ffi.new("ms_world *[1]")
  engine.check(C.ms_world_join(nil, out))
  -- Leaving does not communicate, so the garbage collector can do it.
  world.handle = ffi.gc(out[0], C.ms_free)
  world.info = ffi.new("ms_world_info")
  engine.check(C.ms_world_describe(world.handle, world.info, ffi.sizeof(world.info)))
  world.rank, world.size = world.info.rank, world.info.size
end

local JOINED_BY = { rank = true, size = true, handle = true, info = true }
-- What a recipe may want of it.
local FIELDS = { rank = true, size = true, local_rank = true, nodes = true, barrier = true, check_interrupt = true }

setmetatable(world, {
  __index = function(self, key)
    if not JOINED_BY[key] then strict.unknown_field("ms.world()", key, FIELDS) end
    if rawget(self, "size") then return nil end
    join()
    return rawget(self, key)
  end,
  __tostring = function(self)
    return ("%srank %d of %d"):format(self.plan_only and "described: " or "", self.rank, self.size)
  end,
})

---Joins now rather than on first use: if joining fails, the error then does not blame a line of the recipe.
function world.join()
  if not rawget(world, "size") then join() end
end

---Ranks per node. A given number must divide the ranks, since launchers start the same number on every node; the
---default is one node if it has room for all ranks, else as few equal nodes as possible.
---@param size integer ranks
---@param given integer? --ranks-per-node
---@return integer
function world.fill_nodes(size, given)
  if given and given > C.MS_MAX_LOCAL_RANKS then
    errors.invalid("--ranks-per-node %d: a node can have at most %d ranks", given, C.MS_MAX_LOCAL_RANKS)
  end
  if given and given < size and size % given ~= 0 then
    errors.invalid("--ranks-per-node %d: %d ranks do not fill nodes of %d, and all nodes have equally many ranks: "
      .. "give a divisor of %d", given, size, given, size)
  end
  if given then return math.min(given, size) end
  local ranks = math.min(size, C.MS_MAX_LOCAL_RANKS)
  while size % ranks ~= 0 do ranks = ranks - 1 end
  return ranks
end

---Makes this process rank `rank` of a described world of `size` ranks: plans can be compiled, but nothing runs.
---Must be called before anything joins the world.
---@param rank integer 0 to size - 1
---@param size integer at least 1
---@param ranks_per_node integer? default: the result of world.fill_nodes
function world.describe(rank, size, ranks_per_node)
  if rawget(world, "size") and not world.plan_only then
    errors.invalid("this process has already joined the world: call describe before anything uses it")
  end
  if not (size >= 1 and rank >= 0 and rank < size) then
    errors.invalid("rank %s of %s ranks: ranks are 0 to size - 1", tostring(rank), tostring(size))
  end
  world.plan_only, world.described, world.rank, world.size = true, true, rank, size
  world.ranks_of_node = world.fill_nodes(size, ranks_per_node)
end

---Makes the only rank of this world appear as rank 0 of `size` ranks that do not exist.
---@param size integer at least 1
function world.act_as_first_of(size)
  local _ = world.handle -- joins first, which sets the size
  world.described, world.rank, world.size = true, 0, size
  world.ranks_of_node = world.fill_nodes(size)
end

---Raises MS_EINTERRUPT if the process was asked to end (Ctrl-C). Ranks that never wait for others must poll this.
---@param message string? default "interrupted"
function world.check_interrupt(message)
  if C.ms_interrupted() == 0 then return end
  error(errors.new({ code = tonumber(C.MS_EINTERRUPT), status = "MS_EINTERRUPT", message = message or "interrupted" }),
    0)
end

---Number of nodes (hosts) of the ranks.
---@return integer
function world.nodes()
  if world.described then return world.size / world.ranks_of_node end
  return world.info.nodes
end

---Number of ranks on a node.
---@param node integer 0 to nodes - 1
---@return integer 0 if there is no such node
function world.node_ranks(node)
  if node < 0 or node >= world.nodes() then return 0 end
  return world.described and world.ranks_of_node or world.info.node_ranks[node]
end

---The node of a rank.
---@param rank integer 0 to size - 1
---@return integer -1 if there is no such rank
function world.node_of(rank)
  if rank < 0 or rank >= world.size then return -1 end
  return world.described and math.floor(rank / world.ranks_of_node) or world.info.node_of[rank]
end

---The host name of a node.
---@param node integer 0 to nodes - 1
---@return string
function world.node_name(node)
  if world.described or node < 0 or node >= world.nodes() then return "" end
  return ffi.string(world.info.node_name[node])
end

---A rank for messages: "rank 3", on several hosts "rank 3 on b".
---@param rank integer
---@return string
function world.rank_name(rank)
  if world.nodes() == 1 then return ("rank %d"):format(rank) end
  return ("rank %d on %s"):format(rank, world.node_name(world.node_of(rank)))
end

---The node of each rank, in the form that plans take: 0 nodes if all ranks are on one.
---@param size integer ranks of the mesh being planned
---@return integer nodes
---@return ffi.cdata*? node_of int [size]
function world.topology(size)
  local nodes = world.nodes()
  if nodes == 1 then return 0, nil end
  local node_of = ffi.new("int[?]", size)
  for rank = 0, size - 1 do node_of[rank] = world.node_of(rank) end
  return nodes, node_of
end

---This rank's index among the ranks of its node, from 0.
---@return integer
function world.local_rank()
  if world.described then return world.rank % world.ranks_of_node end
  return world.info.local_rank
end

---Bytes of collectives that this rank has sent to and received from other nodes, as its transport counts them, with the
---messages by which ranks compare what they enter (MS_ENTRY_BYTES each).
---@return number sent
---@return number received
function world.transport_bytes()
  local info = world.info
  engine.check(C.ms_world_describe(world.handle, info, ffi.sizeof(info)))
  return tonumber(info.sent), tonumber(info.received)
end

---Names this rank's work outside the engine, for reports and `moonshard ps`: "data"; nil ends it.
---@param what string?
function world.set_activity(what)
  if not world.plan_only then C.ms_world_set_activity(world.handle, what) end
end

---Waits for every rank. Collective.
---@param what string? the reason, for reports
function world.barrier(what)
  if what ~= nil and type(what) ~= "string" then
    errors.invalid("ms.world().barrier takes a text, the reason, not a %s: write a dot, ms.world().barrier()",
      type(what))
  end
  if world.plan_only then return end
  world.set_activity(what)
  local status = C.ms_world_barrier(world.handle)
  world.set_activity(nil)
  engine.check(status)
end

---In a process that has joined ranks: waits until all ranks are done; an error names ranks that never finish.
function world.finish()
  if (rawget(world, "size") or 1) > 1 and not world.plan_only then engine.check(C.ms_world_finish(world.handle)) end
end

return world
