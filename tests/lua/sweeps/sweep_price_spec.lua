-- Sweeps that price their points on a described cluster: instead of running them, or next to what they measured.

local has = require("lua.support.message").has
local swept = require("lua.sweeps.swept")

local with_sweep = swept.with_sweep

local GRID = [[over = { mesh = { %s }, reshard = { true, false } }, steps = 3,
  settings = { seq = 32, batch = 1, files = "tests/lua/recipes/text.txt" },]]

local function define(sweep, meshes)
  sweep.recipe = "recipes/llama.lua"
  sweep.define(GRID:format(meshes))
end

describe("moonshard sweep --price", function()
  it("E4 prices plans instead of running them, with the memory of the plan that it prices", function()
    with_sweep(function(sweep)
      define(sweep, [["1x4", "2x2"]])
      local ended = sweep.run("--price", "h100x8-400g")
      assert.equal(0, ended.status, ended.err)
      has(ended.out, "tokens/s | priced ms | exposed ms | MFU %")
      local points = sweep.results().points
      assert.equal(4, #points)
      for i, record in ipairs(points) do
        assert.equal("ok", record.status)
        assert.same({}, record.runs)
        assert.is_true(record.priced.step_ms > 0 and record.priced.fits)
        assert.is_true(record.planned.peak_bytes < record.priced.room_bytes)
        assert.is_true(i == 1 or record.priced.tokens_per_s <= points[i - 1].priced.tokens_per_s)
      end
      has(sweep.read("results.csv"), "priced_step_ms,priced_tokens_per_s,priced_mfu")
    end)
  end)

  it("says once that the sweep's own memory limit skips all points", function()
    with_sweep(function(sweep)
      sweep.recipe = "recipes/llama.lua"
      local function warnings(limit)
        sweep.define(('memory_limit = "%s", '):format(limit) .. GRID:format [["1x4", "2x2"]])
        local ended = sweep.run("--price", "h100x8-400g")
        assert.equal(0, ended.status, ended.err)
        local _, count = ended.out:gsub("warning:", "")
        return count, ended.out
      end
      local count, out = warnings("3MiB")
      assert.equal(1, count)
      has(out, "all points | memory_limit of 3.0 MiB | raise it to | leave it out")
      local most = 0
      for _, record in ipairs(sweep.results().points) do most = math.max(most, record.planned.peak_bytes) end
      assert.equal(0, (warnings(("%dKiB"):format(most / 1024 - 1))))
    end)
  end)

  it("with --run shows prices next to what was measured", function()
    with_sweep(function(sweep)
      define(sweep, [["1x2", "2x1"]])
      local ended = sweep.run("--price", "cpu-example", "--run")
      assert.equal(0, ended.status, ended.err)
      has(ended.out, "step ms | priced ms | off %")
      for _, record in ipairs(sweep.results().points) do
        assert.is_true(record.step_ms > 0 and record.priced.step_ms > 0)
      end
    end)
  end)

  it("is not resumed with another cluster, another description of it, or none", function()
    with_sweep(function(sweep)
      local own = os.tmpname() .. ".lua"
      local function describe_cluster(text)
        local file = assert(io.open(own, "w"))
        file:write(text)
        file:close()
      end
      define(sweep, [["1x2"]])
      assert.equal(0, sweep.run("--price", "h100x8-400g").status)
      assert.equal(0, sweep.run("--price", "h100x8-400g", "--resume").status)
      local other = sweep.run("--price", "cpu-example", "--resume")
      assert.equal(2, other.status)
      has(other.err, "price was | h100x8-400g | cpu-example | --resume")
      has(sweep.run("--plan", "--resume").err, "price was | not given")
      describe_cluster('return { extends = "h100x8-400g" }')
      assert.equal(0, sweep.run("--price", own).status)
      describe_cluster('return { extends = "h100x8-400g", network = { rail = { "200 Gbit/s", "here" } } }')
      has(sweep.run("--price", own, "--resume").err, "description | cluster | --resume")
      os.remove(own)
    end)
  end)

  it("refuses clusters without a description, and --run without a price", function()
    with_sweep(function(sweep)
      define(sweep, [["1x2"]])
      local unknown, alone = sweep.run("--price", "h100x9"), sweep.run("--run")
      assert.equal(2, unknown.status)
      has(unknown.err, "h100x9 | h100x8")
      assert.equal(2, alone.status)
      has(alone.err, "--run | --price")
    end)
  end)
end)
