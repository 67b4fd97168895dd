-- The saves in the background that have begun and not ended. Whatever ends a run waits for them: all ranks together
-- when all end well, and each rank for its own files alone when one has failed or leaves. The list also keeps a trainer
-- that the recipe has forgotten from being collected with its save.

local engine = require("moonshard.base.ffi")
local written = require("moonshard.base.files.written")
local C, ffi = engine.C, engine.ffi

---@class moonshard.SaveInProgress
---@field path string the checkpoint that it becomes
---@field handle ffi.cdata* ms_save*
---@field is_first boolean whether this rank reports it
---@field finish fun(): string? waits together with all ranks, and raises the save's error

local in_progress = {}

---@type moonshard.SaveInProgress[] the oldest first
local list = {}

---@param entry moonshard.SaveInProgress
function in_progress.add(entry) list[#list + 1] = entry end

---@param entry moonshard.SaveInProgress?
function in_progress.remove(entry)
  for i, one in ipairs(list) do
    if one == entry then table.remove(list, i) return end
  end
end

---Waits for all saves. Raises the error of the first that failed. Collective.
---@return string[] paths of the checkpoints
---@return boolean is_first whether this rank reports one of them
function in_progress.finish()
  local paths, is_first = {}, false
  while list[1] do
    local entry = list[1]
    paths[#paths + 1], is_first = entry.path, is_first or entry.is_first
    entry.finish()
    in_progress.remove(entry)
  end
  return paths, is_first
end

---Waits for this rank's part of all saves, whatever other ranks do.
---@param patience number? seconds without progress after which it gives up; default: the timeout of the run
---@return string[] failures one text for each save that did not come to its end here
function in_progress.drain(patience)
  local failures = {}
  for _, entry in ipairs(list) do
    if C.ms_save_wait(entry.handle, C.MS_SAVE_ENDED, patience or 0) ~= 0 then
      failures[#failures + 1] = ("the save of %s did not end, so there is no such checkpoint: %s"):format(entry.path,
        ffi.string(C.ms_error_message()))
      C.ms_error_clear()
    elseif entry.is_first then
      written.note("checkpoint", entry.path)
    end
  end
  list = {}
  return failures
end

return in_progress
