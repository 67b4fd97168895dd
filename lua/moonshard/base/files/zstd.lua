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
int ZSTD_getErrorCode(size_t code);
size_t ZSTD_DCtx_setParameter(void *stream, int parameter, int value);
]]

local PIECE = 2 ^ 20 -- bytes that are decompressed at a time
-- The largest window, 2 GiB, which zstd --ultra --long=31 writes; so much memory is used for a file that has it. The
-- library's own limit is 128 MiB.
local LARGEST_WINDOW, WINDOW_LOG_MAX, WINDOW_TOO_LARGE, NO_MEMORY = 31, 100, 16, 64

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

local function refuse(lib, path, result)
  local code = lib.ZSTD_getErrorCode(result)
  if code == WINDOW_TOO_LARGE then
    errors.raise("MS_EUNSUPPORTED", "%s: its zstd frames have a window of more than %d GiB: compress it again with a "
      .. "smaller one, as zstd has without --long", path, 2 ^ (LARGEST_WINDOW - 30))
  elseif code == NO_MEMORY then
    errors.raise("MS_ENOMEM", "%s: no memory to decompress it, for which its zstd frames need as much as their window: "
      .. "compress it again with a smaller one, as zstd has without --long", path)
  end
  errors.invalid("%s: it is not a zstd file, or it is damaged: %s", path, ffi.string(lib.ZSTD_getErrorName(result)))
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
      if lib.ZSTD_isError(left) ~= 0 then refuse(lib, path, left) end
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
  ffi.gc(stream, lib.ZSTD_freeDStream)
  lib.ZSTD_DCtx_setParameter(stream, WINDOW_LOG_MAX, LARGEST_WINDOW)
  decompress(lib, stream, path, read, write)
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
