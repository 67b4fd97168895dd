-- Prints a mesh: its shape and names, this rank's coordinates, and the ranks as a table.

local shape = require("moonshard.distributed.mesh.shape")
local world = require("moonshard.distributed.world")

local show = {}

local MAX_ROWS, MAX_COLUMNS = 16, 32

-- The first and the last of 1 .. n, at most `most`, with false in place of omitted ones.
local function ends_of(n, most)
  local shown = {}
  for i = 1, n do
    if n <= most or i < most - 1 or i == n then
      shown[#shown + 1] = i
    elseif shown[#shown] then
      shown[#shown + 1] = false
    end
  end
  return shown
end

---"2x2 (replicate, shard)"
---@param mesh moonshard.Mesh
---@return string
function show.label(mesh)
  return shape.text(mesh.shape) .. (mesh.names and " (" .. table.concat(mesh.names, ", ") .. ")" or "")
end

-- "pipe=0  replicate=1": the row's coordinates along all dimensions except the last.
local function row_head(mesh, row)
  local head, rest = {}, row - 1
  for d = mesh.ndim - 1, 1, -1 do
    local size = mesh.shape[d]
    table.insert(head, 1, ("%s=%-" .. #tostring(size - 1) .. "d"):format(mesh:dim_name(d - 1), rest % size))
    rest = math.floor(rest / size)
  end
  table.insert(head, 1, "")
  return head
end

local function rank_rows(mesh)
  local columns = mesh.shape[mesh.ndim]
  local ranks, lines, width = mesh:ranks(), {}, 1
  for _, rank in ipairs(ranks) do width = math.max(width, #tostring(rank)) end
  for _, row in ipairs(ends_of(#ranks / columns, MAX_ROWS)) do
    local cells = row and row_head(mesh, row) or { "", "..." }
    for _, column in ipairs(row and ends_of(columns, MAX_COLUMNS) or {}) do
      cells[#cells + 1] = column and ("%" .. width .. "d"):format(ranks[(row - 1) * columns + column]) or "..."
    end
    lines[#lines + 1] = table.concat(cells, "  ")
  end
  return lines
end

---@param mesh moonshard.Mesh
---@return string
function show.text(mesh)
  local head = ("mesh %s on %s, "):format(show.label(mesh), mesh.device)
  if not mesh:contains(world.rank) then return head .. ("without rank %d"):format(world.rank) end
  local lines = rank_rows(mesh)
  table.insert(lines, 1, head .. ("rank %d at (%s)"):format(world.rank, table.concat(mesh:get_coordinate(), ", ")))
  return table.concat(lines, "\n")
end

return show
