-- Seconds from a clock that does not jump, and of processor time.

local ffi = require("ffi")

ffi.cdef([[
typedef struct ms_lua_timespec { long seconds; long nanoseconds; } ms_lua_timespec;
int clock_gettime(int clock, ms_lua_timespec *time);
]])

local MONOTONIC, PROCESS, THREAD = 1, 2, 3 -- of Linux
local time = ffi.new("ms_lua_timespec")

local function read(clock)
  ffi.C.clock_gettime(clock, time)
  return tonumber(time.seconds) + 1e-9 * tonumber(time.nanoseconds)
end

---@return number seconds since some fixed point
local function now() return read(MONOTONIC) end

---@return number seconds of processor time that this process's other threads have taken, in it and for it in the kernel
local function other_threads() return read(PROCESS) - read(THREAD) end

return { now = now, other_threads = other_threads }
