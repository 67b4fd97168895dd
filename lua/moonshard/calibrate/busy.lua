-- Whether other programs use the machine: measurements that compete with them are slower than later runs, and
-- misleading descriptions follow. Linux counts it: how many programs ran or wanted to run, on average (the load).

local input_file = require("moonshard.base.files.input_file")

local busy = {}

local MAX = 0.25 -- of the cores: a desktop or a monitoring agent takes less

---What to say of a load before anything is measured.
---@param load string contents of /proc/loadavg
---@param cores integer
---@return string? warning nil: the machine is idle, or its load is unknown
function busy.warning(load, cores)
  local minute = tonumber(load:match("^%s*([%d.]+)"))
  if not minute or minute <= MAX * cores then return nil end
  return ("this machine is busy: in the last minute %.1f programs wanted its %d core%s on average. What is measured "
    .. "now is slower than the machine alone: stop them, and calibrate again"):format(minute, cores,
    cores == 1 and "" or "s")
end

---Warns on standard error if the machine is busy. The load is that of all its cores, whichever a calibration may use.
function busy.check()
  local _, cores = (input_file.text("/proc/stat") or ""):gsub("\ncpu%d", "")
  local warning = busy.warning(input_file.text("/proc/loadavg") or "", math.max(1, cores))
  if warning then io.stderr:write("moonshard: warning: ", warning, "\n") end
end

return busy
