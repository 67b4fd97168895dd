-- Reads files that zstd compressed, in one piece, through the system's library.

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

local function decompress(lib, stream, path, compressed)
  local parts, piece = {}, ffi.new("uint8_t[?]", PIECE)
  local from = ffi.new("ms_lua_zstd_in", { src = compressed, size = #compressed, pos = 0 })
  local into = ffi.new("ms_lua_zstd_out", { dst = piece, size = PIECE })
  local left = 0 -- of the current frame: 0 at its end
  -- A full output can hide more, unless the frame has ended.
  while from.pos < from.size or left ~= 0 and into.pos == into.size do
    into.pos = 0
    left = lib.ZSTD_decompressStream(stream, into, from)
    if lib.ZSTD_isError(left) ~= 0 then
      errors.invalid("%s: it is not a zstd file, or it is damaged: %s", path, ffi.string(lib.ZSTD_getErrorName(left)))
    end
    parts[#parts + 1] = ffi.string(piece, into.pos)
  end
  if left ~= 0 or #compressed == 0 then errors.invalid("%s: it ends in the middle of a zstd frame", path) end
  return table.concat(parts)
end

---The contents of a compressed file.
---@param path string for messages
---@param compressed string its bytes
---@return string
function zstd.decompress(path, compressed)
  local lib = load()
  local stream = lib.ZSTD_createDStream()
  if stream == nil then errors.raise("MS_ENOMEM", "%s: no memory to decompress it", path) end
  return decompress(lib, ffi.gc(stream, lib.ZSTD_freeDStream), path, compressed)
end

return zstd
