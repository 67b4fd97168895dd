-- The self-contained page of two compared sweeps: the change of each point's speed and peak, and the table.

local bars = require("moonshard.page.bars")
local charts = require("moonshard.sweep.page.charts")
local compare = require("moonshard.sweep.compare")
local document = require("moonshard.page.document")
local frame = require("moonshard.page.frame")
local grid = require("moonshard.sweep.grid")
local html = require("moonshard.sweep.page.html")
local measures = require("moonshard.sweep.measures")
local progress = require("moonshard.base.text.progress")
local units = require("moonshard.page.units")

local compare_page = {}

local escape, peak_of = bars.escape, measures.peak

local COLOURS = { faster = "c5", slower = "c4", ["within noise"] = "c6", ["one run"] = "c1" }

-- A ratio as a change in per cent, and as its text.
local function change(ratio) return ratio and 100 * (ratio - 1) end

local function change_text(ratio) return ratio == 1 and "0 %" or ("%+.3g %%"):format(change(ratio)) end

local function changes(self, title, about, row_of, entries)
  local groups = charts.group_rows(self, function() return true end, row_of)
  return frame.figure(title, about, { title = title, groups = groups, unit = units.plain("%"),
    axis = "change from old to new", least = 1 }, entries)
end

local function speed(self)
  local entries, seen = {}, {}
  for _, pair in ipairs(self.records) do
    if not seen[pair.verdict] then table.insert(entries, { class = COLOURS[pair.verdict], name = pair.verdict }) end
    seen[pair.verdict] = true
  end
  local about = "Tokens per second: change of the medians, and its range, from the slowest new run over the fastest "
    .. "old one to the fastest new run over the slowest old one. 0 %: as before."
  return changes(self, "Speed, new to old", about, function(pair)
    local known = pair.verdict ~= "one run"
    return { low = known and change(pair.low) or nil, high = known and change(pair.high) or nil,
      text = change_text(pair.ratio), segments = { { value = change(pair.ratio), class = COLOURS[pair.verdict],
        title = ("%s: %s, before %s: %s"):format(pair.key, progress.rate(pair.new.tokens_per_s),
          progress.rate(pair.old.tokens_per_s), pair.verdict) } } }
  end, entries)
end

local function peak(self)
  return changes(self, "Peak memory, new to old", "Bytes of rank 0. 0 %: as before.", function(pair)
    local old, new = peak_of(pair.old), peak_of(pair.new)
    return { text = change_text(new / old), segments = { { value = change(new / old), class = "c2",
      title = ("%s: %s, before %s"):format(pair.key, progress.size(new), progress.size(old)) } } }
  end)
end

-- The columns of numbers: the title, the value of a pair (nil if it has none), and its text.
local function number_columns(self)
  local numbers = {}
  local function add(title, value_of, text_of)
    numbers[#numbers + 1] = { title = title, value_of = value_of, text_of = text_of }
  end
  local function format(pattern) return function(value) return pattern:format(value) end end
  for _, name in ipairs(self.timed and { "old", "new" } or {}) do
    add(name .. " tokens/s", function(pair) return pair[name].tokens_per_s end, format("%.0f"))
    if self[name].header.repeats > 1 then
      add("±", function(pair) return measures.spread(pair[name]) end, format("%.1f%%"))
    end
  end
  if self.timed then add("new/old", function(pair) return pair.ratio end, format("%.3f")) end
  for _, name in ipairs({ "old", "new" }) do
    add(name .. " peak", function(pair) return peak_of(pair[name]) end, progress.size)
  end
  for _, metric in ipairs(self.metrics) do
    for _, name in ipairs({ "old", "new" }) do
      add(name .. " " .. metric, function(pair) return compare.metric(pair[name], metric) end, format("%.5g"))
    end
  end
  return numbers
end

local function points_table(self)
  local heads, rows, numbers = {}, {}, number_columns(self)
  for _, key in ipairs(self.columns) do heads[#heads + 1] = "<th>" .. escape(key) .. "</th>" end
  for _, column in ipairs(numbers) do heads[#heads + 1] = '<th class="n">' .. escape(column.title) .. "</th>" end
  if self.timed then heads[#heads + 1] = "<th>speed</th>" end
  for i, pair in ipairs(self.records) do
    local cells = {}
    for _, key in ipairs(self.columns) do
      local value = pair.point[key]
      local data = type(value) == "number" and (' data-v="%.17g"'):format(value) or ""
      cells[#cells + 1] = ("<td%s>%s</td>"):format(data, value == nil and "" or escape(grid.text(value)))
    end
    for _, column in ipairs(numbers) do
      local value = column.value_of(pair)
      cells[#cells + 1] = value and ('<td class="n" data-v="%.17g">%s</td>'):format(value, column.text_of(value))
        or '<td class="n"></td>'
    end
    if self.timed then cells[#cells + 1] = "<td>" .. pair.verdict .. "</td>" end
    rows[i] = "<tr>" .. table.concat(cells) .. "</tr>"
  end
  return ('<section><h2>All points</h2><div class="scroll"><table data-settings="%d"><thead><tr>%s</tr></thead>'
    .. "<tbody>\n%s</tbody></table></div></section>"):format(#self.columns, table.concat(heads),
    table.concat(rows, "\n"))
end

local function about(name, sweep)
  local header = sweep.header
  return ("%s: %s (%s), moonshard %s, %s, %s"):format(name, escape(header.title or header.recipe), escape(sweep.path),
    escape(header.version), escape(html.place(header)), escape(header.started or "?"))
end

local function list(self, key, title)
  if #self[key] == 0 then return "" end
  local items = {}
  for i, text in ipairs(self[key]) do items[i] = "<li>" .. escape(text) .. "</li>" end
  return ("<section><h2>%s</h2><ul>%s</ul></section>"):format(title:gsub("^%l", string.upper), table.concat(items))
end

---@param self moonshard.SweepComparison
---@return string
function compare_page.page(self)
  local title = "Two sweeps compared"
  local parts = { ('<p class="about">%s<br>%s</p>'):format(about("old", self.old), about("new", self.new)),
    document.warnings(self.warnings) }
  local summary = compare.summary(self)
  if summary then parts[#parts + 1] = "<p>" .. escape(summary) .. "</p>" end
  parts[#parts + 1] = '<p class="downloads">' .. frame.download("compare.json", "application/json",
    compare.json(self), "JSON") .. '</p><p class="controls"></p>'
  if self.timed and #self.records > 0 then parts[#parts + 1] = speed(self) end
  if #self.records > 0 then parts[#parts + 1] = peak(self) end
  parts[#parts + 1] = points_table(self)
  for _, row in ipairs(compare.LISTS) do parts[#parts + 1] = list(self, row[1], row[2]) end
  return document.of(title, table.concat(parts, "\n"))
end

return compare_page
