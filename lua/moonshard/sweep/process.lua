-- Child processes of a sweep: this executable with other arguments, in a separate process group.
--
-- A child does not receive the terminal's Ctrl-C, because the sweep ends it in an orderly way; the kernel kills it if
-- the sweep dies. Its standard output goes to a file, its standard error is returned as text. Linux only.

local clock = require("moonshard.base.clock")
local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local posix = require("moonshard.base.posix")
local ffi, C = engine.ffi, engine.C

local process = {}

local CANNOT_START = 127

local TICK_MS = 100
-- Time that a child has to end after it was asked to. The launcher gives its ranks 5 s.
local GRACE_SECONDS = 8
local MAX_KEPT = 2 ^ 20 -- bytes of standard error

---@class moonshard.EndedProcess
---@field status integer? exit status
---@field signal integer? the signal that ended it
---@field err string its standard error
---@field seconds number
---@field interrupted boolean whether Ctrl-C ended it
---@field timed_out boolean whether the time limit ended it

-- The handler of Ctrl-C sets a flag, of which the program that the child becomes knows nothing.
local function hold_interrupts()
  local held, before = ffi.new("ms_lua_sigset"), ffi.new("ms_lua_sigset")
  C.sigemptyset(held)
  C.sigaddset(held, posix.SIGINT)
  C.sigprocmask(posix.SIG_BLOCK, held, before)
  return before
end

-- mask: the signals that were held before the fork.
local function become_child(arguments, output, error_end, parent, mask)
  C.setpgid(0, 0)
  C.signal(posix.SIGINT, nil)
  C.sigprocmask(posix.SIG_SETMASK, mask, nil)
  C.prctl(posix.PR_SET_PDEATHSIG, ffi.cast("unsigned long", posix.SIGKILL))
  local nowhere = C.open("/dev/null", posix.O_RDONLY)
  local created = ffi.cast("int", 438) -- rw-rw-rw-, less the umask
  local out = C.open(output, posix.O_WRONLY + posix.O_CREAT + posix.O_TRUNC, created)
  if C.getppid() == parent and nowhere >= 0 and out >= 0 then
    C.dup2(nowhere, 0)
    C.dup2(out, 1)
    C.dup2(error_end, 2)
    C.execv("/proc/self/exe", arguments)
  end
end

local function start(words, output)
  local arguments = ffi.new("const char *[?]", #words + 2)
  arguments[0] = "moonshard"
  for i, word in ipairs(words) do arguments[i] = word end
  local ends, parent = ffi.new("int[2]"), C.getpid()
  if C.pipe2(ends, posix.O_CLOEXEC) ~= 0 then
    errors.raise("MS_EIO", "sweep: cannot make a pipe (errno %d)", ffi.errno())
  end
  local mask = hold_interrupts()
  local pid = C.fork()
  if pid == 0 then
    pcall(become_child, arguments, output, ends[1], parent, mask)
    C._exit(CANNOT_START)
  end
  local number = ffi.errno()
  C.sigprocmask(posix.SIG_SETMASK, mask, nil)
  C.close(ends[1])
  if pid < 0 then
    C.close(ends[0])
    errors.raise("MS_EIO", "sweep: cannot start a process (errno %d)", number)
  end
  C.setpgid(pid, pid) -- the child does the same: either can be first
  return pid, ends[0]
end

-- Reads once what the child wrote; returns false at the end of the stream.
local function read_some(descriptor, buffer, child)
  local n = tonumber(C.read(descriptor, buffer, ffi.sizeof(buffer)))
  if n > 0 and child.kept < MAX_KEPT then
    child.kept = child.kept + n
    child.parts[#child.parts + 1] = ffi.string(buffer, n)
  end
  return n ~= 0
end

-- Asks the child to end, once, after Ctrl-C or the time limit; kills its group if it does not end in time.
local function end_in_time(child, deadline)
  local now = clock.now()
  if not child.kill_at then
    child.interrupted = C.ms_interrupted() ~= 0
    child.timed_out = not child.interrupted and deadline ~= nil and now >= deadline
    if child.interrupted or child.timed_out then
      C.kill(child.pid, child.interrupted and posix.SIGINT or posix.SIGTERM)
      child.kill_at = now + GRACE_SECONDS
    end
  elseif now >= child.kill_at then
    C.kill(-child.pid, posix.SIGKILL)
  end
end

-- Waits until the child has ended, and reads its standard error.
local function watch(child, descriptor, deadline, tick)
  local wanted, buffer, status = ffi.new("ms_lua_pollfd[1]"), ffi.new("char[4096]"), ffi.new("int[1]")
  wanted[0].descriptor, wanted[0].events = descriptor, posix.POLLIN
  local open, running = true, true
  while running do
    -- After the last writer has closed the pipe, poll returns at once, so the end is noticed before the next tick.
    local ready = C.poll(wanted, open and 1 or 0, open and TICK_MS or 1)
    if ready > 0 then open = read_some(descriptor, buffer, child) end
    if ready <= 0 or not open then
      running = C.waitpid(child.pid, status, posix.WNOHANG) == 0
    end
    if running then
      end_in_time(child, deadline)
      if tick then tick() end
    end
  end
  while open and C.poll(wanted, 1, 0) > 0 and read_some(descriptor, buffer, child) do end
  return status[0]
end

---Runs the executable and waits for it. Ctrl-C and the time limit end it.
---@param words string[] arguments
---@param o { output: string, timeout: number?, tick: fun()? } output: file for standard output; timeout: in seconds;
---  tick: called about ten times a second
---@return moonshard.EndedProcess
function process.run(words, o)
  local began = clock.now()
  local child = { parts = {}, kept = 0, interrupted = false, timed_out = false }
  local descriptor
  child.pid, descriptor = start(words, o.output)
  local status = watch(child, descriptor, o.timeout and began + o.timeout, o.tick)
  C.close(descriptor)
  local signal = status % 128
  return {
    status = signal == 0 and math.floor(status / 256) % 256 or nil, signal = signal ~= 0 and signal or nil,
    err = table.concat(child.parts), seconds = clock.now() - began,
    interrupted = child.interrupted, timed_out = child.timed_out,
  }
end

return process
