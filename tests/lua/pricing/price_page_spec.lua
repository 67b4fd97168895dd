-- The pages of `moonshard price` and `moonshard tune`: a step's timeline, and the plans that were tried.

local areas = require("moonshard.page.areas")
local has = require("lua.support.message").has
local lanes = require("moonshard.page.lanes")
local points = require("moonshard.page.points")
local program = require("lua.support.program")
local ranks = require("moonshard.page.ranks")
local scratch = require("lua.support.scratch")
local units = require("moonshard.page.units")

local LLAMA = { "recipes/llama.lua", "-n", "8", "--cluster", "h100x8-400g", "seq=32", "files=recipes", "dtype=bf16" }

local function page_of(command, ...)
  local path = scratch.path() .. ".html"
  local arguments = { command }
  for _, list in ipairs({ LLAMA, { "--page", path, ... } }) do
    for _, argument in ipairs(list) do arguments[#arguments + 1] = argument end
  end
  local ended = program.run(arguments)
  assert.equal(0, ended.status, ended.err)
  local page = scratch.read(path)
  os.remove(path)
  for _, text in ipairs({ "https?:", "src=", "url%(", "@import", "nan", "inf%%" }) do
    assert.is_nil(page:gsub('xmlns="[^"]*"', ""):find(text), text)
  end
  return page, ended.out
end

describe("moonshard price --page", function()
  teardown(scratch.clear)

  it("draws the step with a lane for each stream, and says the same as the text", function()
    local page, text = page_of("price", "mesh=2x4")
    local timeline = page:match("<h2>Timeline of a step</h2>.-</figure>")
    has(timeline, ">compute< | >gather< | >reduce< | >replicate< | step, ms<")
    has(timeline, "forward | backward | update | over replicate | over shard")
    has(page, text:match("step ([%d.]+ ms)") .. " | " .. text:match("[%d.k]+ tokens/s"))
    local memory = page:match("<h2>Memory over a step</h2>.-</figure>")
    has(memory, "activations | memory in use on rank 0, MiB | time in a step, ms | peak | backward")
    assert.equal(text:match("FITS: ([%d.]+ %a+)"), memory:match("reserves ([%d.]+ %a+)"))
    local mesh = page:match("<h2>The mesh and its groups</h2>.-</figure>")
    has(mesh, "replicate: 4 groups of 2 | shard: 2 groups of 4 | node 0")
    assert.equal(8, select(2, mesh:gsub('<circle class="rank"', "")))
    assert.equal(4, select(2, mesh:gsub('<path class="group%-line ', "")))
    assert.is_nil(page:find("<script", 1, true))
  end)

  it("is refused for a list of meshes", function()
    program.refused(2, { "price", LLAMA[1], "-n", "8", "--cluster", "h100x8-400g", "--mesh-list", "1x8,2x4", "--page",
      "page.html" }, "--page | --mesh-list")
  end)
end)

describe("moonshard tune --page", function()
  teardown(scratch.clear)

  it("has all plans by memory and speed, and a table of those that no other beats", function()
    local page, text = page_of("tune", "--mesh", "2x4")
    local chart = page:match("<h2>Memory against speed</h2>.-</figure>")
    has(chart, "needs more memory | , tokens/s< | MiB<")
    has(chart, 'class="point-label" | optimizer') -- rules, as all plans have one mesh
    assert.is_true(select(2, chart:gsub("<circle ", "")) > 1)
    local body = page:match("<tbody>(.-)</tbody>")
    local bytes, speed = {}, {}
    for x, _, y in body:gmatch('data%-v="([^"]*)".-data%-v="([^"]*)".-data%-v="([^"]*)"') do
      bytes[#bytes + 1], speed[#speed + 1] = tonumber(x), tonumber(y)
    end
    assert.is_true(#bytes >= 1)
    for i = 2, #bytes do assert.is_true(bytes[i] > bytes[i - 1] and speed[i] > speed[i - 1]) end
    has(page, text:match("mesh 2x4.-%), ([%d.kM]+ tokens/s)"))
  end)
end)

describe("--page of price and tune", function()
  it("is refused before anything is compiled where its folder does not exist", function()
    for _, command in ipairs({ "price", "tune" }) do
      program.refused(2, { command, LLAMA[1], "-n", "8", "--cluster", "h100x8-400g", "--page", "/nowhere/page.html" },
        "--page | /nowhere")
    end
  end)
end)

describe("a timeline", function()
  local function svg_of(slices)
    return lanes.svg({ title = "t", finish = 100, phases = { { name = "first", begin = 0, finish = 90 } },
      lanes = { { name = "compute", slices = slices } } })
  end

  it("draws slices that touch as one, but keeps colours and gaps", function()
    local svg = svg_of({ { begin = 0, finish = 10, class = "c1", title = "a" },
      { begin = 10.01, finish = 20, class = "c1", title = "b" }, { begin = 20, finish = 30, class = "c2", title = "c" },
      { begin = 40, finish = 50, class = "c2", title = "d" } })
    assert.equal(3, select(2, svg:gsub("<rect ", "")))
    has(svg, ">40 ms< | first | >2 from a | >c, 20.000 | >d, 40.000")
  end)
end)

describe("areas over time", function()
  local function paths_of(list)
    local svg = areas.svg({ title = "t", axis = "memory", unit = units.bytes(100), finish = 100, points = list,
      phases = { { name = "first", begin = 0, finish = 100 } }, peak = { x = 70, value = 100, text = "peak" },
      areas = { { name = "a", class = "c1" }, { name = "b", class = "c2" }, { name = "c", class = "c3" } } })
    local paths = {}
    for class, d in svg:gmatch('<path class="(c%d)" d="([^"]*)"') do paths[class] = d end
    return paths, svg
  end

  it("lie on each other, step where a value changes, and are left out where they have none", function()
    local paths, svg = paths_of({ { x = 0, values = { 51, 0, 0 } }, { x = 50, values = { 51, 25.5, 0 } },
      { x = 75, values = { 51, 0, 0 } } })
    assert.same({ c1 = "M0.0 240.00V120.00H4000.0V240.00H0.0Z",
      c2 = "M0.0 120.00V120.00H2000.0V60.00H3000.0V120.00H4000.0V120.00H0.0Z" }, paths)
    -- The label ends at the line of the peak, which is on the right.
    has(svg, '<text class="value" x="70.900%" y="32.0" dx="-7" text-anchor="end">peak</text>')
  end)

  it("keep the most of points that nearly touch", function()
    local paths = paths_of({ { x = 0, values = { 0, 0, 0 } }, { x = 50, values = { 51, 0, 0 } },
      { x = 50.01, values = { 102, 0, 0 } }, { x = 50.02, values = { 51, 0, 0 } }, { x = 60, values = { 0, 0, 0 } } })
    assert.equal("M0.0 240.00V240.00H2000.0V0.00H2400.0V240.00H4000.0V240.00H0.0Z", paths.c1)
  end)
end)

describe("a mesh", function()
  it("shrinks on a narrow page, with room for the names of nodes", function()
    local svg = ranks.svg({ title = "t", sizes = { 2, 8 }, names = { "replicate", "shard" }, ranks_per_node = 8 })
    local width = tonumber(svg:match('viewBox="0 0 (%d+) '))
    for x, text in svg:gmatch('<text class="tick" x="(%d+)"[^>]*>([^<]*)') do
      assert.is_true(x + 7 * #text <= width, text)
    end
  end)
end)

describe("the frontier of points", function()
  it("has those that no other beats in both", function()
    local list = points.frontier({ { x = 2, y = 5 }, { x = 1, y = 3 }, { x = 3, y = 4 }, { x = 1, y = 2 },
      { x = 4, y = 6 } })
    for i, point in ipairs(list) do list[i] = point.x .. " " .. point.y end
    assert.same({ "1 3", "2 5", "4 6" }, list)
  end)
end)
