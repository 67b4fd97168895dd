-- The results of a sweep so far, in one file of JSON lines: the definition of the sweep, then one line per finished
-- point. An interrupted sweep resumes from it; results of a different definition are never mixed in.

local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.files.input_file")
local json = require("moonshard.base.text.json")
local output_file = require("moonshard.base.files.output_file")
local text_lines = require("moonshard.base.text.text_lines")

---@class moonshard.SweepResults
---@field path string
---@field header table what all points share
---@field records table<string, moonshard.SweepRecord> finished points by key; the last line of a point counts
---@field started table<string, moonshard.SweepRecord> unfinished points by key: their plan and finished runs
local Results = {}
Results.__index = Results

local results = {}

-- What must be equal for the numbers of one sweep, and its name in messages.
local SHARED = {
  { "recipe", "the recipe" }, { "source", "the text of the recipe" }, { "settings", "settings" }, { "steps", "steps" },
  { "warmup", "warmup" }, { "repeats", "repeats" }, { "memory_limit", "memory_limit" },
  { "plan", "whether points are only planned" }, { "ranks_per_node", "ranks_per_node" },
  { "hosts", "hosts" }, { "price", "price" }, { "cluster", "the description of the cluster" },
  { "version", "the version of moonshard" }, { "machine", "the machine" },
}

local function shown(value)
  local text = value == nil and "not given" or json.encode(value)
  return #text > 60 and "another" or text
end

---The differences between two sweeps, because of which their numbers do not belong together.
---@param old table header
---@param new table header
---@return string[] "steps was 3 and is 4 now"
function results.differences(old, new)
  local list = {}
  for _, row in ipairs(SHARED) do
    local key, name = row[1], row[2]
    local before, now = shown(old[key]), shown(new[key])
    if json.encode(old[key]) ~= json.encode(new[key]) then
      list[#list + 1] = name .. " " .. (before == now and "has changed" or ("was %s and is %s now"):format(before, now))
    end
  end
  return list
end

-- Refuses to resume, naming the first difference between two sweeps.
local function check_same(path, old, new)
  local first = results.differences(old, new)[1]
  if first then
    errors.invalid("ms.sweep: %s cannot be resumed: %s; omit --resume to start the sweep again", path, first)
  end
end

-- Reads the complete lines. An incomplete last line, left by a killed sweep, is dropped.
local function read_lines(path)
  local text, why = input_file.text(path)
  if not text then return nil, why end
  local list = {}
  for line in text_lines.whole(text) do
    local value, wrong = json.decode(line)
    if type(value) ~= "table" then
      errors.invalid("ms.sweep: %s cannot be resumed: line %d: %s; omit --resume to start the sweep again", path,
        #list + 1, wrong or "not an object")
    end
    list[#list + 1] = value
  end
  return list
end

local function write(self, value)
  local ok, why = self.file:write(json.encode(value) .. "\n")
  if not ok then errors.raise("MS_EIO", "%s: %s", self.path, why) end
end

local function open_locked(path)
  output_file.make_folders("results", path)
  local file, why = output_file.open_lines(path, "ae") -- children do not inherit the lock
  if not file then errors.raise("MS_EIO", "ms.sweep: out: %s", why) end
  if not output_file.lock(file) then
    errors.invalid("ms.sweep: another sweep is writing %s: wait for it, or choose another folder with out", path)
  end
  return file
end

-- The records that a resumed sweep keeps: measured, skipped and unfinished points. Failed points run again.
local function kept_records(list)
  local records, started = {}, {}
  for i = 2, #list do
    local record = list[i]
    started[record.key] = record.status == nil and record or nil
    records[record.key] = record.status ~= nil and record.status ~= "failed" and record or nil
  end
  return records, started
end

---Opens the results of a sweep for appending.
---@param path string
---@param header table what all points share
---@param resume boolean continue with the existing results; otherwise they are renamed to NAME.previous.jsonl
---@return moonshard.SweepResults
function results.open(path, header, resume)
  local self = setmetatable({ path = path, header = header, records = {}, started = {} }, Results)
  local lock = open_locked(path)
  local list = lock:seek("end") > 0 and (resume and read_lines(path) or {}) or nil
  if resume and list and list[1] then
    check_same(path, list[1], header)
    self.records, self.started = kept_records(list)
    self.header.started = list[1].started
  end
  if list and not resume then
    os.rename(path, (path:gsub("%.jsonl$", "") .. ".previous.jsonl"))
  end
  -- Replaces the old file atomically by one without an unfinished line; locks it before it becomes visible.
  local fresh = path .. ".new"
  os.remove(fresh)
  self.file = open_locked(fresh)
  write(self, self.header)
  for _, kept in ipairs({ self.records, self.started }) do
    for _, record in pairs(kept) do write(self, record) end
  end
  os.rename(fresh, path)
  lock:close()
  return self
end

---Adds a record and writes it. A record without a status is unfinished.
---@param record moonshard.SweepRecord
function Results:add(record)
  if record.status then self.records[record.key] = record end
  write(self, record)
end

function Results:close() self.file:close() end

return results
