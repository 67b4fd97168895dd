-- Errors on purpose in the calls by which files are written: a hook of the engine that no public header has
-- (runtime/base/testing.h says what a spec is).

local engine = require("moonshard.base.ffi")

engine.ffi.cdef("int ms_inject_io(const char *spec);")

---@param spec string? "write:3:ENOSPC"; nil: no errors any more
return function(spec) engine.check(engine.C.ms_inject_io(spec)) end
