-- The units that are made of blocks: several neighbours joined in one, or each block divided into its parts.

local unit_groups = {
  ---Blocks of a unit if the parts of a block are units.
  DIVIDED = 0.5,
}

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
---@param size number blocks of a unit, or DIVIDED
---@param blocks moonshard.Blocks
---@return string[][]
function unit_groups.of(size, blocks)
  if size == unit_groups.DIVIDED then return divided(blocks.of) end
  return joined(blocks.of, size)
end

local function add_entries(entries, groups)
  for _, names in ipairs(groups) do entries[#entries + 1] = #names == 1 and names[1] or names end
end

---The option `units` that makes these units.
---@param size number blocks of a unit, or DIVIDED
---@param apart boolean whether large modules outside of blocks have units of their own
---@param blocks moonshard.Blocks
---@return table units
function unit_groups.entries(size, apart, blocks)
  local entries = {}
  if apart then add_entries(entries, blocks.apart) end
  if size == 1 then
    for _, entry in ipairs(blocks.entries or {}) do entries[#entries + 1] = entry end
  else
    add_entries(entries, unit_groups.of(size, blocks))
  end
  return entries
end

return unit_groups
