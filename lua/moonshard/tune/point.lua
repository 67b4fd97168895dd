-- A point of the search: what is chosen for each policy, as a few numbers. Its options are those of ms.fully_shard, so
-- that what is compiled during the search is what a recipe with these rules compiles.
--
-- A policy that is RECIPE has the recipe's own rules.

local re = require("moonshard.base.re")
local pattern_of = require("moonshard.tune.pattern_of")

local point = { RECIPE = "recipe", DIVIDED = 0.5 }

---@class moonshard.TunePoint
---@field group number|"recipe" blocks of a unit: 1, 2, ...; DIVIDED: the parts of a block are units
---@field apart boolean whether embedding, head and the like have units of their own
---@field reshard string|integer "recipe", "default", "always", "never", or the size of the groups of backward
---@field keep integer so many units of blocks stay gathered, against `reshard`
---@field first boolean the first units, not the last ones
---@field prefetch integer|"recipe"
---@field recompute integer|"recipe" so many blocks are recomputed
---@field spread boolean evenly spread blocks, not the first ones

---Fields that leave one policy to the recipe.
point.REVERTED = {
  { policy = "recompute", fields = { recompute = point.RECIPE, spread = false } },
  { policy = "prefetch", fields = { prefetch = point.RECIPE } },
  { policy = "reshard_after_forward", fields = { reshard = point.RECIPE, keep = 0, first = false } },
  { policy = "units", fields = { group = point.RECIPE, apart = false } },
}

---The recipe's own policies.
---@return moonshard.TunePoint
function point.recipe()
  return { group = point.RECIPE, apart = false, reshard = point.RECIPE, keep = 0, first = false,
    prefetch = point.RECIPE, recompute = point.RECIPE, spread = false }
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

-- ---- units ------------------------------------------------------------------------------------------------------

local function entry_of(names)
  return #names == 1 and names[1] or names
end

-- Blocks that are neighbours in a list, in groups of `size`.
local function joined(list, size)
  local groups, count = {}, 0
  for i, block in ipairs(list) do
    if i == 1 or block.list ~= list[i - 1].list or count == size then
      groups[#groups + 1], count = {}, 0
    end
    count = count + 1
    for _, name in ipairs(block.names) do table.insert(groups[#groups], name) end
  end
  return groups
end

local function divided(list)
  local groups = {}
  for _, block in ipairs(list) do
    local has_parts = #block.parts > 1
    for _, part in ipairs(has_parts and block.parts or {}) do groups[#groups + 1] = part end
    if not has_parts or block.direct then groups[#groups + 1] = { unpack(block.names) } end
  end
  return groups
end

---The modules of each unit of blocks, in the order of blocks.
---@param self moonshard.TunePoint
---@param blocks moonshard.Blocks
---@return string[][]
function point.groups(self, blocks)
  if self.group == point.DIVIDED then return divided(blocks.of) end
  return joined(blocks.of, self.group == point.RECIPE and 1 or self.group)
end

local function units_of(self, blocks)
  if self.group == point.RECIPE and not self.apart then return nil end
  local entries = {}
  for _, names in ipairs(self.apart and blocks.apart or {}) do entries[#entries + 1] = entry_of(names) end
  if self.group == point.RECIPE or self.group == 1 then
    for _, entry in ipairs(blocks.entries or {}) do entries[#entries + 1] = entry end
  else
    for _, names in ipairs(point.groups(self, blocks)) do entries[#entries + 1] = entry_of(names) end
  end
  return entries
end

-- ---- the other policies -----------------------------------------------------------------------------------------

local VALUES = { always = true, never = false, default = "default" }

local function reshard_of(self, blocks)
  if self.reshard == point.RECIPE then return nil end
  local value = self.reshard
  if VALUES[value] ~= nil then value = VALUES[value] end
  if self.keep == 0 then return value end
  local groups, names = point.groups(self, blocks), {}
  local from = self.first and 1 or #groups - self.keep + 1
  for i = from, from + self.keep - 1 do names[#names + 1] = groups[i][1] end
  return { { re(pattern_of(names)), false }, { re"", value } }
end

---The blocks that are recomputed: the first `count`, or as many evenly spread ones.
---@param self moonshard.TunePoint
---@param blocks moonshard.Blocks
---@return string[] names of modules
local function recomputed(self, blocks)
  local names, n = {}, #blocks.of
  for i, block in ipairs(blocks.of) do
    local chosen = i <= self.recompute
    if self.spread then chosen = math.floor(i * self.recompute / n) > math.floor((i - 1) * self.recompute / n) end
    for _, name in ipairs(chosen and block.names or {}) do names[#names + 1] = name end
  end
  return names
end

local function recompute_of(self, blocks)
  if self.recompute == point.RECIPE then return nil end
  if self.recompute == 0 then return false end
  return { { re(pattern_of(recomputed(self, blocks))), true } }
end

---The options of ms.fully_shard; without those that are the recipe's.
---@param self moonshard.TunePoint
---@param blocks moonshard.Blocks
---@return table options
function point.options(self, blocks)
  return {
    units = units_of(self, blocks), reshard_after_forward = reshard_of(self, blocks),
    prefetch = self.prefetch ~= point.RECIPE and self.prefetch or nil, recompute = recompute_of(self, blocks),
  }
end

---@param self moonshard.TunePoint
---@return string "units of 4 blocks, reshard always, recompute 16 blocks"
function point.describe(self)
  local parts = {}
  local function add(text, ...) parts[#parts + 1] = text:format(...) end
  if self.group == point.DIVIDED then add("units of parts of a layer") end
  if self.group ~= point.RECIPE and self.group >= 1 then
    add("units of %d block%s", self.group, self.group == 1 and "" or "s")
  end
  if self.apart then add("embedding and head apart") end
  if self.reshard ~= point.RECIPE then add("reshard %s", self.reshard) end
  if self.keep > 0 then add("%d %s units kept", self.keep, self.first and "first" or "last") end
  if self.prefetch ~= point.RECIPE then add("prefetch %d", self.prefetch) end
  local s = self.recompute == 1 and "" or "s"
  if self.recompute ~= point.RECIPE then add("recompute %d block%s", self.recompute, s) end
  return #parts > 0 and table.concat(parts, ", ") or "the recipe's rules"
end

---A text that differs if a point differs; with `graph` only if its graph differs.
---@param self moonshard.TunePoint
---@param graph boolean?
---@return string
function point.key(self, graph)
  local key = ("%s %s %s %s"):format(self.group, tostring(self.apart), self.recompute, tostring(self.spread))
  if graph then return key end
  return ("%s %s %s %s %s"):format(key, self.reshard, self.keep, tostring(self.first), self.prefetch)
end

return point
