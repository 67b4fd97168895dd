-- Files that a run writes when it ends: checked when it begins, because hours of training may lie between.

local ffi = require("ffi")
local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.input_file")

ffi.cdef [[
int mkdir(const char *path, unsigned mode);
int open(const char *path, int flags, ...);
int close(int descriptor);
long lseek(int descriptor, long offset, int whence);
int ferror(void *file);
char *strerror(int number);
int fileno(void *file);
int flock(int descriptor, int operation);
]]

local output_file = {}

local ANYBODY = 511 -- rwx for all, which the umask narrows

---Makes the folders on the way to a path that are not there yet. Where that fails, opening the file tells.
---@param path string "build/train/loss.svg"; "build/logs/" makes logs too
function output_file.make_folders(path)
  for at in path:gmatch("()/") do
    if at > 1 then ffi.C.mkdir(path:sub(1, at - 1), ANYBODY) end
  end
end

local O_WRONLY, O_NONBLOCK, O_CLOEXEC, SEEK_CUR, ENXIO = 1, 0x800, 0x80000, 1, 6 -- Linux

-- Opens as io.open does, but does not wait for a pipe's reader. A pipe stays open until the process ends as well, or
-- its reader would take the end of a check for the end of the run.
local function open_unblocked(path, mode)
  local descriptor = ffi.C.open(path, O_WRONLY + O_NONBLOCK + O_CLOEXEC)
  if descriptor < 0 and ffi.errno() == ENXIO then
    return nil, path .. ": no process reads this pipe: start the reader first"
  end
  local file, why = io.open(path, mode)
  if descriptor >= 0 and ffi.C.lseek(descriptor, 0, SEEK_CUR) >= 0 then ffi.C.close(descriptor) end
  return file, why
end

---Makes the folders, and raises MS_EINVAL when the file could not be written. What stands in it is left as it is.
---@param what string for messages: "chart"
---@param path string
function output_file.check(what, path)
  output_file.make_folders(path)
  local before = input_file.exists(path)
  local file, why = open_unblocked(path, "ab")
  if not file then errors.raise("MS_EINVAL", "%s %s", what, why) end
  file:close()
  if not before then os.remove(path) end
end

---Opens a file to which a run adds lines as it goes: one `file:write(line)` each, which is there, or has failed, when
---it returns. There is no buffer to flush: a flush that LuaJIT has compiled and that fails (a full disk) is done again
---by the interpreter, which finds the buffer empty and says that all is well.
---@param path string
---@param mode "w"|"ae" as in io.open; e: children do not inherit it
---@return file*? nil and why
---@return string?
function output_file.open_lines(path, mode)
  local file, why = open_unblocked(path, mode)
  if file then file:setvbuf("no") end
  return file, why
end

local LOCK_EX, LOCK_NB, EWOULDBLOCK = 2, 4, 11 -- Linux

---Locks an open file, which one run at a time may write, until it is closed or the process ends, however it ends. A
---file system without locks locks nothing.
---@param file file*
---@return boolean free false: another process holds it
function output_file.lock(file)
  return ffi.C.flock(ffi.C.fileno(file), LOCK_EX + LOCK_NB) == 0 or ffi.errno() ~= EWOULDBLOCK
end

local STDOUT = 1
local ENOSPC, EFBIG, EDQUOT = 28, 27, 122

local function fail_printed(why) errors.raise("MS_EIO", "standard output: %s", why) end

---Writes to standard output, at once; raises MS_EIO when the disk has no room for it. A terminal or a reader that went
---away is no reason to stop a run.
---@param ... string
function output_file.print(...)
  io.write(...)
  io.flush()
  -- Both may say that all is well when what they had buffered is lost.
  local number = ffi.errno()
  if ffi.C.ferror(io.output()) == 0 then return end
  if number == ENOSPC or number == EFBIG or number == EDQUOT then fail_printed(ffi.string(ffi.C.strerror(number))) end
end
jit.off(output_file.print) -- or something else could set errno

---Raises MS_EIO when something that was printed before, by print or a library, had no room on the disk.
function output_file.check_printed()
  io.stdout:flush()
  -- Only what lies on a disk, and what stands for one, has places to seek.
  if ffi.C.ferror(io.stdout) ~= 0 and ffi.C.lseek(STDOUT, 0, SEEK_CUR) >= 0 then
    fail_printed("some output could not be written: is the disk full?")
  end
end

---Writes a document, with folders on the way to it.
---@param what string for messages: "chart"
---@param path string
---@param document string
function output_file.write(what, path, document)
  output_file.make_folders(path)
  local file, why = open_unblocked(path, "w")
  if not file then errors.raise("MS_EIO", "%s %s", what, why) end
  local ok, failed = file:write(document)
  ok, failed = file:close() and ok, failed
  if not ok then errors.raise("MS_EIO", "%s %s: %s", what, path, failed or "it could not be written completely") end
end

return output_file
