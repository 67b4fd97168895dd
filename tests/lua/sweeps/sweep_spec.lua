-- Sweeps as a user meets them: how points are run, and what becomes of those that cannot. What is shown and written
-- is in sweep_output_spec.lua.

local clock = require("moonshard.base.clock")
local json = require("moonshard.base.text.json")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local fixture = require("lua.support.fixture")
local swept = require("lua.sweeps.swept")

local count, lines_of, with_sweep = swept.count, swept.lines_of, swept.with_sweep

describe("moonshard sweep", function()
  it("I5 runs every point in a process group of its own; one that fails is reported and the others run", function()
    with_sweep(function(sweep)
      sweep.define(([[
        over = { mesh = { "1x4", "2x2", "4x1" }, reshard = { true, false, 2 } }, settings = { trace = %q },
        steps = 4, repeats = 2,
      ]]):format(sweep.trace))
      local ended = sweep.run()
      assert.equal(3, ended.status, ended.err)
      assert.equal("", ended.err)

      local failed, measured = {}, {}
      for _, record in ipairs(sweep.results().points) do
        if record.status == "failed" then
          failed[record.key] = record.reason
        else
          measured[#measured + 1] = record
        end
      end
      -- Where nothing is sharded there are no groups of 2 to reshard to.
      assert.equal(8, #measured)
      local reason = failed["mesh=4x1 reshard=2"]
      assert.truthy(reason:find("sweep_point.lua:%d+: "), reason)
      has(reason, "reshard_after_forward | groups of 2")
      assert.equal(2, count(ended.out, reason:gsub("%W", "%%%0")), "as it fails, and at the end")
      failed["mesh=4x1 reshard=2"] = nil
      assert.same({}, failed)
      has(sweep.read("points/009-mesh=4x1_reshard=2.plan.err"), "groups of 2")

      for i, record in ipairs(measured) do
        assert.equal("ok", record.status)
        assert.equal(2, #record.runs)
        assert.equal(3, record.runs[1].steps) -- one of four is warm-up
        assert.is_true(record.tokens_per_s > 0 and record.step_ms > 0)
        assert.is_true(record.exposed_ms > 0 and record.exposed_ms < record.step_ms)
        assert.is_true(record.tokens_per_s_min <= record.tokens_per_s
          and record.tokens_per_s <= record.tokens_per_s_max)
        assert.is_true(i == 1 or record.tokens_per_s <= measured[i - 1].tokens_per_s)
        assert.equal(record.planned.peak_bytes, record.peak_bytes)
        local replicated, sharded = record.comm_bytes.replicate > 0, record.comm_bytes.shard > 0
        assert.equal(record.point.mesh ~= "1x4", replicated)
        assert.equal(record.point.mesh ~= "4x1", sharded)
      end

      local groups, own = {}, {}
      for _, line in ipairs(sweep.traced()) do
        local group, parent = line:match("group=(%d+) pid=%d+ sweep=(%d+)")
        assert.is_nil(groups[group])
        assert.not_equal(parent, group)
        groups[group], own[parent] = line, true
      end
      assert.equal(16, #sweep.traced())
      assert.is_nil(next(own, next(own)), "all are children of one sweep")
    end)
  end)

  it("I5 goes on with an interrupted sweep, and leaves nothing behind after Ctrl-C", function()
    with_sweep(function(sweep)
      sweep.define(([[
        over = { mesh = { "1x2" }, batch = { 4, 8, 16 } },
        settings = { trace = %q, on = "batch=8", signal = 2 }, steps = 3,
      ]]):format(sweep.trace))
      local ended = sweep.run()
      assert.equal(130, ended.status, ended.err)
      assert.equal("moonshard: interrupted after 1 of 3 points; --resume continues\n", ended.err)
      assert.equal(2, #lines_of(sweep.read("results.jsonl")))
      assert.equal(1, sweep.results().count.ok)
      for _, line in ipairs(sweep.traced()) do
        assert.is_nil(io.open(("/proc/%s/stat"):format(line:match("pid=(%d+)"))), "a rank is left")
      end

      ended = sweep.run("--resume")
      assert.equal(0, ended.status, ended.err)
      has(ended.out, "1 of 3 points | \n2/3  mesh=1x2 batch=8")
      local batches = {}
      for _, line in ipairs(sweep.traced()) do batches[#batches + 1] = line:match("batch=(%d+)") end
      assert.same({ "4", "8", "8", "16" }, batches)
      assert.equal(3, sweep.results().count.ok)
      assert.equal(0, sweep.run("--resume").status)
      assert.equal(4, #sweep.traced())
    end)
  end)

  it("I5 goes on with a point part-way through its repeats", function()
    with_sweep(function(sweep)
      -- The second run of a point is the one that Ctrl-C meets: `on` waits for a first run's line in the trace.
      sweep.define(([[
        over = { mesh = { "1x1" }, batch = { 4, 8 } }, repeats = 2,
        settings = { trace = %q, on = "batch=8", after = 1, signal = 2 }, steps = 3,
      ]]):format(sweep.trace))
      local ended = sweep.run()
      assert.equal(130, ended.status, ended.err)
      assert.equal(4, #sweep.traced(), "the first round, and the second up to the signal")
      local resumed = sweep.run("--resume")
      assert.equal(0, resumed.status, resumed.err)
      assert.equal(5, #sweep.traced(), "only the run that was interrupted")
      for _, record in ipairs(sweep.results().points) do
        assert.equal(2, #record.runs)
        assert.equal("ok", record.status)
      end
    end)
  end)

  it("I5 goes on after a kill in the middle of a line; ranks end with the sweep", function()
    with_sweep(function(sweep)
      sweep.define(([[
        over = { mesh = { "1x2" }, batch = { 4, 8 } }, settings = { trace = %q, on = "batch=8", signal = 9 }, steps = 3,
      ]]):format(sweep.trace))
      assert.equal(137, sweep.run().status)
      local pid = sweep.traced()[2]:match("pid=(%d+)")
      local deadline = os.time() + 20
      while io.open(("/proc/%s/stat"):format(pid)) and os.time() < deadline do os.execute("sleep 0.05") end
      assert.is_nil(io.open(("/proc/%s/stat"):format(pid)))
      local file = assert(io.open(sweep.out .. "/results.jsonl", "a"))
      file:write('{"key":"mesh=1x2 batch=8","status":"o')
      file:close()
      local ended = sweep.run("--resume")
      assert.equal(0, ended.status, ended.err)
      assert.equal(2, sweep.results().count.ok)
      assert.equal(3, #lines_of(sweep.read("results.jsonl")))
    end)
  end)

  it("I5 notices a changed definition, and takes new points in", function()
    with_sweep(function(sweep)
      sweep.define([[over = { mesh = { "1x1", "1x2" } }, steps = 3, ]])
      assert.equal(0, sweep.run().status)
      sweep.define([[over = { mesh = { "1x1", "2x1" } }, steps = 3, ]])
      local ended = sweep.run("--resume")
      assert.equal(0, ended.status, ended.err)
      has(ended.out, "1 of 2 points | 1")
      assert.equal(2, sweep.results().count.ok)
      sweep.define([[over = { mesh = { "1x1", "1x2" } }, steps = 4, ]])
      ended = sweep.run("--resume")
      assert.equal(2, ended.status)
      has(ended.err, "my_sweep.lua: | ms.sweep | results.jsonl | settings")
      has(ended.err, "--resume")
      assert.equal(0, sweep.run().status)
      has(sweep.read("results.previous.jsonl"), '"mesh=2x1"')
    end)
  end)

  it("I5 skips points whose plan is too large, with the planned peak by category", function()
    with_sweep(function(sweep)
      sweep.define(([[
        over = { mesh = { "1x2" }, batch = { 4, 1024 } }, settings = { trace = %q }, steps = 3, memory_limit = "100KiB",
      ]]):format(sweep.trace))
      local ended = sweep.run()
      assert.equal(0, ended.status, ended.err)
      local skipped = sweep.results().points[2]
      assert.equal("skipped", skipped.status)
      assert.is_true(skipped.planned.peak_bytes > 100 * 1024)
      local line = ended.out:match("mesh=1x2 batch=1024: [^\n]*")
      has(line, "100.0 KiB | activations")
      assert.is_true(select(2, line:gsub("[%d.]+ [KM]iB", "")) > 2, line)
      assert.equal(1, #sweep.traced(), "only the other one ran")
    end)
  end)

  it("reports an unknown setting once, with the nearest name", function()
    with_sweep(function(sweep)
      sweep.define([[over = { mesh = { "1x1", "1x2" }, bach = { 4, 8 } }, steps = 3, ]])
      local ended = sweep.run()
      assert.equal(3, ended.status)
      local summary = ended.out:match("\n4 failed:\n([^\n]*)\n")
      assert.truthy(summary:find("tests/lua/recipes/sweep_point.lua:%d+: "), summary)
      has(summary, "mesh=1x1 bach=4 and 3 more | bach: | batch?")
    end)
  end)

  it("ends a point that takes too long, and reports a recipe that logs nothing", function()
    with_sweep(function(sweep)
      sweep.define(([[
        over = { mesh = { "1x2" }, batch = { 4, 8 } }, settings = { trace = %q, on = "batch=8" }, steps = 3,
        timeout = %d,
      ]]):format(sweep.trace, os.getenv("MOONSHARD_CONFIG") == "release" and 3 or 20))
      local ended = sweep.run()
      assert.equal(3, ended.status, ended.err)
      assert.truthy(ended.out:find("mesh=1x2 batch=8: [^\n]* %d+ s\n"), ended.out)
      assert.equal(1, sweep.results().count.ok)
    end)
    with_sweep(function(sweep)
      sweep.recipe = program.recipe("require('moonshard').args { steps = 3 }")
      sweep.define("over = { ranks = { 1 } }, steps = 3,")
      local ended = sweep.run()
      os.remove(sweep.recipe)
      assert.equal(3, ended.status)
      has(ended.out, "training step")
    end)
  end)

  it("refuses sweeps that make no sense, with their line", function()
    with_sweep(function(sweep)
      for fields, expected in pairs({
        [ [[over = { mesh = { "1x2" } }, ["repeat"] = 3]] ] = "option repeat: | repeats?",
        [ [[over = { mesh = { "1x2" } }, repeats = 1e9]] ] = "repeats | 1000000000 | 1000",
        [ [[steps = 3]] ] = "nothing to sweep",
        [ [[over = { mesh = { "1x2" } }, sort = "sped"]] ] = "speed?",
        [ [[over = { mesh = { "1x2" } }, plan = true, sort = "loss"]] ] = "planned | loss",
        [ [[over = {}, points = {}, ranks = 2]] ] = "nothing to sweep",
        [ [[over = { steps = { 1, 2 }, mesh = { "1x1" } }, steps = 3]] ] = "steps | varies",
        [ [[over = { batch = { 1, 2 } }, ranks = 2, settings = { batch = 3 }]] ] = "batch | settings | varies",
        [ [[over = { mesh = { "1x2" } }, steps = 2, warmup = 2]] ] = "2 steps | warm-up of 2",
        [ [[over = { mesh = { "1x2" } }, memory_limit = "much"]] ] = '"2GiB"',
        [ [[over = { mesh = { "1x2" } }, where = function() return false end]] ] = "every point",
        [ [[over = { mesh = { "1x2" } }, where = function(p) return p.bach.x end]] ] = "attempt to index",
      }) do
        sweep.define(fields)
        local ended = sweep.run()
        assert.equal(2, ended.status)
        assert.equal("", ended.out)
        assert.truthy(ended.err:find("^moonshard: [^\n]*my_sweep.lua:%d+: [^\n]*\n$"), ended.err)
        has(ended.err, expected)
      end
      sweep.recipe = "nowhere.lua"
      sweep.define([[over = { mesh = { "1x2" } } ]])
      local missing = ("recipe | %s/nowhere.lua | nowhere.lua"):format(sweep.folder)
      has(sweep.run().err, missing)
    end)
    local path = program.recipe("require('moonshard').args { x = 1 } -- to sweep over")
    has(program.run({ "sweep", path }).err, "ms.sweep")
    os.remove(path)
    path = program.recipe("local ms = require 'moonshard'\nerror('it ran')")
    local advice = path .. " | ms.sweep | ms.find_lr | ms.scaling | moonshard run " .. path
    has(program.run({ "sweep", path }).err, advice)
    os.remove(path)
    path = program.recipe("require('moonshard').sweep { recipe = 'x' }")
    has(program.run({ "run", path }).err, "moonshard sweep FILE")
    os.remove(path)
  end)

  it("does not let two sweeps write the same results", function()
    with_sweep(function(sweep)
      local results = require("moonshard.sweep.results")
      local path = sweep.out .. "/results.jsonl"
      local first = results.open(path, {}, false)
      has(fixture.message(results.open, path, {}, true), "another sweep")
      first:close()
      results.open(path, {}, true):close()
    end)
  end)

  it("I5 runs in rounds of all points, each shuffled by the seed", function()
    with_sweep(function(sweep)
      local function order_with(seed)
        os.remove(sweep.trace)
        sweep.define(([[over = { mesh = { "1x1" }, batch = { 4, 5, 6, 7 } }, settings = { trace = %q }, steps = 2,
          repeats = 2, order = "shuffled", seed = %d]]):format(sweep.trace, seed))
        local ended = sweep.run()
        assert.equal(0, ended.status, ended.err)
        local batches = {}
        for i, line in ipairs(sweep.traced()) do batches[i] = line:match("batch=(%d+)") end
        return table.concat(batches)
      end
      local first = order_with(1)
      assert.equal(8, #first)
      for round = 0, 1 do
        local letters = {}
        for letter in first:sub(4 * round + 1, 4 * round + 4):gmatch(".") do letters[#letters + 1] = letter end
        table.sort(letters)
        assert.equal("4567", table.concat(letters))
      end
      assert.not_equal(first:sub(1, 4), first:sub(5, 8))
      assert.equal(first, order_with(1))
      assert.not_equal(first, order_with(2))
      for _, record in ipairs(sweep.results().points) do assert.equal(2, #record.runs) end
    end)
  end)

  it("costs less than half a second for a point in addition to its steps #all", function()
    if os.getenv("MOONSHARD_CONFIG") ~= "release" then return pending("sanitized builds start slowly") end
    with_sweep(function(sweep)
      sweep.define([[over = { mesh = { "1x4" }, batch = { 4, 5, 6, 7, 8 } }, steps = 3, ]])
      local bare = program.recipe("local ms = require 'moonshard'")
      local least, alone = math.huge, math.huge
      for _ = 1, 4 do -- the machine may be busy with other things, and then a bare start takes longer, too
        local began = clock.now()
        assert.equal(0, program.run({ "run", bare, "-n", "4" }).status)
        alone = math.min(alone, clock.now() - began)
        assert.equal(0, sweep.run().status)
        for _, record in ipairs(sweep.results().points) do least = math.min(least, record.overhead_seconds) end
        if least < 0.5 then break end
      end
      os.remove(bare)
      assert.is_true(least > 0 and least < math.max(0.5, 3 * alone), least .. ", and a bare start " .. alone)
    end)
  end)

  it("runs the sweep of the recipes #all", function()
    if os.getenv("MOONSHARD_CONFIG") ~= "release" then return pending("the same code as above, and many steps") end
    local ended = program.run({ "sweep", "recipes/sweep_mesh.lua", "steps=2", "repeats=1", "files=recipes",
      "dtype=f32", "--json" }) -- the same bytes on every CPU
    assert.equal(0, ended.status, ended.err)
    local found = assert(json.decode(ended.out))
    assert.same({ ok = 5, skipped = 5, failed = 0, left_out = 2, missing = 0 }, found.count)
    assert.equal("mesh=4x1 batch=4 reshard=false", found.points[10].key)
  end)
end)
