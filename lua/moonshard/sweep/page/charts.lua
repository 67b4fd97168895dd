-- The charts of a sweep's page: speed, loss, memory, bytes, and the time of a step. Each row is a point.
--
-- Rows have their point's number in the table of all points, so that the page's script can sort and group them. Without
-- scripts they are in the sweep's order, grouped by the first setting.

local bars = require("moonshard.sweep.page.bars")
local grid = require("moonshard.sweep.grid")
local minimum = require("moonshard.sweep.minimum")
local plans = require("moonshard.engine.plan")
local points = require("moonshard.sweep.page.points")
local progress = require("moonshard.base.text.progress")
local report = require("moonshard.sweep.report")
local style = require("moonshard.sweep.page.style")

local charts = {}

local escape = bars.escape
local MEBIBYTE = 2 ^ 20
local WAITS = { "c4", "c3", "c5", "c7" } -- classes of waiting, one a mesh dimension

-- The mesh, or the first setting if the mesh does not vary.
local function group_key(self) return self.columns[1] end

---What distinguishes a record from the others of its group.
---@param self { columns: string[] }
---@param record { key: string, point: table<string, any> }
---@return string
function charts.label_of(self, record)
  local parts = {}
  for _, key in ipairs(self.columns) do
    if key ~= group_key(self) and record.point[key] ~= nil then
      parts[#parts + 1] = key .. "=" .. grid.text(record.point[key])
    end
  end
  return #parts > 0 and table.concat(parts, "  ") or record.key
end

---Rows in groups, in the order of each group's first record. If the points differ in only one setting, each would be a
---group, so all are in one group without a title.
---@param self { columns: string[], records: { point: table<string, any> }[] }
---@param wanted fun(record: table): boolean|number|nil whether the record has a row
---@param row_of fun(record: table): moonshard.BarRow
---@return { title: string?, rows: moonshard.BarRow[] }[]
function charts.group_rows(self, wanted, row_of)
  local key, groups, by_value = group_key(self), {}, {}
  local several = #self.columns > 1
  for number, record in ipairs(self.records) do
    if wanted(record) then
      local value = several and record.point[key] ~= nil and key .. " " .. grid.text(record.point[key]) or "others"
      if not by_value[value] then
        by_value[value] = { title = several and value or nil, rows = {} }
        groups[#groups + 1] = by_value[value]
      end
      local row = row_of(record)
      row.number = number
      table.insert(by_value[value].rows, row)
    end
  end
  return groups
end

local function is_measured(record) return record.status == "ok" end

---Peak bytes of rank 0: measured, or else planned.
---@param record moonshard.SweepRecord
---@return number
function charts.peak_of(record) return record.peak_bytes or record.planned.peak_bytes end
local peak_of = charts.peak_of

local function legend(entries)
  local out = {}
  for i, entry in ipairs(entries) do
    out[i] = ('<li><i class="%s"></i>%s</li>'):format(entry.class, escape(entry.name))
  end
  return '<ul class="legend">' .. table.concat(out) .. "</ul>"
end

-- The drawing as a separate file, which includes its colours.
local function as_file(svg)
  return (svg:gsub('^<svg width="100%%"', '<svg xmlns="http://www.w3.org/2000/svg" width="860"')
    :gsub("^(<svg[^>]*>)", function(opening) return opening .. "<style>" .. style.drawing .. "</style>" end))
end

---A link to a file whose content is in the link itself, so that it needs no network.
---@param name string name of the file
---@param kind string MIME type
---@param content string
---@param text string text of the link
---@return string
function charts.download(name, kind, content, text)
  local data = content:gsub("[^%w%-._~]", function(c) return ("%%%02X"):format(c:byte()) end)
  return ('<a class="get" download="%s" href="data:%s;charset=utf-8,%s">%s</a>'):format(escape(name), kind, data,
    escape(text))
end

---A drawing with its title, a description, and a link that downloads it as a file.
---@param title string
---@param about string description below the title
---@param svg string
---@param entries { class: string, name: string }[]? legend of its colours
---@return string
function charts.framed(title, about, svg, entries)
  local name = title:lower():gsub("[^%w]+", "-") .. ".svg"
  return ('<figure><figcaption>%s<h2>%s</h2><p>%s</p></figcaption>%s%s</figure>'):format(charts.download(name,
    "image/svg+xml", as_file(svg), "SVG"), escape(title), escape(about), entries and legend(entries) or "", svg)
end

---A bar chart with its title, a description, and a link that downloads it as a file.
---@param title string
---@param about string description below the title
---@param chart moonshard.BarChart
---@param entries { class: string, name: string }[]? legend of its colours
---@return string
function charts.figure(title, about, chart, entries) return charts.framed(title, about, bars.svg(chart), entries) end
local figure, grouped, label_of = charts.figure, charts.group_rows, charts.label_of

-- ---- the charts -------------------------------------------------------------------------------------------------

local function short_rate(value)
  if value >= 1e6 then return ("%.2fM"):format(value / 1e6) end
  return value >= 1e4 and ("%.1fk"):format(value / 1e3) or ("%.0f"):format(value)
end

local function speed(self)
  local repeats = self.header.repeats
  local groups = grouped(self, is_measured, function(record)
    local several = repeats > 1
    return {
      label = label_of(self, record), low = several and record.tokens_per_s_min or nil,
      high = several and record.tokens_per_s_max or nil,
      text = short_rate(record.tokens_per_s) .. (several and (" ±%.0f%%"):format(report.spread(record)) or ""),
      segments = { { value = record.tokens_per_s, class = "c1", title = ("%s: %s, %.2f ms per step"):format(record.key,
        progress.rate(record.tokens_per_s), record.step_ms) } },
    }
  end)
  local about = repeats > 1 and ("Tokens per second of all ranks: median of %d runs, and their range."):format(repeats)
    or "Tokens per second of all ranks, median over steps."
  return figure("Speed", about, { title = "Speed", groups = groups })
end

local function loss(self)
  local groups = grouped(self, is_measured, function(record)
    local text = ("%.4f"):format(record.loss)
    return { label = label_of(self, record), text = text,
      segments = { { value = record.loss, class = "c1", title = record.key .. ": " .. text } } }
  end)
  return figure("Loss", "Mean over the last tenth of the steps.",
    { title = "Loss", groups = groups })
end

-- For points that differ in one positive number, such as a learning rate: the curve of the loss and its minimum.
local function loss_curve(self)
  local key, chart = self.columns[1], { title = "Loss over " .. self.columns[1], points = {}, joined = true }
  local list, failed = minimum.measured(self, key)
  for i, point in ipairs(list) do
    local text = ("%s=%s: %.4f"):format(key, grid.text(point.rate), point.loss)
    chart.points[i] = { x = point.rate, y = point.loss, title = text }
  end
  chart.x_log = list[#list].rate >= 10 * list[1].rate
  local rate, text = minimum.advise(list, failed)
  chart.mark = { x = rate, text = ("%s=%s"):format(key, grid.text(rate)) }
  return charts.framed(chart.title, text .. ".", points.svg(chart))
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
  local chart = { title = "Speed against memory", points = {} }
  local best = -1
  for _, record in ipairs(self.records) do
    if is_measured(record) then
      table.insert(chart.points, { x = peak_of(record) / MEBIBYTE, y = record.tokens_per_s, key = record.key,
        title = ("%s: %s, %s per rank"):format(record.key, progress.rate(record.tokens_per_s),
          progress.size(peak_of(record))) })
    end
  end
  -- Names the points that no other point beats in both.
  table.sort(chart.points, function(a, b)
    if a.x ~= b.x then return a.x < b.x end
    return a.y > b.y
  end)
  for _, point in ipairs(chart.points) do
    if point.y > best then
      best, point.text = point.y, point.key
    end
  end
  local about = "Tokens per second against MiB per rank. Named points: no other point is both faster and smaller."
  return charts.framed(chart.title, about, points.svg(chart))
end

local function memory(self)
  local limit = self.header.memory_limit
  local entries = {}
  for i, name in ipairs(plans.CATEGORIES) do entries[i] = { class = "c" .. i, name = name } end
  local groups = grouped(self, function(record) return is_measured(record) or record.status == "skipped" end,
    function(record)
      local segments = {}
      for i, name in ipairs(plans.CATEGORIES) do
        local bytes = record.planned.bytes[name]
        segments[i] = { value = bytes / MEBIBYTE, class = "c" .. i,
          title = ("%s: %s %s"):format(record.key, name, progress.size(bytes)) }
      end
      local skipped = record.status == "skipped"
      return { label = label_of(self, record) .. (skipped and "  (skipped)" or ""), segments = segments,
        faint = skipped, text = progress.size(record.planned.peak_bytes) }
    end)
  return figure("Peak memory by category", "MiB on rank 0, known before the first step.", {
    title = "Peak memory by category", groups = groups,
    limit = limit and { value = limit / MEBIBYTE, text = "limit " .. progress.size(limit) } or nil,
  }, entries)
end

-- A bar of bytes for each point that has them, one segment for each mesh dimension; nil without such points.
local function bytes_by_dimension(self, key, title, about)
  local entries = {}
  for i, dim in ipairs(self.dims) do entries[i] = { class = "d" .. (i - 1) % 4 + 1, name = dim } end
  local groups = grouped(self, function(record) return is_measured(record) and record[key] end, function(record)
    local segments, sum = {}, 0
    for i, dim in ipairs(self.dims) do
      local bytes = record[key][dim] or 0
      sum = sum + bytes
      segments[i] = { value = bytes / MEBIBYTE, class = entries[i].class,
        title = ("%s: %s over %s"):format(record.key, progress.size(bytes), dim) }
    end
    return { label = label_of(self, record), segments = segments, text = progress.size(sum) }
  end)
  if #groups == 0 then return nil end
  return figure(title, about, { title = title, groups = groups }, entries)
end

local function communication(self)
  return bytes_by_dimension(self, "comm_bytes", "Bytes per mesh dimension",
    "MiB that rank 0 reads and writes for others in a step.")
end

local function between_hosts(self)
  return bytes_by_dimension(self, "wire_bytes", "Bytes between hosts",
    "MiB that rank 0 sends to other hosts in a step, or receives if that is more.")
end

-- Compute and exposed communication in a step, for points that measured it: waiting by mesh dimension, and the rest.
-- On a GPU only a trace measures it.
local function step_time(self)
  local entries = { { class = "c1", name = "compute" } }
  for i, dim in ipairs(self.dims) do
    entries[1 + i] = { class = WAITS[(i - 1) % #WAITS + 1], name = "waiting over " .. dim, dim = dim }
  end
  entries[#entries + 1] = { class = "c6", name = "moving bytes" }
  local groups = grouped(self, function(record) return is_measured(record) and record.exposed_ms end, function(record)
    local exposed = math.min(record.exposed_ms, record.step_ms)
    local segments, rest = {}, exposed
    for i, entry in ipairs(entries) do
      local ms = i == 1 and record.step_ms - exposed or rest
      if entry.dim then ms = math.min(rest, record.waits_ms and record.waits_ms[entry.dim] or 0) end
      if i > 1 then rest = rest - ms end
      segments[i] = { value = ms, class = entry.class,
        title = ("%s: %.2f ms of %s"):format(record.key, ms, entry.name) }
    end
    return { label = label_of(self, record), segments = segments,
      text = ("%.2f ms (%.0f%%)"):format(record.step_ms, 100 * exposed / record.step_ms) }
  end)
  if #groups == 0 then return nil end
  local about = "Milliseconds on rank 0, medians; in brackets the share of the time in which no kernel ran, because "
    .. "rank 0 waited for other ranks or moved their bytes."
  return figure("Time of a step", about, { title = "Time of a step", groups = groups }, entries)
end

---All charts for which the sweep has data.
---@param self moonshard.SweepReport
---@return string[]
function charts.figures(self)
  local list = {}
  local function add(chart) list[#list + 1] = chart(self) end
  local ran = self.count.ok > 0 and not report.is_planned(self)
  if self.count.ok > 0 and has_curve(self) then
    add(loss_curve)
  elseif ran and self.header.sort == "loss" then
    add(loss)
  end
  if ran then
    add(speed)
    add(step_time)
  end
  if ran and peaks_differ(self) then add(speed_against_memory) end
  if self.count.ok + self.count.skipped > 0 then add(memory) end
  if self.count.ok > 0 and #self.dims > 0 then
    add(communication)
    add(between_hosts)
  end
  return list
end

return charts
