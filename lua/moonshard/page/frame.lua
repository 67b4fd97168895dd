-- What is around a drawing on a page: its title, a description, a legend, and a link that downloads it as a file.

local bars = require("moonshard.page.bars")
local style = require("moonshard.page.style")

local frame = {}

local escape = bars.escape

local function legend(entries)
  local out = {}
  for i, entry in ipairs(entries) do
    out[i] = ('<li><i class="%s"></i>%s</li>'):format(entry.class, escape(entry.name))
  end
  return '<ul class="legend">' .. table.concat(out) .. "</ul>"
end

local WIDTH, MARGIN, LINE, CHARACTER = 860, 12, 20, 7 -- of a file, in pixels

-- A legend as the top of a drawing in a file, and its height.
local function legend_of_file(entries)
  local out, x, y = {}, MARGIN, 0
  for _, entry in ipairs(entries or {}) do
    local length = 16 + CHARACTER * #entry.name
    if x + length > WIDTH then x, y = MARGIN, y + LINE end
    out[#out + 1] = ('<rect class="%s" x="%d" y="%d" width="11" height="11" rx="2"/><text x="%d" y="%d">%s</text>')
      :format(entry.class, x, y + 8, x + 16, y + 18, escape(entry.name))
    x = x + length + 14
  end
  return table.concat(out), #out > 0 and y + LINE + 8 or 8
end

-- The drawing as a separate file, which includes its colours, its legend and what is behind it.
local function as_file(svg, entries)
  local text, top = legend_of_file(entries)
  local height = tonumber(svg:match('height="(%d+)"'))
  local inner = svg:gsub('^<svg width="100%%"', ('<svg x="%d" y="%d" width="%d"'):format(MARGIN, top,
    WIDTH - 2 * MARGIN))
  return ('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d"><style>%s</style><rect class="behind" '
    .. 'width="100%%" height="100%%"/>%s%s</svg>'):format(WIDTH, height + top + 8, style.drawing, text, inner)
end

---A link to a file whose content is in the link itself, so that it needs no network.
---@param name string name of the file
---@param kind string MIME type
---@param content string
---@param text string text of the link
---@return string
function frame.download(name, kind, content, text)
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
function frame.framed(title, about, svg, entries)
  local name = title:lower():gsub("[^%w]+", "-") .. ".svg"
  local link = frame.download(name, "image/svg+xml", as_file(svg, entries), "SVG")
  return ('<figure><figcaption>%s<h2>%s</h2><p>%s</p></figcaption>%s%s</figure>'):format(link, escape(title),
    escape(about), entries and legend(entries) or "", svg)
end

---A bar chart with its title, a description, and a link that downloads it as a file.
---@param title string
---@param about string description below the title
---@param chart moonshard.BarChart
---@param entries { class: string, name: string }[]? legend of its colours
---@return string
function frame.figure(title, about, chart, entries) return frame.framed(title, about, bars.svg(chart), entries) end

return frame
