-- The checkpoint that a path names, for ranks on several hosts: the newest that every rank sees. Where each host has a
-- folder of its own, a run can end when some hosts have committed a checkpoint and others have not. Older ones are kept
-- until all have, so the ranks go on from the newest that all of them see.

local disks = require("moonshard.checkpoint.folders.disks")
local errors = require("moonshard.base.error")
local folder = require("moonshard.checkpoint.folders.folder")
local manifest = require("moonshard.checkpoint.manifest")

local newest = {}

local DAMAGED = -1

---What distinguishes two saves of the same step.
---@param path string
---@return number? save the number of the save, 0 for a checkpoint of one folder, -1 for a damaged one; nil: none
---@return boolean? lacks whether parts are missing in this folder
function newest.save_of(path)
  if not folder.is_checkpoint(path) then return nil end
  local ok, read = pcall(manifest.read, path)
  if not ok then return DAMAGED, false end
  return read.save or 0, read.missing ~= nil and #read.missing > 0
end

-- What distinguishes checkpoints of a step that ranks read, in one folder or in several. As save_of for damaged ones.
local function contents_of(path)
  local ok, read = pcall(manifest.read, path)
  return ok and read.contents or DAMAGED
end

-- The ranks that do not see a checkpoint of a step, and those that do.
local function divide(session, steps, step)
  local with, without = {}, {}
  for place, rank in ipairs(session:ranks()) do table.insert(steps[place] < step and without or with, rank) end
  return with, without
end

local function highest(numbers)
  local found = numbers[1]
  for _, number in ipairs(numbers) do found = math.max(found, number) end
  return found
end

local function lowest(numbers)
  local found = numbers[1]
  for _, number in ipairs(numbers) do found = math.min(found, number) end
  return found
end

local function refuse(session, who, root, steps)
  local step = highest(steps)
  local with, without = divide(session, steps, step)
  if #without == 0 then
    errors.invalid("%s: %s is of another save on each of %s, and no checkpoint there is the same on all: copy the "
      .. "folder of one of them to the others", who, folder.of(root, step), disks.hosts_of(with))
  end
  errors.invalid("%s: %s is on %s and not on %s, which has no checkpoint in common with it: copy the folder, or its "
    .. "rank-* files, to where they are missing", who, folder.of(root, step), disks.hosts_of(with),
    disks.hosts_of(without))
end

-- Whether all ranks see the same checkpoint of this step. A damaged one is agreed on, too: loading it
-- reports the damage.
local function are_one(steps, saves)
  local same
  for place, save in ipairs(saves) do
    if steps[place] ~= steps[1] then return false end
    if save ~= DAMAGED then
      same = same or save
      if same ~= save then return false end
    end
  end
  return true
end

-- From the newest that each rank sees down to the newest that all see.
local function agree(session, who, root)
  local limit, first_steps = math.huge, nil
  repeat
    local path, step = folder.latest(root, limit)
    local steps, saves = session:gather_numbers(step or -1, "of the newest checkpoint", path and contents_of(path) or 0)
    first_steps = first_steps or steps
    if are_one(steps, saves) then
      if not path and highest(first_steps) >= 0 then refuse(session, who, root, first_steps) end
      return path, step, first_steps
    end
    limit = math.min(lowest(steps), highest(steps) - 1)
  until limit < 0
  refuse(session, who, root, first_steps)
end

---The steps after one of which some ranks see a checkpoint that others do not: what a run that was killed left.
---Collective.
---@param session moonshard.Session
---@param root string
---@param after integer
---@return table<integer, boolean>
function newest.partial(session, root, after)
  local found, limit = {}, math.huge
  while true do
    local path, step = folder.latest(root, limit)
    if step and step <= after then path, step = nil, nil end
    local save = path and newest.save_of(path) or 0
    local steps, saves = session:gather_numbers(step or -1, "of later checkpoints", save)
    local last = highest(steps)
    if last < 0 then return found end
    if not are_one(steps, saves) then found[last] = true end
    limit = last - 1
  end
end

local function note_of(session, root, step, steps)
  local found = highest(steps)
  if found == step then return nil end
  local _, without = divide(session, steps, found)
  local where = #without > 0 and "not on " .. disks.hosts_of(without) or "not the same on every host"
  return ("; %s is newer, but %s"):format(folder.of(root, found), where)
end

---The newest checkpoint of a folder that all ranks of a model see. Collective. Raises MS_EINVAL if some ranks see
---checkpoints, but none that all see.
---@param session moonshard.Session
---@param who string for messages
---@param root string
---@return string? path nil when no rank sees one
---@return string? note about a newer one that not all see
function newest.of(session, who, root)
  if not disks.are_on_several_hosts(session:ranks()) then return (folder.latest(root)) end
  local path, step, steps = agree(session, who, root)
  return path, path and note_of(session, root, step, steps)
end

local NOTHING, CONTAINS, IS_ONE = 0, 1, 2

local function look(path)
  if folder.is_checkpoint(path) then return IS_ONE end
  local ok, latest = pcall(folder.latest, path)
  return (not ok or latest) and CONTAINS or NOTHING
end

local function refuse_some(session, who, path, kinds)
  local with, without = {}, {}
  for place, rank in ipairs(session:ranks()) do table.insert(kinds[place] == NOTHING and without or with, rank) end
  if #without > 0 and #with > 0 then
    errors.invalid("%s: %s is on %s, but not on %s: copy it there, or give a folder that all hosts share", who, path,
      disks.hosts_of(with), disks.hosts_of(without))
  end
end

---The checkpoint that a path names, itself or the newest in it, for ranks on several hosts. Collective.
---@param session moonshard.Session
---@param who string for messages
---@param path string
---@return string path the given one where it names none on any host; raises MS_EINVAL when some hosts do not have it
---@return string? note about a newer one that not all see
function newest.find(session, who, path)
  local kinds = session:gather_numbers(look(path), "of the checkpoint")
  refuse_some(session, who, path, kinds)
  if lowest(kinds) == CONTAINS and highest(kinds) == CONTAINS then
    local found, note = newest.of(session, who, path)
    if found then return found, note end
  end
  return path
end

return newest
