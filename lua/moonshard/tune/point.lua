-- A point of the search: what is chosen for each policy, as a few numbers (moonshard.TunePoint, in policies.lua). Its
-- options are those of ms.fully_shard, so that what is compiled during the search is what a recipe with these rules
-- compiles.

local decided = require("moonshard.shard.policies.policies")
local policies = require("moonshard.tune.policies")

local point = {}

---The recipe's own policies.
---@return moonshard.TunePoint
function point.recipe()
  local self = {}
  for _, row in ipairs(policies.all) do
    for name, value in pairs(row.recipe) do self[name] = value end
  end
  return self
end

---@param self moonshard.TunePoint
---@param changes table fields
---@return moonshard.TunePoint
function point.with(self, changes)
  local other = {}
  for name, value in pairs(self) do other[name] = value end
  for name, value in pairs(changes) do other[name] = value end
  return other
end

---Points that leave one more policy to the recipe, the last one of the table first.
---@param self moonshard.TunePoint
---@return { policy: string, point: moonshard.TunePoint }[]
function point.reverted(self)
  local list = {}
  for i = #policies.all, 1, -1 do
    local row = policies.all[i]
    list[#list + 1] = { policy = row.name, point = point.with(self, row.recipe) }
  end
  return list
end

---The options of ms.fully_shard; without those that are the recipe's.
---@param self moonshard.TunePoint
---@param blocks moonshard.Blocks
---@return table options
function point.options(self, blocks)
  local options = {}
  for _, row in ipairs(policies.all) do options[row.name] = row.option(self, blocks) end
  return options
end

---@param self moonshard.TunePoint
---@return string "units of 4 blocks, reshard always, recompute 16 blocks"
function point.describe(self)
  local parts = {}
  for _, row in ipairs(policies.all) do parts[#parts + 1] = row.text(self) end
  return #parts > 0 and table.concat(parts, ", ") or "the recipe's rules"
end

-- Fields of policies under which a graph is traced, and of those under which a plan of an existing graph is compiled.
local GRAPH_FIELDS, OTHER_FIELDS = {}, {}

local changeable = {}
for _, row in ipairs(decided.changeable) do changeable[row.name] = true end
for _, row in ipairs(policies.all) do
  local fields = changeable[row.name] and OTHER_FIELDS or GRAPH_FIELDS
  for _, field in ipairs(row.fields) do fields[#fields + 1] = field[1] end
end

local function values_of(self, fields)
  local texts = {}
  for i, name in ipairs(fields) do texts[i] = tostring(self[name]) end
  return table.concat(texts, " ")
end

---A text that differs if a point differs; with `graph` only if its graph differs.
---@param self moonshard.TunePoint
---@param graph boolean?
---@return string
function point.key(self, graph)
  local key = values_of(self, GRAPH_FIELDS)
  return graph and key or key .. " " .. values_of(self, OTHER_FIELDS)
end

return point
