-- Neighbours of a point: one policy changed by one step, as its row of policies.lua says. The search makes the steps of
-- what is counted in blocks smaller and smaller.

local point = require("moonshard.tune.point")
local policies = require("moonshard.tune.policies")

local moves = {}

-- A list of points, and the function that adds a neighbour of p to it.
local function neighbours(p)
  local list = {}
  return list, function(fields) list[#list + 1] = point.with(p, fields) end
end

---@param p moonshard.TunePoint
---@param context moonshard.TuneContext
---@param part number of all blocks: 0 to 1
---@return moonshard.TunePoint[]
function moves.of(p, context, part)
  local list, add = neighbours(p)
  for _, row in ipairs(policies.moved) do
    if context.free[row.name] then row.moves(add, p, context, part) end
  end
  return list
end

---Neighbours that can take less memory: second moves, which make a first one fit.
---@param p moonshard.TunePoint
---@param context moonshard.TuneContext
---@return moonshard.TunePoint[]
function moves.saving(p, context)
  local list, add = neighbours(p)
  for _, row in ipairs(policies.saved) do
    if context.free[row.name] then row.saving(add, p, context) end
  end
  return list
end

---Fields that save memory, the ones that take least time first: one after another they lead to where a search begins if
---nothing else fits.
---@param context moonshard.TuneContext
---@return table[]
function moves.frugal(context)
  local list = {}
  local function add(row, fields)
    if context.free[row.name] then list[#list + 1] = fields end
  end
  for _, row in ipairs(policies.frugal) do add(row, row.frugal(context)) end
  for _, row in ipairs(policies.frugal) do add(row, row.last_resort) end
  return list
end

---Points at which a policy does a part less of what it does.
---@param p moonshard.TunePoint
---@param row moonshard.SearchedPolicy
---@param parts number[]
---@return moonshard.TunePoint[] none if the policy has no such points
function moves.less(p, row, parts)
  local list, add = neighbours(p)
  for _, part in ipairs(row.less and parts or {}) do row.less(add, p, part) end
  return list
end

return moves
