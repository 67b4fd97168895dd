-- What a file is, without opening it: its kind, its size, which one it is, and when it last changed.

local bit = require("bit")
local ffi = require("ffi")

ffi.cdef [[
typedef struct {
  uint32_t known, block; uint64_t attributes; uint32_t links, user, group; uint16_t mode, spare; uint64_t inode, bytes;
  char others[208];
} ms_lua_statx;
int statx(int folder, const char *path, int flags, unsigned wanted, ms_lua_statx *found);
]]

local file_status = { REGULAR = 0x8000, FOLDER = 0x4000 }

local AT_FDCWD, AT_EMPTY_PATH, WANTED, TYPE = -100, 0x1000, 0x3c1, 0xf000 -- type, inode, size, times; Linux
local CTIME, MTIME, NANOSECONDS = 48, 64, 8 -- offsets in the fields of statx that follow the size, and in a time

local about = ffi.new("ms_lua_statx")

local function look(folder, path, flags)
  if ffi.C.statx(folder, path, flags, WANTED, about) ~= 0 then return nil end
  return bit.band(about.mode, TYPE), tonumber(about.bytes)
end

---The kind (REGULAR, FOLDER or another) and the size in bytes of a file, following links; nil if it does not exist.
---@param path string
---@return integer? kind
---@return number? bytes
function file_status.of_path(path) return look(AT_FDCWD, path, 0) end

---The same of an open file.
---@param descriptor integer
---@return integer? kind
---@return number? bytes
function file_status.of_open(descriptor) return look(descriptor, "", AT_EMPTY_PATH) end

-- A time, to the nanosecond.
local function time_at(offset)
  local seconds = tonumber(ffi.cast("int64_t *", about.others + offset)[0])
  return ("%.0f.%d"):format(seconds, ffi.cast("uint32_t *", about.others + offset + NANOSECONDS)[0])
end

---Which file it is and how far it has changed: its inode, its size, when it was last written, and when it last changed,
---which no program can set. nil if it does not exist.
---@param path string
---@return string?
function file_status.version(path)
  if not look(AT_FDCWD, path, 0) then return nil end
  return ("%.0f %.0f %s %s"):format(tonumber(about.inode), tonumber(about.bytes), time_at(MTIME), time_at(CTIME))
end

return file_status
