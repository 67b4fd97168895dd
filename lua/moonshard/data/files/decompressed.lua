-- Files that zstd compressed, as files that can be mapped: each is decompressed once, piece by piece, into a copy in
-- the user's cache (cached_copy.lua).

local cached_copy = require("moonshard.data.files.cached_copy")
local file_kind = require("moonshard.data.files.file_kind")
local files = require("moonshard.data.files.files")
local world = require("moonshard.distributed.world")
local zstd = require("moonshard.base.files.zstd")

local PIECE = 2 ^ 20 -- bytes that are read at a time
local PIECE_LOOKED_AT = 2 ^ 14 -- and when only the beginning is looked at

local decompressed = {}

---Whether a file is read through zstd: by its name, .zst, or by what it contains.
---@param path string
---@return boolean
function decompressed.is_compressed(path)
  if path:find("%.zst$") then return true end
  local kind = files.bytes(path) and file_kind.of(files.beginning(path))
  return kind and kind.reads == "zstd" or false
end

---The first bytes of a file, decompressed.
---@param path string
---@return string
function decompressed.beginning(path)
  if not decompressed.is_compressed(path) then return files.beginning(path) end
  local source = files.open(path)
  local function read() return source:read(PIECE_LOOKED_AT) end
  local ok, found = pcall(zstd.beginning, path, read, files.BEGINNING)
  source:close()
  if not ok then error(found, 0) end
  return found
end

local function decompress(path, put)
  local source = files.open(path)
  local ok, raised = pcall(zstd.stream, path, function()
    world.check_interrupt()
    return source:read(PIECE)
  end, put)
  source:close()
  if not ok then error(raised, 0) end
end

local FORM = { what = "decompressed data", write = decompress }

local function path_of(path)
  if not decompressed.is_compressed(path) then return path end
  local name = (files.real_path(path) or path):match("[^/]+$"):gsub("%.zst$", "")
  return cached_copy.of(path, name, FORM)
end

---The paths, with those of decompressed copies in place of files that zstd compressed, which are made where they are
---missing or damaged.
---@param list string[]
---@return string[]
function decompressed.paths(list)
  local paths = {}
  for i, path in ipairs(list) do paths[i] = path_of(path) end
  return paths
end

return decompressed
