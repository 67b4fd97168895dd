-- Facts about the terminal and the process: whether there is a terminal, its width, and resident memory.

local ffi = require("ffi")

ffi.cdef [[
typedef struct { unsigned short rows, columns, x_pixels, y_pixels; } ms_lua_winsize;
int isatty(int descriptor);
int ioctl(int descriptor, unsigned long request, ...);
]]

local STDOUT = 1
local TIOCGWINSZ = 0x5413 -- Linux
local DEFAULT_COLUMNS = 80

local terminal = {}

---Whether standard output is a terminal that supports cursor movements.
---@return boolean
function terminal.interactive()
  return ffi.C.isatty(STDOUT) == 1 and os.getenv("TERM") ~= "dumb"
end

---Width of the terminal in columns, else COLUMNS, else 80.
---@return integer
function terminal.columns()
  local size = ffi.new("ms_lua_winsize")
  if ffi.C.ioctl(STDOUT, TIOCGWINSZ, size) == 0 and size.columns > 0 then return size.columns end
  return tonumber(os.getenv("COLUMNS")) or DEFAULT_COLUMNS
end

---Resident memory of this process in bytes, including shared pages.
---@return number? bytes nil if /proc does not report it
function terminal.resident_bytes()
  local file = io.open("/proc/self/status", "r")
  if not file then return nil end
  local kib = file:read("*a"):match("VmRSS:%s*(%d+) kB")
  file:close()
  return kib and tonumber(kib) * 1024
end

return terminal
