-- Groups of ranks: the participants of a collective, in order. Equal lists of ranks share one group, whether made by
-- hand or as a dimension of a mesh or slice. Making a group communicates nothing; the engine opens a channel among its
-- ranks when a plan needs it, and never for a group of one.

local errors = require("moonshard.base.error")
local lists = require("moonshard.base.checks.lists")
local options = require("moonshard.base.checks.options")
local world = require("moonshard.distributed.world")

---@class moonshard.Group
---@field size integer number of ranks
---@field rank integer? this process's index in the group, from 0; nil if it is not a member
---@field [integer] integer the ranks, in order, from index 1
local Group = {}

local group = {}

local shared = {} -- groups, keyed by their ranks as text

function Group:__index(key)
  if key ~= "rank" then return Group[key] end
  for place = 1, self.size do
    if self[place] == world.rank then return place - 1 end
  end
end

function Group:__tostring()
  return "{" .. table.concat(self, ", ") .. "}"
end

---@param value any
---@return boolean
function group.is(value)
  return getmetatable(value) == Group
end

---The group of a list of ranks that has been validated.
---@param ranks integer[] in order; copied
---@return moonshard.Group
function group.of(ranks)
  local key = table.concat(ranks, ",")
  local known = shared[key]
  if known then return known end
  local made = { size = #ranks }
  for place, rank in ipairs(ranks) do made[place] = rank end
  shared[key] = setmetatable(made, Group)
  return made
end

---A group of ranks in the given order; ranks outside the group can make it too. Without ranks: the whole world.
---@param ranks integer[]? each from 0 to the world's size - 1, without duplicates
---@return moonshard.Group
function group.new_group(ranks)
  if ranks == nil then
    ranks = {}
    for rank = 0, world.size - 1 do ranks[rank + 1] = rank end
  end
  if type(ranks) ~= "table" or #ranks == 0 then
    errors.invalid("ms.new_group: give a list of ranks, not %s", type(ranks) == "table" and "an empty table"
      or options.describe(ranks))
  end
  local seen = {}
  for _, rank in ipairs(lists.items("ms.new_group", ranks)) do
    if type(rank) ~= "number" or rank % 1 ~= 0 or rank < 0 or rank >= world.size then
      errors.invalid("ms.new_group: rank %s is outside the world of %d: its ranks are 0 to %d",
        options.describe(rank), world.size, world.size - 1)
    end
    if seen[rank] then errors.invalid("ms.new_group: rank %d appears twice in the list", rank) end
    seen[rank] = true
  end
  return group.of(ranks)
end

return group
