-- A program in a pseudo-terminal of its own, as a user has it: what it shows can be waited for, and keys can be
-- pressed.

local ffi = require("ffi")

ffi.cdef [[
typedef struct { unsigned short rows, columns, x_pixels, y_pixels; } ms_spec_winsize;
typedef struct { int fd; short events, revents; } ms_spec_pollfd;
int forkpty(int *master, char *name, const void *termios, const ms_spec_winsize *size);
int execvp(const char *file, char *const argv[]);
int setenv(const char *name, const char *value, int overwrite);
void _exit(int status);
int poll(ms_spec_pollfd *fds, unsigned long n, int milliseconds);
long read(int fd, void *buffer, size_t bytes);
long write(int fd, const void *buffer, size_t bytes);
int close(int fd);
int kill(int pid, int signal);
int waitpid(int pid, int *status, int options);
int usleep(unsigned microseconds);
]]
local C = ffi.C

local SIGKILL, WNOHANG, POLLIN = 9, 1, 1
local PATIENCE = 60 -- seconds; sanitized builds on a busy machine are slow

---@class Pty
---@field pid integer
---@field screen string everything shown so far, without escape sequences and carriage returns
local Pty = {}
Pty.__index = Pty

local pty = {}

---Starts a program. environment: variables to set; TERM is vt100 unless told.
---@param arguments string[] the program first
---@param environment table<string, string>?
---@return Pty
function pty.spawn(arguments, environment)
  local variables = { TERM = "vt100" }
  for name, value in pairs(environment or {}) do variables[name] = value end
  local argv, master = ffi.new("char *[?]", #arguments + 1), ffi.new("int[1]")
  for i, argument in ipairs(arguments) do argv[i - 1] = ffi.cast("char *", argument) end
  local pid = C.forkpty(master, nil, nil, ffi.new("ms_spec_winsize", { rows = 40, columns = 100 }))
  assert(pid >= 0, "forkpty failed")
  if pid == 0 then
    for name, value in pairs(variables) do C.setenv(name, value, 1) end
    C.execvp(argv[0], argv)
    C._exit(127)
  end
  return setmetatable({ pid = pid, master = master[0], raw = "", screen = "", seen = 1 }, Pty)
end

-- Takes what is there, waiting at most so long; false at the end of the program's output.
local function take(self, milliseconds)
  local wanted, buffer = ffi.new("ms_spec_pollfd", { fd = self.master, events = POLLIN }), ffi.new("char[4096]")
  if C.poll(wanted, 1, milliseconds) <= 0 then return true end
  local got = tonumber(C.read(self.master, buffer, 4096))
  if got <= 0 then return false end
  self.raw = self.raw .. ffi.string(buffer, got)
  self.screen = self.raw:gsub("\27%[[%d;?]*%a", ""):gsub("\27[()=>]%w?", ""):gsub("[\r\7\15]", "")
  return true
end

---Waits until a text is shown after the last one that was waited for; fails with what is there instead.
---@param text string plain
function Pty:expect(text)
  local limit = os.time() + PATIENCE
  while true do
    local _, last = self.screen:find(text, self.seen, true)
    if last then
      local before = self.screen:sub(self.seen, last)
      self.seen = last + 1
      return before
    end
    if not take(self, 100) or os.time() > limit then
      error(("%q was not shown; there is: %s"):format(text, self.screen:sub(self.seen)), 2)
    end
  end
end

---Presses keys.
---@param keys string
function Pty:send(keys)
  while #keys > 0 do
    local sent = tonumber(C.write(self.master, keys, #keys))
    assert(sent > 0, "the program takes no keys any more")
    keys = keys:sub(sent + 1)
  end
end

---Waits for the end of the program.
---@return integer status exit status, 128 + n after signal n
function Pty:wait()
  local limit, status = os.time() + PATIENCE, ffi.new("int[1]")
  while C.waitpid(self.pid, status, WNOHANG) == 0 do
    if not take(self, 50) then C.usleep(20000) end
    if os.time() > limit then
      self:close()
      error("the program does not end; there is: " .. self.screen:sub(self.seen), 2)
    end
  end
  while take(self, 0) and self.raw ~= self.taken do self.taken = self.raw end
  self.pid = nil
  local signal = status[0] % 128
  return signal > 0 and 128 + signal or math.floor(status[0] / 256) % 256
end

---Ends the program if it runs.
function Pty:close()
  if self.pid then
    C.kill(self.pid, SIGKILL)
    C.waitpid(self.pid, nil, 0)
    self.pid = nil
  end
  if self.master then C.close(self.master) end
  self.master = nil
end

return pty
