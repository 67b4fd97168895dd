-- A sweep as a self-contained page: the best point by what was asked for, charts, and a table of all points.

local bars = require("moonshard.page.bars")
local columns = require("moonshard.sweep.columns")
local document = require("moonshard.page.document")
local frame = require("moonshard.page.frame")
local grid = require("moonshard.sweep.grid")
local measures = require("moonshard.sweep.measures")
local plans = require("moonshard.engine.plan")
local progress = require("moonshard.base.text.progress")
local report = require("moonshard.sweep.report")
local sweep_charts = require("moonshard.sweep.page.sweep_charts")

local html = {}

local escape, peak_of = bars.escape, measures.peak

-- ---- the table --------------------------------------------------------------------------------------------------

local is_planned = measures.is_planned

local function is_measured(record) return record.status == "ok" end

-- The columns after the settings: those of the terminal, and the time in which no kernel ran. Bytes have a text of
-- their own in each cell.
local function number_columns(self)
  local list = {}
  local function add(title, value_of, text_of)
    list[#list + 1] = { title = title, value_of = value_of, text_of = text_of }
  end
  for _, measure in ipairs(measures.of(self)) do
    list[#list + 1] = { title = measure.title, of = measure.of, value_of = measure.value_of,
      text_of = function(value) return measure.format:format(value) end }
    if measure.title == "step ms" then
      add("exposed ms", function(record) return record.exposed_ms end, function(ms) return ("%.2f"):format(ms) end)
    end
  end
  add("peak", peak_of, progress.size)
  for _, name in ipairs(plans.CATEGORIES) do
    add(name, function(record) return record.planned and record.planned.bytes[name] end, progress.size)
  end
  for _, dim in ipairs(self.dims) do
    add(dim .. " per step", function(record) return is_measured(record) and record.comm_bytes[dim] or nil end,
      progress.size)
  end
  return list
end

local function table_head(self, numbers)
  local head, cells = {}, {}
  for _, key in ipairs(self.columns) do head[#head + 1] = { title = key, of = "point" } end
  for _, column in ipairs(numbers) do head[#head + 1] = { title = column.title, of = column.of } end
  head[#head + 1] = { title = "ranks and nodes" }
  for i, column in ipairs(columns.tell_apart(head)) do
    local is_text = i <= #self.columns or i == #head
    cells[i] = (is_text and "<th>" or '<th class="n">') .. escape(column.title) .. "</th>"
  end
  return "<tr>" .. table.concat(cells) .. "</tr>"
end

-- A point that was not measured has its status in the first column of numbers.
local function table_row(self, numbers, record)
  local cells = {}
  for _, key in ipairs(self.columns) do
    local value = record.point[key]
    cells[#cells + 1] = ("<td%s>%s</td>"):format(type(value) == "number" and (' data-v="%.17g"'):format(value) or "",
      value == nil and "" or escape(grid.text(value)))
  end
  for i, column in ipairs(numbers) do
    local value = column.value_of(record)
    if i == 1 and not is_measured(record) then value = nil end
    cells[#cells + 1] = value and ('<td class="n" data-v="%.17g">%s</td>'):format(value, column.text_of(value))
      or ('<td class="n">%s</td>'):format(i == 1 and not is_measured(record) and record.status or "")
  end
  cells[#cells + 1] = '<td class="wide">' .. escape(record.planned and record.planned.nodes or "") .. "</td>"
  return ('<tr class="%s">%s</tr>'):format(record.status, table.concat(cells))
end

local function points_table(self)
  local rows, numbers = {}, number_columns(self)
  for i, record in ipairs(self.records) do rows[i] = table_row(self, numbers, record) end
  return '<section><h2>All points</h2><div class="scroll"><table data-settings="'
    .. #self.columns .. '"><thead>' .. table_head(self, numbers) .. "</thead><tbody>\n"
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

local tile = document.tile

-- The measured or priced point with the best value of an order; nil if none has one.
local function best_of(self, order)
  local best, best_value
  for _, record in ipairs(self.records) do
    local value = is_measured(record) and order.value_of(record) or nil
    local sign = order.highest and 1 or -1
    if value and (not best or sign * value > sign * best_value) then best, best_value = record, value end
  end
  return best, best_value
end

-- First what was asked for: the metric by which points are sorted, and its best point. Then the fastest point, the one
-- with the smallest peak, and the number of points.
local function tiles(self)
  local out, seen = {}, {}
  for i, sort in ipairs({ self.header.sort, "speed", "memory" }) do
    local order = measures.order(sort)
    local best, value = best_of(self, order)
    if best and not seen[order.name] then
      out[#out + 1] = tile(("%s %s"):format(order.highest and "highest" or "lowest", order.name), order.text_of(value),
        best.key, i == 1)
    end
    seen[order.name] = true
  end
  local count, others = self.count, {}
  for _, status in ipairs({ "skipped", "failed", "missing" }) do
    if count[status] > 0 then others[#others + 1] = ("%d %s"):format(count[status], status) end
  end
  out[#out + 1] = tile(self.header.price and is_planned(self) and "priced" or is_planned(self) and "planned"
    or "measured", ("%d of %d points"):format(count.ok, count.ok + count.skipped + count.failed + count.missing),
    table.concat(others, ", "))
  return "<dl>" .. table.concat(out) .. "</dl>"
end

---Where the points ran, or on what they were priced.
---@param header table of a sweep
---@return string
function html.place(header)
  local machine = ("%s, %s cores"):format(header.machine.cpu or "?", header.machine.cores or "?")
  if not header.plan then return machine .. (header.price and ", priced on " .. header.price or "") end
  return (header.price and "priced on " .. header.price or "planned") .. "; nothing ran"
end

local function about(self)
  local header, settings = self.header, {}
  for key, value in pairs(header.settings) do settings[#settings + 1] = key .. "=" .. grid.text(value) end
  table.sort(settings)
  local order = measures.order(header.sort)
  return ('<p class="about">%s %s<br>%s, moonshard %s, %s<br>sorted by %s, %s first</p>'):format(escape(header.recipe),
    escape(table.concat(settings, " ")), escape(html.place(header)), escape(header.version), escape(header.started),
    escape(order.name), order.highest and "highest" or "lowest")
end

---@param self moonshard.SweepReport
---@return string
function html.page(self)
  local parts = { about(self), tiles(self), document.warnings(self.warnings) }
  parts[#parts + 1] = '<p class="downloads">' .. frame.download("results.csv", "text/csv", report.csv(self), "CSV")
    .. frame.download("results.json", "application/json", report.json(self), "JSON") .. '</p><p class="controls"></p>'
  for _, figure in ipairs(sweep_charts.figures(self)) do parts[#parts + 1] = figure end
  parts[#parts + 1] = points_table(self)
  parts[#parts + 1] = reasons(self)
  return document.of(self.header.title, table.concat(parts, "\n"))
end

return html
