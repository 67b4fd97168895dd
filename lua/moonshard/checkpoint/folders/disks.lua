-- Which ranks see the same folder. On several hosts a path can be one folder for all ranks (a network file system), or
-- one on each host's own disk. A disk is the set of ranks for which it is one folder; the first of them makes folders
-- there, locks and commits.
--
-- The ranks find out by files: each makes one, named after it, and looks for the lowest rank whose file it sees. Such a
-- name was never looked up before, so no cache of a network file system can answer for the server.

local agreement = require("moonshard.distributed.agreement")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local folder = require("moonshard.checkpoint.folders.folder")
local input_file = require("moonshard.base.files.input_file")
local log = require("moonshard.metrics.log")
local output_file = require("moonshard.base.files.output_file")
local same_run = require("moonshard.engine.agreement.same_run")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

local PATH_BYTES = 4096 -- of a working directory

ffi.cdef "char *getcwd(char *path, size_t bytes);"

local disks = {}

---@class moonshard.Disk
---@field split boolean other ranks of the model are on other disks
---@field first integer the lowest rank on this disk
---@field is_first boolean this rank is that one
---@field holds table<integer, boolean> the ranks on it
---@field writers integer[] their indices among the ranks of the model, from 0

---Whether ranks are on several hosts.
---@param ranks integer[]
---@return boolean
function disks.are_on_several_hosts(ranks)
  if world.plan_only then return false end
  for _, rank in ipairs(ranks) do
    if world.node_of(rank) ~= world.node_of(ranks[1]) then return true end
  end
  return false
end

---@param rank integer
---@return string
function disks.host_of(rank) return world.node_name(world.node_of(rank)) end

---The names of the hosts of some ranks, each once: "a, b".
---@param ranks integer[]
---@return string
function disks.hosts_of(ranks)
  local names, seen = {}, {}
  for _, rank in ipairs(ranks) do
    local node = world.node_of(rank)
    if not seen[node] then names[#names + 1] = world.node_name(node) end
    seen[node] = true
  end
  return table.concat(names, ", ")
end

local function make_file(path)
  local file, why = output_file.open_own(path, "w")
  if not file then errors.raise("MS_EIO", "%s", why) end
  file:close()
end

-- The lowest rank on this rank's disk, and the file that this rank made there.
local function find_first(session, root)
  local ranks, me = session:ranks(), session.sharding.rank
  local nonce = session:gather_numbers(folder.nonce(), "of a folder's disks")[1]
  local function file_of(rank) return ("%s/.rank-%d.%.0f"):format(root, rank, nonce) end
  local ok, raised = pcall(function()
    check(C.ms_checkpoint_make_folder(root, 0))
    make_file(file_of(me))
  end)
  agreement.raise_first_failure(session, "of a folder's disks", ok, raised)
  for _, rank in ipairs(ranks) do
    if input_file.exists(file_of(rank)) then return rank, file_of(me) end
  end
  errors.raise("MS_EIO", "%s: a file that was just made there is gone", file_of(me))
end

-- A forgotten mount should not go unnoticed.
local function tell(root, firsts)
  local owners, seen = {}, {}
  for _, first in ipairs(firsts) do
    if not seen[first] then owners[#owners + 1] = first end
    seen[first] = true
  end
  log.line(("checkpoints: %s is a folder of its own on each of %s, which gets the parts of its ranks"):format(root,
    disks.hosts_of(owners)))
end

-- A relative path is one folder for the ranks of a host only if they work in one.
local function require_same_directory(session, root)
  if root:sub(1, 1) == "/" then return end
  local path = ffi.C.getcwd(ffi.new("char[?]", PATH_BYTES), PATH_BYTES)
  local directory = path ~= nil and ffi.string(path) or "none"
  local fact = { "the working directory", directory, "give the absolute path of a folder" }
  same_run.new("checkpoints in " .. root, { fact }, {}):require(session, "of a folder's disks")
end

local function find(session, root)
  local ranks, me = session:ranks(), session.sharding.rank
  local firsts, first = {}, ranks[1]
  if disks.are_on_several_hosts(ranks) then
    local file
    first, file = find_first(session, root)
    firsts = session:gather_numbers(first, "of a folder's disks")
    os.remove(file)
  else
    require_same_directory(session, root)
  end
  local disk = { split = false, first = first, is_first = first == me, holds = {}, writers = {} }
  for place, rank in ipairs(ranks) do
    if (firsts[place] or first) == first then
      disk.holds[rank] = true
      disk.writers[#disk.writers + 1] = place - 1
    else
      disk.split = true
    end
  end
  if disk.split and ranks[1] == me then tell(root, firsts) end
  return disk
end

---The disk on which this rank sees a folder, which is made if it does not exist. Found out once for a folder.
---Collective.
---@param session moonshard.Session
---@param root string
---@return moonshard.Disk
function disks.of(session, root)
  session.disks = session.disks or {}
  session.disks[root] = session.disks[root] or find(session, root)
  return session.disks[root]
end

---The same, if it is known; nil otherwise.
---@param session moonshard.Session
---@param root string
---@return moonshard.Disk?
function disks.known(session, root) return session.disks and session.disks[root] end

return disks
