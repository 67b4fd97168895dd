-- A scaling study as a self-contained page: the curve of every shape, a heat map of models and nodes, memory against
-- time, and a table of all points.

local bars = require("moonshard.page.bars")
local document = require("moonshard.page.document")
local frame = require("moonshard.page.frame")
local heat = require("moonshard.page.heat")
local lines = require("moonshard.page.lines")
local points = require("moonshard.page.points")
local progress = require("moonshard.base.text.progress")
local report = require("moonshard.scaling.report")
local units = require("moonshard.page.units")

local page = {}

local escape = bars.escape
local COLOURS = 7

local count_nodes = report.count_nodes

local function percent(fraction) return fraction and ("%.1f %%"):format(100 * fraction) or "no MFU" end

local function mfu_text(fraction) return fraction and percent(fraction) .. " MFU" or "no MFU" end

local function title_of(record)
  return ("%s, mesh %s, %s: %s per rank, step %.1f ms, %s, %s of %s%s"):format(record.shape, record.mesh,
    count_nodes(record.nodes), progress.rate(record.per_rank), 1e3 * record.step, mfu_text(record.mfu),
    progress.size(record.bytes), progress.size(record.room), record.fits and "" or " (does not fit)")
end

-- ---- the curves -------------------------------------------------------------------------------------------------

-- of: "tokens_per_s" or "per_rank". The fastest points of a number of nodes have their shape as label, where it is
-- another than on fewer nodes, and on the most.
local function curve_points(self, shape, of)
  local list, error = {}, self.cluster.accuracy
  for _, record in ipairs(self.curve) do
    if record.shape == shape and not record.refused then
      list[#list + 1] = { x = record.nodes, y = record[of], title = title_of(record), faint = not record.fits,
        text = self.named[record] and shape or nil,
        low = error and record[of] * (1 - error), high = error and record[of] * (1 + error) }
    end
  end
  return list
end

-- The fastest records of numbers of nodes, where they are of another shape than before.
local function named_records(self)
  local named, before = {}, nil
  for i, nodes in ipairs(self.nodes) do
    local best = report.fastest(report.on_nodes(self.curve, nodes))
    if best and (best.shape ~= before or i == #self.nodes) then named[best] = true end
    before = best and best.shape or before
  end
  return named
end

-- What the fastest on the fewest nodes would reach on more of them if nothing were lost.
local function ideal_of(self, of)
  for _, nodes in ipairs(self.nodes) do
    local best = report.fastest(report.on_nodes(self.curve, nodes))
    if best then return { x = nodes, y = best[of], flat = of == "per_rank", text = "perfect scaling" } end
  end
end

-- On a logarithmic axis each tick has the unit that is short.
local function rate_text(rate)
  local unit = units.rate(rate)
  return ("%g%s"):format(rate / unit.size, unit.suffix)
end

-- A chart with a curve for each shape; about: what it shows.
local function curves(self, of, title, about, y_title, log_y)
  local list, entries, most = {}, {}, 0
  for i, shape in ipairs(self.shapes) do
    local points_of_shape, colour = curve_points(self, shape, of), (i - 1) % COLOURS + 1
    for _, point in ipairs(points_of_shape) do most = math.max(most, point.y) end
    if #points_of_shape > 0 then
      list[#list + 1] = { class = "s" .. colour, points = points_of_shape }
      entries[#entries + 1] = { class = "c" .. colour, name = shape }
    end
  end
  about = about .. " Faint points need more memory than a rank has."
  if self.cluster.accuracy then
    about = about .. (" Bars: ±%.0f %%, within which nine of ten measurements that were held out lie."):format(
      100 * self.cluster.accuracy)
  end
  return frame.framed(title, about, lines.svg({ title = title, curves = list, x_base = 2, log_y = log_y,
    x_text = function(x) return ("%d"):format(x) end, x_title = "nodes of " .. self.cluster.ranks_per_node .. " ranks",
    y_title = y_title, y_unit = units.rate(most), y_text = rate_text, ideal = ideal_of(self, of) }), entries)
end

local function throughput(self)
  return curves(self, "tokens_per_s", "Scaling", "Tokens per second of all ranks, by number of nodes, both on "
    .. "logarithmic axes. Perfect scaling doubles with the nodes.", "speed of all ranks", true)
end

local function per_rank(self)
  return curves(self, "per_rank", "Scaling per rank", "Tokens per second and rank, by number of nodes.",
    "speed of a rank", false)
end

-- ---- the heat map -----------------------------------------------------------------------------------------------

local function cell_of(records)
  local best = report.fastest(records)
  if best then
    return { value = best.mfu or 0, title = title_of(best),
      lines = { percent(best.mfu), best.shape, progress.size(best.bytes) } }
  end
  local least
  for _, record in ipairs(records) do
    if record.bytes and (not least or record.bytes < least.bytes) then least = record end
  end
  return { lines = least and { "too large", least.shape, progress.size(least.bytes) } or { "none" }, faint = true,
    title = least and title_of(least) or "no shape has a plan" }
end

local function heat_map(self)
  if not self.models then return "" end
  local setting, columns, rows = self.models.setting, {}, {}
  for i, nodes in ipairs(self.nodes) do columns[i] = count_nodes(nodes) end
  for i, value in ipairs(self.models.values) do
    rows[i] = { label = tostring(value), cells = {} }
    for k, nodes in ipairs(self.nodes) do
      local here = {}
      for _, record in ipairs(report.on_nodes(self.models.records, nodes)) do
        if record.settings[setting] == value then here[#here + 1] = record end
      end
      rows[i].cells[k] = cell_of(here)
    end
  end
  local title = ("MFU by %s and number of nodes"):format(setting)
  return frame.framed(title, "The fastest shape that fits: its MFU, its name, and the memory of a rank.", heat.svg({
    title = title, columns = columns, rows = rows }))
end

-- ---- memory against time ----------------------------------------------------------------------------------------

local function settings_text(record)
  local parts = {}
  for key, value in pairs(record.settings) do parts[#parts + 1] = ("%s=%s"):format(key, tostring(value)) end
  table.sort(parts)
  return table.concat(parts, " ")
end

-- The settings of some records as labels, those that all of them share apart.
local function settings_of(records)
  local names, shared, list = {}, {}, {}
  for key in pairs(records[1].settings) do names[#names + 1] = key end
  table.sort(names)
  for i = #names, 1, -1 do
    local same = true
    for _, record in ipairs(records) do same = same and record.settings[names[i]] == records[1].settings[names[i]] end
    if same then
      table.insert(shared, 1, ("%s=%s"):format(names[i], tostring(records[1].settings[names[i]])))
      table.remove(names, i)
    end
  end
  for i, record in ipairs(records) do
    local parts = { record.shape }
    for _, key in ipairs(names) do parts[#parts + 1] = ("%s=%s"):format(key, tostring(record.settings[key])) end
    list[i] = table.concat(parts, " ")
  end
  return list, table.concat(shared, ", ")
end

local function tradeoffs(self)
  if not self.tradeoffs then return "" end
  local known, most = {}, { bytes = 0, rate = 0 }
  for _, record in ipairs(self.tradeoffs.records) do
    if not record.refused then
      known[#known + 1] = { x = record.bytes, y = record.per_rank, record = record,
        title = title_of(record) .. " " .. settings_text(record) }
    end
  end
  if #known == 0 then return "" end
  local list, best = points.frontier(known), {}
  for i, point in ipairs(list) do best[i] = point.record end
  local names, shared = settings_of(best)
  for i, point in ipairs(list) do
    most.bytes, most.rate, point.text = math.max(most.bytes, point.x), math.max(most.rate, point.y), names[i]
  end
  local title = ("Memory against speed on %s"):format(count_nodes(self.nodes[#self.nodes]))
  local about = ("The settings that no other of %d beats in both%s. Names as far as there is room."):format(#known,
    shared ~= "" and ", all of them with " .. shared or "")
  return frame.framed(title, about, points.svg({ title = title, points = list, joined = true,
    x_title = "peak memory of a rank", x_unit = units.bytes(most.bytes), y_title = "speed of a rank",
    y_unit = units.rate(most.rate), mark = known[1].record.room <= most.bytes
      and { x = known[1].record.room, text = "the rank's memory" } or nil }))
end

-- ---- the table --------------------------------------------------------------------------------------------------

local HEADS = { "shape", "mesh", "settings" }
local NUMBERS = { "nodes", "ranks", "tokens/s per rank", "step ms", "exposed ms", "MFU", "peak", "by bytes alone, ms" }

local function row_of(record)
  local cells, exposed = {}, 0
  for _, text in ipairs({ record.shape, record.mesh, settings_text(record) }) do
    cells[#cells + 1] = "<td>" .. escape(text) .. "</td>"
  end
  for _, seconds in pairs(record.waiting or {}) do exposed = exposed + seconds end
  local function number(value, text)
    cells[#cells + 1] = value and ('<td class="n" data-v="%.17g">%s</td>'):format(value, escape(text))
      or '<td class="n"></td>'
  end
  number(record.nodes, tostring(record.nodes))
  number(record.ranks, tostring(record.ranks))
  number(record.per_rank, ("%.0f"):format(record.per_rank or 0))
  number(record.step, ("%.2f"):format(1e3 * (record.step or 0)))
  number(record.step and exposed, ("%.2f"):format(1e3 * exposed))
  number(record.mfu, percent(record.mfu))
  number(record.bytes, progress.size(record.bytes or 0))
  number(record.guide, ("%.2f"):format(1e3 * (record.guide or 0)))
  local state = record.refused and "failed" or record.fits and "ok" or "skipped"
  return ('<tr class="%s">%s</tr>'):format(state, table.concat(cells))
end

local function all_points(self)
  local heads, rows = {}, {}
  for _, head in ipairs(HEADS) do heads[#heads + 1] = "<th>" .. head .. "</th>" end
  for _, head in ipairs(NUMBERS) do heads[#heads + 1] = '<th class="n">' .. head .. "</th>" end
  for _, list in ipairs({ self.curve, self.models and self.models.records or {},
    self.tradeoffs and self.tradeoffs.records or {} }) do
    for _, record in ipairs(list) do rows[#rows + 1] = row_of(record) end
  end
  return ('<section><h2>All points</h2><div class="scroll"><table data-settings="%d"><thead><tr>%s</tr></thead>'
    .. "<tbody>\n%s</tbody></table></div></section>"):format(#HEADS, table.concat(heads), table.concat(rows, "\n"))
end

local function about(self)
  local settings = {}
  for key, value in pairs(self.settings) do settings[#settings + 1] = key .. "=" .. tostring(value) end
  table.sort(settings)
  return ('<p class="about">%s on %s: %s. Priced by simulating the plan of every mesh; nothing ran.</p>'):format(
    escape(table.concat(settings, " ")), escape(self.cluster.name), escape(self.cluster.about or ""))
end

local function verdict(self)
  local items = {}
  for i, text in ipairs(report.answers(self)) do items[i] = "<li>" .. escape(text) .. "</li>" end
  local best = report.fastest(report.on_nodes(self.curve, self.nodes[#self.nodes]))
  local tiles = best and "<dl>"
    .. document.tile("fastest on " .. count_nodes(best.nodes), best.shape, "mesh=" .. best.mesh)
    .. document.tile("per rank", progress.rate(best.per_rank), mfu_text(best.mfu))
    .. document.tile("memory", progress.size(best.bytes), "of " .. progress.size(best.room)) .. "</dl>" or ""
  return tiles .. "<ul>" .. table.concat(items) .. "</ul>"
end

---@param self moonshard.Scaling
---@return string
function page.of(self)
  self.named = named_records(self)
  return document.of(self.title, table.concat({ about(self), verdict(self), throughput(self), per_rank(self),
    heat_map(self), tradeoffs(self), all_points(self) }, "\n"))
end

return page
