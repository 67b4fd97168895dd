-- A sweep as a self-contained page: charts of speed, memory and bytes, and a table of all points.

local bars = require("moonshard.sweep.page.bars")
local charts = require("moonshard.sweep.page.charts")
local columns = require("moonshard.sweep.columns")
local grid = require("moonshard.sweep.grid")
local plans = require("moonshard.engine.plan")
local progress = require("moonshard.base.text.progress")
local report = require("moonshard.sweep.report")
local script = require("moonshard.sweep.page.script")
local style = require("moonshard.sweep.page.style")

local html = {}

local escape, peak_of = bars.escape, charts.peak_of

-- ---- the table --------------------------------------------------------------------------------------------------

local is_planned = report.is_planned

local function is_measured(record) return record.status == "ok" end

local function table_head(self)
  local head, cells = {}, {}
  local function add(titles, of)
    for _, title in ipairs(titles) do head[#head + 1] = { title = title, of = of } end
  end
  add(self.columns, "point")
  add(is_planned(self) and { "peak" }
    or self.header.repeats > 1 and { "tokens/s", "±", "ms per step", "ms exposed", "peak" }
    or { "tokens/s", "ms per step", "ms exposed", "peak" })
  if self.header.price then add({ "priced ms" }) end
  add(plans.CATEGORIES)
  for _, dim in ipairs(self.dims) do add({ dim .. " per step" }) end
  add(self.metrics, "metrics")
  add({ "nodes" })
  for i, column in ipairs(columns.tell_apart(head)) do
    local is_text = i <= #self.columns or i == #head
    cells[i] = (is_text and "<th>" or '<th class="n">') .. escape(column.title) .. "</th>"
  end
  return "<tr>" .. table.concat(cells) .. "</tr>"
end

local function table_row(self, record)
  local cells = {}
  for _, key in ipairs(self.columns) do
    local value = record.point[key]
    cells[#cells + 1] = ("<td%s>%s</td>"):format(type(value) == "number" and (' data-v="%.17g"'):format(value) or "",
      value == nil and "" or escape(grid.text(value)))
  end
  -- If there is no value, the text is the reason, or empty.
  local function number(value, text)
    cells[#cells + 1] = value and ('<td class="n" data-v="%.17g">%s</td>'):format(value, text)
      or ('<td class="n">%s</td>'):format(text or "")
  end
  local function bytes(value, why) number(value, value and progress.size(value) or why) end
  local measured, planned = is_measured(record), record.planned
  if not is_planned(self) then
    number(record.tokens_per_s, measured and ("%.0f"):format(record.tokens_per_s) or record.status)
    if self.header.repeats > 1 then
      local spread = measured and report.spread(record)
      number(spread or nil, spread and ("%.1f%%"):format(spread))
    end
    number(record.step_ms, record.step_ms and ("%.2f"):format(record.step_ms))
    number(record.exposed_ms, record.exposed_ms and ("%.2f"):format(record.exposed_ms))
  end
  bytes(planned and peak_of(record), record.status)
  if self.header.price then number(record.priced and record.priced.step_ms, ("%.2f"):format(
    record.priced and record.priced.step_ms or 0)) end
  for _, name in ipairs(plans.CATEGORIES) do bytes(planned and planned.bytes[name]) end
  for _, dim in ipairs(self.dims) do bytes(measured and record.comm_bytes[dim] or nil) end
  for _, name in ipairs(self.metrics) do
    local value = record.metrics and record.metrics[name]
    number(value, value and ("%.5g"):format(value))
  end
  cells[#cells + 1] = '<td class="wide">' .. escape(planned and planned.nodes or "") .. "</td>"
  return ('<tr class="%s">%s</tr>'):format(record.status, table.concat(cells))
end

local function points_table(self)
  local rows = {}
  for i, record in ipairs(self.records) do rows[i] = table_row(self, record) end
  return '<section><h2>All points</h2><div class="scroll"><table data-settings="'
    .. #self.columns .. '"><thead>' .. table_head(self) .. "</thead><tbody>\n"
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

---@param name string
---@param value string
---@param about string small text below the value
---@return string
function html.tile(name, value, about)
  return ("<div><dt>%s</dt><dd>%s<small>%s</small></dd></div>"):format(name, escape(value), escape(about))
end

local tile = html.tile

-- The fastest point, the one with the smallest peak, and the number of points.
local function tiles(self)
  local out, fastest, smallest = {}, nil, nil
  for _, record in ipairs(self.records) do
    local faster = record.tokens_per_s and (not fastest or record.tokens_per_s > fastest.tokens_per_s)
    if is_measured(record) and faster then fastest = record end
    if is_measured(record) and (not smallest or peak_of(record) < peak_of(smallest)) then smallest = record end
  end
  if fastest then out[1] = tile("fastest", progress.rate(fastest.tokens_per_s), fastest.key) end
  if smallest then out[#out + 1] = tile("smallest", progress.size(peak_of(smallest)) .. " per rank", smallest.key) end
  local count, others = self.count, {}
  for _, status in ipairs({ "skipped", "failed", "missing" }) do
    if count[status] > 0 then others[#others + 1] = ("%d %s"):format(count[status], status) end
  end
  out[#out + 1] = tile(is_planned(self) and "planned" or "measured", ("%d of %d points"):format(count.ok,
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

---A whole page, with the style sheets and the script of sweeps.
---@param title string
---@param body string HTML that follows the title
---@return string
function html.document(title, body)
  return table.concat({
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    '<meta name="color-scheme" content="light dark">',
    [[<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; ]]
      .. [[script-src 'unsafe-inline'">]],
    "<title>" .. escape(title) .. "</title>", "<style>" .. style.drawing .. "</style><style>" .. style.page
      .. "</style></head><body><main>",
    "<h1>" .. escape(title) .. "</h1>", body,
    "</main><script>" .. script .. "</script></body></html>\n",
  }, "\n")
end

---@param warnings string[]
---@return string
function html.warnings(warnings)
  local parts = {}
  for i, warning in ipairs(warnings) do parts[i] = '<p class="warning">' .. escape(warning) .. "</p>" end
  return table.concat(parts, "\n")
end

---@param self moonshard.SweepReport
---@return string
function html.page(self)
  local parts = { about(self), tiles(self), html.warnings(self.warnings) }
  parts[#parts + 1] = '<p class="downloads">' .. charts.download("results.csv", "text/csv", report.csv(self), "CSV")
    .. charts.download("results.json", "application/json", report.json(self), "JSON") .. '</p><p class="controls"></p>'
  for _, figure in ipairs(charts.figures(self)) do parts[#parts + 1] = figure end
  parts[#parts + 1] = points_table(self)
  parts[#parts + 1] = reasons(self)
  return html.document(self.header.title, table.concat(parts, "\n"))
end

return html
