-- Sorts a sweep's records and formats them: as text for the terminal, as CSV and as JSON.

local columns = require("moonshard.sweep.columns")
local csv = require("moonshard.base.text.csv")
local grid = require("moonshard.sweep.grid")
local json = require("moonshard.base.text.json")
local measures = require("moonshard.sweep.measures")
local plans = require("moonshard.engine.plan")
local progress = require("moonshard.base.text.progress")
local roles = require("moonshard.shard.roles")

local report = {}

---@class moonshard.SweepReport
---@field header table what all points share
---@field columns string[] the settings that points differ in
---@field dims string[] mesh dimensions that any point has
---@field metrics string[] names of the metrics that recipes logged themselves
---@field warnings string[] reasons why the numbers may be unreliable
---@field records moonshard.SweepRecord[] measured points sorted by header.sort, then skipped ones, then failed ones
---@field count table<string, integer> points by status; also left_out (by `where`) and missing (not run yet)

local RANK = { ok = 1, skipped = 2, failed = 3 }

local warnings_of

-- Points without the value come last.
local function comes_first(order, x, y)
  if x == nil or y == nil then return x ~= nil end
  if order.highest then return x > y end
  return x < y
end

-- Appends the keys of a table that are new to `names`.
local function collect(seen, names, from)
  for name in pairs(from or {}) do
    if not seen[name] then
      seen[name] = true
      names[#names + 1] = name
    end
  end
end

local BUSY = 0.5 -- load average per core from which a machine counts as busy

---A warning if the machine was busy when the sweep began.
---@param header table what all points share
---@return string?
function report.warn_of_load(header)
  local cores = header.machine.cores
  if not header.load or not cores or header.plan or header.load < BUSY * cores then return nil end
  return ("the machine was busy when the sweep began: a load of %.1f on %d core%s; the speeds are too low")
    :format(header.load, cores, cores == 1 and "" or "s")
end

-- A warning if the runs of other points overlap with the range of the fastest point, so that their order means little.
local function warn_of_spread(self)
  local fastest, others = nil, 0
  if self.header.plan or self.header.repeats == 1 then return nil end
  for _, record in ipairs(self.records) do
    if record.status == "ok" and (not fastest or record.tokens_per_s > fastest.tokens_per_s) then fastest = record end
  end
  for _, record in ipairs(self.records) do
    local reaches = fastest and record.status == "ok" and record ~= fastest
    if reaches and record.tokens_per_s_max >= fastest.tokens_per_s_min then others = others + 1 end
  end
  if others == 0 then return nil end
  return ("the runs of %d other point%s overlap with the range of the fastest one (%s, +-%.0f %%): use more repeats or "
    .. "steps to separate them"):format(others, others == 1 and "" or "s", fastest.key, measures.spread(fastest))
end

---Why the points cannot be sorted, if no point that ran has logged the metric by which `sort` orders them.
---@param self moonshard.SweepReport
---@return string? why nil if they are sorted
function report.unsorted(self)
  local order = measures.order(self.header.sort)
  local name = order.name
  if not order.metric or self.count.ok == 0 then return nil end
  for _, metric in ipairs(self.metrics) do
    if metric == name then return nil end
  end
  return ("sort %q: no point logged a metric %s; %s"):format(self.header.sort, name, #self.metrics > 0
    and "the recipe logs " .. table.concat(self.metrics, ", ") or "the recipe logs no metrics of its own")
end

-- A warning if the sweep's own limit skips all points, as one for this machine does where a cluster is priced.
local function warn_of_limit(self)
  local limit, least = self.header.memory_limit, math.huge
  if not limit or #self.records == 0 or self.count.skipped < #self.records + self.count.missing then return nil end
  for _, record in ipairs(self.records) do least = math.min(least, record.planned.peak_bytes) end
  if least <= limit then return nil end
  return ("all points are over the sweep's memory_limit of %s: raise it to %s or more, or leave it out"):format(
    progress.size(limit), progress.size(least))
end

function warnings_of(self)
  local list = {}
  list[1] = report.warn_of_load(self.header)
  list[#list + 1] = warn_of_spread(self)
  list[#list + 1] = warn_of_limit(self)
  return list
end

---@param header table
---@param points moonshard.SweepPoint[]
---@param by_key table<string, moonshard.SweepRecord>
---@param left_out integer
---@return moonshard.SweepReport
function report.new(header, points, by_key, left_out)
  local self = {
    header = header, columns = grid.columns(points), dims = {}, metrics = {}, records = {},
    count = { ok = 0, skipped = 0, failed = 0, left_out = left_out, missing = 0 },
  }
  local place, seen = {}, {}
  for i, point in ipairs(points) do
    local record = by_key[point.key]
    local status = record and record.status or "missing"
    self.count[status] = self.count[status] + 1
    place[point.key] = i
    self.records[#self.records + 1] = record
    collect(seen, self.dims, record and record.comm_bytes)
    collect(seen, self.metrics, record and record.metrics)
  end
  roles.sort(self.dims)
  table.sort(self.metrics)
  local order = measures.order(header.sort)
  table.sort(self.records, function(a, b)
    if a.status ~= b.status then return RANK[a.status] < RANK[b.status] end
    local x, y = order.value_of(a), order.value_of(b)
    if a.status == "ok" and x ~= y then return comes_first(order, x, y) end
    return place[a.key] < place[b.key]
  end)
  self.warnings = warnings_of(self)
  return self
end

-- ---- text -------------------------------------------------------------------------------------------------------

local function comm_bytes(record, dim) return record.comm_bytes[dim] end

local function memory_bytes(record, name)
  return name == "peak" and (record.peak_bytes or record.planned.peak_bytes) or record.planned.bytes[name]
end

local function append(list, more)
  for _, item in ipairs(more) do list[#list + 1] = item end
  return list
end

-- One table if the terminal is wide enough, or else one for speed and one for memory.
local function tables(self, records, columns_of_terminal)
  local settings = columns.settings(records, self.columns)
  local speed = measures.columns(self, records)
  local comm, comm_unit = columns.bytes(records, self.dims, {}, comm_bytes)
  local names = append({ "peak" }, plans.CATEGORIES)
  local memory, memory_unit = columns.bytes(records, names, plans.SHORT, memory_bytes)
  columns.tell_apart(append(append(append(append({}, settings), speed), memory), comm))
  local note_comm = #self.dims > 0 and ("%s: %s per step"):format(table.concat(self.dims, ", "), comm_unit) or nil
  local note_memory = ("peak and its parts: %s per rank"):format(memory_unit)
  if measures.is_planned(self) then
    note_memory = note_memory .. "; sharing: replicas on a node that share one copy of the state"
  end
  local wide = columns.lines(append(append(append(append({}, settings), speed), memory), comm), #records)
  local longest = 0
  for _, line in ipairs(wide) do longest = math.max(longest, #line) end
  if longest <= columns_of_terminal then
    return append(wide, { "", "(" .. note_memory .. (note_comm and "; " .. note_comm or "") .. ")" })
  end
  local lines = columns.lines(append(append(append(append({}, settings), speed), { memory[1] }), comm), #records)
  append(lines, { "(peak: " .. memory_unit .. " per rank" .. (note_comm and "; " .. note_comm or "") .. ")", "" })
  append(lines, columns.lines(append(append({}, settings), memory), #records))
  return append(lines, { "(" .. note_memory .. ")" })
end

-- "activations 2.1 GiB, optimizer 0.9 GiB, ...", largest first.
local function by_category(bytes)
  local names, parts = append({}, plans.CATEGORIES), {}
  table.sort(names, function(a, b) return bytes[a] > bytes[b] end)
  for i, name in ipairs(names) do
    if bytes[name] > 0 then parts[i] = ("%s %s"):format(name, progress.size(bytes[name])) end
  end
  return table.concat(parts, ", ")
end

local function reason_of(record)
  if record.status ~= "skipped" then return record.reason end
  return record.reason .. ": " .. by_category(record.planned.bytes)
end

-- Lists the points of a status; points with the same text share a line.
local function listed(self, status, title, text_of)
  local order, by_text = {}, {}
  for _, record in ipairs(self.records) do
    if record.status == status then
      local text = text_of(record)
      if not by_text[text] then
        by_text[text] = {}
        order[#order + 1] = text
      end
      table.insert(by_text[text], record.key)
    end
  end
  local lines = { #order > 0 and "\n" .. title or nil }
  for _, text in ipairs(order) do
    local keys = by_text[text]
    local who = #keys > 3 and ("%s and %d more"):format(keys[1], #keys - 1) or table.concat(keys, ", ")
    lines[#lines + 1] = ("  %s: %s"):format(#order == 1 and #keys > 1 and status == "ok" and "all" or who, text)
  end
  return lines
end

local function reasons(self, status)
  return listed(self, status, ("%d %s:"):format(self.count[status], status), reason_of)
end

-- For points that ran; planned points have columns for it.
local function nodes(self)
  return listed(self, "ok", "nodes:", function(record)
    return record.planned and record.planned.nodes or "not known"
  end)
end

local function overhead(self)
  local sum = 0
  for _, record in ipairs(self.records) do sum = sum + record.overhead_seconds end
  return sum / #self.records
end

---The tables, warnings and lists as text.
---@param self moonshard.SweepReport
---@param columns_of_terminal integer
---@return string
function report.text(self, columns_of_terminal)
  local measured, lines = {}, {}
  for i = 1, self.count.ok do measured[i] = self.records[i] end
  if #measured > 0 then append(lines, tables(self, measured, columns_of_terminal)) end
  if not measures.is_planned(self) then append(lines, nodes(self)) end
  for _, warning in ipairs(self.warnings) do lines[#lines + 1] = "\nwarning: " .. warning end
  append(lines, reasons(self, "skipped"))
  append(lines, reasons(self, "failed"))
  if self.count.left_out > 0 then lines[#lines + 1] = ("\n%d left out by where"):format(self.count.left_out) end
  if self.count.missing > 0 then lines[#lines + 1] = ("\n%d did not run"):format(self.count.missing) end
  if #self.records > 0 then
    lines[#lines + 1] = ("\n%s: %.2f s"):format(measures.is_planned(self) and "time per point"
      or "overhead per point", overhead(self))
  end
  return table.concat(lines, "\n")
end

-- ---- CSV and JSON -----------------------------------------------------------------------------------------------

local PLAIN = {
  "ranks", "status", "tokens_per_s", "tokens_per_s_min", "tokens_per_s_max", "step_ms", "exposed_ms",
  "loss", "peak_bytes",
}

local BY_DIMENSION = {
  { key = "comm_bytes", head = "comm_%s_bytes" }, { key = "wire_bytes", head = "wire_%s_bytes" },
  { key = "waits_ms", head = "waits_%s_ms" },
}

-- The names of the columns, all different.
local function head_of(self)
  local head = {}
  local function add(title, of) head[#head + 1] = { title = title, of = of } end
  local function add_all(titles, of) for _, title in ipairs(titles) do add(title, of) end end
  for _, key in ipairs(self.columns) do if key ~= "ranks" then add(key, "point") end end
  add_all(PLAIN)
  add_all(self.metrics, "metrics")
  add_all({ "nodes", "planned_peak_bytes" })
  add_all(self.header.price and { "priced_step_ms", "priced_tokens_per_s", "priced_mfu" } or {})
  for _, name in ipairs(plans.CATEGORIES) do add("planned_" .. name .. "_bytes") end
  for _, what in ipairs(BY_DIMENSION) do
    for _, dim in ipairs(self.dims) do add(what.head:format(dim)) end
  end
  add_all({ "seconds", "overhead_seconds", "reason" })
  for i, column in ipairs(columns.tell_apart(head)) do head[i] = column.title end
  return head
end

---The records as CSV, with a header line.
---@param self moonshard.SweepReport
---@return string
function report.csv(self)
  local head, lines = head_of(self), {}
  lines[1] = csv.line(head, #head)
  for _, record in ipairs(self.records) do
    local fields, count = {}, 0
    local function add(value)
      count = count + 1
      fields[count] = value
    end
    for _, key in ipairs(self.columns) do if key ~= "ranks" then add(record.point[key]) end end
    for _, key in ipairs(PLAIN) do add(record[key]) end
    for _, name in ipairs(self.metrics) do add(record.metrics and record.metrics[name]) end
    add(record.planned and record.planned.nodes)
    add(record.planned and record.planned.peak_bytes)
    for _, key in ipairs(self.header.price and { "step_ms", "tokens_per_s", "mfu" } or {}) do
      add(record.priced and record.priced[key])
    end
    for _, name in ipairs(plans.CATEGORIES) do add(record.planned and record.planned.bytes[name]) end
    for _, what in ipairs(BY_DIMENSION) do
      for _, dim in ipairs(self.dims) do add(record[what.key] and record[what.key][dim]) end
    end
    add(record.seconds)
    add(record.overhead_seconds)
    add(record.reason)
    lines[#lines + 1] = csv.line(fields, count)
  end
  return table.concat(lines, "\n") .. "\n"
end

---The sweep as one JSON object: what all points share, and `points` in order.
---@param self moonshard.SweepReport
---@return string
function report.json(self)
  local all = { count = self.count, points = self.records, warnings = self.warnings }
  for key, value in pairs(self.header) do all[key] = value end
  return json.encode(all)
end

return report
