-- The floors of the source tree: a folder includes only from the floors below it, and from itself.
--
--   luajit tests/lint/floors.lua FILE...      prints every include that looks up or sideways; ends with 1 if any did
--
-- The public header moonshard.h stands beside the floors: its types are everyone's. Folders on one floor do not know
-- each other.

local floors = {
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

local function folder_of(path)
  if path:find("^kernels/") then return "kernels" end
  return path:match("^(runtime/[%w_]+)/") or path:match("^(runtime)/")
end

-- The path below the root that an include written in a file of `folder` names, or nil when it is not ours.
local function resolve(include, folder)
  if include:find("^kernels/") then return include end
  if include:find("/") then return "runtime/" .. include end
  if include == "moonshard.h" then return nil end
  return folder .. "/" .. include
end

local wrong = 0
for _, path in ipairs(arg) do
  local folder = folder_of(path)
  if folder then
    local floor = floors[folder]
    if not floor then
      print(("%s: folder %s stands on no floor"):format(path, folder))
      wrong = wrong + 1
    end
    local number = 0
    for line in io.lines(path) do
      number = number + 1
      local include = line:match('^%s*#%s*include%s+"([^"]+)"')
      local target = include and resolve(include, folder)
      local below = target and folder_of(target)
      if floor and below and below ~= folder and not (floors[below] and floors[below] < floor) then
        print(("%s:%d: %s (floor %d) includes \"%s\" of %s (floor %s)"):format(path, number, folder, floor, include,
          below, floors[below] or "none"))
        wrong = wrong + 1
      end
    end
  end
end
os.exit(wrong == 0 and 0 or 1)
