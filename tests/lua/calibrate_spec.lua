-- moonshard calibrate: its description loads, and another calibration measures about the same. The bound is wide: other
-- tests run at the same time. tests/bench/price/measured.lua measures how good it is.

local cluster = require("moonshard.price.cluster")
local engine = require("moonshard.base.ffi")
local has = require("lua.message").has
local program = require("lua.program")
local scratch = require("lua.scratch")
local C, ffi = engine.C, engine.ffi

local calibrate = { "calibrate", "--quick", "-n", "2", "--out" }

local function quick(path)
  local words = { unpack(calibrate) }
  words[#words + 1] = path
  local ended = program.run(words)
  assert.equal(0, ended.status, ended.err)
  return cluster.load(path), ended
end

local function seconds(described, work)
  local out = ffi.new("double[1]")
  engine.check(C.ms_cluster_kernel_time(described:struct(), work, out))
  return out[0]
end

-- For each kernel of one description, by what factor the two differ; sorted.
local function ratios(a, b)
  local list = {}
  for i = 0, a:struct().points - 1 do
    local work = a.points[i].work
    local one, other = seconds(a, work), seconds(b, work)
    list[i + 1] = math.max(one, other) / math.min(one, other)
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
    assert.truthy(#list > 20)
    assert.truthy(list[math.ceil(#list / 2)] < 2, "half of the kernels differ twofold between two calibrations")
  end)

  it("E6 refuses what it cannot measure before it measures", function()
    local ended = program.run({ "calibrate", "--out", "/proc/none/cluster.lua" })
    assert.equal(2, ended.status)
    has(ended.err, "cluster description | /proc/none")
    program.refused(2, { "calibrate", "-n", "1000" }, "-n 1000 | at most 64 ranks")
    ended = program.run({ "calibrate", "--device", "gpu" })
    assert.equal(2, ended.status)
    has(ended.err, "--device gpu")
  end)
end)
