-- Charts: the curve goes where the values are, in text and in SVG.

local axis = require("moonshard.metrics.axis")
local chart = require("moonshard.metrics.chart")
local has = require("lua.support.message").has

local function lines_of(text)
  local lines = {}
  for line in (text .. "\n"):gmatch("(.-)\n") do lines[#lines + 1] = line end
  return lines
end

-- Rows of the drawing, top first, without labels and axis.
local function drawing(curves, rows)
  local lines = lines_of(chart.text(curves, { title = "loss", x = "step", columns = 60, rows = rows }))
  local drawn = {}
  for i = 2, rows + 1 do drawn[#drawn + 1] = lines[i]:match("[┤│]*(.*)$") end
  return drawn, lines
end

describe("axis", function()
  it("divides a range at round values", function()
    local function texts(low, high, parts)
      local list = {}
      for _, tick in ipairs(axis.ticks(low, high, parts)) do list[#list + 1] = tick.text end
      return list
    end
    assert.same({ "0", "2", "4", "6", "8", "10" }, texts(0, 10, 5))
    assert.same({ "1.0", "1.5", "2.0" }, texts(0.9, 2.1, 3))
    assert.same({ "-0.002", "0.000", "0.002" }, texts(-0.002, 0.003, 3))
    assert.same({ "1", "2" }, (function()
      local list = {}
      for _, tick in ipairs(axis.ticks(1, 2, 8, true)) do list[#list + 1] = tick.text end
      return list
    end)())
  end)

  it("leaves NaN and infinity out of the range", function()
    local range = axis.range({ { points = { { 1, 0 / 0 }, { 2, 5 }, { 3, 1 / 0 }, { 4, 3 } } } })
    assert.same({ x_low = 2, x_high = 4, y_low = 3, y_high = 5 }, range)
    assert.is_nil(axis.range({ { points = {} } }))
  end)
end)

describe("chart.text", function()
  it("draws a falling curve from the upper left to the lower right", function()
    local points = {}
    for i = 1, 100 do points[i] = { i, 100 - i } end
    local rows = drawing({ { name = "training", points = points } }, 10)
    local function first_dot(row)
      return (row:find("[\226][\160-\163]"))
    end
    local before = 0
    for i = 1, 10 do
      local at = first_dot(rows[i])
      assert.is_truthy(at)
      assert.is_true(at >= before)
      before = at
    end
  end)

  it("labels the axes, and every curve in the legend", function()
    local curves = {
      { name = "training", points = { { 0, 1 }, { 100, 3 } } },
      { name = "validation", points = { { 50, 2 } }, marks = true },
    }
    local _, lines = drawing(curves, 9)
    has(lines[1], "loss")
    has(lines[1], "training")
    has(lines[1], "● validation")
    has(lines[2], "3.0 ┤")
    has(lines[6], "2.0 ┤")
    has(lines[6], "●")
    assert.truthy(lines[#lines]:find("^%s+0 .* 100%s+step$"))
  end)

  it("has something to say about one point and about none", function()
    local text = chart.text({ { name = "a", points = { { 1, 2 } } } }, { title = "loss", x = "step" })
    has(text, "2.05")
    text = chart.text({ { name = "a", points = { { 1, 0 / 0 } } } }, { title = "loss", x = "step" })
    has(text, "loss | no finite")
  end)
end)

describe("a smoothed curve", function()
  it("is symmetrical around its points, and does not lag behind a slope", function()
    local line, step = {}, {}
    for i = 1, 41 do line[i], step[i] = { i, 3 * i }, { i, i < 21 and 0 or i == 21 and 0.5 or 1 } end
    local smoothed = axis.smooth(line, 2)
    for i = 15, 27 do assert.near(3 * i, smoothed[i][2], 0.2) end
    smoothed = axis.smooth(step, 2)
    assert.near(0.5, smoothed[21][2], 1e-9)
    for i = 1, 20 do assert.near(1, smoothed[21 - i][2] + smoothed[21 + i][2], 1e-9) end
    assert.equal(2, #axis.smooth({ { 1, 2 }, { 2, 0 / 0 }, { 3, 4 } }, 1))
  end)
end)

describe("chart.svg", function()
  local curves = {
    { name = "training <a>", points = { { 0, 4 }, { 1, 0 / 0 }, { 2, 2 }, { 4, 1 } } },
    { name = "validation", points = { { 2, 3 } }, marks = true },
  }

  it("is one well-formed document that refers to nothing outside", function()
    local svg = chart.svg(curves, { title = "loss & more", x = "step", y = "loss" })
    local open = {}
    for closing, name, last in svg:gmatch("<(/?)([%w]+)[^>]-(/?)>") do
      if closing == "/" then
        assert.equal(name, table.remove(open))
      elseif last == "" then
        open[#open + 1] = name
      end
    end
    assert.same({}, open)
    has(svg, "loss &amp; more")
    has(svg, 'opacity="0.4"/><text | training &lt;a&gt; | stroke-width="2"/><text | training &lt;a&gt;, smoothed')
    has(svg, ">loss</text> | >step</text>")
    assert.is_nil(svg:find("nan", 1, true))
    assert.is_nil(svg:gsub('xmlns="[^"]*"', ""):find("http", 1, true))
  end)

  it("puts the first value above the last, inside the frame", function()
    local svg = chart.svg(curves, { title = "loss", x = "step", y = "loss" })
    local points = svg:match('<polyline points="([^"]*)"')
    local list = {}
    for x, y in points:gmatch("([%d.]+),([%d.]+)") do list[#list + 1] = { tonumber(x), tonumber(y) } end
    assert.equal(3, #list)
    assert.is_true(list[1][1] < list[3][1] and list[1][2] < list[3][2])
    for _, point in ipairs(list) do assert.is_true(point[1] >= 56 and point[1] <= 704 and point[2] >= 40) end
  end)

  it("wraps a long legend above the chart, and makes the file as much higher", function()
    local many, heights = {}, {}
    for i = 1, 6 do
      many[i] = { name = "training of trainer " .. i, points = { { 0, 4 }, { 1, 2 } } }
      local svg = chart.svg(many, { title = "loss", x = "step", y = "loss" })
      local lowest = 0
      heights[i] = tonumber(svg:match('height="(%d+)"'))
      for x, y, text in svg:gmatch('<text x="(%d+)" y="(%d+)">(training[^<]*)') do
        assert.is_true(x + 7 * #text <= 720, text)
        lowest = math.max(lowest, tonumber(y))
      end
      assert.is_true(lowest < tonumber(svg:match('<text x="8" y="(%d+)">loss')))
    end
    assert.is_true(heights[6] > heights[1])
  end)
end)
