-- What a sweep shows and writes: tables, the order of points, CSV, JSON, the page with charts. sweep_spec.lua has how
-- points run.

local json = require("moonshard.base.text.json")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local swept = require("lua.sweeps.swept")

local count, lines_of, with_sweep = swept.count, swept.lines_of, swept.with_sweep

describe("the results of moonshard sweep", function()
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
        .. "comm_replicate_bytes,comm_shard_bytes,wire_replicate_bytes,wire_shard_bytes,"
        .. "waits_replicate_ms,waits_shard_ms,seconds,overhead_seconds,reason$"))
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
      -- The longer one of two bars is the faster point's.
      local widths = {}
      for width in page:match("<figure>.-</figure>"):gmatch('<rect class="c1" [^>]*width="([%d.]+)%%"') do
        widths[#widths + 1] = tonumber(width)
      end
      assert.equal(4, #widths)
      assert.equal(68, math.max(unpack(widths)))
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

  it("I5 has a column of bytes for every dimension of meshes with two, three and four", function()
    with_sweep(function(sweep)
      sweep.recipe = "recipes/llama.lua"
      sweep.define([[over = { mesh = { "1x2x2", "2x1x2", "1x1x2x2", "1x4" } }, steps = 2,
        settings = { seq = 32, files = "README.md" },]])
      local ran = sweep.run()
      assert.equal(0, ran.status, ran.err)
      local dims, by_mesh = { "replicate", "shard", "context", "tensor" }, {}
      has(ran.out:match("\nmesh +tokens/s [^\n]*"), "peak | replicate | shard | context | tensor")
      for _, record in ipairs(sweep.results().points) do by_mesh[record.point.mesh] = record end
      for mesh, cells in ran.out:gmatch("\n([%dx]+) +%d+ +[%d.]+ +[%d.]+ +([^\n]*)") do
        local i = 0
        for cell in cells:gmatch("%S+") do
          i = i + 1
          local bytes = by_mesh[mesh].comm_bytes[dims[i]]
          assert.equal(bytes and ("%.1f"):format(bytes / 2 ^ 20) or "-", cell, mesh .. " " .. dims[i])
        end
        assert.equal(4, i)
      end
      for mesh, record in pairs(by_mesh) do
        for _, dim in ipairs(dims) do
          assert.equal(record.planned.comm_bytes[dim], record.comm_bytes[dim], mesh .. " " .. dim)
        end
      end
      assert.is_true(by_mesh["1x1x2x2"].comm_bytes.context > 0 and by_mesh["1x2x2"].comm_bytes.tensor > 0)
      has(lines_of(sweep.read("results.csv"))[1]:gsub(",", " | "), "comm_context_bytes | waits_tensor_ms")
      local page = sweep.read("index.html")
      for _, dim in ipairs(dims) do has(page, dim .. " per step | waiting over " .. dim) end
      assert.equal(0, sweep.run("--plan").status)
      for _, record in ipairs(sweep.results().points) do
        assert.same(by_mesh[record.point.mesh].comm_bytes, record.comm_bytes)
      end
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

  it("I5 keeps columns apart that have one name", function()
    with_sweep(function(sweep)
      sweep.define([[over = { mesh = { "1x1" }, score = { true, false } }, steps = 3, sort = "-score"]])
      local ended = sweep.run()
      assert.equal(0, ended.status, ended.err)
      assert.truthy(ended.out:find("\nmesh  score  [^\n]* metrics%.score "), ended.out)
      has(sweep.read("index.html"), '<th>score</th> | <th class="n">metrics.score</th>')
      local head, first = unpack(lines_of(sweep.read("results.csv")))
      assert.truthy(head:find("^mesh,score,.*,metrics%.score,"), head)
      assert.truthy(first:find("^1x1,true,"), first)
    end)
    local list = require("moonshard.sweep.columns").tell_apart({
      { title = "loss", of = "point" }, { title = "peak" }, { title = "loss" }, { title = "peak", of = "metrics" },
      { title = "k", of = "metrics" }, { title = "k", of = "point" }, { title = "mine", of = "metrics" },
      { title = "metrics.k" },
    })
    local titles = {}
    for i, column in ipairs(list) do titles[i] = column.title end
    assert.equal("point.loss peak loss metrics.peak metrics.metrics.k k mine metrics.k", table.concat(titles, " "))
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

  it("I5 warns of a busy machine, and of points whose difference is noise", function()
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
end)
