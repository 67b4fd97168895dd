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
  return ('<figure><figcaption>%s<h2>%s</h2><p>%s</p></figcaption>%s%s</figure>'):format(frame.download(name,
    "image/svg+xml", as_file(svg), "SVG"), escape(title), escape(about), entries and legend(entries) or "", svg)
end

---A bar chart with its title, a description, and a link that downloads it as a file.
---@param title string
---@param about string description below the title
---@param chart moonshard.BarChart
---@param entries { class: string, name: string }[]? legend of its colours
---@return string
function frame.figure(title, about, chart, entries) return frame.framed(title, about, bars.svg(chart), entries) end

return frame
