-- The file of --metrics: one JSON object a step. Its lines are whole or absent, also on a disk that fills up, and a run
-- that goes on from a checkpoint goes on in it: each step is there once.

local ffi = require("ffi")
local errors = require("moonshard.base.error")
local json = require("moonshard.base.json")
local output_file = require("moonshard.base.output_file")

ffi.cdef "int fileno(void *file); int ftruncate(int descriptor, long bytes);"

local metrics_file = {}

---@class moonshard.MetricsFile
---@field path string
---@field file file*
---@field size integer? bytes of the whole lines in it; nil before the first line of this run
local MetricsFile = {}
MetricsFile.__index = MetricsFile

-- In this order in every line.
local KEYS = {
  "step", "loss", "grad_norm", "lr", "tokens", "tokens_per_s", "step_ms", "exposed_ms", "data_ms", "peak_bytes",
  "comm_bytes", "valid_loss", "save_ms", "snapshot_bytes",
}

local KNOWN = { outside_bytes = true }
for _, key in ipairs(KEYS) do KNOWN[key] = true end

-- Further numbers that the recipe put into its metrics, by name.
local function own_names(m)
  local names = {}
  for key, value in pairs(m) do
    if type(key) == "string" and type(value) == "number" and not KNOWN[key] then names[#names + 1] = key end
  end
  table.sort(names)
  return names
end

local function fail(self, why) errors.raise("MS_EIO", "metrics file %s: %s", self.path, why) end

-- False where there is nothing to cut: a pipe, a device.
local function cut(self, bytes) return ffi.C.ftruncate(ffi.C.fileno(self.file), bytes) == 0 end

---Opens a file for the steps of a run. What is in it stays until the first of them, or until it is known that the run
---goes on.
---@param path string
---@return moonshard.MetricsFile
function metrics_file.open(path)
  local file, why = output_file.open_lines(path, "ae")
  if not file then errors.raise("MS_EINVAL", "metrics file %s", why) end
  return setmetatable({ path = path, file = file }, MetricsFile)
end

-- Bytes of the lines up to a step, and how many more there are. Steps ascend; where they no longer do, or a line is cut
-- off, an earlier run ended. Lua leaves zeros, as of a power cut, out of the lines that it reads: where a line is
-- shorter than what was read for it, the file's own lines have ended too.
local function lines_up_to(path, step)
  local bytes, rest, last = 0, 0, 0
  local file = assert(io.open(path, "rb"))
  for line in file:lines("*L") do
    local at = tonumber(line:match('^{"step":(%d+),.*}\n$'))
    if rest == 0 and at and at > last and at <= step and file:seek() == bytes + #line then
      bytes, last = bytes + #line, at
    else
      rest = rest + 1
    end
  end
  if rest == 0 and file:seek("end") > bytes then rest = 1 end
  file:close()
  return bytes, rest
end

---The run goes on after a step: the lines up to it stay, those of later steps, which are made again, go.
---@param step integer
---@return string? said what to tell the user; nil where nothing is in the file
function MetricsFile:resume(step)
  if (self.file:seek("end") or 0) == 0 then return nil end
  local bytes, rest = lines_up_to(self.path, step)
  if rest > 0 and not cut(self, bytes) then fail(self, "the lines of later steps cannot be removed") end
  self.size = bytes
  return ("metrics: %s continues after step %d%s"):format(self.path, step, rest == 0 and ""
    or (", %d later line%s removed"):format(rest, rest == 1 and "" or "s"))
end

local function line_of(step, m)
  local list = {}
  for i, key in ipairs(KEYS) do
    list[2 * i - 1], list[2 * i] = key, m[key]
  end
  list[2] = step
  local n = 2 * #KEYS
  if m.outside_bytes then
    list[n + 1], list[n + 2] = "outside_bytes", m.outside_bytes
    n = n + 2
  end
  for _, key in ipairs(own_names(m)) do
    list[n + 1], list[n + 2] = key, m[key]
    n = n + 2
  end
  return json.ordered(n, list) .. "\n"
end

---Writes the line of a step, or raises MS_EIO and leaves nothing of it.
---@param step integer
---@param m table metrics, as train:step returns them
function MetricsFile:add(step, m)
  if not self.size then
    if (self.file:seek("end") or 0) > 0 and not cut(self, 0) then fail(self, "it cannot be emptied") end
    self.size = 0
  end
  local line = line_of(step, m)
  local ok, why = self.file:write(line)
  if not ok then
    cut(self, self.size)
    fail(self, why)
  end
  self.size = self.size + #line
end
-- Compiled, a write that fails is run again by the interpreter.
jit.off(MetricsFile.add)

return metrics_file
