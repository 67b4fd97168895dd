-- The paths of a folder or a pattern, sorted by bytes in every locale. A folder is listed with its sub-folders, and a
-- part "**" of a pattern matches any number of folders, as in Python's recursive glob. Hidden files and folders, whose
-- names begin with a dot, are not listed. Below a folder that is listed, one that several links lead to is listed once,
-- so a link to a folder above its own ends.

local ffi = require "ffi"
local errors = require "moonshard.base.error"
local file_status = require "moonshard.base.files.file_status"

ffi.cdef [[
typedef struct {
  size_t count; char **paths; size_t offset; int flags;
  void (*close)(void *); void *(*read)(void *); void *(*open)(const char *); int (*lstat)(void); int (*stat)(void);
} ms_lua_glob;
int glob(const char *pattern, int flags, int (*failed)(const char *, int), ms_lua_glob *found);
void globfree(ms_lua_glob *found);
char *realpath(const char *path, char *resolved);
void free(void *pointer);
]]

local C = ffi.C
local STOP_AT_ERRORS = 1 -- GLOB_ERR
local IS_ABSENT = { [0] = true, [2] = true, [20] = true } -- no error, ENOENT, ENOTDIR
local look_at, FOLDER = file_status.of_path, file_status.FOLDER

local listing = {}

---A path without links and dots; nil if it does not exist.
---@param path string
---@return string?
function listing.real_path(path)
  local resolved = C.realpath(path, nil)
  if resolved == nil then return nil end
  local text = ffi.string(resolved)
  C.free(resolved)
  return text
end

---A path as a pattern that matches it alone.
---@param path string
---@return string
function listing.literal(path) return (path:gsub("[%[%]*?\\]", "\\%0")) end

-- "" is the folder in which the program runs.
local function inside(folder, rest)
  return (folder == "" or folder:find("/$")) and folder .. rest or folder .. "/" .. rest
end

-- The paths in a folder whose names match a pattern's part. A folder that cannot be read would hide its files.
local function matches_in(folder, part)
  local found, paths = ffi.new("ms_lua_glob"), {}
  ffi.errno(0)
  local status = C.glob(inside(listing.literal(folder), part), STOP_AT_ERRORS, nil, found)
  local failed = status ~= 0 and not IS_ABSENT[ffi.errno()]
  for i = 0, status == 0 and tonumber(found.count) - 1 or -1 do paths[#paths + 1] = ffi.string(found.paths[i]) end
  C.globfree(found)
  if failed then
    errors.raise("MS_EIO", "folder %s cannot be read: its files would be left out", folder == "" and "." or folder)
  end
  return paths
end

-- The paths of a pattern without "**".
local function glob(pattern)
  local above, part = pattern:match("^(.*/)([^/]*)$")
  if not above then return matches_in("", pattern) end
  above = above:gsub("(.)/+$", "%1")
  if not above:gsub("\\.", ""):find("[%[*?]") then return matches_in(above:gsub("\\(.)", "%1"), part) end
  local paths = {}
  for _, folder in ipairs(glob(above)) do
    for _, path in ipairs(look_at(folder) == FOLDER and matches_in(folder, part) or {}) do paths[#paths + 1] = path end
  end
  return paths
end

-- Calls visit for a folder and all below it, with the paths of each.
local function walk(folder, visit, seen)
  local real = listing.real_path(folder == "" and "." or folder)
  if not real or seen[real] then return end
  seen[real] = true
  local paths = matches_in(folder, "*")
  visit(folder, paths)
  for _, path in ipairs(paths) do
    if look_at(path) == FOLDER then walk(path, visit, seen) end
  end
end

-- A pattern's parts before and after the first "**"; nil without one.
local function cut(pattern)
  local padded = "/" .. pattern .. "/"
  local first, last = padded:find("/**/", 1, true)
  if not first then return nil end
  local before = padded:sub(2, first - 1)
  return before == "" and first > 1 and "/" or before, padded:sub(last + 1, -2)
end

local function add_matches(pattern, add)
  local before, behind = cut(pattern)
  if not before then
    for _, path in ipairs(glob(pattern)) do add(path) end
    return
  end
  for _, root in ipairs(before == "" and { "" } or glob(before)) do
    if root == "" or look_at(root) == FOLDER then
      walk(root, function(folder, paths)
        if behind ~= "" then return add_matches(inside(listing.literal(folder), behind), add) end
        for _, path in ipairs(paths) do add(path) end
      end, {})
    end
  end
end

---The paths that a pattern matches, sorted.
---@param pattern string "texts/*.txt", "texts/**/*.txt"
---@return string[]
function listing.match(pattern)
  local paths, known = {}, {}
  add_matches(pattern, function(path)
    if not known[path] then paths[#paths + 1] = path end
    known[path] = true
  end)
  table.sort(paths)
  return paths
end

---The paths in a folder and in its sub-folders, these among them, sorted.
---@param folder string
---@return string[]
function listing.below(folder) return listing.match(inside(listing.literal(folder), "**")) end

return listing
