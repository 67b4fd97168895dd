-- A sweep as one page that needs nothing else: charts of speed, memory and bytes, and all points as a table.

local bars = require("moonshard.sweep.bars")
local grid = require("moonshard.sweep.grid")
local lowest = require("moonshard.sweep.lowest")
local points = require("moonshard.sweep.points")
local progress = require("moonshard.progress")
local report = require("moonshard.sweep.report")
local running = require("moonshard.sweep.running")
local style = require("moonshard.sweep.style")

local html = {}

local escape = bars.escape
local MEBIBYTE = 2 ^ 20

-- ---- what charts have in common ---------------------------------------------------------------------------------

-- Points are grouped by mesh, or by the first setting where the mesh does not vary.
local function group_key(self)
  return self.columns[1]
end

local function label_of(self, record)
  local parts = {}
  for _, key in ipairs(self.columns) do
    if key ~= group_key(self) and record.point[key] ~= nil then
      parts[#parts + 1] = key .. "=" .. grid.text(record.point[key])
    end
  end
  return #parts > 0 and table.concat(parts, "  ") or record.key
end

-- Groups in the order in which their first record comes: of measured ones, the fastest. Where points differ in one
-- setting alone, each would be a group, so there is one without a title.
local function grouped(self, wanted, row_of)
  local key, groups, by_value = group_key(self), {}, {}
  local several = #self.columns > 1
  for _, record in ipairs(self.records) do
    if wanted(record) then
      local value = several and record.point[key] ~= nil and key .. " " .. grid.text(record.point[key]) or "others"
      if not by_value[value] then
        by_value[value] = { title = several and value or nil, rows = {} }
        groups[#groups + 1] = by_value[value]
      end
      table.insert(by_value[value].rows, row_of(record))
    end
  end
  return groups
end

local function is_measured(record) return record.status == "ok" end

local function peak_of(record) return record.peak_bytes or record.planned.peak_bytes end

local function legend(entries)
  local out = {}
  for i, entry in ipairs(entries) do
    out[i] = ('<li><i class="%s"></i>%s</li>'):format(entry.class, escape(entry.name))
  end
  return '<ul class="legend">' .. table.concat(out) .. "</ul>"
end

local function framed(title, about, inside)
  return ('<figure><figcaption><h2>%s</h2><p>%s</p></figcaption>%s</figure>'):format(escape(title), escape(about),
    inside)
end

local function figure(title, about, chart, entries)
  return framed(title, about, (entries and legend(entries) or "") .. "\n" .. bars.svg(chart))
end

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
      parts = { { value = record.tokens_per_s, class = "c1", title = ("%s: %s, %.2f ms a step"):format(record.key,
        progress.rate(record.tokens_per_s), record.step_ms) } },
    }
  end)
  local about = repeats > 1 and ("Tokens per second of all ranks: median of %d runs, and their range."):format(repeats)
    or "Tokens per second of all ranks, median over steps."
  return figure("Speed by " .. group_key(self), about, { title = "Speed by " .. group_key(self), groups = groups })
end

local function loss(self)
  local groups = grouped(self, is_measured, function(record)
    local text = ("%.4f"):format(record.loss)
    return { label = label_of(self, record), text = text,
      parts = { { value = record.loss, class = "c1", title = record.key .. ": " .. text } } }
  end)
  return figure("Loss by " .. group_key(self), "Mean over the last tenth of the steps.",
    { title = "Loss by " .. group_key(self), groups = groups })
end

-- Of points that differ in one positive number, as learning rates do: the curve, and where it is lowest.
local function loss_curve(self)
  local key, chart = self.columns[1], { title = "Loss over " .. self.columns[1], points = {}, joined = true }
  local list = lowest.measured(self, key)
  for i, point in ipairs(list) do
    local text = ("%s=%s: %.4f"):format(key, grid.text(point.rate), point.loss)
    chart.points[i] = { x = point.rate, y = point.loss, title = text }
  end
  chart.x_log = list[#list].rate >= 10 * list[1].rate
  local rate, told = lowest.advise(list)
  chart.mark = { x = rate, text = ("%s=%s"):format(key, grid.text(rate)) }
  return framed(chart.title, told .. ".", points.svg(chart))
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

-- What a point's speed costs: up and left is better.
local function speed_against_memory(self)
  local chart = { title = "Speed against memory", points = {} }
  local best = -1
  for _, record in ipairs(self.records) do
    if is_measured(record) then
      table.insert(chart.points, { x = peak_of(record) / MEBIBYTE, y = record.tokens_per_s, key = record.key,
        title = ("%s: %s, %s a rank"):format(record.key, progress.rate(record.tokens_per_s),
          progress.size(peak_of(record))) })
    end
  end
  -- Named are those that no other point beats in both.
  table.sort(chart.points, function(a, b)
    if a.x ~= b.x then return a.x < b.x end
    return a.y > b.y
  end)
  for _, point in ipairs(chart.points) do
    if point.y > best then
      best, point.text = point.y, point.key
    end
  end
  return framed(chart.title, "Tokens per second over MiB of a rank; named are points that no other beats in both.",
    points.svg(chart))
end

local function memory(self)
  local limit = self.header.memory_limit
  local entries = {}
  for i, name in ipairs(running.CATEGORIES) do entries[i] = { class = "c" .. i, name = name } end
  local groups = grouped(self, function(record) return is_measured(record) or record.status == "skipped" end,
    function(record)
      local parts = {}
      for i, name in ipairs(running.CATEGORIES) do
        local bytes = record.planned.bytes[name]
        parts[i] = { value = bytes / MEBIBYTE, class = "c" .. i,
          title = ("%s: %s %s"):format(record.key, name, progress.size(bytes)) }
      end
      local skipped = record.status == "skipped"
      return { label = label_of(self, record) .. (skipped and "  (skipped)" or ""), parts = parts, faint = skipped,
        text = progress.size(record.planned.peak_bytes) }
    end)
  return figure("Peak memory by category", "MiB of rank 0, as planned before the first step.", {
    title = "Peak memory by category", groups = groups,
    limit = limit and { value = limit / MEBIBYTE, text = "limit " .. progress.size(limit) } or nil,
  }, entries)
end

local function communication(self)
  local entries = {}
  for i, dim in ipairs(self.dims) do entries[i] = { class = "d" .. (i - 1) % 4 + 1, name = dim } end
  local groups = grouped(self, is_measured, function(record)
    local parts, sum = {}, 0
    for i, dim in ipairs(self.dims) do
      local bytes = record.comm_bytes[dim] or 0
      sum = sum + bytes
      parts[i] = { value = bytes / MEBIBYTE, class = entries[i].class,
        title = ("%s: %s over %s"):format(record.key, progress.size(bytes), dim) }
    end
    return { label = label_of(self, record), parts = parts, text = progress.size(sum) }
  end)
  return figure("Bytes per mesh dimension", "MiB that rank 0 reads and writes for others in a step.",
    { title = "Bytes per mesh dimension", groups = groups }, entries)
end

-- ---- the table --------------------------------------------------------------------------------------------------

local function table_head(self)
  local cells = {}
  for _, key in ipairs(self.columns) do cells[#cells + 1] = "<th>" .. escape(key) .. "</th>" end
  local numbers = report.is_planned(self) and { "peak" }
    or self.header.repeats > 1 and { "tokens/s", "±", "ms a step", "peak" } or { "tokens/s", "ms a step", "peak" }
  for _, name in ipairs(running.CATEGORIES) do numbers[#numbers + 1] = name end
  for _, dim in ipairs(self.dims) do numbers[#numbers + 1] = dim .. " a step" end
  for _, name in ipairs(self.metrics) do numbers[#numbers + 1] = name end
  if report.is_planned(self) then numbers[#numbers + 1] = "nodes" end
  for _, text in ipairs(numbers) do cells[#cells + 1] = '<th class="n">' .. escape(text) .. "</th>" end
  return "<tr>" .. table.concat(cells) .. "</tr>"
end

local function table_row(self, record)
  local cells = {}
  for _, key in ipairs(self.columns) do
    local value = record.point[key]
    cells[#cells + 1] = "<td>" .. (value == nil and "" or escape(grid.text(value))) .. "</td>"
  end
  local function number(text) cells[#cells + 1] = '<td class="n">' .. text .. "</td>" end
  local measured = is_measured(record)
  if not report.is_planned(self) then
    number(measured and ("%.0f"):format(record.tokens_per_s) or record.status)
    if self.header.repeats > 1 then number(measured and ("%.1f%%"):format(report.spread(record)) or "") end
    number(measured and ("%.2f"):format(record.step_ms) or "")
  end
  number(record.planned and progress.size(peak_of(record)) or record.status)
  for _, name in ipairs(running.CATEGORIES) do
    number(record.planned and progress.size(record.planned.bytes[name]) or "")
  end
  for _, dim in ipairs(self.dims) do
    number(measured and progress.size(record.comm_bytes[dim] or 0) or "")
  end
  for _, name in ipairs(self.metrics) do
    local value = record.metrics and record.metrics[name]
    number(value and ("%.5g"):format(value) or "")
  end
  if report.is_planned(self) then number(record.planned and escape(record.planned.nodes) or "") end
  return ('<tr class="%s">%s</tr>'):format(record.status, table.concat(cells))
end

local function points_table(self)
  local rows = {}
  for i, record in ipairs(self.records) do rows[i] = table_row(self, record) end
  return '<section><h2>All points</h2><div class="scroll"><table><thead>' .. table_head(self) .. "</thead><tbody>\n"
    .. table.concat(rows, "\n") .. "</tbody></table></div></section>"
end

local function reasons(self)
  local items = {}
  for _, record in ipairs(self.records) do
    if not is_measured(record) then
      items[#items + 1] = ("<li><b>%s</b> %s: %s</li>"):format(escape(record.key), record.status,
        escape(record.reason))
    end
  end
  if #items == 0 then return "" end
  return "<section><h2>Skipped and failed</h2><ul>" .. table.concat(items, "\n") .. "</ul></section>"
end

-- ---- the page ---------------------------------------------------------------------------------------------------

local function tile(name, value, about)
  return ("<div><dt>%s</dt><dd>%s<small>%s</small></dd></div>"):format(name, escape(value), escape(about))
end

-- The fastest point, the one with the smallest peak, and how many there are.
local function tiles(self)
  local out, fastest, smallest = {}, nil, nil
  for _, record in ipairs(self.records) do
    local faster = record.tokens_per_s and (not fastest or record.tokens_per_s > fastest.tokens_per_s)
    if is_measured(record) and faster then fastest = record end
    if is_measured(record) and (not smallest or peak_of(record) < peak_of(smallest)) then smallest = record end
  end
  if fastest then out[1] = tile("fastest", progress.rate(fastest.tokens_per_s), fastest.key) end
  if smallest then out[#out + 1] = tile("smallest", progress.size(peak_of(smallest)) .. " a rank", smallest.key) end
  local count, others = self.count, {}
  for _, status in ipairs({ "skipped", "failed", "missing" }) do
    if count[status] > 0 then others[#others + 1] = ("%d %s"):format(count[status], status) end
  end
  out[#out + 1] = tile(report.is_planned(self) and "planned" or "measured", ("%d of %d points"):format(count.ok,
    count.ok + count.skipped + count.failed + count.missing), table.concat(others, ", "))
  return "<dl>" .. table.concat(out) .. "</dl>"
end

local function about(self)
  local header, settings = self.header, {}
  for key, value in pairs(header.settings) do settings[#settings + 1] = key .. "=" .. grid.text(value) end
  table.sort(settings)
  return ('<p class="about">%s %s<br>%s, %s cores, moonshard %s, %s</p>'):format(escape(header.recipe),
    escape(table.concat(settings, " ")), escape(header.machine.cpu), escape(header.machine.cores or "?"),
    escape(header.version), escape(header.started))
end

---@param self moonshard.SweepReport
---@return string
function html.page(self)
  local parts = {
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    '<meta name="color-scheme" content="light dark">',
    [[<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">]],
    "<title>" .. escape(self.header.title) .. "</title>", "<style>" .. style .. "</style></head><body><main>",
    "<h1>" .. escape(self.header.title) .. "</h1>", about(self), tiles(self),
  }
  for _, warning in ipairs(self.warnings) do
    parts[#parts + 1] = '<p class="warning">' .. escape(warning) .. "</p>"
  end
  if self.count.ok > 0 then
    if has_curve(self) then
      parts[#parts + 1] = loss_curve(self)
    elseif self.header.sort == "loss" then
      parts[#parts + 1] = loss(self)
    end
    if not report.is_planned(self) then parts[#parts + 1] = speed(self) end
    if not report.is_planned(self) and peaks_differ(self) then parts[#parts + 1] = speed_against_memory(self) end
  end
  if self.count.ok + self.count.skipped > 0 then parts[#parts + 1] = memory(self) end
  if self.count.ok > 0 and #self.dims > 0 then parts[#parts + 1] = communication(self) end
  parts[#parts + 1] = points_table(self)
  parts[#parts + 1] = reasons(self)
  parts[#parts + 1] = "</main></body></html>\n"
  return table.concat(parts, "\n")
end

return html
