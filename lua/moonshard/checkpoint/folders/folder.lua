-- The folder of checkpoints: contains one folder per step, step-00000100. Names that begin with a dot are being written
-- or removed, and are never taken for checkpoints.

local ffi = require("ffi")
local clock = require("moonshard.base.clock")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.files.input_file")
local output_file = require("moonshard.base.files.output_file")
local C, check = engine.C, engine.check

ffi.cdef [[
typedef struct { uint64_t inode, next; uint16_t bytes; uint8_t kind; char name[256]; } ms_lua_dirent;
void *opendir(const char *path);
ms_lua_dirent *readdir(void *folder);
int closedir(void *folder);
long readlink(const char *path, char *target, size_t bytes);
int getpid(void);
char *strerror(int number);
]]

local folder = {}

local MANIFEST = "/manifest.json"
local ENOENT, ENOTDIR = 2, 20 -- Linux

---The names in a folder, sorted; empty when the folder does not exist. Raises MS_EIO if it cannot be read: a folder
-- that seems empty would start a run that should resume.
---@param path string
---@return string[]
function folder.names(path)
  local names, open = {}, ffi.C.opendir(path)
  if open == nil then
    local number = ffi.errno()
    if number == ENOENT or number == ENOTDIR then return names end
    errors.raise("MS_EIO", "folder %s: %s", path, ffi.string(ffi.C.strerror(number)))
  end
  ffi.errno(0) -- nil from readdir is the end, or an error
  local entry = ffi.C.readdir(open)
  while entry ~= nil do
    names[#names + 1] = ffi.string(entry.name)
    entry = ffi.C.readdir(open)
  end
  local number = ffi.errno()
  ffi.C.closedir(open)
  if number ~= 0 then errors.raise("MS_EIO", "folder %s: %s", path, ffi.string(ffi.C.strerror(number))) end
  table.sort(names)
  return names
end
jit.off(folder.names) -- compiled code could change errno in between

---Whether two paths name one folder, whatever slashes and dots are between the names.
---@param one string
---@param other string
---@return boolean
function folder.is_same(one, other)
  local function plain(path) return (("/" .. path .. "/"):gsub("/%./", "/"):gsub("/+", "/")) end
  return (one:sub(1, 1) == "/") == (other:sub(1, 1) == "/") and plain(one) == plain(other)
end

---Whether a folder is a checkpoint.
---@param path string
---@return boolean
function folder.is_checkpoint(path) return input_file.exists(path .. MANIFEST) end

---Whether a path is a symbolic link, wherever that points to.
---@param path string
---@return boolean
function folder.is_link(path) return ffi.C.readlink(path, ffi.new("char[1]"), 1) >= 0 end

---The path of a step's checkpoint.
---@param root string
---@param step integer
---@return string
function folder.of(root, step) return ("%s/step-%08d"):format(root, step) end

---The path of a step's checkpoint that is set aside (branches.lua).
---@param root string
---@param step integer
---@param number integer
---@return string
function folder.aside(root, step, number) return ("%s.aside-%d"):format(folder.of(root, step), number) end

---@class moonshard.FolderEntry
---@field path string
---@field step integer
---@field aside integer? the number with which it is set aside
---@field is_half boolean it has the name of a checkpoint, and is none

---What a folder has under names of checkpoints, the oldest first.
---@param root string
---@return moonshard.FolderEntry[]
function folder.entries(root)
  local found = {}
  for _, name in ipairs(folder.names(root)) do
    local step, rest = name:match("^step%-(%d+)(.*)$")
    local aside = rest and rest:match("^%.aside%-(%d+)$")
    if step and (rest == "" or aside) then
      local path = root .. "/" .. name
      found[#found + 1] = { path = path, step = tonumber(step), aside = tonumber(aside),
        is_half = not folder.is_checkpoint(path) }
    end
  end
  table.sort(found, function(a, b)
    if a.step ~= b.step then return a.step < b.step end
    return (a.aside or 0) < (b.aside or 0)
  end)
  return found
end

---The checkpoints of a folder, the oldest first.
---@param root string
---@return { path: string, step: integer }[]
function folder.list(root)
  local found = {}
  for _, entry in ipairs(folder.entries(root)) do
    if not (entry.aside or entry.is_half) then found[#found + 1] = { path = entry.path, step = entry.step } end
  end
  return found
end

---Refuses a folder in which something newer than a step has the name of a checkpoint and is none: it should not be
---passed over, and a run that comes to that step could not save it.
---@param who string for messages
---@param root string
---@param step integer -1: nothing is older
function folder.check_whole(who, root, step)
  for _, entry in ipairs(folder.entries(root)) do
    if entry.is_half and not entry.aside and entry.step > step then
      errors.invalid("%s: %s is not a checkpoint: it has no manifest.json, as after a copy or a removal that was "
        .. "interrupted; complete it, or remove it", who, entry.path)
    end
  end
end

---The newest checkpoint of a folder.
---@param root string
---@param limit number? the last step that counts
---@return string? path nil when there is none
---@return integer? step
function folder.latest(root, limit)
  local found = folder.list(root)
  local last = #found
  while limit and last > 0 and found[last].step > limit do last = last - 1 end
  if found[last] then return found[last].path, found[last].step end
end

---The next older checkpoint in the same folder.
---@param path string
---@return string? path nil when it is the oldest, or its name is not that of a step
function folder.before(path)
  local root, step = ("./" .. path):match("^(.*)/step%-(%d+)/*$")
  local older
  for _, one in ipairs(root and folder.list(root:gsub("^%./(.)", "%1", 1)) or {}) do
    if one.step < tonumber(step) then older = one.path end
  end
  return older
end

---The checkpoint that a path names: itself, or the newest in it. Raises MS_EINVAL when there is none.
---@param who string for messages
---@param path string
---@return string
function folder.find(who, path)
  if folder.is_checkpoint(path) then return path end
  local latest, step = folder.latest(path)
  folder.check_whole(who, path, step or -1)
  if latest then return latest end
  errors.invalid("%s: %s is not a checkpoint (no manifest.json) and contains none (step-NNNNNNNN)", who, path)
end

---A name for a checkpoint before it is committed, different from every other process's.
---@param root string
---@param step integer
---@param nonce integer
---@return string
function folder.unfinished(root, step, nonce) return ("%s/.step-%08d.%.0f.tmp"):format(root, step, nonce) end

---The name of a complete checkpoint that is to replace that of the same step.
---@param root string
---@param step integer
---@return string
function folder.replacement(root, step) return ("%s/.step-%08d.0.tmp"):format(root, step) end

---The next number with which something can be set aside.
---@param root string
---@return integer
function folder.next_aside(root)
  local number = 1
  for _, entry in ipairs(folder.entries(root)) do number = math.max(number, 1 + (entry.aside or 0)) end
  return number
end

---Renames a folder; raises MS_EIO if that fails.
---@param from string
---@param to string
function folder.rename(from, to)
  local ok, why = os.rename(from, to)
  if not ok then errors.raise("MS_EIO", "renaming it to %s: %s", to, why) end
end

---Gives a complete checkpoint the name of another one, which is removed. Whenever this ends, both are there, or the new
---one: the old one is set aside first.
---@param path string of the old one
---@param by string
function folder.replace(path, by)
  local root, step = path:match("^(.*)/step%-(%d+)$")
  local aside = folder.aside(root, tonumber(step), folder.next_aside(root))
  folder.rename(path, aside)
  folder.rename(by, path)
  check(C.ms_checkpoint_remove(aside))
end

---A number unique among the saves into this folder.
---@return integer
function folder.nonce()
  return ffi.C.getpid() * 2 ^ 20 + math.floor(1e3 * clock.now()) % 2 ^ 20
end

---Creates the folder before training, so that a folder that cannot be created or written is reported immediately and
---not at the first save.
---@param who string for messages
---@param root string
function folder.make(who, root)
  if C.ms_checkpoint_make_folder(root, 0) == 0 then
    return output_file.check(who .. ": dir:", ("%s/.writable-%d"):format(root, ffi.C.getpid()))
  end
  local why = ffi.string(C.ms_error_message())
  C.ms_error_clear()
  errors.invalid("%s: dir: %s", who, why)
end

local locks = {} -- locks of this process by folder: files that stay open until it ends

---Locks a folder for this run until the process ends: two runs that save into one folder would remove each other's
---checkpoints. Called by one rank, when the folder is checked.
---@param who string for messages
---@param root string
function folder.lock(who, root)
  if locks[root] then return end
  local path = root .. "/.lock"
  local file, why = output_file.open_own(path, "ae") -- children do not inherit it
  if not file then errors.invalid("%s: dir: %s", who, why) end
  if not output_file.lock(file) then
    file:close()
    errors.invalid("%s: dir: another run is still saving into %s: wait for it, or save into another folder",
      who, root)
  end
  locks[root] = file
end

---Creates the folder for a save, and removes the unfinished folders of runs that were killed, and the files by which
---their ranks found each other (disks.lua).
---@param root string
---@param unfinished string
function folder.prepare(root, unfinished)
  check(C.ms_checkpoint_make_folder(root, 0))
  for _, name in ipairs(folder.names(root)) do
    if name:match("^%.step%-%d+%.%d+%.tmp$") or name:match("^%.step%-%d+%.removed$") then
      check(C.ms_checkpoint_remove(root .. "/" .. name))
    elseif name:match("^%.rank%-%d+%.%d+$") then
      os.remove(root .. "/" .. name)
    end
  end
  check(C.ms_checkpoint_make_folder(unfinished, 1))
end

---Removes an unfinished folder and its contents.
---@param unfinished string
function folder.discard(unfinished)
  if input_file.exists(unfinished) then check(C.ms_checkpoint_remove(unfinished)) end
end

return folder
