-- Sweeps as a user meets them: how points are run, what becomes of those that cannot, and what is written.

local json = require("moonshard.base.json")
local has = require("lua.message").has
local program = require("lua.program")
local fixture = require("lua.fixture")
local scratch = require("lua.scratch")

local RECIPE = "tests/lua/recipes/sweep_point.lua"

local function lines_of(text)
  local lines = {}
  for line in text:gmatch("[^\n]+") do lines[#lines + 1] = line end
  return lines
end

local function count(text, pattern) return select(2, text:gsub(pattern, "")) end

-- A sweep's file in a folder of its own, and what it wrote there.
local function new_sweep()
  local folder = os.tmpname()
  os.remove(folder)
  os.execute("mkdir " .. folder)
  local sweep = { folder = folder, out = folder .. "/out", trace = folder .. "/trace" }
  sweep.file = folder .. "/my_sweep.lua"
  function sweep.define(fields)
    local file = assert(io.open(sweep.file, "w"))
    file:write(([[
      local ms = require "moonshard"
      ms.sweep {
        recipe = %q, out = %q, order = "given", %s
      }
    ]]):format(sweep.recipe or RECIPE, sweep.out, fields))
    file:close()
  end
  function sweep.run(...) return program.run({ "sweep", sweep.file, ... }) end
  function sweep.read(name) return scratch.read(sweep.out .. "/" .. name) end
  function sweep.results() return assert(json.decode(sweep.read("results.json"))) end
  function sweep.traced() return lines_of(scratch.read(sweep.trace)) end
  function sweep.remove() os.execute("rm -rf " .. folder) end
  return sweep
end

local function with_sweep(action)
  local sweep = new_sweep()
  local ok, raised = pcall(action, sweep)
  sweep.remove()
  if not ok then error(raised, 0) end
end

describe("moonshard sweep", function()
  it("I5 runs every point in a process group of its own; one that fails is told and the others go on", function()
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

  it("I5 prints a table sorted by speed, with peak bytes by category and bytes by mesh dimension", function()
    with_sweep(function(sweep)
      sweep.define([[over = { mesh = { "1x2", "2x1" }, batch = { 4, 64 } }, steps = 3, repeats = 2,]])
      local narrow = sweep.run()
      assert.equal(0, narrow.status, narrow.err)
      assert.truthy(narrow.out:find("mesh  batch  tokens/s  +-%  step ms  peak  replicate  shard\n", 1, true)
        or narrow.out:find("mesh  batch  tokens/s   +-%  step ms  peak  replicate  shard\n", 1, true), narrow.out)
      assert.truthy(narrow.out:find("mesh  batch  peak  params  optim  grads  gathered  activ  work  comm\n"))
      assert.equal(1, count(narrow.out, "\n4/4  mesh=2x1 batch=64  "))
      has(narrow.out, "\nnodes:\n")
      assert.truthy(narrow.out:find("\n  mesh=2x1 batch=%d+, mesh=2x1 batch=%d+: 2 ranks on 1 node: 2 replicas "))
      local wide = program.run({ "sweep", sweep.file }, "COLUMNS=200")
      local head = wide.out:match("\n(mesh  batch[^\n]*)\n")
      assert.truthy(head:find("tokens/s.*step ms.*peak.*activ.*comm.*replicate.*shard"), wide.out)
      local speeds = {}
      for speed in wide.out:gmatch("\n%dx%d +%d+ +(%d+)") do speeds[#speeds + 1] = tonumber(speed) end
      assert.equal(4, #speeds)
      for i = 2, 4 do assert.is_true(speeds[i] <= speeds[i - 1]) end
    end)
  end)

  it("I5 writes CSV, JSON and one page with charts that refers to nothing outside", function()
    with_sweep(function(sweep)
      sweep.define([[
        title = "shapes & sizes", over = { mesh = { "1x2", "2x1" }, batch = { 4, 8 } }, steps = 3,
        memory_limit = "1MiB",
        points = { { mesh = "1x1", reshard = 'a "quoted", value' } },
      ]])
      assert.equal(3, sweep.run().status)
      local csv = lines_of(sweep.read("results.csv"))
      assert.equal(6, #csv)
      assert.truthy(csv[1]:find("^mesh,batch,reshard,ranks,status,tokens_per_s,.*planned_activations_bytes,.*"
        .. "comm_replicate_bytes,comm_shard_bytes,seconds,overhead_seconds,reason$"))
      assert.truthy(csv[2]:find("^%dx%d,%d,,2,ok,[%d.]+,"))
      assert.truthy(csv[6]:find('^1x1,,"a ""quoted"", value",1,failed,,', 1))
      assert.equal(4, sweep.results().count.ok)

      local page = sweep.read("index.html")
      has(page, "<h1>shapes &amp; sizes</h1>")
      assert.equal(5, count(page, "<svg "))
      for _, text in ipairs({ "<h2>Speed</h2>", "against memory", "of a step", "exposed",
        "<td class=\"wide\">2 ranks on 1 node: 2 replicas ", "by category", "mesh dimension", "1.0 MiB",
        "prefers%-color%-scheme: dark", "@media print", 'name="viewport"', "quot;quoted&quot;" }) do
        assert.truthy(page:find(text), text)
      end
      for _, text in ipairs({ "https?:", "src=", "url%(", "@import", "nan", "inf%%" }) do
        assert.is_nil(page:find(text), text)
      end
      assert.equal(1, count(page, "<script>"))
      local files = {}
      for name, data in page:gmatch('download="([^"]*)" href="data:[%w/+]+;charset=utf%-8,([^"]*)"') do
        files[name] = data:gsub("%%(%x%x)", function(code) return string.char(tonumber(code, 16)) end)
      end
      assert.equal(count(page, "href="), count(page, 'href="data:'))
      assert.equal(sweep.read("results.csv"), files["results.csv"])
      assert.same(sweep.results(), json.decode(files["results.json"]))
      for _, name in ipairs({ "speed", "time-of-a-step", "speed-against-memory", "peak-memory-by-category" }) do
        assert.truthy(files[name .. ".svg"]:find('^<svg xmlns="http://www.w3.org/2000/svg" width="860".*</svg>$'), name)
      end
      local open = {}
      local bare = page:gsub("<style>.-</style>", ""):gsub("<script>.-</script>", "")
      for closing, name, last in bare:gmatch("<(/?)([%w]+)[^>]-(/?)>") do
        if closing == "/" then
          assert.equal(name, table.remove(open))
        elseif last == "" and name ~= "meta" and name ~= "br" then
          open[#open + 1] = name
        end
      end
      assert.same({}, open)
      -- Of two bars, the longer one is the faster point's.
      local widths = {}
      for width in page:match("<figure>.-</figure>"):gmatch('<rect class="c1" [^>]*width="([%d.]+)%%"') do
        widths[#widths + 1] = tonumber(width)
      end
      assert.equal(4, #widths)
      assert.equal(68, math.max(unpack(widths)))
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

  it("I5 skips what a plan shows to be too large, with the planned peak by category", function()
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

  it("tells an unknown setting once, with the nearest name", function()
    with_sweep(function(sweep)
      sweep.define([[over = { mesh = { "1x1", "1x2" }, bach = { 4, 8 } }, steps = 3, ]])
      local ended = sweep.run()
      assert.equal(3, ended.status)
      local summary = ended.out:match("\n4 failed:\n([^\n]*)\n")
      assert.truthy(summary:find("tests/lua/recipes/sweep_point.lua:%d+: "), summary)
      has(summary, "mesh=1x1 bach=4 and 3 more | bach: | batch?")
    end)
  end)

  it("ends a point that takes too long, and tells a recipe that logs nothing", function()
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
    local advice = path .. " calls neither ms.sweep nor ms.find_lr; to train by a recipe: moonshard run " .. path
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

  it("I5 only plans, for any number of ranks and nodes, and says what these share", function()
    with_sweep(function(sweep)
      sweep.define(([[over = { mesh = { "128x1", "16x8", "2x64" }, batch = { 1, 2 } }, plan = true, ranks_per_node = 8,
        settings = { trace = %q }]]):format(sweep.trace))
      local ended = sweep.run()
      assert.equal(0, ended.status, ended.err)
      assert.is_nil(io.open(sweep.trace), "nothing ran")
      local found = sweep.results()
      assert.equal(6, found.count.ok)
      for i, record in ipairs(found.points) do
        assert.truthy(record.planned.nodes:find("^128 ranks on 16 nodes: "))
        assert.is_true(record.planned.comm_bytes.replicate > 0)
        assert.is_true(i == 1 or record.planned.peak_bytes >= found.points[i - 1].planned.peak_bytes)
      end
      assert.is_nil(ended.out:find("tokens/s", 1, true))
      assert.truthy(ended.out:find("\nmesh   batch  nodes  sharing  peak "), ended.out)
      assert.truthy(ended.out:find("\n128x1  1 +16 +8 "), ended.out)
      assert.truthy(ended.out:find("\n16x8 +1 +16 +1 "), ended.out)
      local page = sweep.read("index.html")
      assert.is_nil(page:find("<h2>Speed</h2>", 1, true))
      has(page, "by category")
      has(sweep.read("results.csv"), ",nodes,planned_peak_bytes,")
      sweep.define([[over = { mesh = { "16x1" } }]])
      ended = sweep.run("--plan", "--ranks-per-node", "4")
      assert.equal(0, ended.status, ended.err)
      has(sweep.results().points[1].planned.nodes, "16 ranks | 4 nodes | groups of 4")
      assert.equal(0, sweep.run("--plan").status)
      has(sweep.results().points[1].planned.nodes, "16 ranks | 1 node | 16 replicas | one copy")
      sweep.define([[over = { mesh = { "1x2" } }, ranks_per_node = 2]])
      has(sweep.run().err, "ranks_per_node | plan")
    end)
  end)

  it("I5 orders by a metric of the recipe, and has it in tables, CSV, JSON and the page", function()
    with_sweep(function(sweep)
      sweep.define([[over = { mesh = { "1x1" }, batch = { 5, 7, 4 } }, steps = 3, sort = "-score",
        settings = { score = true }]])
      local ended = sweep.run()
      assert.equal(0, ended.status, ended.err)
      local scores = {}
      for i, record in ipairs(sweep.results().points) do scores[i] = record.metrics.score end
      assert.same({ 21, 15, 12 }, scores)
      assert.truthy(ended.out:find("\nmesh  batch  [^\n]*score[^\n]*\n1x1   7  [^\n]*  21  "), ended.out)
      has(sweep.read("results.csv"), ",score,")
      has(sweep.read("index.html"), '<th class="n">score</th>')
    end)
  end)

  it("I5 fails if no point logged the metric to sort by, and sorts the same results when it is corrected", function()
    with_sweep(function(sweep)
      local fields = [[over = { mesh = { "1x1" }, batch = { 5, 7 } }, steps = 3, sort = %q,
        settings = { score = true, trace = %q }]]
      sweep.define(fields:format("-nonsense", sweep.trace))
      local ended = sweep.run()
      assert.equal(2, ended.status, ended.err)
      has(ended.err, "my_sweep.lua:2 | sort \"-nonsense\" | logs score | --resume")
      assert.equal(2, #sweep.results().points)
      sweep.define(fields:format("-score", sweep.trace))
      ended = sweep.run("--resume")
      assert.equal(0, ended.status, ended.err)
      assert.equal(7, sweep.results().points[1].point.batch)
      assert.equal(2, #sweep.traced(), "nothing ran again")
    end)
  end)

  it("I5 warns of a busy machine, and of points that runs do not tell apart", function()
    local report = require("moonshard.sweep.report")
    local function record(key, least, median, most)
      return { key = key, status = "ok", point = { batch = key }, ranks = 1, tokens_per_s = median,
        tokens_per_s_min = least, tokens_per_s_max = most, step_ms = 1, peak_bytes = 1 }
    end
    local function warnings(load, ...)
      local points, by_key = {}, {}
      for i, one in ipairs({ ... }) do
        points[i] = { key = one.key, values = one.point }
        by_key[one.key] = one
      end
      local header = { sort = "speed", repeats = 3, load = load, machine = { cores = 2 } }
      return report.new(header, points, by_key, 0).warnings
    end
    local fast, near, far = record("a", 90, 100, 110), record("b", 80, 88, 95), record("c", 50, 55, 60)
    assert.same({}, warnings(0.2, fast, far))
    has(warnings(0.2, fast, near, far)[1], "1 other point | (a, +-10 %)")
    has(warnings(1.5, fast, far)[1], "1.5 | 2 cores")
  end)

  it("prints JSON alone with --json", function()
    with_sweep(function(sweep)
      sweep.define([[over = { mesh = { "1x1", "1x2" } }, steps = 2, ]])
      local ended = sweep.run("--json")
      assert.equal(0, ended.status, ended.err)
      assert.equal(2, #assert(json.decode(ended.out)).points)
      assert.equal("", ended.err)
    end)
  end)

  it("costs under half a second a point besides its steps", function()
    if os.getenv("MOONSHARD_CONFIG") ~= "release" then return pending("sanitized builds start slowly") end
    with_sweep(function(sweep)
      sweep.define([[over = { mesh = { "1x4" }, batch = { 4, 5, 6, 7, 8 } }, steps = 3, ]])
      local least = math.huge
      for _ = 1, 4 do -- the machine may be busy with other things
        assert.equal(0, sweep.run().status)
        for _, record in ipairs(sweep.results().points) do least = math.min(least, record.overhead_seconds) end
        if least < 0.5 then break end
      end
      assert.is_true(least > 0 and least < 0.5, tostring(least))
    end)
  end)

  it("runs the sweep of the recipes", function()
    if os.getenv("MOONSHARD_CONFIG") ~= "release" then return pending("the same code as above, and many steps") end
    local ended = program.run({ "sweep", "recipes/sweep_mesh.lua", "steps=2", "repeats=1", "files=recipes", "--json" })
    assert.equal(0, ended.status, ended.err)
    local found = assert(json.decode(ended.out))
    assert.same({ ok = 7, skipped = 3, failed = 0, left_out = 2, missing = 0 }, found.count)
    assert.equal("mesh=4x1 batch=4 reshard=false", found.points[10].key)
  end)
end)
