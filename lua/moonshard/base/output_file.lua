-- Files that a run writes at its end. They are checked at its start, so that an error does not cost hours of training.

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

local ANYBODY = 511 -- rwx for everyone, before the umask applies

---Makes the missing folders of a path; raises MS_EINVAL if that fails.
---@param what string for messages: "log file"
---@param path string "build/train/loss.svg"; "build/logs/" makes logs too
function output_file.make_folders(what, path)
  for at in path:gmatch("()/") do
    local folder = path:sub(1, at - 1)
    if at > 1 and ffi.C.mkdir(folder, ANYBODY) ~= 0 then
      local number = ffi.errno()
      if not input_file.exists(folder) then
        errors.raise("MS_EINVAL", "%s %s: folder %s: %s", what, path, folder, ffi.string(ffi.C.strerror(number)))
      end
    end
  end
end
jit.off(output_file.make_folders) -- compiled code could change errno in between

local O_WRONLY, O_NONBLOCK, O_CLOEXEC, SEEK_CUR, ENXIO = 1, 0x800, 0x80000, 1, 6 -- Linux

-- Opens like io.open, but does not wait for a pipe's reader. A pipe stays open until the process exits: closing it
-- after the check would end the reader's input.
local function open_unblocked(path, mode)
  local descriptor = ffi.C.open(path, O_WRONLY + O_NONBLOCK + O_CLOEXEC)
  if descriptor < 0 and ffi.errno() == ENXIO then
    return nil, path .. ": no process reads this pipe: start the reader first"
  end
  local file, why = io.open(path, mode)
  if descriptor >= 0 and ffi.C.lseek(descriptor, 0, SEEK_CUR) >= 0 then ffi.C.close(descriptor) end
  return file, why
end

---Makes the folders, and raises MS_EINVAL if the file cannot be written. Existing content is kept.
---@param what string for messages: "chart"
---@param path string
function output_file.check(what, path)
  output_file.make_folders(what, path)
  local before = input_file.exists(path)
  local file, why = open_unblocked(path, "ab")
  if not file then errors.raise("MS_EINVAL", "%s %s", what, why) end
  file:close()
  if not before then os.remove(path) end
end

---Opens a file to which a run appends lines: one `file:write(line)` each, which has reached the file, or failed, when
---it returns. Unbuffered, because a compiled flush that fails (full disk) is repeated by LuaJIT's interpreter, which
---finds the buffer empty and returns success.
---@param path string
---@param mode "w"|"ae" as for io.open; e: children do not inherit the descriptor
---@return file*? file nil and why
---@return string?
function output_file.open_lines(path, mode)
  local file, why = open_unblocked(path, mode)
  if file then file:setvbuf("no") end
  return file, why
end

local LOCK_EX, LOCK_NB, EWOULDBLOCK = 2, 4, 11 -- Linux

---Locks an open file, so that only one run writes it, until it is closed or the process ends in any way. On a file
---system without locks this has no effect.
---@param file file*
---@return boolean free false if another process holds the lock
function output_file.lock(file)
  return ffi.C.flock(ffi.C.fileno(file), LOCK_EX + LOCK_NB) == 0 or ffi.errno() ~= EWOULDBLOCK
end

local STDOUT = 1
local ENOSPC, EFBIG, EDQUOT = 28, 27, 122

local function fail_printed(why) errors.raise("MS_EIO", "standard output: %s", why) end

---Writes to standard output without delay; raises MS_EIO if the disk is full. A closed terminal or reader does not stop
---the run.
---@param ... string
function output_file.print(...)
  io.write(...)
  io.flush()
  -- Both can return success although their buffered data was lost.
  local number = ffi.errno()
  if ffi.C.ferror(io.output()) == 0 then return end
  if number == ENOSPC or number == EFBIG or number == EDQUOT then fail_printed(ffi.string(ffi.C.strerror(number))) end
end
jit.off(output_file.print) -- compiled code could change errno in between

---Raises MS_EIO if earlier output, printed by print or a library, did not fit on the disk.
function output_file.check_printed()
  io.stdout:flush()
  -- Only files on a disk, and their substitutes in tests, can seek.
  if ffi.C.ferror(io.stdout) ~= 0 and ffi.C.lseek(STDOUT, 0, SEEK_CUR) >= 0 then
    fail_printed("some output could not be written: is the disk full?")
  end
end

---Writes a whole file and makes its folders.
---@param what string for messages: "chart"
---@param path string
---@param document string
function output_file.write(what, path, document)
  output_file.make_folders(what, path)
  local file, why = open_unblocked(path, "w")
  if not file then errors.raise("MS_EIO", "%s %s", what, why) end
  local ok, failed = file:write(document)
  ok, failed = file:close() and ok, failed
  if not ok then errors.raise("MS_EIO", "%s %s: %s", what, path, failed or "it could not be written completely") end
end

return output_file
