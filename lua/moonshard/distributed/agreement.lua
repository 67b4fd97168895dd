-- What became of a step that every rank makes by itself: told by each to all, so that all go on or none does, and all
-- say the same.

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

local TEXT_BYTES = 1024

ffi.cdef(("typedef struct { int code; char text[%d]; } ms_lua_verdict;"):format(TEXT_BYTES))

local function failed_as(raised)
  if errors.is(raised) then return raised.code, raised.message end
  return errors.CODES.MS_EINTERNAL, tostring(raised)
end

---Raises the error of the first rank that failed, on all ranks. Collective over the ranks of a model.
---@param session moonshard.Session
---@param what string what was tried, for reports: "of the save"
---@param ok boolean
---@param raised any the error when not ok
local function verdict(session, what, ok, raised)
  local ranks = session:ranks()
  local mine, all = ffi.new("ms_lua_verdict"), ffi.new("ms_lua_verdict[?]", #ranks)
  if not ok then
    local code, text = failed_as(raised)
    mine.code = code
    ffi.copy(mine.text, text:sub(1, TEXT_BYTES - 1))
  end
  local state = session:ensure_state()
  world.doing(what)
  local status = C.ms_state_all_gather_bytes(state, mine, ffi.sizeof(mine), all)
  world.doing(nil)
  if not ok then error(raised, 0) end
  check(status)
  for place, rank in ipairs(ranks) do
    local other = all[place - 1]
    if other.code ~= 0 then
      errors.raise(ffi.string(C.ms_status_name(other.code)), "rank %d: %s", rank, ffi.string(other.text))
    end
  end
end

return verdict
