-- Files that a run writes at its end. They are checked at its start, so that an error does not cost hours of training.

local ffi = require("ffi")
local errors = require("moonshard.base.error")
local file_status = require("moonshard.base.files.file_status")
local input_file = require("moonshard.base.files.input_file")

ffi.cdef [[
int mkdir(const char *path, unsigned mode);
int open(const char *path, int flags, ...);
int close(int descriptor);
long lseek(int descriptor, long offset, int whence);
int ferror(void *file);
char *strerror(int number);
int fileno(void *file);
int flock(int descriptor, int operation);
int fsync(int descriptor);
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

---Opens a file that only runs write, such as a lock, as io.open does. A pipe, a folder or a device there is refused:
---opening a pipe would wait for its reader.
---@param path string
---@param mode "w"|"ae" as for io.open; e: children do not inherit the descriptor
---@return file*? file nil and why
---@return string?
function output_file.open_own(path, mode)
  local kind = file_status.of_path(path)
  if kind and kind ~= file_status.REGULAR then
    return nil, path .. ": this is not a regular file: delete it, since a run writes its own file there"
  end
  return io.open(path, mode)
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

---Refuses an output path of the command line before anything runs. A missing folder is a slip of the hand there: no
---option makes one on the way to what it names.
---@param option string for messages: "--metrics"
---@param path string
---@param is_folder boolean? the option names a folder, which is made if only its last part is missing
function output_file.check_option(option, path, is_folder)
  local inner = path:gsub("(.)/+$", "%1")
  local folder = inner:match("^(.*)/[^/]*$") or "."
  if folder == "" then folder = "/" end
  local around, there = file_status.of_path(folder), file_status.of_path(inner)
  if around and around ~= file_status.FOLDER then
    errors.raise("MS_EINVAL", "%s %s: %s is not a folder", option, path, folder)
  elseif not around then
    errors.raise("MS_EINVAL", "%s %s: there is no folder %s: make it first, or choose another place", option, path,
      folder)
  elseif is_folder and there and there ~= file_status.FOLDER then
    errors.raise("MS_EINVAL", "%s %s: this is not a folder", option, path)
  end
  if not is_folder then output_file.check(option, path) end
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

-- Pipes and devices have no content that another run could spoil.
local function is_regular(file)
  local kind = file_status.of_open(ffi.C.fileno(file))
  return kind == nil or kind == file_status.REGULAR
end

local LOCK_EX, LOCK_NB, EWOULDBLOCK = 2, 4, 11 -- Linux

---Locks an open file, so that only one run writes it, until it is closed or the process ends in any way. On a file
---system without locks, and for pipes and devices, this has no effect.
---@param file file*
---@return boolean free false if another process holds the lock
function output_file.lock(file)
  if not is_regular(file) then return true end
  return ffi.C.flock(ffi.C.fileno(file), LOCK_EX + LOCK_NB) == 0 or ffi.errno() ~= EWOULDBLOCK
end

---Opens a file for lines as open_lines does, for this run alone: raises MS_EINVAL if it cannot be written, or if
---another run writes it.
---@param what string for messages: "metrics file"
---@param path string
---@return file*
function output_file.claim(what, path)
  local file, why = output_file.open_lines(path, "ae")
  if not file then errors.raise("MS_EINVAL", "%s %s", what, why) end
  if not output_file.lock(file) then
    file:close()
    errors.raise("MS_EINVAL", "%s %s: another run writes this file: wait until it has ended, or use another name",
      what, path)
  end
  return file
end

local O_RDONLY, EINVAL = 0, 22

local function sync(path, descriptor)
  if ffi.C.fsync(descriptor) == 0 then return end
  local number = ffi.errno()
  if number == EINVAL then return end -- a file system that has nothing to wait for
  errors.raise("MS_EIO", "%s: writing it to the disk: %s", path, ffi.string(ffi.C.strerror(number)))
end
jit.off(sync) -- compiled code could change errno in between

---Waits until what was written to an unbuffered file is on the disk; raises MS_EIO if that fails.
---@param path string for messages
---@param file file*
function output_file.sync(path, file) sync(path, ffi.C.fileno(file)) end

---Waits until the name of a file, after a rename, is on the disk.
---@param what string for messages
---@param path string
function output_file.sync_folder(what, path)
  local folder = path:match("^(.*/)[^/]*$") or "."
  local descriptor = ffi.C.open(folder, O_RDONLY + O_CLOEXEC)
  if descriptor < 0 then errors.raise("MS_EIO", "%s: its folder %s cannot be opened", what, folder) end
  local ok, raised = pcall(sync, what, descriptor)
  ffi.C.close(descriptor)
  if not ok then error(raised, 0) end
end

local ENOSPC, EFBIG, EDQUOT = 28, 27, 122

local function fail_printed(why) errors.raise("MS_EIO", "standard output: %s", why) end

---Writes to standard output without delay; raises MS_EIO if the disk is full. A closed terminal or reader does not stop
---the run, but is an error when it has ended (check_printed).
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

---Raises MS_EIO if earlier output, printed by print or a library, is lost: it did not fit on the disk, or its reader
---had closed it.
function output_file.check_printed()
  local _, why = io.stdout:flush()
  if ffi.C.ferror(io.stdout) ~= 0 then
    fail_printed(why or "some output could not be written: is the disk full, or was its reader closed?")
  end
end
jit.off(output_file.check_printed) -- see open_lines: a compiled flush would lose the reason

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
