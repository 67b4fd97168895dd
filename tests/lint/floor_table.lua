-- The floors of the C tree, lowest first: a folder includes and calls only what is on floors below it, and itself.
-- Folders on one floor do not know each other. The public header moonshard.h is on no floor: its types are everyone's.

local floor_of = {
  ["runtime/base"] = 0,
  ["runtime/io"] = 1,
  ["runtime/comm"] = 2,
  ["kernels"] = 2,
  ["runtime/device"] = 3,
  ["runtime/graph"] = 3,
  ["runtime/mesh"] = 3,
  ["runtime/shard"] = 4,
  ["runtime/plan"] = 5,
  ["runtime/exec"] = 6,
  ["runtime"] = 7, -- engine.c, which implements the public header
  ["runtime/host"] = 8,
}

local floors = {}

-- The folder of the table that a file belongs to: the deepest that contains it. nil: none does.
function floors.folder_of(path)
  local folder = path:match("^(.*)/[^/]*$")
  while folder do
    if floor_of[folder] then return folder end
    if folder == "runtime" or folder == "kernels" then return nil end
    folder = folder:match("^(.*)/[^/]*$")
  end
end

function floors.may_use(path, other)
  local from, to = floors.folder_of(path), floors.folder_of(other)
  return from == to or (floor_of[from] and floor_of[to] and floor_of[to] < floor_of[from])
end

function floors.name_of(path)
  local folder = floors.folder_of(path)
  return folder and ("%s, floor %d"):format(folder, floor_of[folder]) or "no floor"
end

return floors
