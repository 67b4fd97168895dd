-- Locks on files that one run at a time may write. The kernel gives a lock back when its holder ends, however it ends.

local ffi = require("ffi")

ffi.cdef [[
int fileno(void *file);
int flock(int descriptor, int operation);
]]

local file_lock = {}

local LOCK_EX, LOCK_NB, EWOULDBLOCK = 2, 4, 11 -- Linux

---Locks an open file until it is closed. A file system without locks locks nothing.
---@param file file*
---@return boolean free false: another process holds it
function file_lock.take(file)
  return ffi.C.flock(ffi.C.fileno(file), LOCK_EX + LOCK_NB) == 0 or ffi.errno() ~= EWOULDBLOCK
end

return file_lock
