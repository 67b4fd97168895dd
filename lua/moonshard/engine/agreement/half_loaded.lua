-- A load that is refused changes nothing, and one that fails later, over a damaged file, leaves values that are neither
-- the old ones nor those of the checkpoint. The session remembers that, and nothing trains, evaluates or saves until a
-- load has replaced all that the failed one may have touched.

local errors = require("moonshard.base.error")

local half_loaded = {}

-- What a load replaces, the least first; each replaces what those before it do.
local EXTENTS = {
  weights = { rank = 1, text = "the weights are in part those of %s", with = "" },
  run = { rank = 2, text = "the weights and the optimizer's state are in part those of %s", with = " with a trainer" },
  data = { rank = 3, text = "data may be at the position of %s", with = " with a trainer and data" },
}

---@class moonshard.HalfLoaded
---@field path string the checkpoint whose load failed
---@field extent "weights"|"run"|"data" what it may have replaced

---Notes that a load begins to replace values. What an earlier one left half done stays noted.
---@param session moonshard.Session
---@param path string
---@param extent "weights"|"run"|"data"
function half_loaded.begin(session, path, extent)
  local before = session.half_loaded
  if before and EXTENTS[before.extent].rank > EXTENTS[extent].rank then return end
  session.half_loaded = { path = path, extent = extent }
end

---Notes that a load has replaced all that it should.
---@param session moonshard.Session
---@param extent "weights"|"run"|"data"
function half_loaded.finish(session, extent)
  local before = session.half_loaded
  if before and EXTENTS[before.extent].rank <= EXTENTS[extent].rank then session.half_loaded = nil end
end

---Raises MS_EINVAL where a load has failed part-way, and no other has replaced what it left.
---@param session moonshard.Session
function half_loaded.check(session)
  local failed = session.half_loaded
  if not failed then return end
  local extent = EXTENTS[failed.extent]
  errors.invalid("%s, whose load failed: load a checkpoint that is whole%s, or let the run end",
    extent.text:format(failed.path), extent.with)
end

return half_loaded
