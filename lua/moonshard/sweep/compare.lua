-- Compares two finished sweeps point by point: which points became faster or slower by more than their runs vary.
--
-- Points match by their settings. The sweeps can differ in everything else, which is what a comparison is for; these
-- differences are printed first.

local columns = require("moonshard.sweep.columns")
local finished = require("moonshard.sweep.finished")
local grid = require("moonshard.sweep.grid")
local json = require("moonshard.base.text.json")
local measures = require("moonshard.sweep.measures")
local report = require("moonshard.sweep.report")
local results = require("moonshard.sweep.results")

local compare = {}

---@alias moonshard.SweepVerdict
---| "faster"
---| "slower"
---| "within noise" the ranges of the old and the new runs overlap
---| "one run" one of the sweeps ran each point once, so the variation is unknown

---@class moonshard.SweepPair a point that both sweeps have measured, or planned
---@field key string
---@field point table<string, any>
---@field old moonshard.SweepRecord
---@field new moonshard.SweepRecord
---@field ratio number? new speed / old speed; nil if one of the sweeps only planned
---@field low number? slowest new run / fastest old run
---@field high number? fastest new run / slowest old run
---@field verdict moonshard.SweepVerdict? nil if there is no ratio

---@class moonshard.SweepComparison
---@field old moonshard.FinishedSweep
---@field new moonshard.FinishedSweep
---@field columns string[] the settings that points differ in
---@field records moonshard.SweepPair[] in the order of the new sweep
---@field timed boolean whether pairs have a ratio of speeds
---@field metrics string[] the sort keys of both sweeps, except speed and memory
---@field only_old string[] keys of points
---@field only_new string[]
---@field unequal string[] points that one or both sweeps did not measure, with the reasons
---@field warnings string[]

local function verdict_of(self, low, high)
  if self.old.header.repeats == 1 or self.new.header.repeats == 1 then return "one run" end
  return low > 1 and "faster" or high < 1 and "slower" or "within noise"
end

local function new_pair(self, old, new)
  local pair = { key = new.key, point = new.point, old = old, new = new }
  if not self.timed then return pair end
  pair.ratio = new.tokens_per_s / old.tokens_per_s
  pair.low = new.tokens_per_s_min / old.tokens_per_s_max
  pair.high = new.tokens_per_s_max / old.tokens_per_s_min
  pair.verdict = verdict_of(self, pair.low, pair.high)
  return pair
end

local function status_of(record)
  return record.reason and ("%s (%s)"):format(record.status, record.reason) or record.status
end

local function match(self)
  for _, new in ipairs(self.new.report.records) do
    local old = self.old.by_key[new.key]
    if not old then
      table.insert(self.only_new, new.key)
    elseif old.status == "ok" and new.status == "ok" then
      table.insert(self.records, new_pair(self, old, new))
    else
      table.insert(self.unequal, ("%s: old %s, new %s"):format(new.key, status_of(old), status_of(new)))
    end
  end
  for _, old in ipairs(self.old.report.records) do
    if not self.new.by_key[old.key] then table.insert(self.only_old, old.key) end
  end
end

local function sort_metrics(self)
  local names, seen = {}, { speed = true, memory = true }
  for _, sweep in ipairs({ self.old, self.new }) do
    local name = sweep.header.sort:gsub("^%-", "")
    if not seen[name] then names[#names + 1] = name end
    seen[name] = true
  end
  return names
end

local function warnings_of(self)
  local list = {}
  for _, difference in ipairs(results.differences(self.old.header, self.new.header)) do
    list[#list + 1] = "the sweeps differ: " .. difference
  end
  for _, pair in ipairs(self.records) do
    if pair.old.ranks ~= pair.new.ranks then
      list[#list + 1] = ("the sweeps differ: %s had %s ranks and has %s now"):format(pair.key,
        tostring(pair.old.ranks), tostring(pair.new.ranks))
    end
  end
  for _, name in ipairs({ "old", "new" }) do
    local busy, unfinished = report.warn_of_load(self[name].header), self[name].unfinished
    if busy then list[#list + 1] = name .. ": " .. busy end
    if unfinished > 0 then
      list[#list + 1] = ("%s: %s is unfinished: %d point%s missing; --resume continues it"):format(name,
        self[name].path, unfinished, unfinished == 1 and "" or "s")
    end
  end
  return list
end

---Reads two sweeps and compares them. Raises MS_EINVAL if a file does not contain a sweep's results.
---@param old_path string folder, results.json or results.jsonl
---@param new_path string
---@return moonshard.SweepComparison
function compare.read(old_path, new_path)
  local self = { old = finished.read(old_path), new = finished.read(new_path), records = {}, only_old = {},
    only_new = {}, unequal = {} }
  self.timed = not measures.is_planned(self.old.report) and not measures.is_planned(self.new.report)
  self.metrics = sort_metrics(self)
  match(self)
  local points = {}
  for i, pair in ipairs(self.records) do points[i] = { values = pair.point } end
  self.columns = grid.columns(points)
  self.warnings = warnings_of(self)
  return self
end

---A metric of a record; nil if it has none of this name.
---@param record moonshard.SweepRecord
---@param name string "loss", or one of the recipe's
---@return number?
function compare.metric(record, name)
  if name == "loss" then return record.loss end
  return record.metrics and record.metrics[name]
end

-- ---- text -------------------------------------------------------------------------------------------------------

local function speed_columns(self)
  if not self.timed then return {} end
  local list = {}
  for _, name in ipairs({ "old", "new" }) do
    list[#list + 1] = columns.numbers(self.records, name, "%.0f", function(pair) return pair[name].tokens_per_s end)
    if self[name].header.repeats > 1 then
      list[#list + 1] = columns.numbers(self.records, "+-%", "%.1f", function(pair)
        return measures.spread(pair[name])
      end)
    end
  end
  list[#list + 1] = columns.numbers(self.records, "new/old", "%.3f", function(pair) return pair.ratio end)
  list[#list + 1] = columns.numbers(self.records, "speed", "%s", function(pair) return pair.verdict end)
  list[#list].left = true
  return list
end

local function metric_column(self, name, metric)
  local column = { title = ("%s %s"):format(name, metric), of = "metrics" }
  for i, pair in ipairs(self.records) do
    local value = compare.metric(pair[name], metric)
    column[i] = value and ("%.5g"):format(value) or ""
  end
  return column
end

local function table_of(self)
  local list = columns.settings(self.records, self.columns)
  local function add(more)
    for _, column in ipairs(more) do list[#list + 1] = column end
  end
  add(speed_columns(self))
  local peaks, unit = columns.bytes(self.records, { "old", "new" }, { old = "old peak", new = "new peak" },
    function(pair, name) return measures.peak(pair[name]) end)
  add(peaks)
  for _, metric in ipairs(self.metrics) do
    add({ metric_column(self, "old", metric), metric_column(self, "new", metric) })
  end
  columns.tell_apart(list)
  return table.concat(columns.lines(list, #self.records), "\n") .. ("\n(%speak: %s per rank)"):format(
    self.timed and "old, new: tokens/s; " or "", unit)
end

---The number of points with each verdict, and the geometric mean of the ratios.
---@param self moonshard.SweepComparison
---@return string? nil if no speeds were compared
function compare.summary(self)
  if not self.timed or #self.records == 0 then return nil end
  local count, order, sum = {}, { "faster", "slower", "within noise", "one run" }, 0
  for _, pair in ipairs(self.records) do
    count[pair.verdict] = (count[pair.verdict] or 0) + 1
    sum = sum + math.log(pair.ratio)
  end
  local parts = {}
  for _, verdict in ipairs(order) do
    if count[verdict] then parts[#parts + 1] = ("%d %s"):format(count[verdict], verdict) end
  end
  return ("%s; geometric mean of new/old: %.3f"):format(table.concat(parts, ", "), math.exp(sum / #self.records))
end

local function listed(lines, title, list)
  if #list == 0 then return end
  lines[#lines + 1] = ("\n%d %s:\n  %s"):format(#list, title, table.concat(list, "\n  "))
end

---Titles of the lists below the table.
compare.LISTS = {
  { "only_old", "only in the old sweep" }, { "only_new", "only in the new sweep" },
  { "unequal", "not measured by both" },
}

---@param self moonshard.SweepComparison
---@return string
function compare.text(self)
  local lines = { ("old: %s\nnew: %s"):format(self.old.path, self.new.path) }
  for _, warning in ipairs(self.warnings) do lines[#lines + 1] = "warning: " .. warning end
  lines[#lines + 1] = "\n" .. (#self.records > 0 and table_of(self) or "no point was measured in both sweeps")
  local summary = compare.summary(self)
  if summary then lines[#lines + 1] = "\n" .. summary end
  for _, row in ipairs(compare.LISTS) do listed(lines, row[2], self[row[1]]) end
  return table.concat(lines, "\n")
end

-- ---- JSON -------------------------------------------------------------------------------------------------------

local function about(sweep)
  local header = sweep.header
  return { path = sweep.path, title = header.title, recipe = header.recipe, version = header.version,
    machine = header.machine, started = header.started, repeats = header.repeats, unfinished = sweep.unfinished }
end

local function measured(self, record)
  local row = { tokens_per_s = record.tokens_per_s, tokens_per_s_min = record.tokens_per_s_min,
    tokens_per_s_max = record.tokens_per_s_max, peak_bytes = measures.peak(record), ranks = record.ranks }
  for _, name in ipairs(self.metrics) do
    row[row[name] == nil and name or "metrics." .. name] = compare.metric(record, name)
  end
  return row
end

---@param self moonshard.SweepComparison
---@return string
function compare.json(self)
  local points = {}
  for i, pair in ipairs(self.records) do
    points[i] = { key = pair.key, point = pair.point, old = measured(self, pair.old), new = measured(self, pair.new),
      ratio = pair.ratio, ratio_low = pair.low, ratio_high = pair.high, verdict = pair.verdict }
  end
  return json.encode({ old = about(self.old), new = about(self.new), points = points, only_old = self.only_old,
    only_new = self.only_new, unequal = self.unequal, warnings = self.warnings })
end

return compare
