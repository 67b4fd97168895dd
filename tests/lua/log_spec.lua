-- ms.log: metrics as JSON lines, plain lines, the line that is redrawn on a terminal.

local clock = require("moonshard.clock")
local errors = require("moonshard.error")
local json = require("moonshard.json")
local log = require("moonshard.log")
local progress = require("moonshard.progress")
local terminal = require("moonshard.terminal")
local world = require("moonshard.world")

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

describe("ms.log", function()
  local path, now, old_now
  local interactive, columns = terminal.interactive, terminal.columns

  before_each(function()
    path, now, old_now = os.tmpname(), 100, clock.now
    io.output(path)
    clock.now = function() return now end
    terminal.interactive = function() return false end
    terminal.columns = function() return 120 end
    log.history.train, log.history.valid = {}, {}
  end)

  after_each(function()
    progress.finish()
    io.output():close()
    io.output(io.stdout)
    os.remove(path)
    clock.now = old_now
    terminal.interactive, terminal.columns = interactive, columns
  end)

  local function output()
    io.output():flush()
    local file = assert(io.open(path))
    local text = file:read("*a")
    file:close()
    return text
  end

  it("prints plain lines where there is no terminal: the first, some, the last", function()
    log.expect(100)
    for step = 1, 100 do
      log(step, METRICS)
      now = now + 1
    end
    local lines, steps = 0, {}
    for line in output():gmatch("[^\n]+") do
      lines = lines + 1
      steps[tonumber(line:match("^step%s+(%d+)/100"))] = line
    end
    assert.equal(21, lines)
    assert.equal("step   1/100  loss 2.5000  grad norm 1.250  lr 1.00e-03  12.3k tokens/s  2.0 MiB a rank", steps[1])
    assert.truthy(steps[50]:find("0:50 left", 1, true))
    assert.is_nil(steps[100]:find("left", 1, true))
    assert.is_nil(output():find("\27", 1, true))
  end)

  it("prints a line for every validation", function()
    log.expect(1000)
    log(1, METRICS)
    log(7, with({ valid_loss = 2.25 }))
    assert.truthy(output():find("\nstep    7/1000 .*validation 2.2500\n"))
    assert.same({ { 7, 2.25 } }, log.history.valid)
  end)

  it("redraws one line on a terminal, at most ten times a second", function()
    terminal.interactive = function() return true end
    log.expect(1000)
    for step = 1, 1000 do
      log(step, METRICS)
      now = now + 0.01
    end
    local _, drawn = output():gsub("\r", "")
    assert.is_true(drawn >= 95 and drawn <= 112)
    local last = output():match("\r([^\r]*)$")
    assert.truthy(last:find("step 1000/1000  ▕████████████████████▏  loss 2.5000", 1, true))
    assert.truthy(last:find("\27[K\n", 1, true))
    assert.truthy(output():find("50%d/1000[^\r]-0:05 left"))
  end)

  it("keeps to the width of a narrow terminal", function()
    terminal.interactive = function() return true end
    terminal.columns = function() return 40 end
    log.expect(10)
    log(1, METRICS)
    local line = output():match("\r(.-)\27")
    local _, characters = line:gsub("[^\128-\191]", "")
    assert.is_true(characters <= 39)
  end)

  it("ends the redrawn line before other text", function()
    terminal.interactive = function() return true end
    log.expect(10)
    log(1, METRICS)
    progress.finish()
    progress.finish()
    assert.truthy(output():find("\27%[K\n$"))
    assert.is_nil(output():find("\n\n", 1, true))
  end)

  it("writes a JSON object a step, in a fixed order of keys", function()
    local metrics_path = os.tmpname()
    log.open_metrics(metrics_path)
    log.expect(2)
    log(1, METRICS)
    log(2, with({ valid_loss = 2.25, loss = 0 / 0 }))
    local file = assert(io.open(metrics_path))
    local first, second, third = file:read("*l"), file:read("*l"), file:read("*l")
    file:close()
    os.remove(metrics_path)
    assert.equal('{"step":1,"loss":2.5,"grad_norm":1.25,"lr":0.001,"tokens":4096,"tokens_per_s":12345.678,"step_ms":10,'
      .. '"data_ms":0.5,"peak_bytes":2097152,"comm_bytes":{"replicate":500,"shard":1000}}', first)
    assert.truthy(second:find('"loss":null', 1, true) and second:find('"valid_loss":2.25}', 1, true))
    assert.is_nil(third)
  end)

  it("says why metrics cannot be written", function()
    local ok, raised = pcall(log.open_metrics, "/nowhere/metrics.jsonl")
    assert.is_false(ok)
    assert.truthy(tostring(raised):find("/nowhere/metrics.jsonl: No such file", 1, true))
    log.open_metrics("/dev/full")
    ok, raised = pcall(log, 1, METRICS)
    log.open_metrics("/dev/null")
    assert.is_false(ok)
    assert.equal("MS_EIO", raised.status)
  end)

  it("does nothing on other ranks, and refuses what are no metrics", function()
    local rank = world.rank
    rawset(world, "rank", 1)
    log(1, METRICS)
    rawset(world, "rank", rank)
    assert.equal("", output())
    local ok, raised = pcall(log, METRICS)
    assert.is_false(ok)
    assert.is_true(errors.is(raised))
  end)
end)
