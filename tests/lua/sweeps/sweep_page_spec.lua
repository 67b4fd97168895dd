-- The page of a sweep: what it leads with, the columns of its table, and its charts, from results that are given.

local has = require("lua.support.message").has
local html = require("moonshard.sweep.page.html")
local labels = require("moonshard.page.labels")
local plans = require("moonshard.engine.plan")
local points = require("moonshard.page.points")
local report = require("moonshard.sweep.report")
local style = require("moonshard.page.style")
local units = require("moonshard.page.units")

local GIB = 2 ^ 30

local function header(fields)
  local all = { title = "shapes", recipe = "r.lua", source = "ms", settings = {}, warmup = 1, repeats = 1,
    sort = "speed", version = "1.0", machine = { cpu = "Local CPU", cores = 8 }, load = 9,
    started = "2026-01-01 10:00" }
  for key, value in pairs(fields or {}) do all[key] = value end
  return all
end

local function planned(peak)
  local bytes = {}
  for _, name in ipairs(plans.CATEGORIES) do bytes[name] = peak / #plans.CATEGORIES end
  return { peak_bytes = peak, bytes = bytes, nodes = "16 ranks on 2 nodes", ranks_per_node = 8, replicas_together = 1,
    comm_bytes = {} }
end

local function page_of(head, records)
  local list, by_key = {}, {}
  for i, record in ipairs(records) do
    record.status, record.ranks, record.overhead_seconds = record.status or "ok", 16, 1
    record.comm_bytes = record.comm_bytes or { replicate = GIB, shard = 2 * GIB }
    list[i], by_key[record.key] = { key = record.key, values = record.point }, record
  end
  local self = report.new(head, list, by_key, 0)
  return html.page(self), self
end

local function priced(mesh, batch, tokens_per_s, peak)
  return { key = ("mesh=%s batch=%d"):format(mesh, batch), point = { mesh = mesh, batch = batch, keep = true },
    planned = planned(peak), priced = { step_ms = 100, tokens_per_s = tokens_per_s, exposed_ms = 30, host_ms = 1,
      waits_ms = { replicate = 10, shard = 20 }, mfu = 0.25, fits = true, room_bytes = 80 * GIB } }
end

local function priced_page()
  local skipped = priced("2x8", 8, 1, 90 * GIB)
  skipped.status, skipped.reason, skipped.point.keep, skipped.priced = "skipped", "too large", false, nil
  return page_of(header { plan = true, price = "h100x8-400g" }, { priced("1x16", 1, 1e5, 9 * GIB),
    priced("2x8", 1, 4e5, 10 * GIB), priced("2x8", 4, 3e5, 20 * GIB), skipped })
end

local function measured(rate, speeds, fields)
  local runs = {}
  for i, speed in ipairs(speeds) do runs[i] = { tokens_per_s = speed, step_ms = i, loss = 2 + rate + i / 10 } end
  local record = { key = "lr=" .. rate, point = { lr = rate }, planned = planned(2 ^ 20), runs = runs, step_ms = 2,
    tokens_per_s = speeds[2], tokens_per_s_min = speeds[1], tokens_per_s_max = speeds[3], loss = 2 + rate,
    exposed_ms = 1, waits_ms = { shard = 0.5 }, peak_bytes = 2 ^ 20 }
  for key, value in pairs(fields or {}) do record[key] = value end
  return record
end

local function first_tile(page) return page:match('<div class="first">(.-)</div>') end

describe("the page of a priced sweep", function()
  it("leads with the fastest point and names the cluster instead of this machine", function()
    local page = priced_page()
    has(first_tile(page), "highest speed | 400.0k tokens/s | mesh=2x8 batch=1")
    has(page, "priced on h100x8-400g | sorted by speed, highest first")
    assert.is_nil(page:find("Local CPU", 1, true))
  end)

  it("has charts of its speed and of the time of a step, by what it waits for", function()
    local page = priced_page()
    has(page, "<h2>Speed</h2> | 400k | <h2>Time of a step</h2> | waiting over replicate | 100.00 ms (31%)")
    has(page, "<h2>Speed against memory</h2>")
  end)

  it("has all columns of the terminal", function()
    local page, self = priced_page()
    local head = page:match("<thead>(.-)</thead>")
    local long = {}
    for name, short in pairs(plans.SHORT) do long[short] = name end
    for title in report.text(self, 400):match("^([^\n]*)"):gmatch("%S+") do has(head, long[title] or title) end
    has(head, "tokens/s | priced ms | exposed ms | MFU % | nodes | sharing | peak")
    local run, other = page_of(header { sort = "loss", repeats = 3, price = "cpu-example" },
      { measured(0.5, { 90, 100, 110 }), measured(1, { 90, 100, 110 }) })
    has(run:match("<thead>(.-)</thead>"), "loss | tokens/s | +-% | step ms | exposed ms | priced ms | off %")
    has(report.text(other, 400), "loss | tokens/s | +-% | step ms | priced ms | off %")
  end)
end)

describe("the page of a sweep", function()
  it("leads with what it was sorted by, and its direction", function()
    local records = { measured(1, { 90, 100, 110 }, { metrics = { score = 5 } }),
      measured(2, { 9, 10, 11 }, { metrics = { score = 7 } }) }
    for sort, text in pairs({ loss = "lowest loss | 3.0000 | lr=1", ["-score"] = "highest score | 7 | lr=2",
      score = "lowest score | 5 | lr=1", speed = "highest speed | 100 tokens/s | lr=1",
      memory = "lowest memory | 1.0 MiB per rank" }) do
      has(first_tile((page_of(header { sort = sort }, records))), text)
    end
  end)

  it("gives a mesh dimension one colour in all charts", function()
    local page, shard = priced_page(), style.of_dimension("shard")
    assert.equal(shard, style.of_dimension("fsdp"))
    assert.are_not.equal(shard, style.of_dimension("replicate"))
    has(page, ('<i class="%s"></i>waiting over shard | <i class="%s"></i>shard'):format(shard, shard))
  end)

  it("has axes with titles and units, in which labels are, too", function()
    local page = priced_page()
    local memory = page:match("<h2>Peak memory by category</h2>.-</figure>")
    has(memory, "20.0 GiB | >40 GiB< | rank 0, GiB<")
    has(page:match("<h2>Speed</h2>.-</figure>"), ">300k< | tokens/s<")
    has(page:match("<h2>Time of a step</h2>.-</figure>"), ">40 ms< | step, ms<")
    has(page:match("<h2>Speed against memory</h2>.-</figure>"), ", tokens/s< | , GiB<")
  end)

  it("labels the fastest point, without what all points share", function()
    local page = priced_page()
    has(page:match("<h2>Speed against memory</h2>.-</figure>"), ">mesh=2x8 batch=1</text>")
    has(page:match("<h2>Speed</h2>.-</figure>"), 'data-mark="  ◂ fastest"')
    assert.is_nil(page:match("<h2>Speed</h2>.*<h2>Peak"):find(">[^<]*keep=true[^<]*</text>"))
  end)

  it("has the range of runs in every chart of what they measured", function()
    local page = page_of(header { sort = "loss", repeats = 3 }, { measured(0.1, { 90, 100, 110 }),
      measured(0.2, { 90, 100, 110 }), measured(0.4, { 90, 100, 110 }, { peak_bytes = 2 ^ 21 }) })
    for _, title in ipairs({ "Loss over lr", "Speed", "Time of a [%w]+", "Speed against memory" }) do
      local chart = page:match("<h2>" .. title .. "</h2>.-</figure>")
      assert.equal(3, select(2, chart:gsub('<g class="range">', "")), title)
    end
  end)
end)

describe("labels of points", function()
  local field = { top = 0, bottom = 300, points = { { x = 50, y = 100 }, { x = 52, y = 100 } }, segments = {} }

  it("cover no point, no label and no line, and end inside the chart", function()
    local placed = labels.place({ { x = 50, y = 100, text = ("a"):rep(20) },
      { x = 52, y = 100, text = ("b"):rep(20) } }, field)
    assert.equal(2, #placed)
    assert.is_true(placed[1].anchor ~= placed[2].anchor or math.abs(placed[1].y - placed[2].y) >= 14)
    local taken = labels.place({ { x = 5, y = 100, text = "fsdp" } }, { top = 0, bottom = 300, points = {},
      segments = {}, taken = { { x = 5, dx = 9, y = 101, anchor = "start", text = "100k" } } })[1]
    assert.is_true(taken.anchor == "end" or math.abs(taken.y - 101) > 11)
    -- All places near the first point are taken, and below it the second one is nearer.
    local list = labels.place({ { x = 50, y = 100, text = "of the first" } }, { top = 80, bottom = 150,
      points = { { x = 50, y = 100 }, { x = 50.5, y = 122 } }, segments = {
        { { x = 0, y = 100 }, { x = 100, y = 100 } }, { { x = 0, y = 90 }, { x = 100, y = 90 } },
        { { x = 0, y = 114 }, { x = 100, y = 114 } } } })
    assert.same({}, list)
    local edge = labels.place({ { x = 99, y = 100, text = "name=value" } }, field)[1]
    assert.equal("end", edge.anchor)
    local crossed = labels.place({ { x = 20, y = 100, text = "name=value" } }, { top = 0, bottom = 300, points = {},
      segments = { { { x = 0, y = 100 }, { x = 80, y = 100 } } } })[1]
    assert.is_true(math.abs(crossed.y - 100) > 4, "beside the line")
  end)

  it("are left out without room, but not that of the highest point", function()
    local list = {}
    for i = 1, 40 do list[i] = { x = i, y = i, title = "", text = "a long name of point " .. i } end
    local svg = points.svg({ title = "t", points = list, x_title = "x", y_title = "y", x_unit = units.plain("s"),
      y_unit = units.plain("") })
    has(svg, "a long name of point 40</text>")
    assert.is_true(select(2, svg:gsub("a long name", "")) < 40)
  end)
end)
