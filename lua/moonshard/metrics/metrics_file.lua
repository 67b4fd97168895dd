-- The file of --metrics: one JSON object per step. Lines are whole or absent, even if the disk fills up. A run that
-- resumes from a checkpoint continues the file, with each step once.

local ffi = require("ffi")
local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local output_file = require("moonshard.base.files.output_file")

ffi.cdef "int fileno(void *file); int ftruncate(int descriptor, long bytes);"

local metrics_file = {}

---@class moonshard.MetricsFile
---@field path string
---@field file file*
---@field size integer? bytes of its complete lines; nil before the first line of this run
local MetricsFile = {}
MetricsFile.__index = MetricsFile

-- The keys of every line, in this order.
local KEYS = {
  "step", "loss", "grad_norm", "lr", "tokens", "tokens_per_s", "step_ms", "mfu", "exposed_ms", "data_ms", "peak_bytes",
  "plan_bytes", "comm_bytes", "wire_bytes", "waits_ms", "grad_norms", "valid_loss", "save_ms", "snapshot_bytes",
}

-- Those of lines whose steps have them.
local SOMETIMES = { "outside_bytes", "samples_per_s" }

local KNOWN = { trainer = true, trainer_step = true }
for _, keys in ipairs({ KEYS, SOMETIMES }) do
  for _, key in ipairs(keys) do KNOWN[key] = true end
end

-- Names of further numbers in the metrics, added by the recipe; sorted.
local function own_names(m)
  local names = {}
  for key, value in pairs(m) do
    if type(key) == "string" and type(value) == "number" and not KNOWN[key] then names[#names + 1] = key end
  end
  table.sort(names)
  return names
end

---Whether a key of a line is one that the library writes, and no number that a recipe added.
---@param key string
---@return boolean
function metrics_file.is_of_step(key) return KNOWN[key] == true end

local function fail(self, why) errors.raise("MS_EIO", "metrics file %s: %s", self.path, why) end

-- Returns false for files that cannot be truncated: pipes and devices.
local function cut(self, bytes) return ffi.C.ftruncate(ffi.C.fileno(self.file), bytes) == 0 end

-- Writes whole lines, or none of them.
local function put(self, text)
  local ok, why = self.file:write(text)
  if not ok then
    cut(self, self.size)
    fail(self, why)
  end
  self.size = self.size + #text
end
jit.off(put) -- if a compiled write fails, LuaJIT's interpreter repeats it

local FIRST = '{"step":' -- every line begins with it

-- A slip in the command line must not overwrite a file of another kind. A crash can have cut the first line short.
local function check_content(path)
  local file, why = io.open(path, "rb")
  if not file then errors.raise("MS_EINVAL", "metrics file %s", why) end
  local text = file:read(#FIRST) or ""
  file:close()
  if text ~= FIRST:sub(1, #text) then
    errors.invalid("metrics file %s: this file exists, but does not contain metrics: use another name, or delete it",
      path)
  end
end

---Opens a file for the steps of a run. Its content stays until the first step is written, or until the run is known to
---resume. Raises MS_EINVAL if the file exists and contains something other than metrics, or if another run writes it.
---@param path string
---@return moonshard.MetricsFile
function metrics_file.open(path)
  local file = output_file.claim("metrics file", path)
  if (file:seek("end") or 0) > 0 then -- pipes and devices have no end
    local ok, raised = pcall(check_content, path)
    if not ok then
      file:close()
      error(raised, 0)
    end
  end
  return setmetatable({ path = path, file = file }, MetricsFile)
end

-- Drops the lines { text, at = step, of = trainer } of a file that a trainer went back over: a lower step than the last
-- one begins again there. The same step again is a second line of it.
local function without_abandoned(list)
  local past = {} -- by trainer: its lines that count, ascending
  for _, line in ipairs(list) do
    local own = past[line.of] or {}
    past[line.of] = own
    local last = own[#own]
    local goes_back = last and last.at > line.at
    while goes_back and own[1] and own[#own].at >= line.at do table.remove(own).is_dropped = true end
    own[#own + 1] = line
  end
end

-- The lines that stay when a trainer goes on after a step, those of others among them; the size in bytes of those
-- before the first that goes; and the number of lines that go. After an incomplete line nothing stays. Lua drops zero
-- bytes (after a power cut) from the lines that it reads, so a line shorter than the number of bytes read is one, too.
local function lines_up_to(path, step, trainer)
  local list, read, rest, whole = {}, 0, 0, true
  local file = assert(io.open(path, "rb"))
  for line in file:lines("*L") do
    local at, of = tonumber(line:match('^{"step":(%d+),.*}\n$')), tonumber(line:match('"trainer":(%d+)')) or 1
    at = at and (tonumber(line:match('"trainer_step":(%d+)')) or at)
    read = read + #line
    whole = whole and at ~= nil and file:seek() == read
    if whole then list[#list + 1] = { text = line, at = at, of = of }
    else rest = rest + 1 end
  end
  if rest == 0 and file:seek("end") > read then rest = 1 end
  file:close()
  without_abandoned(list)
  local kept, bytes, ended = {}, 0, false
  for _, line in ipairs(list) do
    if line.is_dropped or line.of == trainer and line.at > step then
      rest, ended = rest + 1, true
    else
      kept[#kept + 1] = line.text
      if not ended then bytes = bytes + #line.text end
    end
  end
  return table.concat(kept), bytes, rest
end

---A trainer resumes after a step: its lines up to it stay, and those of later steps, which will run again, are removed.
---@param step integer
---@param trainer integer the trainer's number in this run
---@return string? said message for the user; nil if the file is empty
function MetricsFile:resume(step, trainer)
  if (self.file:seek("end") or 0) == 0 then return nil end
  local kept, bytes, rest = lines_up_to(self.path, step, trainer)
  if rest > 0 and not cut(self, bytes) then fail(self, "the lines of later steps cannot be removed") end
  self.size = bytes
  if #kept > bytes then put(self, kept:sub(bytes + 1)) end
  return ("metrics: %s continues after step %d%s"):format(self.path, step, rest == 0 and ""
    or (", %d later line%s removed"):format(rest, rest == 1 and "" or "s"))
end

local function line_of(step, m, trainer, own)
  local list = {}
  for i, key in ipairs(KEYS) do
    list[2 * i - 1], list[2 * i] = key, m[key]
  end
  list[2] = step
  local n = 2 * #KEYS
  for _, key in ipairs(SOMETIMES) do
    if m[key] then
      n = n + 2
      list[n - 1], list[n] = key, m[key]
    end
  end
  if trainer > 1 then
    list[n + 1], list[n + 2] = "trainer", trainer
    n = n + 2
  end
  if own and own ~= step then
    list[n + 1], list[n + 2] = "trainer_step", own
    n = n + 2
  end
  for _, key in ipairs(own_names(m)) do
    list[n + 1], list[n + 2] = key, m[key]
    n = n + 2
  end
  return json.ordered(n, list) .. "\n"
end

---Writes the line of a step, or raises MS_EIO and leaves no part of it.
---@param step integer
---@param m table metrics returned by train:step
---@param trainer integer the trainer's number in this run
---@param own integer? the trainer's own step, where the recipe counts otherwise
function MetricsFile:add(step, m, trainer, own)
  if not self.size then
    if (self.file:seek("end") or 0) > 0 and not cut(self, 0) then fail(self, "it cannot be emptied") end
    self.size = 0
  end
  put(self, line_of(step, m, trainer, own))
end

---Closes the file, which another run can write from then on; the end of the process does the same.
function MetricsFile:close() self.file:close() end

return metrics_file
