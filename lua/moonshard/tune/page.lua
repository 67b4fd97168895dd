-- What `moonshard tune` tried, as a self-contained page: every plan by its memory and speed, those that no other beats
-- in both, and the text of the command.

local bars = require("moonshard.page.bars")
local document = require("moonshard.page.document")
local frame = require("moonshard.page.frame")
local point = require("moonshard.tune.point")
local points = require("moonshard.page.points")
local progress = require("moonshard.base.text.progress")
local report = require("moonshard.tune.report")
local units = require("moonshard.page.units")

local page = {}

local FITS, TOO_LARGE = "c1", "c6"

---@class moonshard.TunedPoint: moonshard.ChartPoint
---@field mesh string
---@field rules string
---@field seconds number of a step

---All plans of a search over meshes that were priced, in an order that depends on nothing else.
---@param self moonshard.TuneReport
---@return moonshard.TunedPoint[]
function page.tried(self)
  local list = {}
  for _, row in ipairs(self.mesh_search.meshes) do
    for _, tried in pairs(row.search and row.search.trial:all() or {}) do
      if not tried.refused then
        local rules, speed = point.describe(tried.point), row.tokens / tried.seconds
        list[#list + 1] = { x = tried.bytes, y = speed, mesh = row.mesh, rules = rules, seconds = tried.seconds,
          class = tried.bytes <= self.limit and FITS or TOO_LARGE, title = ("mesh %s, %s: %s, %s per rank"):format(
            row.mesh, rules, progress.rate(speed), progress.size(tried.bytes)) }
      end
    end
  end
  table.sort(list, function(a, b)
    if a.x ~= b.x then return a.x < b.x end
    if a.y ~= b.y then return a.y > b.y end
    return a.title < b.title
  end)
  return list
end

-- Plans on the frontier have their mesh as a name, where it is another than that of the plan before; with one mesh, the
-- rules in which they differ.
local function name_plans(frontier)
  local before, several
  for _, tried in ipairs(frontier) do several = several or tried.mesh ~= frontier[1].mesh end
  for i, tried in ipairs(frontier) do
    if not several then tried.text = tried.rules
    elseif tried.mesh ~= before or i == #frontier then tried.text = "mesh " .. tried.mesh end
    before = tried.mesh
  end
end

local function frontier_chart(self, list, frontier)
  local most = { bytes = 0, speed = 0 }
  for _, tried in ipairs(list) do
    most.bytes, most.speed = math.max(most.bytes, tried.x), math.max(most.speed, tried.y)
  end
  name_plans(frontier)
  local title = "Memory against speed"
  return frame.framed(title, ("%d plans. The table has those that no other beats in both."):format(#list), points.svg({
    title = title, points = list, x_title = "peak memory of a rank", x_unit = units.bytes(most.bytes),
    y_title = "speed of all ranks", y_unit = units.rate(most.speed),
    mark = self.limit <= most.bytes and { x = self.limit, text = "limit " .. progress.size(self.limit) } or nil }),
    { { class = FITS, name = "fits" }, { class = TOO_LARGE, name = "needs more memory" } })
end

local function frontier_table(frontier)
  local rows = {}
  for i, tried in ipairs(frontier) do
    rows[i] = ('<tr class="%s"><td>%s</td><td>%s</td><td class="n" data-v="%.17g">%s</td><td class="n" data-v="%.17g">'
      .. '%.2f</td><td class="n" data-v="%.17g">%.0f</td></tr>'):format(tried.class == FITS and "ok" or "skipped",
      bars.escape(tried.mesh), bars.escape(tried.rules), tried.x, progress.size(tried.x), 1e3 * tried.seconds,
      1e3 * tried.seconds, tried.y, tried.y)
  end
  return '<section><h2>The frontier of memory and speed</h2><p class="controls"></p><div class="scroll"><table '
    .. 'data-settings="2"><thead><tr><th>mesh</th><th>rules</th><th class="n">peak</th><th class="n">step ms</th>'
    .. '<th class="n">tokens/s</th></tr></thead><tbody>\n' .. table.concat(rows, "\n")
    .. "</tbody></table></div></section>"
end

---@param self moonshard.TuneReport
---@param recipe string
---@return string
function page.of(self, recipe)
  local list, speed = page.tried(self), self.row.tokens / self.best.seconds
  local frontier = points.frontier(list)
  return document.of(report.place(self), table.concat({
    ('<p class="about">%s; plans are priced, nothing ran</p><dl>'):format(bars.escape(recipe)),
    document.tile("highest speed that fits", progress.rate(speed), ("mesh %s, %s"):format(self.row.label,
      point.describe(self.best.point)), true),
    document.tile("step", ("%.2f ms"):format(1e3 * self.best.seconds), ""),
    document.tile("memory", progress.size(self.best.bytes), "of " .. progress.size(self.limit)), "</dl>",
    frontier_chart(self, list, frontier), frontier_table(frontier),
    "<section><h2>In words</h2><pre>" .. bars.escape(report.text(self)) .. "</pre></section>",
  }, "\n"))
end

return page
