-- What is behind `make soak`: shares of the time, seeds that repeat a case, counts; and that its checks see what they
-- are for.

local campaigns = require("soak.campaigns")
local leftovers = require("lua.support.leftovers")
local metrics = require("soak.metrics")
local has = require("lua.support.message").has
local scratch = require("lua.support.scratch")
local trial = require("soak.trial")

-- A campaign whose cases are what is drawn; those that `fails` holds of fail.
local function drawn(name, cases, fails)
  return { name = name, run = function(d)
    local case = d:integer(1, 1000000)
    cases[#cases + 1] = case
    return fails(#cases) and "wrong" or nil, "case " .. case
  end }
end

local function run(list, settings)
  local lines = {}
  settings.tell = function(line) lines[#lines + 1] = line end
  local well = campaigns.run(list, settings)
  return well, lines
end

describe("campaigns", function()
  teardown(scratch.clear)

  it("count what passed and failed, and print what repeats a failure", function()
    local first, second, again = {}, {}, {}
    local well, lines = run({
      drawn("one", first, function(i) return i == 3 end), drawn("two", second, function() return false end),
    }, { seconds = 60, seed = 40, cases = 4 })
    assert.is_false(well)
    assert.same({ 4, 4 }, { #first, #second })
    assert.same({
      ("FAIL  one, seed 42 (case %d): wrong\n      again: make soak ONLY=one SEED=42 CASES=1"):format(first[3]),
      "FAIL  one                  4 cases, 1 failed",
      "pass  two                  4 cases, 0 failed", "7 passed, 1 failed",
    }, lines)
    assert.is_true(run({ drawn("one", again, function() return false end) }, { seconds = 0, seed = 42, cases = 1 }))
    assert.same({ first[3] }, again)
  end)

  it("share the time, run one case at least, and take a case that raises for a failure", function()
    local function raise() error("on purpose", 0) end
    local well, lines = run({ { name = "one", run = raise }, { name = "two", run = raise, skip = "is not here" } },
      { seconds = 0, seed = 1 })
    assert.is_false(well)
    assert.same({
      "skip  two              is not here",
      "FAIL  one, seed 1: raised on purpose\n      again: make soak ONLY=one SEED=1 CASES=1",
      "FAIL  one                  1 cases, 1 failed", "0 passed, 1 failed",
    }, lines)
  end)

  it("fail where the name that was asked for is no campaign's", function()
    assert.is_false((run({ drawn("one", {}, function() return false end) }, { seconds = 1, seed = 1, only = "three" })))
  end)

  it("see metrics that end within a line, lack a step, or have one twice", function()
    local path = scratch.path()
    local function check(text, steps)
      scratch.write(path, text)
      return metrics.check(path, steps)
    end
    local two = '{"step":1,"loss":2.5}\n{"step":2,"loss":2.25}\n'
    assert.is_nil(metrics.check(scratch.path()))
    assert.is_nil(check(two, 2))
    has(check(two, 3), "2 steps | 3")
    has(check(two .. '{"step":3'), 'within | : {"step":3')
    has(check(two .. "{\n"), "object: {")
    has(check(two .. '{"step":2}\n'), "step 2 | line 3")
  end)
end)

describe("a trial", function()
  -- Another program takes the executable's words, and is checked for an end with status 3.
  local function wrong(prefix, strike)
    return trial.run({ run = "recipe", prefix = prefix, strike = strike }, function(ended)
      return trial.ended_well(ended, { 3 })
    end)
  end

  it("returns the status of a run, also after a signal", function()
    assert.is_nil(wrong("bash -c 'exit 3'"))
    assert.equal("status 4, not 3: why\n", wrong("bash -c 'echo why >&2; exit 4'"))
    assert.equal("status 137, not 3: ", wrong("bash -c 'exec sleep 60'", "kill -9 $pid"))
  end)

  it("sees files that are left, and processes", function()
    assert.equal("left file\n: ", wrong([[bash -c 'touch $TMPDIR/file; exit 3']]))
    local seconds = leftovers.SECONDS_TO_VANISH
    leftovers.SECONDS_TO_VANISH = 0.2
    local failure = wrong("bash -c 'sleep 8 & exit 3'")
    leftovers.SECONDS_TO_VANISH = seconds
    assert.truthy(failure:find("^left /proc/%d+/environ\n: $"), failure)
  end)

  it("ends a run that hangs", function()
    local seconds = trial.SECONDS
    trial.SECONDS = 1
    local failure = wrong("bash -c 'exec sleep 60'")
    trial.SECONDS = seconds
    assert.equal("did not end within 1 s: ", failure)
  end)
end)
