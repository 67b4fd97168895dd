-- The memory of this host, and what the control groups of containers, batch systems and services leave of it.

local engine = require("moonshard.base.ffi")
local C, ffi, check = engine.C, engine.ffi, engine.check

local host_memory = {}

---@class moonshard.HostMemory in bytes; what is unknown, or not limited, is nil
---@field total number? of the machine
---@field available number? what processes can still take
---@field limit number? of the control group that leaves the least
---@field limit_file string? the file that says this limit

---@return moonshard.HostMemory
function host_memory.read()
  local info, found = ffi.new("ms_device_info"), {}
  check(C.ms_device_describe(C.MS_DEVICE_CPU, 0, info, ffi.sizeof(info)))
  for name, field in pairs({ total = "memory_bytes", available = "available", limit = "limit" }) do
    if info[field] >= 0 then found[name] = tonumber(info[field]) end
  end
  if found.limit then found.limit_file = ffi.string(info.limit_file) end
  return found
end

return host_memory
