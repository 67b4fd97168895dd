-- The floors of the C tree, lowest first: a folder includes and calls only what is on floors below it, and itself.
-- Folders on one floor do not know each other, except that those of a tower, a list within a floor, are floors of their
-- own: each uses the ones before it. The public header, moonshard.h and its parts, is on no floor: its types are
-- everyone's.

local order = {
  { "runtime/base" },
  { "runtime/io" },
  {
    "kernels",
    {
      "runtime/comm/control",
      "runtime/comm/recorder",
      "runtime/comm/transport",
      "runtime/comm/group",
      "runtime/comm/collectives",
      "runtime/comm/regions",
      "runtime/comm/diagnose",
      "runtime/comm/bootstrap",
    },
  },
  { "runtime/device", "runtime/graph", "runtime/mesh" },
  { "runtime/shard" },
  { "runtime/plan" },
  {
    {
      "runtime/exec/state",
      "runtime/exec/tensors",
      "runtime/exec/bound", -- plans bound to a state: the types of what runs
      "runtime/exec/profile",
      "runtime/exec/checkpoint",
      "runtime/exec/run",
      "runtime/exec/async",
      "runtime/exec", -- the public functions that make states and execs
    },
    "runtime/price",
  },
  { "runtime" }, -- engine.c, which implements the public header
  { "runtime/host" },
}

-- place[folder] = { floor, tower, level }: the tower is its list, level its place there; a folder alone is a tower of
-- one.
local place = {}
for floor, folders in ipairs(order) do
  for _, entry in ipairs(folders) do
    local tower = type(entry) == "table" and entry or { entry }
    for level, folder in ipairs(tower) do place[folder] = { floor = floor - 1, tower = tower, level = level } end
  end
end

local floors = {}

function floors.is_public_header(path)
  return path == "runtime/moonshard.h" or path:find("^runtime/moonshard/") ~= nil
end

-- The folder of the table that a file belongs to: the deepest that contains it. nil: none does.
function floors.folder_of(path)
  local folder = path:match("^(.*)/[^/]*$")
  while folder do
    if place[folder] then return folder end
    if folder == "runtime" or folder == "kernels" then return nil end
    folder = folder:match("^(.*)/[^/]*$")
    if folder == "runtime" and path:find("^runtime/[^/]+/") then return nil end
  end
end

function floors.may_use(path, other)
  local mine, theirs = floors.folder_of(path), floors.folder_of(other)
  local from, to = place[mine], place[theirs]
  if mine == theirs then return true end
  if not from or not to then return false end
  if from.tower == to.tower then return to.level < from.level end
  return to.floor < from.floor
end

function floors.name_of(path)
  local folder = floors.folder_of(path)
  local at = place[folder]
  if not at then return "no floor" end
  local level = #at.tower > 1 and ("." .. at.level) or ""
  return ("%s, floor %d%s"):format(folder, at.floor, level)
end

return floors
