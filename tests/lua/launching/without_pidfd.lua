-- Runs a command as a kernel before Linux 5.3 would: pidfd_open does not exist. luajit without_pidfd.lua COMMAND...

local ffi = require("ffi")

ffi.cdef [[
typedef struct { uint16_t code; uint8_t yes, no; uint32_t value; } bpf_instruction;
typedef struct { unsigned short count; const bpf_instruction *list; } bpf_program;
int prctl(int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d);
int execvp(const char *file, const char *const arguments[]);
]]

local LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
local PIDFD_OPEN, ALLOW, NO_SUCH_CALL = 434, 0x7fff0000, 0x00050026
local NO_NEW_PRIVILEGES, SET_FILTER, FILTER = 38, 22, 2

-- The number of the call is the first word of what a filter sees.
local list = ffi.new("bpf_instruction[4]", {
  { LOAD, 0, 0, 0 }, { EQUAL, 0, 1, PIDFD_OPEN }, { RETURN, 0, 0, NO_SUCH_CALL }, { RETURN, 0, 0, ALLOW },
})
local filter = ffi.new("bpf_program", { 4, list })
assert(ffi.C.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0)
assert(ffi.C.prctl(SET_FILTER, FILTER, ffi.cast("unsigned long", ffi.cast("void *", filter)), 0, 0) == 0)
local arguments = ffi.new("const char *[?]", #arg + 1, { unpack(arg) }) -- ends with NULL
ffi.C.execvp(arg[1], arguments)
error("cannot run " .. arg[1])
