-- Batches of ever new shapes: the plans and graphs that are kept have a limit in bytes, which is counted, dropped ones
-- are compiled again without a difference, and a warning says what to do.

local has = require("lua.support.message").has
local ms = require("moonshard")
local plan_cache = require("moonshard.engine.plan_cache")
local program = require("lua.support.program")
local ffi = require("ffi")

ffi.cdef [[
typedef struct { size_t a[7], used, b[2]; } test_mallinfo;
test_mallinfo mallinfo2(void);
]]

local function used_bytes()
  collectgarbage()
  return tonumber(ffi.C.mallinfo2().used)
end

local function rows_of(length)
  local row = {}
  for i = 1, length do row[i] = i % 16 end
  return ms.tensor { row, row, dtype = "i32" }
end

local function gpt(more)
  local model = ms.models.gpt2 { vocab = 16, layers = 2, dim = 8, heads = 1, seq = 256 }
  ms.fully_shard(model, { mesh = "1x1" })
  local o = { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.cross_entropy }
  for name, value in pairs(more or {}) do o[name] = value end
  return ms.trainer(o), model
end

local function step(train, length)
  local rows = rows_of(length)
  return train:step { tokens = rows, targets = rows }
end

local function evaluate(train, length)
  local rows, given = rows_of(length), false
  return train:evaluate(function()
    if given then return nil end
    given = true
    return 1, { tokens = rows, targets = rows }
  end)
end

local LIMIT = 2 ^ 21

-- A plan as the cache sees it; free is counted.
local function fake(freed, name)
  local graph = { free = function() freed[#freed + 1] = "graph " .. name end }
  return { name = name, graph_id = name, plan = { graph = graph }, free = function() freed[#freed + 1] = name end }
end

describe("plans for many shapes", function()
  it("U9 drop those that were used longest ago, but for a few, and a graph with its last plan", function()
    local cache, freed, size = plan_cache.new(), {}, { plan = 10, graph = 5, limit = 80 }
    local plans = {}
    for i = 1, 5 do
      plans[i] = fake(freed, "p" .. i)
      cache:add("p" .. i, " r", plans[i], size)
    end
    assert.equal(75, cache.bytes)
    assert.equal(plans[1], cache:find("p1", " r"))
    cache:add("p6", " r", fake(freed, "p6"), size, plans[2])
    assert.same({ "p3", "graph p3" }, freed) -- p2 is pinned, p1 was used
    assert.is_true(cache:was_dropped("p3", " r"))
    assert.equal(75, cache.bytes)
    cache:add("p7", " r", fake(freed, "p7"), { plan = 1000, graph = 5, limit = 80 })
    assert.equal(plan_cache.ALWAYS_KEPT, cache.count)
    cache:clear()
    assert.equal(0, cache.bytes)
    assert.equal(0, cache.count)
    assert.equal(14, #freed)
  end)

  it("U9 share a graph between rules", function()
    local cache, freed, size = plan_cache.new(), {}, { plan = 10, graph = 5, limit = 1000 }
    local graph = { free = function() freed[#freed + 1] = "graph" end }
    for _, rules in ipairs({ " a", " b" }) do
      cache:add("p", rules, { graph_id = "p", plan = { graph = graph }, free = function() end }, size)
    end
    assert.equal(25, cache.bytes)
    cache:drop(function(entry) return entry.rules == " a" end)
    assert.same({}, freed)
    assert.equal(graph, cache:graph("p"))
    cache:drop(function(entry) return entry.rules == " b" end)
    assert.same({ "graph" }, freed)
    assert.is_nil(cache:graph("p"))
  end)

  it("U9 stay within plan_memory in steps, evaluations and calls, with the same numbers", function()
    local bounded, bounded_model = gpt { plan_memory = LIMIT }
    local free, free_model = gpt { plan_memory = "1GiB" }
    local most = 0
    for i = 1, 24 do
      local length = 8 + i % 12
      local got, want = step(bounded, length), step(free, length)
      assert.equal(want.loss, got.loss)
      assert.equal(evaluate(free, length), evaluate(bounded, length))
      assert.same(free_model(rows_of(length)):tolist(), bounded_model(rows_of(length)):tolist())
      most = math.max(most, got.plan_bytes)
    end
    assert.is_true(most <= LIMIT and most > 0.5 * LIMIT, most)
    assert.is_true(step(free, 8).plan_bytes > 2 * LIMIT)
  end)

  it("U9 are part of memory_limit", function()
    local arenas = step(gpt(), 40).peak_bytes
    local limited, most = gpt { memory_limit = arenas + 2 * LIMIT }, 0
    for length = 20, 40 do most = math.max(most, step(limited, length).plan_bytes) end
    assert.is_true(most > 0 and most <= 2 * LIMIT + arenas, most)
    assert.is_true(step(limited, 40).plan_bytes <= 2 * LIMIT)
  end)

  -- The last 512 released handles of each kind are kept, and the last 128 primitives of a library.
  it("U9 leave no memory behind when they are dropped", function()
    local model = ms.nn.linear(4, 4)
    ms.fully_shard(model, { mesh = "1x1" })
    local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, plan_memory = 1,
      forward = function(net, b) return (net(b.x) ^ 2):mean() end }
    local function round(first, last)
      for rows = first, last do
        train:step { x = ms.full({ rows, 4 }, 1) }
        model(ms.full({ rows, 4 }, 1))
      end
    end
    round(1, 300)
    local before = used_bytes()
    round(301, 500)
    local growth = used_bytes() - before
    assert.is_true(growth < LIMIT / 4, growth)
  end)

  it("U9 of a plan that a recipe has can be read when they are dropped", function()
    local train = gpt { plan_memory = 1 }
    step(train, 8)
    local plan = train:plan()
    local text = plan:text()
    for length = 9, 20 do step(train, length) end
    assert.equal(text, plan:text())
  end)

  it("U9 of several ranks are dropped alike, and a warning says what to do", function()
    local path = program.recipe [[
local ms = require "moonshard"
local cfg = ms.args { plan_memory = "1GiB" }
local model = ms.models.gpt2 { vocab = 16, layers = 1, dim = 8, heads = 1, seq = 64 }
ms.fully_shard(model, { mesh = "1x2", units = { ms.re".*" }, layout = "ragged" })
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.cross_entropy,
  plan_memory = cfg.plan_memory }
for step = 1, 40 do
  local row = {}
  for i = 1, 8 + step * 7 % 34 do row[i] = (i + ms.world().rank) % 16 end
  local rows = ms.tensor { row, dtype = "i32" }
  local m = train:step { tokens = rows, targets = rows }
  print(("%.9g"):format(m.loss))
end
]]
    local ended = program.run_all {
      free = { "run", path, "-n", "2" }, bounded = { "run", path, "-n", "2", "plan_memory=512KiB" },
    }
    os.remove(path)
    assert.equal(0, ended.free.status, ended.free.err)
    assert.equal(0, ended.bounded.status, ended.bounded.err)
    assert.equal(ended.free.out, ended.bounded.out)
    has(ended.free.err, "warning | train:step | 32 plans | tokens [1, | multiples of 64")
    assert.is_nil(ended.free.err:find("plan_memory", 1, true))
    has(ended.bounded.err, "warning | train:step | plan_memory | multiples of 64")
  end)
end)
