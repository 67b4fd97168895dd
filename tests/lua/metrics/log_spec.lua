-- ms.log: metrics as JSON lines, plain lines, the line that is redrawn on a terminal.

local clock = require("moonshard.base.clock")
local errors = require("moonshard.base.error")
local json = require("moonshard.base.text.json")
local log = require("moonshard.metrics.log")
local history = require("moonshard.metrics.history")
local progress = require("moonshard.base.text.progress")
local terminal = require("moonshard.base.text.terminal")
local world = require("moonshard.distributed.world")
local has = require("lua.support.message").has

local METRICS = {
  loss = 2.5, grad_norm = 1.25, lr = 1e-3, tokens = 4096, tokens_per_s = 12345.678, step_ms = 10, data_ms = 0.5,
  peak_bytes = 2 * 2 ^ 20, comm_bytes = { shard = 1000, replicate = 500 },
}

local function with(changes)
  local m = {}
  for key, value in pairs(METRICS) do m[key] = value end
  for key, value in pairs(changes) do m[key] = value end
  return m
end

describe("json", function()
  it("writes values as JSON with sorted keys", function()
    assert.equal('{"a":[1,2.5,true],"b":"x\\"\\n\\u0001","c":{}}',
      json.encode({ b = 'x"\n\1', a = { 1, 2.5, true }, c = {} }))
  end)

  it("writes numbers that read back the same, and null for what JSON has not", function()
    for _, number in ipairs({ 0.1, 1 / 3, 1e-300, 2 ^ 53, -7, 123456789.123 }) do
      assert.equal(number, tonumber(json.encode(number)))
    end
    assert.equal("[null,null,null]", json.encode({ 0 / 0, 1 / 0, -1 / 0 }))
    assert.equal("1000000", json.encode(1e6))
  end)

  it("keeps a given order and leaves missing values out", function()
    assert.equal('{"step":1,"a":2}', json.ordered(6, { "step", 1, "b", nil, "a", 2 }))
  end)
end)

describe("the points of a curve", function()
  it("are kept in full for a short run, and equally far apart for a long one, with the newest", function()
    for _, steps in ipairs({ 1, history.MAX, history.MAX + 1, 3 * history.MAX, 10 * history.MAX + 7 }) do
      local list = {}
      for step = 1, steps do
        history.add(list, step, -step)
        assert.equal(step, list[#list][1])
      end
      assert.is_true(#list <= history.MAX + 1 and #list >= math.min(steps, history.MAX / 2), #list)
      assert.same({ 1, -1 }, list[1])
      local apart = #list > 1 and list[2][1] - 1
      for i = 3, #list - 1 do assert.equal(apart, list[i][1] - list[i - 1][1]) end
    end
  end)
end)

describe("ms.log", function()
  local now, old_now
  local interactive, columns = terminal.interactive, terminal.columns

  before_each(function()
    now, old_now = 100, clock.now
    clock.now = function() return now end
    terminal.interactive = function() return false end
    terminal.columns = function() return 120 end
    log.history.train, log.history.valid = {}, {}
  end)

  after_each(function()
    clock.now = old_now
    terminal.interactive, terminal.columns = interactive, columns
  end)

  -- What an action writes to standard output.
  local function written_by(action)
    local path = os.tmpname()
    io.output(path)
    local ok, raised = pcall(action)
    progress.finish()
    io.output():close()
    io.output(io.stdout)
    local file = assert(io.open(path))
    local text = file:read("*a")
    file:close()
    os.remove(path)
    if not ok then error(raised, 0) end
    return text
  end

  it("prints plain lines where there is no terminal: the first, some, the last", function()
    local text = written_by(function()
      log.expect(100)
      for step = 1, 100 do
        log(step, METRICS)
        now = now + 1
      end
    end)
    local lines, steps = 0, {}
    for line in text:gmatch("[^\n]+") do
      lines = lines + 1
      steps[tonumber(line:match("^step%s+(%d+)/100"))] = line
    end
    assert.equal(21, lines)
    assert.equal("step   1/100  loss 2.5000  grad norm 1.250  lr 1.00e-03  12.3k tokens/s  2.0 MiB per rank", steps[1])
    has(steps[50], "0:50")
    assert.is_nil(steps[100]:find("left", 1, true))
    assert.is_nil(text:find("\27", 1, true))
  end)

  it("prints a line for every validation", function()
    local text = written_by(function()
      log.expect(1000)
      log(1, METRICS)
      log(7, with({ valid_loss = 2.25 }))
    end)
    assert.truthy(text:find("\nstep    7/1000 .*validation 2.2500\n"))
    assert.same({ { 7, 2.25 } }, log.history.valid)
  end)

  it("redraws one line on a terminal, at most ten times a second", function()
    terminal.interactive = function() return true end
    local text = written_by(function()
      log.expect(1000)
      for step = 1, 1000 do
        log(step, METRICS)
        now = now + 0.01
      end
    end)
    local _, drawn = text:gsub("\r", "")
    assert.is_true(drawn >= 90 and drawn <= 112)
    local last = text:match("\r([^\r]*)$")
    has(last, "step 1000/1000  ▕████████████████████▏  loss 2.5000")
    has(last, "\27[K\n")
    assert.truthy(text:find("50%d/1000[^\r]-0:05 left"))
  end)

  it("keeps to the width of a narrow terminal", function()
    terminal.interactive = function() return true end
    terminal.columns = function() return 40 end
    local text = written_by(function()
      log.expect(10)
      log(1, METRICS)
    end)
    local _, characters = text:match("\r(.-)\27"):gsub("[^\128-\191]", "")
    assert.is_true(characters > 20 and characters <= 39)
  end)

  it("ends the redrawn line before other text", function()
    terminal.interactive = function() return true end
    local text = written_by(function()
      log.expect(10)
      log(1, METRICS)
      progress.finish()
      io.write("other\n")
      progress.finish()
    end)
    assert.truthy(text:find("\27%[K\nother\n$"))
  end)

  it("writes a JSON object a step, in a fixed order of keys", function()
    local path = os.tmpname()
    written_by(function()
      log.open_metrics(path)
      log.expect(2)
      log(1, METRICS)
      log(2, with({ valid_loss = 2.25, loss = 0 / 0 }))
      log.open_metrics("/dev/null")
    end)
    local file = assert(io.open(path))
    local first, second, third = file:read("*l"), file:read("*l"), file:read("*l")
    file:close()
    os.remove(path)
    assert.equal('{"step":1,"loss":2.5,"grad_norm":1.25,"lr":0.001,"tokens":4096,"tokens_per_s":12345.678,"step_ms":10,'
      .. '"data_ms":0.5,"peak_bytes":2097152,"comm_bytes":{"replicate":500,"shard":1000}}', first)
    has(second, '"loss":null')
    has(second, '"valid_loss":2.25}')
    assert.is_nil(third)
  end)

  it("says why metrics cannot be written", function()
    local ok, raised = pcall(log.open_metrics, "/proc/nowhere/metrics.jsonl")
    assert.is_false(ok)
    has(tostring(raised), "/proc/nowhere/metrics.jsonl: No such file")
    written_by(function()
      log.open_metrics("/dev/full")
      ok, raised = pcall(log, 1, METRICS)
      log.open_metrics("/dev/null")
    end)
    assert.is_false(ok)
    assert.equal("MS_EIO", raised.status)
  end)

  it("says why metrics cannot be written when LuaJIT has compiled the writing, too", function()
    local lost = 0
    written_by(function()
      log.open_metrics("/dev/null")
      for step = 1, 200 do log(step, METRICS) end
      log.open_metrics("/dev/full")
      for step = 1, 20 do lost = lost + (pcall(log, step, METRICS) and 1 or 0) end
      log.open_metrics("/dev/null")
    end)
    assert.equal(0, lost)
  end)

  it("keeps the last spikes of a long run", function()
    written_by(function()
      log.spikes({ window = 16, grad_norm = 1.01 })
      for step = 1, 4000 do log(step, with({ grad_norm = step % 3 == 0 and 2 or 1, loss = 1 })) end
    end)
    local found = log.spikes_found()
    assert.equal(1024, #found)
    assert.equal(3999, found[1024].step)
    assert.equal(3999 - 3 * 1023, found[1].step)
    log.spikes()
  end)

  it("tells trainers apart: their spikes, their curves", function()
    local one, other = {}, {}
    log.number(one)
    log.number(other)
    local text = written_by(function()
      log.spikes({ window = 16 })
      for step = 1, 40 do
        for train, loss in pairs({ [one] = 0.1, [other] = step == 30 and 100 or 10 }) do
          local m = with({ loss = loss, grad_norm = loss })
          log.note(m, train)
          log(step, m)
        end
      end
      log.curve()
    end)
    local found = log.spikes_found()
    assert.equal(2, #found)
    for _, spike in ipairs(found) do assert.is_true(spike.step == 30 and spike.trainer ~= nil and spike.ratio > 9) end
    has(text, "step 30 of trainer " .. found[1].trainer, "training of trainer " .. found[1].trainer)
    log.spikes()
    for key in pairs(log.history) do
      if type(key) == "number" then log.history[key] = nil end
    end
  end)

  it("takes windows of any length, and the middle of even ones", function()
    local watch, ones = require("moonshard.metrics.spikes").new({ window = 20000 }), {}
    for i = 1, 9000 do ones[i] = 1 end
    watch.windows[1] = { at = 9000, grad_norm = ones, loss = {} }
    has(watch:check(9001, { grad_norm = 30, loss = 1 }), "step 9001: | gradient norm 30 | 9000 steps")
    watch = require("moonshard.metrics.spikes").new({ window = 16, loss = 1.5 })
    watch.windows[1] = { at = 16, grad_norm = {}, loss = { 1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3 } }
    has(watch:check(17, { loss = 4 }), "loss 4 | 2.0 times | 16 steps")
  end)

  it("reports steps whose gradient norm or loss is far above those before", function()
    local text = written_by(function()
      log.spikes({ window = 16 })
      for step = 1, 100 do
        local wild = step == 10 or step == 60 or step == 61
        log(step, with({ grad_norm = wild and 9 or 1 + step % 3 / 10, loss = step == 80 and 5 or 2.5 }))
      end
    end)
    local told = {}
    for line in text:gmatch("step %d+: [^\n]*") do told[#told + 1] = line end
    -- The tenth step comes before there is a median; the second of two spikes does not hide behind the first.
    assert.equal(3, #told)
    has(told[1], "step 60: | gradient norm 9 | 8.2 times | 16 steps")
    has(told[2], "step 61: | gradient norm 9 | 8.2 times | 16 steps")
    has(told[3], "step 80: | loss 5 | 2.0 times | 16 steps")
    assert.equal(3, #log.spikes_found())
    assert.same({ 80, "loss", 5, 2 }, { log.spikes_found()[3].step, log.spikes_found()[3].what,
      log.spikes_found()[3].value, log.spikes_found()[3].ratio })
    local quiet = written_by(function()
      log.spikes(false)
      for step = 1, 40 do log(step, with({ grad_norm = step == 30 and 100 or 1 })) end
    end)
    assert.is_nil(quiet:find("\nstep 30: ", 1, true))
    assert.same({}, log.spikes_found())
    local refused = { [{ window = 3 }] = "16 steps | 3", [{ loss = 1 }] = "loss | 1" }
    for wrong, says in pairs(refused) do
      local ok, raised = pcall(log.spikes, wrong)
      assert.is_false(ok)
      has(tostring(raised), says)
    end
    log.spikes()
  end)

  it("does nothing on other ranks, and refuses wrong metrics", function()
    local rank = world.rank
    rawset(world, "rank", 1)
    local text = written_by(function() log(1, METRICS) end)
    rawset(world, "rank", rank)
    assert.equal("", text)
    local ok, raised = pcall(log, METRICS)
    assert.is_false(ok)
    assert.is_true(errors.is(raised))
    for key, value in pairs({ done = true, list = { 1, 2 }, name = "x", count = 5LL, [1] = 3, [true] = 1,
      comm_bytes = setmetatable({}, {}), grad_norms = 3, waits_ms = 2, wire_bytes = { shard = "x" }, padding = {} }) do
      ok, raised = pcall(log, 1, with({ [key] = value }))
      assert.is_false(ok)
      has(tostring(raised), "ms.log | metrics | " .. tostring(key))
    end
    for _, name in ipairs({ "step", "trainer", "trainer_step" }) do
      ok, raised = pcall(log, 1, with({ [name] = 3 }))
      assert.is_false(ok)
      has(tostring(raised), "ms.log | " .. name .. " | another name")
    end
    for _, step in ipairs({ -1, 0.5, 0 / 0, 1 / 0 }) do
      ok, raised = pcall(log, step, METRICS)
      assert.is_false(ok)
      has(tostring(raised), "ms.log | step | whole number")
    end
    ok, raised = pcall(log.expect, -3)
    assert.is_false(ok)
    has(tostring(raised), "0 | -3")
  end)

  it("draws the curve of what was logged", function()
    local path = os.tmpname()
    local text = written_by(function()
      log.expect(3)
      for step = 1, 3 do log(step, with({ loss = 4 - step, valid_loss = step == 3 and 1.5 or nil })) end
      log.curve({ title = "loss, nats", svg = path })
    end)
    has(text, "loss, nats")
    has(text, "● validation")
    local file = assert(io.open(path))
    assert.truthy(file:read("*a"):find("^<svg .*</svg>\n$"))
    file:close()
    os.remove(path)
  end)
end)
