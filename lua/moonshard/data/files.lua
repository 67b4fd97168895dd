-- The bytes of files as one stream: named files, comma lists, patterns ("texts/*.txt") and folders.
--
-- Files are mapped, not read: ranks of one host share the pages, and a text larger than memory costs nothing until it
-- is used. Of a folder or a pattern only text counts: hidden files, sub-folders, files with a zero byte near their
-- start and further names of the same file (links) are passed over. A file that is named itself is taken as it is.
--
-- A mapped file that is cut shorter ends the process that reads behind its new end (SIGBUS), so its size is looked at
-- before it is read. A file that was replaced by another of its name is no matter: what is mapped stays.

local ffi = require "ffi"
local errors = require "moonshard.error"

ffi.cdef [[
typedef struct {
  size_t count; char **paths; size_t offset; int flags;
  void (*close)(void *); void *(*read)(void *); void *(*open)(const char *); int (*lstat)(void); int (*stat)(void);
} ms_lua_glob;
int glob(const char *pattern, int flags, int (*failed)(const char *, int), ms_lua_glob *found);
void globfree(ms_lua_glob *found);
char *realpath(const char *path, char *resolved);
void free(void *pointer);
void *opendir(const char *path);
int closedir(void *folder);
int open(const char *path, int flags, ...);
int close(int descriptor);
int64_t lseek(int descriptor, int64_t offset, int whence);
void *mmap(void *at, size_t bytes, int protection, int flags, int descriptor, int64_t offset);
int munmap(void *at, size_t bytes);
char *strerror(int number);
typedef struct {
  uint32_t known, block; uint64_t attributes; uint32_t links, user, group; uint16_t mode; uint64_t inode, bytes;
  char others[208];
} ms_lua_statx;
int statx(int folder, const char *path, int flags, unsigned wanted, ms_lua_statx *found);
]]

local C = ffi.C
local O_CLOEXEC, O_NONBLOCK, SEEK_END = 0x80000, 0x800, 2 -- Linux
local PROT_READ, MAP_SHARED = 1, 1
local AT_FDCWD, AT_EMPTY_PATH, STATX_INO_AND_SIZE = -100, 0x1000, 0x300
local BYTES_LOOKED_AT = 4096 -- for a zero byte

---@class moonshard.ByteStream
---@field bytes number length in all
---@field files { path: string, bytes: number, data: ffi.cdata* }[] in the order of the stream
local ByteStream = {}
ByteStream.__index = ByteStream

local files = {}

local function is_folder(path)
  local folder = C.opendir(path)
  if folder == nil then return false end
  C.closedir(folder)
  return true
end

local function real_path(path)
  local resolved = C.realpath(path, nil)
  if resolved == nil then return nil end
  local text = ffi.string(resolved)
  C.free(resolved)
  return text
end

-- Paths that match, sorted by their bytes whatever the locale.
local function match(pattern)
  local found = ffi.new("ms_lua_glob")
  local paths = {}
  if C.glob(pattern, 0, nil, found) == 0 then
    for i = 0, tonumber(found.count) - 1 do
      paths[#paths + 1] = ffi.string(found.paths[i])
    end
  end
  C.globfree(found)
  table.sort(paths)
  return paths
end

local function unmap_with(bytes)
  return function(data)
    C.munmap(ffi.cast("void *", data), bytes)
  end
end

local about = ffi.new("ms_lua_statx")

-- Which file it is, so that another one of the same name is told from it.
local function inode(descriptor)
  return C.statx(descriptor, "", AT_EMPTY_PATH, STATX_INO_AND_SIZE, about) == 0 and tonumber(about.inode) or nil
end

local function check_length(file)
  if C.statx(AT_FDCWD, file.path, 0, STATX_INO_AND_SIZE, about) ~= 0 then return end
  local bytes = tonumber(about.bytes)
  if bytes < file.bytes and tonumber(about.inode) == file.inode then
    errors.raise("MS_EIO", "file %s has %.0f bytes and had %.0f when it was opened: data must stay as it is during a "
      .. "run", file.path, bytes, file.bytes)
  end
end

-- Maps a file whole. Returns nil and the reason when it cannot be read.
local function map(path)
  local descriptor = C.open(path, O_CLOEXEC + O_NONBLOCK) -- a pipe without a writer would wait for one
  if descriptor < 0 then return nil, ffi.string(C.strerror(ffi.errno())) end
  local bytes = tonumber(C.lseek(descriptor, 0, SEEK_END))
  if bytes < 0 then
    C.close(descriptor)
    return nil, "it is not an ordinary file"
  elseif bytes == 0 then
    C.close(descriptor)
    return { path = path, bytes = 0 }
  end
  local address = C.mmap(nil, bytes, PROT_READ, MAP_SHARED, descriptor, 0)
  local number, file_inode = ffi.errno(), inode(descriptor)
  C.close(descriptor)
  if address == ffi.cast("void *", -1) then return nil, ffi.string(C.strerror(number)) end
  local data = ffi.gc(ffi.cast("const uint8_t *", address), unmap_with(bytes))
  return { path = path, bytes = bytes, data = data, inode = file_inode }
end

local function has_zero_byte(file)
  for i = 0, math.min(file.bytes, BYTES_LOOKED_AT) - 1 do
    if file.data[i] == 0 then return true end
  end
  return false
end

-- The text files among the paths of a folder or pattern.
local function add_found(stream, paths)
  for _, path in ipairs(paths) do
    local real = real_path(path)
    if real and not stream.known[real] and not is_folder(path) then
      local file, why = map(path)
      if not file then errors.raise("MS_EINVAL", "file %s: %s", path, why) end
      if file.bytes > 0 and not has_zero_byte(file) then
        stream.known[real] = true
        stream.files[#stream.files + 1] = file
      end
    end
  end
end

local function add_named(stream, path)
  local file, why = map(path)
  if not file then errors.raise("MS_EINVAL", "file %s: %s", path, why) end
  if file.bytes > 0 then stream.files[#stream.files + 1] = file end
end

local function add_entry(stream, entry)
  if is_folder(entry) then
    local before = #stream.files
    add_found(stream, match(entry:gsub("[%[%]*?\\]", "\\%0") .. "/*"))
    if #stream.files == before then errors.invalid("folder %s: it holds no text files", entry) end
  elseif entry:find("[*?%[]") and not real_path(entry) then
    local paths = match(entry)
    if #paths == 0 then errors.invalid("files %s: nothing matches", entry) end
    add_found(stream, paths)
  else
    add_named(stream, entry)
  end
end

---Opens files as one stream of bytes, in the order they are named; a folder's and a pattern's in the order of names.
---@param spec string|string[] paths, folders or patterns; a string may list several, separated by commas or blanks
---@return moonshard.ByteStream
function files.open(spec)
  local entries = {}
  if type(spec) == "string" and real_path(spec) then
    entries[1] = spec
  elseif type(spec) == "string" then
    for entry in spec:gmatch("[^,%s]+") do
      entries[#entries + 1] = entry
    end
  elseif type(spec) == "table" then
    entries = spec
  else
    errors.invalid("files must be a path, a list of paths, or a pattern, not %s", tostring(spec))
  end
  if #entries == 0 then errors.invalid("files names no file") end
  local stream = setmetatable({ files = {}, known = {}, bytes = 0 }, ByteStream)
  for _, entry in ipairs(entries) do
    if type(entry) ~= "string" then errors.invalid("files lists %s: every entry is a path", tostring(entry)) end
    add_entry(stream, entry)
  end
  for _, file in ipairs(stream.files) do
    stream.bytes = stream.bytes + file.bytes
  end
  return stream
end

---Writes `count` bytes from `offset` on as 32-bit integers. The range must lie within the stream. MS_EIO for a file
---that was cut shorter since it was opened.
---@param offset number
---@param count integer
---@param out ffi.cdata* int32_t [count]
function ByteStream:read(offset, count, out)
  local written = 0
  for _, file in ipairs(self.files) do
    if written == count then break end
    if offset < file.bytes then
      check_length(file)
      local n, data = math.min(count - written, file.bytes - offset), file.data
      for i = 0, n - 1 do
        out[written + i] = data[offset + i]
      end
      written = written + n
      offset = 0
    else
      offset = offset - file.bytes
    end
  end
end

return files
