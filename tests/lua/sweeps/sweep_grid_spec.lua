-- Which points a sweep has.

local fixture = require("lua.support.fixture")
local grid = require("moonshard.sweep.grid")
local has = require("lua.support.message").has

local function keys_of(points)
  local keys = {}
  for i, point in ipairs(points) do keys[i] = point.key end
  return keys
end

describe("grid.points", function()
  it("combines all values, mesh first and the last setting fastest", function()
    local points = grid.points({ over = { batch = { 8, 16 }, mesh = { "1x2", { 2, 2 } }, again = { true, false } } })
    assert.same({
      "mesh=1x2 again=true batch=8", "mesh=1x2 again=true batch=16", "mesh=1x2 again=false batch=8",
      "mesh=1x2 again=false batch=16", "mesh=2x2 again=true batch=8", "mesh=2x2 again=true batch=16",
      "mesh=2x2 again=false batch=8", "mesh=2x2 again=false batch=16",
    }, keys_of(points))
    assert.equal(2, points[1].ranks)
    assert.equal(4, points[8].ranks)
  end)

  it("adds explicit points once, and leaves out what where refuses", function()
    local points, left_out = grid.points({
      over = { mesh = { "1x2", "1x4" }, lr = { 0.1 } },
      points = { { mesh = "1x2", lr = 0.1 }, { mesh = "1x8", betas = { 0.9, 0.95 } } },
      where = function(point) return point.ranks ~= 4 end,
    })
    assert.same({ "mesh=1x2 lr=0.1", "mesh=1x8 betas=0.9,0.95" }, keys_of(points))
    assert.equal(1, left_out)
    assert.same({ "mesh", "betas", "lr" }, grid.columns(points))
  end)

  it("takes ranks as a setting of the launch and not of the recipe", function()
    local points = grid.points({ over = { ranks = { 1, 2 } } })
    assert.equal(2, points[2].ranks)
    assert.same({ "seq=8" }, grid.arguments({ seq = 8 }, points[2]))
  end)

  it("refuses what makes no point", function()
    for expected, given in pairs({
      ["over.mesh | list"] = { over = { mesh = "1x4" } },
      ["empty"] = { over = { mesh = {} } },
      ["ranks"] = { over = { batch = { 1 } } },
      ["mesh=1x-1 | ranks"] = { over = { mesh = { "1x-1" } } },
      ["name | setting"] = { over = { ["a b"] = { 1 } } },
      ["value | batch"] = { over = { batch = { print } } },
      ["over: lr | item 2 | item 3"] = { over = { mesh = { "1x2" }, lr = { 1, nil, 3 } } },
      ["points[1]: betas | item 1 | item 2"] = { points = { { mesh = "1x2", betas = { nil, 0.9 } } } },
      ["points | list"] = { points = { mesh = "1x2" } },
      ["points[2] | table"] = { points = { { mesh = "1x2" }, 3 } },
    }) do
      has(fixture.message(grid.points, given), expected)
    end
  end)
end)
