-- What files contain in another form, as files that can be mapped: samples are read in any order, so a copy is made
-- once, piece by piece, in the user's cache ($XDG_CACHE_HOME/moonshard, else ~/.cache/moonshard). The ranks of a host,
-- and later runs, use the same copy.
--
-- A copy is named by a key of its source (path, version, sampled bytes) and of its form, its own length and a hash of
-- its bytes. Who opens it checks both: a copy that a full disk, a crash or another program changed is made again.

local errors = require("moonshard.base.error")
local ffi = require("moonshard.base.ffi").ffi
local files = require("moonshard.data.files.files")
local hash = require("moonshard.base.hash")
local listing = require("moonshard.data.files.listing")
local output_file = require("moonshard.base.files.output_file")
local text_lines = require("moonshard.base.text.text_lines")
local world = require("moonshard.distributed.world")
require("moonshard.base.posix") -- declares poll

local PIECE = 2 ^ 20 -- bytes that are hashed at a time
local SAMPLED, BLOCK = 64, 4096 -- blocks of a source, and their bytes
local POLL_MS = 50 -- between two looks at a file that another rank makes

local cached_copy = {}

---@class moonshard.CopyForm
---@field what string for messages: "decompressed data"
---@field key string? what distinguishes copies of one source; nil: the only form without a key
---@field write fun(path: string, put: fun(text: string)) gives the copy's bytes

local function cache_folder(path)
  local cache, home = os.getenv("XDG_CACHE_HOME"), os.getenv("HOME")
  if cache and cache:sub(1, 1) == "/" then return cache .. "/moonshard/" end
  if home and home:sub(1, 1) == "/" then return home .. "/.cache/moonshard/" end
  errors.invalid("%s: no folder for a copy of its data: set XDG_CACHE_HOME to one", path)
end

local function wait_for_lock(file)
  world.set_activity("data")
  while not output_file.lock(file) do
    world.check_interrupt()
    ffi.C.poll(nil, 0, POLL_MS)
  end
  world.set_activity(nil)
end

-- ---- lengths and hashes -----------------------------------------------------------------------------------------

-- A hash of pieces of PIECE bytes, however the bytes come.
local Sum = {}
Sum.__index = Sum

local function new_sum() return setmetatable({ bytes = 0, left = "", hashes = {} }, Sum) end

function Sum:add(text)
  self.bytes = self.bytes + #text
  if self.left ~= "" then text = self.left .. text end
  local at = 1
  while #text - at + 1 >= PIECE do
    self.hashes[#self.hashes + 1] = ("%x"):format(hash.of_text(text:sub(at, at + PIECE - 1)))
    at = at + PIECE
  end
  self.left = text:sub(at)
end

-- The length and the hash, as they are in a name.
function Sum:text()
  local hashes = table.concat(self.hashes, " ") .. " " .. ("%x"):format(hash.of_text(self.left))
  return ("%x-%013x"):format(self.bytes, hash.of_text(hashes))
end

local checked = {} -- copies that this process has read through, with their versions then

-- Whether a copy has the length and the hash of its name.
local function is_whole(path)
  local bytes = tonumber(path:match("%-(%x+)%-%x+%-[^/]*$") or "", 16)
  if files.bytes(path) ~= bytes then return false end
  if checked[path] == files.version(path) then return true end
  local file = io.open(path, "rb")
  if not file then return false end
  local sum = new_sum()
  for text in function() return file:read(PIECE) end do
    world.check_interrupt()
    sum:add(text)
  end
  file:close()
  if not path:find("-" .. sum:text() .. "-", 1, true) then return false end
  checked[path] = files.version(path)
  return true
end

-- The copies whose names begin so: at most one, unless the source gave other bytes.
local function copies(prefix) return listing.match(listing.literal(prefix) .. "-*-*-*") end

-- A copy that can be used; those that are damaged are removed.
local function whole_copy(prefix, what)
  for _, path in ipairs(copies(prefix)) do
    if is_whole(path) then return path end
    io.stderr:write(("moonshard: warning: %s, a copy of %s, is damaged: it is made again\n"):format(
      text_lines.escape(path), what))
    os.remove(path)
  end
end

-- ---- making a copy ----------------------------------------------------------------------------------------------

local function fill(path, file, partial, form)
  local sum = new_sum()
  form.write(path, function(text)
    sum:add(text)
    local written, failed = file:write(text)
    if not written then errors.raise("MS_EIO", "%s: writing %s to %s: %s", path, form.what, partial, failed) end
  end)
  output_file.sync(path, file)
  return sum:text()
end

local function empty(path, what)
  local file, why = output_file.open_own(path, "w")
  if not file then errors.raise("MS_EIO", "%s %s", what, why) end
  file:close()
end

-- Writes next to the target, and renames once all of it is on the disk: a rank that finds the target finds all of it.
-- What fails is emptied and not removed, since other ranks wait for the lock of this very file.
local function make(path, prefix, name, form)
  output_file.make_folders(form.what, prefix)
  local partial = ("%s.%s.partial"):format(prefix, name)
  local file, why = output_file.open_own(partial, "ae") -- keeps what another rank is writing
  if not file then errors.raise("MS_EIO", "%s %s", form.what, why) end
  file:setvbuf("no")
  wait_for_lock(file)
  local target = whole_copy(prefix, form.what)
  if target then -- another rank was first
    os.remove(partial)
    file:close()
    return target
  end
  empty(partial, form.what)
  local ok, sum = pcall(fill, path, file, partial, form)
  if ok then
    target = ("%s-%s-%s"):format(prefix, sum, name)
    ok, sum = os.rename(partial, target)
    if ok then
      checked[target] = files.version(target)
      ok, sum = pcall(output_file.sync_folder, path, target)
    end
  else
    empty(partial, form.what)
  end
  file:close()
  if not ok then error(sum, 0) end
  return target
end

-- A hash of blocks spread over a file, with its beginning and its end, where zstd keeps a checksum. File systems of
-- images have no times but those that they were made with.
local function sample(path)
  local file, hashes = files.open(path), {}
  local most = math.max(0, (files.bytes(path) or 0) - BLOCK)
  for i = 0, SAMPLED - 1 do
    file:seek("set", math.floor(most * i / (SAMPLED - 1)))
    hashes[#hashes + 1] = ("%x"):format(hash.of_text(file:read(BLOCK) or ""))
  end
  file:close()
  return table.concat(hashes, " ")
end

---The path of a copy of a file in another form, which is made where it is missing or damaged.
---@param path string
---@param name string with which the copy's name ends
---@param form moonshard.CopyForm
---@return string
function cached_copy.of(path, name, form)
  local real = files.real_path(path)
  if not real then errors.invalid("%s: No such file or directory", path) end
  local key = ("%s\n%s\n%s"):format(real, files.version(path), sample(path))
  if form.key then key = key .. "\n" .. form.key end
  local prefix = ("%s%013x"):format(cache_folder(path), hash.of_text(key))
  return whole_copy(prefix, form.what) or make(path, prefix, name, form)
end

return cached_copy
