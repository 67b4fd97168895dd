-- Orders the ranks of a mesh made from groups: the groups of each dimension must be the rows of one grid.

local errors = require("moonshard.base.error")
local group = require("moonshard.distributed.group")

local grid = {}

-- Maps each rank to its group along this dimension.
local function index_groups(name, groups)
  local by_rank, count = {}, 0
  for i, one in ipairs(groups) do
    if not group.is(one) then
      errors.invalid("ms.mesh_from_groups: dimension %s: entry %d is not a group: make groups by ms.new_group", name, i)
    end
    if one.size ~= groups[1].size then
      errors.invalid("ms.mesh_from_groups: dimension %s: group %s has %d ranks but %s has %d; sizes must be equal",
        name, tostring(groups[1]), groups[1].size, tostring(one), one.size)
    end
    for _, rank in ipairs(one) do
      if by_rank[rank] then
        errors.invalid("ms.mesh_from_groups: dimension %s: rank %d is in both %s and %s", name, rank,
          tostring(by_rank[rank]), tostring(one))
      end
      by_rank[rank], count = one, count + 1
    end
  end
  return by_rank, count
end

local function check_same_ranks(names, by_rank)
  for d = 2, #names do
    for a, b in pairs({ [1] = d, [d] = 1 }) do
      for rank in pairs(by_rank[a]) do
        if not by_rank[b][rank] then
          errors.invalid("ms.mesh_from_groups: rank %d is in a group of dimension %s but in none of %s: give every "
            .. "group of each dimension", rank, names[a], names[b])
        end
      end
    end
  end
end

local function place_of(one, rank)
  for place, member in ipairs(one) do
    if member == rank then return place end
  end
end

-- Walks a copy of the grid from `origin`, one dimension after the other: its ranks, row-major.
local function walk(by_rank, origin)
  local ranks = { origin }
  for d = 1, #by_rank do
    local further = {}
    for _, rank in ipairs(ranks) do
      for _, member in ipairs(by_rank[d][rank]) do further[#further + 1] = member end
    end
    ranks = further
  end
  return ranks
end

-- Checks that every rank's group along every dimension equals its row of the grid.
local function check_rows(names, sizes, by_rank, ranks)
  local stride = #ranks
  for d = 1, #names do
    stride = stride / sizes[d]
    for i, rank in ipairs(ranks) do
      local place = math.floor((i - 1) / stride) % sizes[d]
      for k, member in ipairs(by_rank[d][rank]) do
        if ranks[i + (k - 1 - place) * stride] ~= member then
          errors.invalid("ms.mesh_from_groups: group %s of dimension %s is not a row of the grid that the other "
            .. "groups make: rank %d belongs where it has %d", tostring(by_rank[d][rank]), names[d],
            ranks[i + (k - 1 - place) * stride], member)
        end
      end
    end
  end
end

---Orders the ranks of groups into a mesh. Groups can form several disjoint grids of the same shape.
---@param groups moonshard.Group[][] for each dimension, every group along it
---@param names string[]
---@return integer copies number of grids
---@return integer[] sizes of each grid
---@return integer[] ranks row-major, one copy after another
function grid.order(groups, names)
  local by_rank, sizes, count, one_grid = {}, {}, 0, 1
  for d, name in ipairs(names) do
    by_rank[d], count = index_groups(name, groups[d])
    sizes[d] = groups[d][1].size
    one_grid = one_grid * sizes[d]
  end
  check_same_ranks(names, by_rank)
  if count % one_grid ~= 0 then
    errors.invalid("ms.mesh_from_groups: groups of %s over %d ranks form no grid: the sizes must multiply to a divisor "
      .. "of %d", table.concat(sizes, " and "), count, count)
  end
  local all, copies, taken = {}, 0, {}
  for _, first in ipairs(groups[1]) do
    local origin, is_origin = first[1], true
    for d = 1, #names do is_origin = is_origin and place_of(by_rank[d][origin], origin) == 1 end
    if is_origin then
      local ranks = walk(by_rank, origin)
      check_rows(names, sizes, by_rank, ranks)
      for _, rank in ipairs(ranks) do
        if taken[rank] then errors.invalid("ms.mesh_from_groups: rank %d has two places in the grid", rank) end
        taken[rank] = true
        all[#all + 1] = rank
      end
      copies = copies + 1
    end
  end
  if #all ~= count then
    errors.invalid("ms.mesh_from_groups: the groups form no grid: only %d of %d ranks have a place; list the ranks of "
      .. "parallel groups in the same order", #all, count)
  end
  return copies, sizes, all
end

return grid
