-- Reads the results of a finished sweep: its folder, results.jsonl or results.json.

local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.files.input_file")
local json = require("moonshard.base.text.json")
local report = require("moonshard.sweep.report")
local text_lines = require("moonshard.base.text.text_lines")

local finished = {}

local NEEDED = "--compare takes folders of finished sweeps, or their results.json or results.jsonl"

local STATUSES = { ok = true, skipped = true, failed = true }
local HEADER = { recipe = "string", settings = "table", repeats = "number", machine = "table", sort = "string",
  version = "string" }
local MEASURED = { "tokens_per_s", "tokens_per_s_min", "tokens_per_s_max", "peak_bytes", "loss" }

local function refuse(path, why)
  errors.invalid("%s does not contain the results of a sweep: %s: %s", path, why, NEEDED)
end

-- results.jsonl first: it is newer if a sweep was killed before it wrote results.json.
local function file_of(path)
  local folder = path:gsub("/+$", "")
  for _, name in ipairs({ "results.jsonl", "results.json" }) do
    if input_file.exists(folder .. "/" .. name) then return folder .. "/" .. name end
  end
  return path
end

local function check_header(path, header)
  if type(header) ~= "table" then refuse(path, "the file does not begin with an object") end
  for key, kind in pairs(HEADER) do
    if type(header[key]) ~= kind then refuse(path, ("it has no %s"):format(key)) end
  end
  for name, value in pairs({ load = header.load, cores = header.machine.cores }) do
    if type(value) ~= "number" then refuse(path, name .. " is not a number") end
  end
end

-- Whether it is nil or an object that contains only numbers.
local function is_numbers(object)
  if object ~= nil and type(object) ~= "table" then return false end
  for key, value in pairs(object or {}) do
    if type(key) ~= "string" or type(value) ~= "number" then return false end
  end
  return true
end

-- Whether it has all fields of a point with its status.
local function is_record(record, header)
  if type(record) ~= "table" or type(record.key) ~= "string" or type(record.point) ~= "table" then return false end
  for key, value in pairs(record.point) do
    if type(key) ~= "string" or type(value) == "table" then return false end
  end
  if not is_numbers(record.metrics) or not is_numbers(record.comm_bytes) then return false end
  if record.status ~= "ok" then return record.status == nil or STATUSES[record.status] ~= nil end
  if header.plan then return type(record.planned) == "table" and (tonumber(record.planned.peak_bytes) or 0) > 0 end
  for _, key in ipairs(MEASURED) do
    -- JSON has null for a loss that became NaN.
    if type(record[key]) ~= "number" and (key ~= "loss" or record[key] ~= nil) then return false end
  end
  return record.tokens_per_s_min > 0 and record.peak_bytes > 0
end

-- The header, then one record per line; a point's last record counts. An incomplete last line, left by a killed sweep,
-- is dropped.
local function read_lines(path, text)
  local list = {}
  for line in text_lines.whole(text) do
    local value, why = json.decode(line)
    if value == nil then refuse(path, ("line %d: %s"):format(#list + 1, why)) end
    list[#list + 1] = value
  end
  local header = table.remove(list, 1)
  check_header(path, header)
  return header, list
end

-- One object that contains the points.
local function read_object(path, text)
  local object, why = json.decode(text)
  if object == nil then refuse(path, why) end
  check_header(path, object)
  if type(object.points) ~= "table" then refuse(path, "the file contains no points") end
  return object, object.points
end

---@class moonshard.FinishedSweep
---@field path string of the file
---@field header table what all points share
---@field report moonshard.SweepReport the sorted records
---@field by_key table<string, moonshard.SweepRecord>
---@field unfinished integer number of points that have not finished

---Reads a sweep. Raises MS_EINVAL if the path does not contain one.
---@param path string
---@return moonshard.FinishedSweep
function finished.read(path)
  local file = file_of(path)
  local text = input_file.read(file, NEEDED)
  local read = file:find("%.jsonl$") and read_lines or read_object
  local header, list = read(file, text)
  local points, by_key, unfinished = {}, {}, 0
  for i, record in ipairs(list) do
    if not is_record(record, header) then refuse(file, ("point %d lacks required fields"):format(i)) end
    if not by_key[record.key] then points[#points + 1] = { key = record.key, values = record.point } end
    by_key[record.key] = record
  end
  local ended = {}
  for _, point in ipairs(points) do
    local record = by_key[point.key]
    if record.status then
      ended[#ended + 1] = point
    else
      unfinished, by_key[point.key] = unfinished + 1, nil
    end
  end
  local missing = type(header.count) == "table" and tonumber(header.count.missing) or 0
  return { path = file, header = header, by_key = by_key, unfinished = unfinished + missing,
    report = report.new(header, ended, by_key, 0) }
end

return finished
