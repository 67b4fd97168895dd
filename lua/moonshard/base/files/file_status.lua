-- What a file is, without opening it: its kind, its size, and when it was last written.

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

local AT_FDCWD, AT_EMPTY_PATH, WANTED, TYPE = -100, 0x1000, 0x241, 0xf000 -- type, size, time of writing; Linux
local MTIME_SECONDS, MTIME_NANOSECONDS = 64, 72 -- offsets in the fields of statx that follow the size

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

---When a file was last written, to the nanosecond; nil if it does not exist.
---@param path string
---@return string?
function file_status.written_at(path)
  if not look(AT_FDCWD, path, 0) then return nil end
  local seconds = ffi.cast("int64_t *", about.others + MTIME_SECONDS)[0]
  return ("%.0f.%d"):format(tonumber(seconds), ffi.cast("uint32_t *", about.others + MTIME_NANOSECONDS)[0])
end

return file_status
