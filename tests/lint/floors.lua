-- Includes follow the floors of the source tree (floor_table.lua): a folder includes only from the floors below it, and
-- from itself.
--
--   luajit tests/lint/floors.lua FILE...      prints every include that looks up or sideways; ends with 1 if any did
--
-- The public header, moonshard.h and its parts, is on no floor: its types are everyone's.

local findings = dofile((arg[0]:gsub("[^/]*$", "")) .. "findings.lua")
local floors = dofile((arg[0]:gsub("[^/]*$", "")) .. "floor_table.lua")

-- The path below the root that an include written in a file of `folder` names, or nil when it is not ours.
local function resolve(include, path)
  if include:find("^kernels/") then return include end
  if include == "moonshard.h" then return nil end
  if include:find("/") then return "runtime/" .. include end
  return path:match("^(.*)/[^/]*$") .. "/" .. include
end

for _, path in ipairs(arg) do
  local in_tree = path:find("^runtime/") or path:find("^kernels/")
  if in_tree and not floors.is_public_header(path) then
    if not floors.folder_of(path) then findings.report("%s: its folder is on no floor", path) end
    local number = 0
    for line in io.lines(path) do
      number = number + 1
      local include = line:match('^%s*#%s*include%s+"([^"]+)"')
      local target = include and resolve(include, path)
      if target and floors.folder_of(path) and floors.folder_of(target) and not floors.may_use(path, target) then
        findings.report('%s:%d: %s includes "%s" of %s', path, number, floors.name_of(path), include,
          floors.name_of(target))
      end
    end
  end
end
findings.finish()
