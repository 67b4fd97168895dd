-- Files that zstd compressed, as files that can be mapped: samples are read in any order, so they are decompressed
-- once, piece by piece, into the user's cache ($XDG_CACHE_HOME/moonshard, else ~/.cache/moonshard). The ranks of a
-- host, and later runs, use the same copy; one that the cache has for another size or time of the file is not used.

local errors = require("moonshard.base.error")
local ffi = require("moonshard.base.ffi").ffi
local files = require("moonshard.data.files")
local hash = require("moonshard.base.hash")
local output_file = require("moonshard.base.output_file")
local world = require("moonshard.distributed.world")
local zstd = require("moonshard.base.zstd")
require("moonshard.base.posix") -- declares poll

local PIECE = 2 ^ 20 -- bytes that are read at a time
local PIECE_LOOKED_AT = 2 ^ 14 -- and when only the beginning is looked at
local POLL_MS = 50 -- between two looks at a file that another rank decompresses

local decompressed = {}

---@param path string
---@return boolean
function decompressed.is_compressed(path) return path:find("%.zst$") ~= nil end

-- Files of other programs than zstd, by the endings of their names.
local OTHERS = { gz = "gzip", xz = "xz", bz2 = "bzip2" }

---Raises for a file that another program than zstd compressed.
---@param path string
function decompressed.refuse_others(path)
  local program = OTHERS[path:lower():match("%.(%w+)$")]
  if not program then return end
  errors.raise("MS_EUNSUPPORTED", "%s: files that %s compressed are not read: decompress it, or compress it with zstd",
    path, program)
end

-- The first bytes of a file, decompressed.
local function beginning_of(path)
  if not decompressed.is_compressed(path) then return files.beginning(path) end
  local source, why = io.open(path, "rb")
  if not source then errors.raise("MS_EIO", "%s", why) end
  local function read() return source:read(PIECE_LOOKED_AT) end
  local ok, found = pcall(zstd.beginning, path, read, files.BEGINNING)
  source:close()
  if not ok then error(found, 0) end
  return found
end

-- Published conversations are also named .json; other files of this name have their objects on several lines.
local function has_json_lines(path, beginning)
  local name = path:lower():gsub("%.zst$", "")
  return name:find("%.jsonl$") ~= nil or name:find("%.json$") ~= nil and beginning:find('^%s*{[ \t]*"') ~= nil
end

---For files.find: takes the files of a folder or pattern that are text by what they contain, also compressed. Raises
---for JSON lines, which text by bytes would take for prose, and for files that other programs compressed.
---@param path string
---@return boolean
function decompressed.select_text(path)
  decompressed.refuse_others(path)
  local beginning = beginning_of(path)
  if has_json_lines(path, beginning) then
    errors.invalid("%s: JSON lines are among the texts: conversations and pairs of answers are read by ms.data.chat "
      .. "and ms.data.preferences; to train on the bytes of this file, list the texts by their names", path)
  end
  return not beginning:find("\0", 1, true)
end

local function cache_folder(path)
  local cache, home = os.getenv("XDG_CACHE_HOME"), os.getenv("HOME")
  if cache and cache:sub(1, 1) == "/" then return cache .. "/moonshard/" end
  if home and home:sub(1, 1) == "/" then return home .. "/.cache/moonshard/" end
  errors.invalid("%s: no folder to decompress it to: set XDG_CACHE_HOME to one", path)
end

local function wait_for_lock(file)
  world.set_activity("data")
  while not output_file.lock(file) do
    world.check_interrupt()
    ffi.C.poll(nil, 0, POLL_MS)
  end
  world.set_activity(nil)
end

local function decompress(path, file, target)
  local source, why = io.open(path, "rb")
  if not source then errors.raise("MS_EIO", "%s", why) end
  local ok, raised = pcall(zstd.stream, path, function()
    world.check_interrupt()
    return source:read(PIECE)
  end, function(text)
    local written, failed = file:write(text)
    if not written then errors.raise("MS_EIO", "%s: decompressing it to %s: %s", path, target, failed) end
  end)
  source:close()
  if not ok then error(raised, 0) end
end

local function empty(path)
  local file, why = io.open(path, "w")
  if not file then errors.raise("MS_EIO", "decompressed data %s", why) end
  file:close()
end

-- Writes next to the target, and renames: a rank that finds the target finds all of it. What fails is emptied and not
-- removed, since other ranks wait for the lock of this very file.
local function make(path, target)
  output_file.make_folders("decompressed data", target)
  local partial = target .. ".partial"
  local file, why = io.open(partial, "ae") -- keeps what another rank is writing
  if not file then errors.raise("MS_EIO", "decompressed data %s", why) end
  file:setvbuf("no")
  wait_for_lock(file)
  if files.exists(target) then -- another rank was first
    os.remove(partial)
    return file:close()
  end
  empty(partial)
  local ok, raised = pcall(decompress, path, file, target)
  if ok then ok, raised = os.rename(partial, target) else empty(partial) end
  file:close()
  if not ok then error(raised, 0) end
end

local function path_of(path)
  decompressed.refuse_others(path)
  if not decompressed.is_compressed(path) then return path end
  local real, written = files.real_path(path), files.written_at(path)
  if not real then errors.invalid("%s: No such file or directory", path) end
  local key = ("%s\n%d\n%s"):format(real, files.bytes(path) or 0, written)
  local name = real:match("([^/]+)%.zst$")
  local target = ("%s%013x-%s"):format(cache_folder(path), hash.of_text(key), name)
  if not files.exists(target) then make(path, target) end
  return target
end

---The paths, with those of decompressed copies in place of .zst files, which are made where they are missing.
---@param list string[]
---@return string[]
function decompressed.paths(list)
  local paths = {}
  for i, path in ipairs(list) do paths[i] = path_of(path) end
  return paths
end

return decompressed
