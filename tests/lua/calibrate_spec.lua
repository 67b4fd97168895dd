-- moonshard calibrate: its description loads, and another calibration measures about the same. The bound is wide: other
-- tests run at the same time. tests/bench/price/measured.lua measures how good it is.

local cluster = require("moonshard.price.cluster")
local has = require("lua.message").has
local program = require("lua.program")
local scratch = require("lua.scratch")

local calibrate = { "calibrate", "--quick", "-n", "2", "--out" }

local function quick(path)
  local words = { unpack(calibrate) }
  words[#words + 1] = path
  local ended = program.run(words)
  assert.equal(0, ended.status, ended.err)
  return cluster.load(path), ended
end

-- What makes points of two calibrations the same kernel.
local function key(work)
  local parts = { work.op, work.dtype, work.variant, work.threads }
  for i = 0, 3 do parts[#parts + 1] = work.size[i] end
  return table.concat(parts, " ")
end

local function ratios(a, b)
  local by, list = {}, {}
  for i = 0, a:struct().points - 1 do by[key(a.points[i].work)] = a.points[i].seconds end
  for i = 0, b:struct().points - 1 do
    local other = by[key(b.points[i].work)]
    if other then list[#list + 1] = math.max(other, b.points[i].seconds) / math.min(other, b.points[i].seconds) end
  end
  table.sort(list)
  return list
end

describe("moonshard calibrate", function()
  teardown(scratch.clear)

  it("E6 writes a description that loads, and a second one has the same kernels in about the same times", function()
    local folder = scratch.folder()
    local first, ended = quick(folder .. "/first.lua")
    assert.truthy(ended.out:find("kernels measured"))
    assert.equal("cpu", first.device)
    assert.equal(2, first.ranks_per_node)
    assert.truthy(first.peak.f32 > 1e8)
    local second = quick(folder .. "/second.lua")
    local list = ratios(first, second)
    assert.equal(first:struct().points, #list)
    assert.truthy(list[math.ceil(#list / 2)] < 2, "half of the kernels differ twofold between two calibrations")
  end)

  it("E6 refuses what it cannot measure before it measures", function()
    local ended = program.run({ "calibrate", "--out", "/proc/none/cluster.lua" })
    assert.equal(2, ended.status)
    has(ended.err, "cluster description | /proc/none")
    ended = program.run({ "calibrate", "--device", "gpu" })
    assert.equal(2, ended.status)
    has(ended.err, "--device gpu")
  end)
end)
