-- Wall-clock seconds from a clock that does not jump.

local ffi = require("ffi")

ffi.cdef([[
typedef struct ms_lua_timespec { long seconds; long nanoseconds; } ms_lua_timespec;
int clock_gettime(int clock, ms_lua_timespec *time);
]])

local MONOTONIC = 1
local time = ffi.new("ms_lua_timespec")

---@return number seconds since some fixed point
local function now()
  ffi.C.clock_gettime(MONOTONIC, time)
  return tonumber(time.seconds) + 1e-9 * tonumber(time.nanoseconds)
end

return { now = now }
