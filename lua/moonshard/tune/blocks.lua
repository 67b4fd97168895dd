-- What the search can make units of: the blocks of a model (the units of its recipe, usually one per layer), the parts
-- of a block (attention, MLP), and the large modules outside of all blocks (embedding, head).
--
-- Small modules such as norms stay with what follows them: a collective of a few bytes takes a latency and no more.

local automatic = require("moonshard.shard.policies.automatic")
local storage = require("moonshard.shard.policies.storage")
local tree = require("moonshard.nn.tree")
local units = require("moonshard.shard.units")

local blocks = {}

---@class moonshard.Block
---@field names string[] its modules
---@field list string what precedes its number: "layers.", so that only neighbours in a list are joined
---@field bytes number gathered
---@field parts string[][] groups of modules that could be units instead; fewer than 2: it is not divided
---@field direct boolean whether it has parameters outside of its parts

---@class moonshard.Blocks
---@field of moonshard.Block[]
---@field apart string[][] groups of modules outside of blocks that could be units
---@field entries table? the option `units` that makes the blocks

-- A module smaller than this part of its parent does not become a unit.
local SMALL = 0.05

local function children_of(modules)
  local children = {}
  for i, entry in ipairs(modules) do
    children[i] = {}
    if entry.parent then table.insert(children[entry.parent], i) end
  end
  return children
end

-- Gathered bytes by module: of its own parameters, and with those of its submodules. A tied parameter is its first
-- owner's.
local function count_bytes(inventory, sharding)
  local own, all = {}, {}
  for i in ipairs(inventory.modules) do own[i], all[i] = 0, 0 end
  for _, entry in ipairs(inventory.parameters) do
    local param = sharding.params[sharding.index[entry.parameter] + 1]
    local bytes = storage.gathered_bytes(sharding, param, param.numel)
    local owner = entry.places[1].owner
    own[owner] = own[owner] + bytes
    while owner do
      all[owner] = all[owner] + bytes
      owner = inventory.modules[owner].parent
    end
  end
  return own, all
end

-- Joins neighbours into groups, each of which ends with a large one. Small ones at the end join the last group.
local function groups_of(list, modules, bytes, least)
  local groups, open = {}, {}
  for _, i in ipairs(list) do
    if bytes[i] > 0 then
      open[#open + 1] = modules[i].name
      if bytes[i] >= least then
        groups[#groups + 1], open = open, {}
      end
    end
  end
  for _, name in ipairs(groups[1] and open or {}) do table.insert(groups[#groups], name) end
  return groups
end

-- Modules outside of blocks, from the root down to the first that contains no block.
local function outside(model, i, found)
  for _, child in ipairs(model.children[i]) do
    if model.contains[child] then outside(model, child, found)
    elseif not model.is_block[child] then found[#found + 1] = child end
  end
  return found
end

local function add_block(self, model, unit)
  local names, bytes, parts = {}, 0, {}
  for i, root in ipairs(unit.modules) do
    local at = model.index[root]
    names[i], bytes = model.modules[at].name, bytes + model.all[at]
  end
  local at = model.index[unit.module]
  if #names == 1 then parts = groups_of(model.children[at], model.modules, model.all, SMALL * bytes) end
  table.insert(self.of, { names = names, list = names[1]:match("^(.-)%d+$") or names[1], bytes = bytes, parts = parts,
    direct = model.own[at] > 0 })
end

local function mark(model, unit)
  for _, root in ipairs(unit.modules) do
    local at = model.index[root]
    model.is_block[at] = true
    at = model.modules[at].parent
    while at do
      model.contains[at] = true
      at = model.modules[at].parent
    end
  end
end

---The blocks of a sharded model: its units, or if it has only the root unit, the items of its lists of modules.
---@param sharding moonshard.Sharding
---@return moonshard.Blocks
function blocks.of(sharding)
  local inventory = tree.inventory(sharding.model)
  local self = { of = {}, entries = sharding.config.units or automatic.lists(inventory) }
  local modules = inventory.modules
  local model = { modules = modules, children = children_of(modules), index = {}, is_block = {}, contains = {} }
  model.own, model.all = count_bytes(inventory, sharding)
  for i, entry in ipairs(modules) do model.index[entry.module] = i end
  for _, root in ipairs((units.find_roots(inventory, self.entries))) do
    local unit = { modules = root.modules, module = root.modules[1] }
    mark(model, unit)
    add_block(self, model, unit)
  end
  self.apart = groups_of(outside(model, 1, {}), modules, model.all, SMALL * model.all[1])
  return self
end

return blocks
