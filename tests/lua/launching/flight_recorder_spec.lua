-- What is told when a rank stalls, dies or does something else than the others, in every part of a run. All runs are
-- started at once, because most of their time is a deadline's.

local has = require("lua.support.message").has
local program = require("lua.support.program")

local RECIPE = "tests/lua/recipes/trouble.lua"
local SLOWER = os.getenv("MOONSHARD_CONFIG") == "release" and 1 or 2
local DEADLINE = 4 * SLOWER
-- Where no rank should wait for the deadline, it is far away: on a loaded machine ranks start one long after the other.
local FAR = 120
-- Steps of which nearly all is spent in the engine; the thread sanitizer has slow matrix products.
local WIDTH = os.getenv("MOONSHARD_CONFIG") == "thread" and 96 or 512
local BIG = { "dim=" .. WIDTH, "rows=" .. WIDTH, "blocks=4", "steps=100000" }

local cases = {}

local function case(name, arguments, more)
  local stalls = name:find("^sleep") or name:find("^stop") or name == "evaluate bound"
  local words = { "run", RECIPE, "--timeout", tostring(stalls and DEADLINE or FAR), unpack(arguments) }
  for _, word in ipairs(more or {}) do words[#words + 1] = word end
  cases[name] = words
end

case("none", { "-n", "2" })
for _, where in ipairs({ "start", "first", "trace", "middle", "data", "end" }) do
  for _, how in ipairs({ "sleep", "kill" }) do
    case(how .. " " .. where, { "-n", "4", "mesh=2x2", "rank=1", "how=" .. how, "where=" .. where })
  end
end
case("stop in a layer", { "-n", "2", "how=stop", "where=layer" }, BIG)
case("kill inside", { "-n", "2", "how=kill", "where=inside" }, BIG)
case("stop inside a group", { "-n", "4", "mesh=2x2", "rank=3", "how=stop", "where=inside" }, BIG)
case("shape", { "-n", "2", "how=shape", "where=first" })
case("rate", { "-n", "2", "how=rate" })
case("mesh", { "-n", "4", "mesh=2x2", "how=mesh", "where=start" })
case("more", { "-n", "3", "mesh=1x3", "rows=6", "rank=2", "how=more", "where=end" })
case("quit", { "-n", "3", "mesh=1x3", "rows=6", "rank=2", "how=quit" })
case("evaluate", { "-n", "2", "how=evaluate" })
case("evaluate bound", { "-n", "2", "how=evaluate", "evaluated=true" })

local ended

local function told(name)
  ended = ended or program.run_all(cases)
  assert.is_nil(ended[name].err:find("%de[+-]%d"), ended[name].err) -- times are told in plain figures
  return ended[name].err, ended[name].status
end

local function holds(name, ...)
  local err = told(name)
  for _, facts in ipairs({ ... }) do has(err, facts) end
  return err
end

-- The line of a report that begins with these ranks.
local function line_of(name, ranks)
  local err = told(name)
  return err:match("\n  " .. ranks:gsub("%p", "%%%0") .. ": ([^\n]*)") or error(ranks .. " has no line in: " .. err)
end

local function lines(text) return select(2, text:gsub("\n", "")) end

-- One report: the first line names who is behind and what it missed, then one line for each kind of rank.
local function stalled(name, missed, place, ...)
  local err, status = told(name)
  assert.equal(3, status, err)
  assert.truthy(err:find("^moonshard: rank %d "), err)
  holds(name, missed, place, ...)
  assert.equal(1, select(2, err:gsub("moonshard: ", "")), err)
end

describe("the flight recorder", function()
  it("L6 says nothing about ranks that agree", function()
    local err, status = told("none")
    assert.equal(0, status, err)
    assert.equal("", err)
  end)

  it("L6 names a rank that is stopped inside of a step, with unit, collective and phase", function()
    stalled("stop in a layer", "rank 0", "rank 1 | process | stopped | signal")
    has(line_of("stop in a layer", "rank 0"), "rank 1 | step")
    local first = told("stop in a layer"):match("^[^\n]*")
    assert.truthy(first:find("%l+_%l+ %l[%w.]+ %([^)]*step %d+%)"), first)
  end)

  it("L6 finds the rank behind through those that wait for each other in other groups", function()
    stalled("stop inside a group", "rank 3 | process | stopped | signal", "rank 3")
    local err = told("stop inside a group")
    assert.truthy(lines(err) >= 3, err)
  end)

  it("L6 does not let a rank wait that evaluates while the others train, with plans that all have bound", function()
    local err, status = told("evaluate bound")
    assert.equal(3, status, err)
    holds("evaluate bound", "disagree", "rank 0 | learning rate | step 3", "rank 1 | whether to evaluate | step 3")
  end)
end)

-- What is told of rank 1 in each phase of a run. A rank that was killed and one that stalls are placed alike; the
-- others waited in what they came to.
local WHERE = {
  { "at the start", "start", "Lua | before", "mesh 2x2 (replicate, shard) | state" },
  { "before step 1", "first", "Lua | before", "mesh 2x2 (replicate, shard) | state" },
  { "in the first step", "trace", "Lua | before", "memory needs | before" },
  { "amid the steps", "middle", "Lua | step 3", "learning rate | step 3" },
  { "amid its data", "data", "data | step 3", "learning rate | step 3" },
  { "at the end", "end", "Lua | step 8", "barrier | step 8" },
}

describe("a rank", function()
  for _, phase in ipairs(WHERE) do
    local title, where, place, missed = unpack(phase)

    it("L6 that stalls " .. title .. " is named, with the collective that it did not enter", function()
      stalled("sleep " .. where, "rank 1")
      has(told("sleep " .. where):match("^[^\n]*"), "rank 1 | " .. place .. " | " .. missed)
      local line = line_of("sleep " .. where, "ranks 0, 2-3")
      has(line, missed .. " | rank 1")
      assert.truthy(line:find(" [%d.%-]+ s "), line)
      if missed:find("rate") then holds("sleep " .. where, "all_gather root | plan") end
    end)

    it("L5 that is killed " .. title .. " is named, with what the others waited for", function()
      local _, status = told("kill " .. where)
      assert.equal(3, status)
      has(told("kill " .. where):match("^[^\n]*"), "moonshard: | rank 1 | signal 9 | Killed")
      has(told("kill " .. where):match("\n(moonshard: [^\n]*)"), "rank 1 | " .. place .. " | " .. missed)
      has(line_of("kill " .. where, "ranks 0, 2-3"), missed)
    end)
  end

  it("L5 that is killed inside of a step is named, with the step", function()
    local _, status = told("kill inside")
    assert.equal(3, status)
    has(told("kill inside"):match("^[^\n]*"), "moonshard: | rank 1 | signal 9 | Killed")
    assert.truthy(told("kill inside"):find("\nmoonshard: rank 1 [^\n]*step %d+"), told("kill inside"))
    has(line_of("kill inside", "rank 0"), "step")
  end)

  local STARTS = { mesh = true, shape = true } -- before training began: bad input

  -- No rank waits for a deadline here: what differs is seen as soon as it is there.
  for title, row in pairs({
    ["at the start, on its mesh,"] = { "mesh", "different",
      '"4x1 (replicate, shard), ranks 0, 1, 2, 3"' },
    ["in the first step, on shapes,"] = { "shape", "rank 1 | rank 0" },
    ["amid the steps, on the learning rate,"] = { "rate", "learning rate | step 4", "0.01 | rank 0 | 0.5 | rank 1" },
    ["amid the steps, by evaluating,"] = { "evaluate", "disagree",
      "rank 1 | whether to evaluate", "rank 0 | learning rate | step 3" },
    ["at the end, which it reaches too early,"] = { "quit", "disagree",
      "rank 2 | barrier | step 3", "learning rate | loop early" },
    ["at the end, with a step too many,"] = { "more", "disagree",
      "rank 2 | learning rate | step 8", "barrier" },
  }) do
    it("D10 that disagrees " .. title .. " is named", function()
      local err, status = told(row[1])
      assert.equal(STARTS[row[1]] and 2 or 3, status, err)
      holds(unpack(row))
    end)
  end
end)
