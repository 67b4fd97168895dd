-- Keeps the checkpoints that have a step's name, step-00000009, of one line (line.lua), so that the newest of a folder,
-- the list of them, and the number to keep are never of several branches. Those of other branches are set aside:
-- renamed to step-00000009.aside-1, where nothing removes them and a path still resumes from them. They get their names
-- back when a run resumes from one of their line.

local agreement = require("moonshard.distributed.agreement")
local errors = require("moonshard.base.error")
local folder = require("moonshard.checkpoint.folders.folder")
local line = require("moonshard.checkpoint.folders.line")
local log = require("moonshard.metrics.log")
local manifest = require("moonshard.checkpoint.manifest")
local newest = require("moonshard.checkpoint.folders.newest")

local branches = {}

---@class moonshard.Arrangement what to rename in a folder
---@field out moonshard.FolderEntry[] to be set aside
---@field back moonshard.FolderEntry[] of this line, to get their names back
---@field changed_at integer? the step whose checkpoint goes because the weights have changed since
---@field leaves boolean whether the line needs a number of its own from here on

local function read_entry(entry)
  if entry.is_half then return nil end
  local ok, read = pcall(manifest.read, entry.path)
  return ok and read or nil
end

-- The folder as it should be for a trainer. What cannot be read is of this line, if its step is an earlier one.
local function plan(train, root, spared)
  local own = line.of(train)
  local found = { out = {}, back = {}, leaves = false, changed_at = own.changed_at }
  local has_own, goes_on = false, false
  for _, entry in ipairs(folder.entries(root)) do
    local read = read_entry(entry)
    local stays = read and own:has(read) or not read and own.at ~= nil and entry.step <= own.at
    if entry.aside then
      if read and stays then table.insert(found.back, entry) end
    elseif not (stays or entry.is_half or spared[entry.step]) then
      if read then line.check_owner(train, read, entry.path) end
      table.insert(found.out, entry)
    end
    has_own = has_own or read ~= nil and own:is_at(read)
    goes_on = goes_on or read ~= nil and select(2, own:is_left_by(read))
  end
  found.leaves = goes_on or not has_own
  return found
end

local function has_name(root, step)
  for _, entry in ipairs(folder.entries(root)) do
    if entry.step == step and not entry.aside then return true end
  end
  return false
end

local WHY = "checkpoints: this run does not go on from %s: it is renamed to %s"
local WHY_CHANGED = "checkpoints: the weights have changed since %s was saved: it is renamed to %s"

-- Renames, and returns what it did, for a person.
local function carry_out(root, found)
  local said, number = {}, folder.next_aside(root)
  for _, entry in ipairs(found.out) do
    local to = folder.aside(root, entry.step, number)
    folder.rename(entry.path, to)
    said[#said + 1] = (found.changed_at == entry.step and WHY_CHANGED or WHY):format(entry.path, to:match("[^/]*$"))
  end
  for _, entry in ipairs(found.back) do
    local to = folder.of(root, entry.step)
    if not has_name(root, entry.step) then
      folder.rename(entry.path, to)
      said[#said + 1] = ("checkpoints: %s is renamed to %s, as this run goes on from it"):format(entry.path,
        to:match("[^/]*$"))
    end
  end
  return said
end

-- Whether names alone show that another branch is there.
local function has_later(train, root)
  local at = line.of(train).at or -1
  for _, entry in ipairs(folder.entries(root)) do
    if not entry.aside and not entry.is_half and entry.step > at then return true end
  end
  return false
end

-- Whether the folder has to be looked through: before the first save, and when others have appeared.
local function needs_look(train, root, disk)
  if line.of(train).arranged[root] then return disk.is_first and has_later(train, root) end
  folder.check_whole("checkpoints", root, train.steps_done - 1)
  return true
end

local function carry_out_all(session, disk, root, found)
  local ok, said = pcall(function() return disk.is_first and carry_out(root, found) or {} end)
  agreement.raise_first_failure(session, "of the folder's branches", ok, said)
  if not session:is_first() then return end
  for _, text in ipairs(said) do log.line(text) end
end

---Sets aside the checkpoints of a folder that a trainer does not go on from, before it saves the first one there, and
---whenever others have appeared. Collective.
---@param train moonshard.Trainer
---@param root string
---@param disk moonshard.Disk
function branches.arrange(train, root, disk)
  local session, own = train.session, line.of(train)
  local ok, needs = pcall(needs_look, train, root, disk)
  agreement.raise_first_failure(session, "of the folder", ok, needs)
  local wanted, ids = session:gather_numbers(needs and 1 or 0, "of the folder's branches", line.new_id())
  local any = false
  for _, one in ipairs(wanted) do any = any or one == 1 end
  if not any then return end
  local spared = disk.split and newest.partial(session, root, own.at or -1) or {}
  local found
  ok, found = pcall(function() return disk.is_first and plan(train, root, spared) or { leaves = false } end)
  agreement.raise_first_failure(session, "of the folder's branches", ok, found)
  carry_out_all(session, disk, root, found)
  own.arranged[root] = true
  local leaves = false
  for _, one in ipairs(session:gather_numbers(found.leaves and 1 or 0, "of the branch")) do
    leaves = leaves or one == 1
  end
  if leaves or own.leaves or not own.id then own:begin(ids[1]) end
end

---Refuses a folder with a run that already goes on from the checkpoint that is to be resumed from by its path, or with
---the checkpoints of another run. Collective.
---@param who string for messages
---@param session moonshard.Session
---@param root string
---@param from string the path that is to be resumed from
---@param read moonshard.Manifest what is there
function branches.check_resumed(who, session, root, from, read)
  local own = line.to(read)
  local ok, raised = pcall(function()
    local latest, has_own, goes_on = nil, false, nil
    for _, entry in ipairs(folder.entries(root)) do
      local other = read_entry(entry)
      has_own = has_own or other ~= nil and own:is_at(other)
      if other and not entry.aside then
        latest = entry.path
        if own:is_left_by(other) then goes_on = entry.path end
      end
    end
    if goes_on then
      errors.invalid("%s: %s goes on from %s already: resume=auto goes on from the newest; to begin at %s once more, "
        .. "move that away first", who, goes_on, from, from)
    elseif latest and not has_own then
      errors.invalid("%s: folder %s contains %s of another run than %s: resume it with resume=auto, or save into "
        .. "another folder", who, root, latest:match("[^/]*$"), from)
    end
  end)
  agreement.raise_first_failure(session, "of the folder's branches", ok, raised)
end

return branches
