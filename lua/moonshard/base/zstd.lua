-- Reads files that zstd compressed, through the system's library.

local ffi = require("ffi")
local errors = require("moonshard.base.error")

ffi.cdef [[
typedef struct { const void *src; size_t size, pos; } ms_lua_zstd_in;
typedef struct { void *dst; size_t size, pos; } ms_lua_zstd_out;
void *ZSTD_createDStream(void);
size_t ZSTD_freeDStream(void *stream);
size_t ZSTD_decompressStream(void *stream, ms_lua_zstd_out *out, ms_lua_zstd_in *in);
unsigned ZSTD_isError(size_t code);
const char *ZSTD_getErrorName(size_t code);
]]

local PIECE = 2 ^ 20 -- bytes that are decompressed at a time

local zstd = {}

local library

local function load()
  if library then return library end
  local ok, found = pcall(ffi.load, "libzstd.so.1")
  if not ok then
    errors.raise("MS_EUNSUPPORTED", "reading .zst files needs libzstd.so.1, which is not installed (Debian: libzstd1)")
  end
  library = found
  return library
end

local function decompress(lib, stream, path, read, write)
  local piece = ffi.new("uint8_t[?]", PIECE)
  local into = ffi.new("ms_lua_zstd_out", { dst = piece, size = PIECE })
  local left, any = 0, false -- left: of the current frame, 0 at its end
  for compressed in read do
    local from = ffi.new("ms_lua_zstd_in", { src = compressed, size = #compressed, pos = 0 })
    any = true
    -- A full output can hide more, unless the frame has ended.
    while from.pos < from.size or left ~= 0 and into.pos == into.size do
      into.pos = 0
      left = lib.ZSTD_decompressStream(stream, into, from)
      if lib.ZSTD_isError(left) ~= 0 then
        errors.invalid("%s: it is not a zstd file, or it is damaged: %s", path, ffi.string(lib.ZSTD_getErrorName(left)))
      end
      write(ffi.string(piece, into.pos))
    end
  end
  if left ~= 0 or not any then errors.invalid("%s: it ends in the middle of a zstd frame", path) end
end

---Decompresses piece by piece.
---@param path string for messages
---@param read fun(): string? the next compressed bytes, in pieces of any size; nil: no more
---@param write fun(text: string) takes the next decompressed bytes
function zstd.stream(path, read, write)
  local lib = load()
  local stream = lib.ZSTD_createDStream()
  if stream == nil then errors.raise("MS_ENOMEM", "%s: no memory to decompress it", path) end
  decompress(lib, ffi.gc(stream, lib.ZSTD_freeDStream), path, read, write)
end

---The first decompressed bytes of a file, so many, or all if it has fewer.
---@param path string for messages
---@param read fun(): string? as of zstd.stream
---@param bytes integer
---@return string
function zstd.beginning(path, read, bytes)
  local found = ""
  local ok, raised = pcall(zstd.stream, path, read, function(text)
    found = found .. text
    if #found >= bytes then error(zstd) end -- enough
  end)
  if not ok and raised ~= zstd then error(raised, 0) end
  return found:sub(1, bytes)
end

---The contents of a compressed file.
---@param path string for messages
---@param compressed string its bytes
---@return string
function zstd.decompress(path, compressed)
  local parts, given = {}, #compressed > 0 and compressed or nil
  zstd.stream(path, function()
    local text = given
    given = nil
    return text
  end, function(text) parts[#parts + 1] = text end)
  return table.concat(parts)
end

return zstd
