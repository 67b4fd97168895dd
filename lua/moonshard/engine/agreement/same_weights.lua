-- Replicas must have the same weights: they start from the same and apply the same updates. A flipped bit of memory, or
-- a processor or a build that computes otherwise, makes them differ without an error, and what is saved is one of them.
--
-- Every eighth step each rank hashes the next part of the weights that it owns, and sends the hash along with numbers
-- that ranks exchange anyway; ranks that differ only along the replicate dimension must have equal hashes. A part is a
-- 128th of the weights, or 64 KiB if that is more, so a difference is found within about 1,024 steps. Weights of which
-- each replica has a slice, or that local steps change, are left out: they have no second copy. Units that are whole on
-- every rank have one on each rank that shards, too: they are hashed in turn with the others.

local division = require("moonshard.shard.division")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local hash = require("moonshard.base.hash")
local owned_ranges = require("moonshard.engine.owned_ranges")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

local STEPS, SHARE, MIN_ELEMENTS, PIECES = 8, 128, 16384, 16

---@class moonshard.SameWeights
---@field session moonshard.Session
---@field state ffi.cdata* the ms_state whose weights are hashed
---@field alike integer[][] places in session:ranks() of ranks that own the same weights
---@field ranges { name: string, index: integer, first: number, count: number }[] that this rank owns; some are empty
---@field most integer elements hashed in a step
---@field memory ffi.cdata* float [most]
---@field at { range: integer, element: number } where the next part begins
---@field pieces { range: integer, hash: number }[] of the last part
local SameWeights = {}
SameWeights.__index = SameWeights

local same_weights = {}

-- Which ranks own the same weights, of units that are sharded or of others; nil if none do.
local function alike_of(session, sharded)
  local sharding, dims, ranks = session.sharding, {}, 1
  for _, dim in ipairs({ sharding.replicate_dim, not sharded and sharding.shard_dim or -1,
    not sharded and sharding.context_dim or -1 }) do
    if dim >= 0 then dims[#dims + 1], ranks = dim, ranks * sharding.mesh:size(dim) end
  end
  if ranks == 1 then return nil end
  local groups, list = {}, {}
  for place, rank in ipairs(session:ranks()) do
    local key = sharding.mesh:coordinate_of(rank)
    for _, dim in ipairs(dims) do key[dim + 1] = 0 end
    key = table.concat(key, " ")
    if not groups[key] then
      groups[key] = {}
      list[#list + 1] = groups[key]
    end
    table.insert(groups[key], place)
  end
  return list
end

local function ranges_of(session, state, sharded)
  local list, total = {}, 0
  for i, param in ipairs(session.sharding.params) do
    local kept = division.kept(state, i - 1, C.MS_TENSOR_PARAM)
    local none = kept.sliced or owned_ranges.is_local(param) or param.unit.shard ~= sharded
    list[i] = { name = param.fqn, index = i - 1, first = kept.first, count = none and 0 or kept.count }
    total = total + list[i].count
  end
  return list, total
end

-- Whether the model has such units: the same on all ranks, which may own nothing of them.
local function has_units(session, sharded)
  for _, unit in ipairs(session.sharding.units) do
    if unit.shard == sharded then return true end
  end
  return false
end

local function new(session, state, sharded)
  local alike = has_units(session, sharded) and alike_of(session, sharded)
  if not alike then return nil end
  local ranges, total = ranges_of(session, state, sharded)
  local most = math.min(total, math.max(MIN_ELEMENTS, math.ceil(total / SHARE)))
  return setmetatable({
    session = session, state = state, alike = alike, ranges = ranges, most = most,
    memory = ffi.new("float[?]", math.max(1, most)), at = { range = 1, element = 0 }, pieces = {},
  }, SameWeights)
end

---What hashes the weights of a session's state in a step; nil without copies.
---@param session moonshard.Session
---@param step integer
---@return moonshard.SameWeights?
function same_weights.of(session, step)
  local state = session:open_state()
  local kept = session.same_weights
  if kept == nil or kept.state ~= state then
    kept = { state = state }
    for _, sharded in ipairs({ true, false }) do kept[#kept + 1] = new(session, state, sharded) end
    session.same_weights = kept
  end
  return kept[math.floor(step / STEPS) % math.max(1, #kept) + 1]
end

---Hashes the next part in a step, and remembers its pieces.
---@param step integer
---@return number
function SameWeights:number(step)
  local left, at, pieces, visited = self.most, self.at, {}, 0
  self.pieces = pieces
  if step % STEPS ~= 0 or self.session.opened then return 0 end -- opened: there are no weights yet
  while left > 0 and #pieces < PIECES and visited <= #self.ranges do
    local range = self.ranges[at.range]
    local count = math.min(left, range.count - at.element)
    if count > 0 then
      check(C.ms_state_read(self.state, range.index, C.MS_TENSOR_PARAM, range.first + at.element, count, self.memory))
      pieces[#pieces + 1] = { range = at.range, hash = hash.of_bytes(self.memory, 4 * count) }
      left, at.element = left - count, at.element + count
    end
    if at.element >= range.count then
      at.range, at.element, visited = at.range % #self.ranges + 1, 0, visited + 1
    end
  end
  local list = {}
  for i, piece in ipairs(pieces) do list[i] = ("%d %.0f"):format(piece.range, piece.hash) end
  return hash.of_text(table.concat(list, " "))
end

-- The places of a group by number, most of them first; nil if all have the same.
local function divided(numbers, group)
  local by_number, list = {}, {}
  for _, place in ipairs(group) do
    local number = numbers[place]
    if not by_number[number] then
      by_number[number] = {}
      list[#list + 1] = by_number[number]
    end
    table.insert(by_number[number], place)
  end
  if #list < 2 then return nil end
  table.sort(list, function(a, b)
    if #a ~= #b then return #a > #b end
    return a[1] < b[1]
  end)
  return list
end

local function names_of(self, places)
  local ranks, names = self.session:ranks(), {}
  for i, place in ipairs(places) do names[i] = world.rank_name(ranks[place]) end
  return table.concat(names, ", ")
end

local function report(self, parts, range, step)
  local sides = {}
  for i, places in ipairs(parts) do sides[i] = names_of(self, places) end
  errors.raise("MS_EMISMATCH", "replicas have different weights before step %d: parameter %s differs between %s, which "
    .. "own the same elements of it: memory or a processor failed there, or hosts compute differently, or a program "
    .. "wrote weights on some ranks alone; resume from a checkpoint, without the host at fault", step, range.name,
    table.concat(sides, " and "))
end

---Raises MS_EMISMATCH on all ranks if replicas have different hashes. Collective, but only if there are such.
---@param numbers number[] of all ranks
---@param step integer
function SameWeights:check(numbers, step)
  local differs
  for _, group in ipairs(self.alike) do differs = differs or divided(numbers, group) end
  if not differs then return end
  local mine = {}
  for i = 1, PIECES do
    local piece = self.pieces[i]
    mine[2 * i - 1], mine[2 * i] = piece and piece.hash or 0, piece and piece.range or 0
  end
  local lists = self.session:gather_lists(mine, "of different weights")
  for _, group in ipairs(self.alike) do
    for i = 1, PIECES do
      local parts = divided(lists[2 * i - 1], group)
      if parts then report(self, parts, self.ranges[lists[2 * i][group[1]]], step) end
    end
  end
end

return same_weights
