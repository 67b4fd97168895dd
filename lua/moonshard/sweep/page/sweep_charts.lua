-- The charts of a sweep's page: speed, loss, memory, bytes, and the time of a step, of points that ran or were priced.
-- Each row is a point.

local charts = require("moonshard.sweep.page.charts")
local frame = require("moonshard.page.frame")
local grid = require("moonshard.sweep.grid")
local measures = require("moonshard.sweep.measures")
local minimum = require("moonshard.sweep.minimum")
local plans = require("moonshard.engine.plan")
local points = require("moonshard.page.points")
local progress = require("moonshard.base.text.progress")
local style = require("moonshard.page.style")
local units = require("moonshard.page.units")

local sweep_charts = {}

local figure, grouped, peak_of, speed_of = frame.figure, charts.group_rows, measures.peak, measures.speed

local function is_measured(record) return record.status == "ok" end

local function has_speed(record) return is_measured(record) and speed_of(record) ~= nil end

-- The largest value of some records, for the unit of a chart.
local function largest(self, wanted, value_of)
  local most = 0
  for _, record in ipairs(self.records) do
    if wanted(record) then most = math.max(most, value_of(record) or 0) end
  end
  return most
end

-- The record with the highest speed; nil without speeds.
local function fastest(self)
  local best
  for _, record in ipairs(self.records) do
    if has_speed(record) and (not best or speed_of(record) > speed_of(best)) then best = record end
  end
  return best
end

-- "measured", or on which cluster a planned sweep is priced.
local function source(self)
  return measures.is_planned(self) and "priced on " .. self.header.price or "median over steps"
end

-- The lowest and highest value of a point's runs; nil where it ran once.
local function range_of_runs(record, field)
  if not record.runs or #record.runs < 2 then return nil end
  local low, high = math.huge, -math.huge
  for _, run in ipairs(record.runs) do
    if type(run[field]) ~= "number" then return nil end
    low, high = math.min(low, run[field]), math.max(high, run[field])
  end
  return low, high
end

local function speed(self)
  local repeats, best = self.header.repeats, fastest(self)
  local several = repeats > 1 and not measures.is_planned(self)
  local unit = units.rate(largest(self, has_speed, function(r) return r.tokens_per_s_max or speed_of(r) end))
  local groups = grouped(self, has_speed, function(record)
    local step = record.step_ms or record.priced.step_ms
    return {
      low = several and record.tokens_per_s_min or nil, high = several and record.tokens_per_s_max or nil,
      mark = record == best and "fastest" or nil,
      text = units.text(unit, speed_of(record)) .. (several and (" ±%.0f%%"):format(measures.spread(record)) or ""),
      segments = { { value = speed_of(record), class = "c1", title = ("%s: %s, %.2f ms per step"):format(record.key,
        progress.rate(speed_of(record)), step) } },
    }
  end)
  local about = several and ("Tokens per second of all ranks: median of %d runs, and their range."):format(repeats)
    or ("Tokens per second of all ranks, %s."):format(source(self))
  return figure("Speed", about, { title = "Speed", groups = groups, unit = unit, axis = "speed of all ranks" })
end

local function loss(self)
  local groups = grouped(self, is_measured, function(record)
    local text, low, high = ("%.4f"):format(record.loss), range_of_runs(record, "loss")
    return { text = text, low = low, high = high,
      segments = { { value = record.loss, class = "c1", title = record.key .. ": " .. text } } }
  end)
  return figure("Loss", "Mean over the last tenth of the steps.", { title = "Loss", groups = groups,
    unit = units.plain(""), axis = "loss" })
end

-- For points that differ in one positive number, such as a learning rate: the curve of the loss and its minimum.
local function loss_curve(self)
  local key = self.columns[1]
  local chart = { title = "Loss over " .. key, points = {}, joined = true, x_title = key, y_title = "loss",
    x_unit = units.plain(""), y_unit = units.plain("") }
  local list, failed = minimum.measured(self, key)
  local by_rate = {}
  for _, record in ipairs(self.records) do by_rate[record.point[key]] = record end
  for i, point in ipairs(list) do
    local low, high = range_of_runs(by_rate[point.rate], "loss")
    chart.points[i] = { x = point.rate, y = point.loss, low = low, high = high,
      title = ("%s=%s: %.4f"):format(key, grid.text(point.rate), point.loss) }
  end
  chart.x_log = list[#list].rate >= 10 * list[1].rate
  local rate, text = minimum.advise(list, failed)
  chart.mark = { x = rate, text = ("%s=%s"):format(key, grid.text(rate)) }
  return frame.framed(chart.title, text .. ".", points.svg(chart))
end

local function has_curve(self)
  if #self.columns ~= 1 or self.count.ok < 3 or self.header.sort ~= "loss" then return false end
  for _, record in ipairs(self.records) do
    local value = record.point[self.columns[1]]
    if is_measured(record) and not (type(value) == "number" and value > 0) then return false end
  end
  return true
end

local function peaks_differ(self)
  local first
  for _, record in ipairs(self.records) do
    if is_measured(record) then
      first = first or peak_of(record)
      if peak_of(record) ~= first then return true end
    end
  end
  return false
end

-- Speed over memory: points further up and left are better.
local function speed_against_memory(self)
  local chart = { title = "Speed against memory", points = {},
    x_unit = units.bytes(largest(self, has_speed, peak_of)), x_title = "peak memory of a rank",
    y_unit = units.rate(largest(self, has_speed, speed_of)), y_title = "speed of all ranks" }
  local shown = {}
  for _, record in ipairs(self.records) do
    if has_speed(record) then
      shown[#shown + 1] = record
      table.insert(chart.points, { x = peak_of(record), y = speed_of(record), record = record,
        low = record.tokens_per_s_min, high = record.tokens_per_s_max, title = ("%s: %s, %s per rank"):format(
          record.key, progress.rate(speed_of(record)), progress.size(peak_of(record))) })
    end
  end
  local columns = charts.varying(self.columns, shown)
  for _, point in ipairs(points.frontier(chart.points)) do
    point.text = charts.label_of(columns, point.record):gsub("  ", " ")
  end
  return frame.framed(chart.title, "The points that no other point beats in both have a name, as far as there is "
    .. "room, and always the fastest.", points.svg(chart))
end

local function memory(self)
  local limit = self.header.memory_limit
  local entries = {}
  for i, name in ipairs(plans.CATEGORIES) do entries[i] = { class = "c" .. i, name = name } end
  local function wanted(record) return is_measured(record) or record.status == "skipped" end
  local unit = units.bytes(math.max(limit or 0, largest(self, wanted,
    function(record) return record.planned.peak_bytes end)))
  local groups = grouped(self, wanted, function(record)
    local segments = {}
    for i, name in ipairs(plans.CATEGORIES) do
      local bytes = record.planned.bytes[name]
      segments[i] = { value = bytes, class = "c" .. i,
        title = ("%s: %s %s"):format(record.key, name, progress.size(bytes)) }
    end
    local skipped = record.status == "skipped"
    return { label = skipped and "  (skipped)" or nil, segments = segments, faint = skipped,
      text = units.text(unit, record.planned.peak_bytes) }
  end)
  return figure("Peak memory by category", "Rank 0, known before the first step.", {
    title = "Peak memory by category", groups = groups, unit = unit, axis = "peak memory of rank 0",
    limit = limit and { value = limit, text = "limit " .. progress.size(limit) } or nil,
  }, entries)
end

local function dimensions(self)
  local entries = {}
  for i, dim in ipairs(self.dims) do entries[i] = { class = style.of_dimension(dim), name = dim, dim = dim } end
  return entries
end

local function sum_of(map)
  local sum = 0
  for _, value in pairs(map or {}) do sum = sum + value end
  return sum
end

-- A bar of bytes for each point that has them, one segment for each mesh dimension; nil without such points.
local function bytes_by_dimension(self, key, title, about, measured)
  local entries = dimensions(self)
  local function wanted(record) return is_measured(record) and record[key] end
  local unit = units.bytes(largest(self, wanted, function(record) return sum_of(record[key]) end))
  local groups = grouped(self, wanted, function(record)
    local segments = {}
    for i, entry in ipairs(entries) do
      local bytes = record[key][entry.dim] or 0
      segments[i] = { value = bytes, class = entry.class,
        title = ("%s: %s over %s"):format(record.key, progress.size(bytes), entry.dim) }
    end
    return { segments = segments, text = units.text(unit, sum_of(record[key])) }
  end)
  if #groups == 0 then return nil end
  return figure(title, about, { title = title, groups = groups, unit = unit, axis = measured }, entries)
end

local function communication(self)
  return bytes_by_dimension(self, "comm_bytes", "Bytes per mesh dimension",
    "Bytes that rank 0 reads and writes for others in a step.", "bytes in a step")
end

local function between_hosts(self)
  return bytes_by_dimension(self, "wire_bytes", "Bytes between hosts",
    "Bytes that rank 0 sends to other hosts in a step, or receives if that is more.", "bytes in a step")
end

-- The time of a step, of the time in which no kernel ran, and of the waits in it, of a record; nil without them.
-- On a GPU only a trace measures it.
local function time_of(record)
  if not is_measured(record) then return nil end
  if record.exposed_ms then
    return { step = record.step_ms, exposed = math.min(record.exposed_ms, record.step_ms),
      waits = record.waits_ms or {} }
  end
  local priced = not record.step_ms and record.priced
  if not priced or not priced.waits_ms then return nil end
  return { step = priced.step_ms, exposed = priced.exposed_ms + priced.host_ms, waits = priced.waits_ms }
end

-- Compute, waiting by mesh dimension, and the rest.
local function step_time(self)
  local planned = measures.is_planned(self)
  local entries = { { class = "c1", name = "compute" } }
  for _, entry in ipairs(dimensions(self)) do
    entries[#entries + 1] = { class = entry.class, name = "waiting over " .. entry.dim, dim = entry.dim }
  end
  entries[#entries + 1] = { class = "c6", name = planned and "waiting for the host" or "moving bytes" }
  local groups = grouped(self, time_of, function(record)
    local time = time_of(record)
    local segments, rest = {}, time.exposed
    for i, entry in ipairs(entries) do
      local ms = i == 1 and time.step - time.exposed or rest
      if entry.dim then ms = math.min(rest, time.waits[entry.dim] or 0) end
      if i > 1 then rest = rest - ms end
      segments[i] = { value = ms, class = entry.class,
        title = ("%s: %.2f ms of %s"):format(record.key, ms, entry.name) }
    end
    local low, high = range_of_runs(record, "step_ms")
    return { segments = segments, low = low, high = high,
      text = ("%.2f ms (%.0f%%)"):format(time.step, 100 * time.exposed / time.step) }
  end)
  if #groups == 0 then return nil end
  local about = planned and ("Rank 0, %s; in brackets the share of the time in which no kernel runs, because it waits "
    .. "for other ranks or for the host."):format(source(self))
    or "Rank 0, medians; in brackets the share of the time in which no kernel ran, because rank 0 waited for other "
    .. "ranks or moved their bytes."
  return figure("Time of a step", about, { title = "Time of a step", groups = groups, unit = units.plain("ms"),
    axis = "time of a step" }, entries)
end

---All charts for which the sweep has data.
---@param self moonshard.SweepReport
---@return string[]
function sweep_charts.figures(self)
  local list = {}
  local function add(chart) list[#list + 1] = chart(self) end
  local ran, timed = self.count.ok > 0 and not measures.is_planned(self), fastest(self) ~= nil
  if self.count.ok > 0 and has_curve(self) then
    add(loss_curve)
  elseif ran and self.header.sort == "loss" then
    add(loss)
  end
  if timed then
    add(speed)
    add(step_time)
    if peaks_differ(self) then add(speed_against_memory) end
  end
  if self.count.ok + self.count.skipped > 0 then add(memory) end
  if self.count.ok > 0 and #self.dims > 0 then
    add(communication)
    add(between_hosts)
  end
  return list
end

return sweep_charts
