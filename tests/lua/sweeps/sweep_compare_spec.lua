-- Two sweeps compared as a user meets it: points matched by their settings, ratios held against the spread of runs.

local json = require("moonshard.base.text.json")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local read, write = scratch.read, scratch.write

local function with_folder(action)
  local folder = os.tmpname()
  os.remove(folder)
  os.execute("mkdir " .. folder)
  local ok, raised = pcall(action, folder)
  os.execute("rm -rf " .. folder)
  if not ok then error(raised, 0) end
end

local function header(fields)
  local all = { title = "shapes", recipe = "r.lua", source = "ms", settings = {}, steps = 4, warmup = 1, repeats = 3,
    sort = "speed", version = "1.0", machine = { cpu = "a cpu", cores = 8 }, load = 0.1, started = "2026-01-01 10:00" }
  for key, value in pairs(fields or {}) do all[key] = value end
  return all
end

-- A point of batch size `batch`, whose slowest, middle and fastest run are given.
local function point(batch, speeds, fields)
  local record = { key = "batch=" .. batch, point = { batch = batch }, ranks = 2, status = "ok", runs = {},
    tokens_per_s_min = speeds[1], tokens_per_s = speeds[2], tokens_per_s_max = speeds[3], step_ms = 1, loss = 2,
    peak_bytes = 2 ^ 20, seconds = 1, overhead_seconds = 0.5 }
  for key, value in pairs(fields or {}) do record[key] = value end
  return record
end

local function as_lines(head, records)
  local lines = { json.encode(head) }
  for _, record in ipairs(records) do lines[#lines + 1] = json.encode(record) end
  return table.concat(lines, "\n") .. "\n"
end

local function as_object(head, records)
  local all = { points = records, count = { missing = 0 }, warnings = {} }
  for key, value in pairs(head) do all[key] = value end
  return json.encode(all) .. "\n"
end

local function compare(...)
  local ended = program.run({ "sweep", "--compare", ... })
  assert.equal("", ended.err)
  assert.equal(0, ended.status)
  return ended.out
end

-- Old: 1000 +- 50 everywhere; new: twice, half, and 5 % more, which is within ranges of 10 %.
local function write_both(folder)
  write(folder .. "/old.jsonl", as_lines(header(), {
    point(1, { 950, 1000, 1050 }), point(2, { 950, 1000, 1050 }), point(4, { 950, 1000, 1050 }),
    point(8, { 950, 1000, 1050 }), point(32, { 950, 1000, 1050 }),
  }))
  write(folder .. "/new.json", as_object(header({ version = "1.1", source = "ms more" }), {
    point(1, { 1900, 2000, 2100 }, { peak_bytes = 2 ^ 21 }), point(4, { 1000, 1050, 1100 }),
    point(2, { 475, 500, 525 }), point(16, { 1, 2, 3 }),
    { key = "batch=32", point = { batch = 32 }, ranks = 2, status = "failed", reason = "it <broke>", seconds = 1,
      overhead_seconds = 1, runs = {} },
  }))
  return folder .. "/old.jsonl", folder .. "/new.json"
end

describe("moonshard sweep --compare", function()
  it("I5 reports differences larger than the noise of the runs, and those within it", function()
    with_folder(function(folder)
      local out = compare(write_both(folder))
      local rows = {}
      for batch, rest in out:gmatch("\n(%d+) +([%d.][^\n]*)") do rows[batch] = rest:gsub(" +", " ") end
      assert.same({
        ["1"] = "1000 5.0 2000 5.0 2.000 faster 1.0 2.0", ["2"] = "1000 5.0 500 5.0 0.500 slower 1.0 1.0",
        ["4"] = "1000 5.0 1050 4.8 1.050 within noise 1.0 1.0",
      }, rows)
      local head = "\nbatch   old  +-%   new  +-%  new/old  speed         old peak  new peak\n"
      has(out, head)
      has(out, "1 faster | 1 slower | 1 within noise | new/old: 1.016")
      has(out, "1 | old | :\n  batch=8\n")
      has(out, "1 | new | :\n  batch=16\n")
      has(out, "batch=32 | old ok | new failed | it <broke>")
    end)
  end)

  it("I5 prints first what the sweeps differ in, and whether one is not finished or met a busy machine", function()
    with_folder(function(folder)
      local old, new = write_both(folder)
      local out = compare(old, new)
      has(out, 'warning: | version | "1.0" | "1.1"')
      has(out, "warning: | text | \"ms\"")
      assert.is_true(out:find("warning: ", 1, true) < out:find("batch   old", 1, true))
      assert.is_nil(compare(old, old):find("warning", 1, true))

      local begun = point(64, { 1, 1, 1 })
      begun.status = nil
      write(old, as_lines(header({ load = 7 }), { point(1, { 950, 1000, 1050 }, { ranks = 4 }), begun }))
      out = compare(old, new)
      has(out, "old: | busy")
      has(out, "old.jsonl | 1 point")
      has(out, "batch=1 | 4 ranks | 2")
    end)
  end)

  it("I5 knows no spread of one run, no speed of plans, and has the metric that points are ordered by", function()
    with_folder(function(folder)
      local path = folder .. "/results.jsonl"
      write(path, as_lines(header({ repeats = 1, sort = "-score" }), {
        point(1, { 10, 10, 10 }, { metrics = { score = 0.25 } }), point(2, { 10, 10, 10 }) }))
      local out = compare(folder, folder .. "/")
      has(out, "old score  new score\n")
      assert.truthy(out:find("1.000  one run +1.0 +1.0 +0.25 +0.25\n"), out)
      has(out, "2 one run | new/old: 1.000")

      local planned = { key = "batch=1", point = { batch = 1 }, ranks = 2, status = "ok" }
      planned.planned = { peak_bytes = 3 * 2 ^ 20 }
      write(path, as_lines(header({ plan = true, sort = "memory" }), { planned }))
      out = compare(path, path)
      local shown = "batch  old peak  new peak\n1           3.0       3.0\n(peak: MiB per rank)\n"
      has(out, shown)
    end)
  end)

  it("I5 prints JSON, and writes a page that refers to nothing outside", function()
    with_folder(function(folder)
      local old, new = write_both(folder)
      local got = assert(json.decode(compare(old, new, "--json", "--out", folder .. "/page/")))
      assert.same({ "batch=8" }, got.only_old)
      assert.same({ "batch=16" }, got.only_new)
      assert.equal(3, #got.points)
      local first = got.points[1]
      assert.equal("batch=1", first.key)
      assert.equal(2, first.ratio)
      assert.near(1900 / 1050, first.ratio_low, 1e-12)
      assert.near(2100 / 950, first.ratio_high, 1e-12)
      assert.equal("faster", first.verdict)
      assert.equal(2 ^ 21, first.new.peak_bytes)
      assert.equal("1.1", got.new.version)

      local page = read(folder .. "/page/compare.html")
      for _, text in ipairs({ "<h2>Speed, new to old</h2>", "<h2>Peak memory, new to old</h2>", "<th>batch</th>",
        "it &lt;broke&gt;", "geometric mean", "as before", "within noise", 'class="range"', "+100 %",
        "-50 %", ">0<", "new, %<", "the sweeps differ",
        "prefers-color-scheme: dark" }) do
        has(page, text)
      end
      for _, text in ipairs({ "https?:", "src=", "url%(", "@import", "nan", "inf%%" }) do
        assert.is_nil(page:find(text), text)
      end
    end)
  end)

  it("I5 refuses other folders and files with one line", function()
    with_folder(function(folder)
      local old, new = write_both(folder)
      local bad = folder .. "/bad.json"
      local function refused(message, ...)
        local ended = program.run({ "sweep", "--compare", ... })
        assert.equal(2, ended.status)
        assert.equal("", ended.out)
        has(ended.err, message)
        assert.equal(1, select(2, ended.err:gsub("\n", "")))
      end
      refused("two sweeps | 1", old)
      refused("two sweeps | 3", old, new, new)
      refused("folders | sweeps", old, folder .. "/nowhere")
      refused("folders | sweeps", old, folder)
      for text, why in pairs({ ["{"] = "byte", ["[1]"] = "no ", ["3"] = "object",
        [json.encode(header())] = "no points",
        [as_object(header({ load = "much" }), {})] = "load",
        [as_object(header(), { { key = "batch=1", point = { batch = 1 }, status = "ok" } })] = "point 1" }) do
        write(bad, text)
        refused(why, old, bad)
      end
      refused("--plan", old, new, "--plan")
    end)
  end)

  it("I5 compares what two sweeps wrote", function()
    with_folder(function(folder)
      for name, batches in pairs({ old = "{ 4, 8 }", new = "{ 8, 16 }" }) do
        write(folder .. "/" .. name .. ".lua", ([[
          require("moonshard").sweep {
            recipe = "tests/lua/recipes/sweep_point.lua", out = "%s/%s", over = { batch = %s }, steps = 3, ranks = 1,
            repeats = 2, sort = "loss",
          }
        ]]):format(folder, name, batches))
        local ended = program.run({ "sweep", folder .. "/" .. name .. ".lua" })
        assert.equal(0, ended.status, ended.err)
      end
      local got = assert(json.decode(compare(folder .. "/old", folder .. "/new", "--json")))
      assert.equal(1, #got.points)
      local both = got.points[1]
      assert.equal("batch=8", both.key)
      assert.equal(both.old.loss, both.new.loss)
      assert.equal(both.old.peak_bytes, both.new.peak_bytes)
      assert.equal(both.new.tokens_per_s / both.old.tokens_per_s, both.ratio)
      assert.is_true(both.ratio_low <= both.ratio and both.ratio <= both.ratio_high)
      assert.same({ "batch=4" }, got.only_old)
      assert.same({ "batch=16" }, got.only_new)
      assert.same(got.points, json.decode(compare(folder .. "/old/results.json", folder .. "/new/results.json",
        "--json")).points)
    end)
  end)
end)
