-- What is told when a rank stalls, dies or does something else than the others, in every part of a run. All runs are
-- started at once, because most of their time is a deadline's.

local program = require("lua.program")

local RECIPE = "tests/lua/recipes/trouble.lua"
local SLOWER = os.getenv("MOONSHARD_CONFIG") == "release" and 1 or 2
local DEADLINE = 4 * SLOWER
-- Where nobody is to wait for the deadline, it is far away: on a loaded machine ranks start one long after the other.
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
for i = 1, 2 do case("stop inside " .. i, { "-n", "2", "how=stop", "where=inside" }, BIG) end
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

local function has(name, ...)
  local err = told(name)
  for _, part in ipairs({ ... }) do
    assert.truthy(err:find(part), ("%q is not in: %s"):format(part, err))
  end
  return err
end

local function lines(text) return select(2, text:gsub("\n", "")) end

-- One report: the first line names who is behind and what it missed, then one line for each kind of rank.
local function stalled(name, missed, place, ...)
  local err, status = told(name)
  assert.equal(3, status, err)
  has(name, "^moonshard: rank %d failed: ", missed, place, ...)
  assert.equal(1, select(2, err:gsub("moonshard: ", "")), err)
end

describe("the flight recorder", function()
  it("L6 says nothing about ranks that agree", function()
    local err, status = told("none")
    assert.equal(0, status, err)
    assert.equal("", err)
  end)

  it("L6 names a rank that is stopped inside of a step, with unit, collective and phase", function()
    local inside = 0
    for i = 1, 2 do -- now and then a rank is between two steps when it is stopped
      stalled("stop inside " .. i, "rank 0 has waited", "rank 1 is .* its process %d+ is stopped by a signal",
        "\n  rank 0: waiting .* step %d+%) for rank 1; before that outside the engine for ")
      if told("stop inside " .. i):find("and did not %l+ [%l ]*%l+_%l+ %l[%w.]+ %(phase %l+ of step %d+%)") then
        inside = inside + 1
      end
    end
    assert.truthy(inside > 0)
  end)

  it("L6 finds the rank behind through those that wait for each other in other groups", function()
    stalled("stop inside a group", "rank 3 is .* its process %d+ is stopped by a signal")
    local err = told("stop inside a group")
    assert.truthy(lines(err) >= 3, err)
  end)

  it("L6 tells that ranks wait for each other, with the phase of the one that evaluates", function()
    local err, status = told("evaluate bound")
    assert.equal(3, status, err)
    has("evaluate bound", "ranks 0%-1 wait for each other: they disagree about what comes next",
      "\n  rank 0: waiting .* in all_gather_bytes of the learning rate %(after step 3%) for rank 1",
      "\n  rank 1: waiting .* in all_gather root %(phase evaluate of step 3%) for rank 0")
  end)
end)

-- What is told of rank 1 in each phase of a run. A rank that was killed and one that stalls are placed alike; the
-- others waited in what they came to.
local WHERE = {
  { "at the start", "start", "Lua before the first step", "mesh 2x2 %(replicate, shard%) %(making the state before" },
  { "before the first step", "first", "Lua before the first step", "mesh 2x2 %(replicate, shard%) %(making the state" },
  { "in the first step", "trace", "Lua before the first step", "mesh 2x2 %(replicate, shard%) %(making the state" },
  { "amid the steps", "middle", "Lua after step 3", "all_gather_bytes of the learning rate %(after step 3%)" },
  { "amid its data", "data", "data after step 3", "all_gather_bytes of the learning rate %(after step 3%)" },
  { "at the end", "end", "Lua after step 8", "barrier at the end of the run %(after step 8%)" },
}

describe("a rank", function()
  for _, phase in ipairs(WHERE) do
    local title, where, place, missed = unpack(phase)

    it("L6 that stalls " .. title .. " is named, with what it did not enter", function()
      stalled("sleep " .. where, "rank 1 is outside the engine for .* %(" .. place .. "%)",
        "did not come to " .. missed,
        "\n  ranks 0, 2%-3: waiting [%d.%-]+ s in " .. missed .. ".* for rank 1; before that outside the engine for ")
      if missed:find("rate") then has("sleep " .. where, "nor to all_gather root, with which its plan begins") end
    end)

    it("L5 that is killed " .. title .. " is named, with what the others waited for", function()
      local _, status = told("kill " .. where)
      assert.equal(3, status)
      has("kill " .. where, "^moonshard: rank 1 died: killed by signal 9 %(Killed%)",
        "\nmoonshard: rank 1 was outside the engine %(" .. place .. "%), and did not come to " .. missed,
        "\n  ranks 0, 2%-3: waited in " .. missed)
    end)
  end

  it("L5 that is killed inside of a step is named, with the step", function()
    local _, status = told("kill inside")
    assert.equal(3, status)
    has("kill inside", "^moonshard: rank 1 died: killed by signal 9 %(Killed%)", "\nmoonshard: rank 1 was ",
      "of step %d+", "\n  rank 0: ")
  end)

  local STARTS = { mesh = true, shape = true } -- before training began: bad input

  -- Nobody waits for a deadline here: what differs is seen as soon as it is there.
  for title, row in pairs({
    ["at the start, on its mesh,"] = { "mesh", "ranks have different meshes: rank %d has \"[^\"]*\", rank %d has ",
      '"4x1 %(replicate, shard%), ranks 0, 1, 2, 3"' },
    ["in the first step, on shapes,"] = { "shape", "rank 1 ", "rank 0 " },
    ["amid the steps, on the learning rate,"] = { "rate", "the learning rate of step 4 is ", "0.01 on rank 0",
      "0.5 on rank 1" },
    ["amid the steps, by evaluating,"] = { "evaluate", "ranks disagree: ",
      "rank 1 entered all_gather_bytes of memory needs %(after step 3%)",
      "rank 0 entered all_gather_bytes of the learning rate %(after step 3%)" },
    ["at the end, which it reaches too early,"] = { "quit", "ranks disagree: ",
      "rank 2 entered barrier at the end of the run %(after step 3%)",
      "rank [01] entered all_gather_bytes of the learning rate %(after step 3%)", "; rank 2 left the loop early\n" },
    ["at the end, with a step too many,"] = { "more", "ranks disagree: ",
      "rank 2 entered all_gather_bytes of the learning rate %(after step 8%)",
      "rank [01] entered barrier at the end of the run %(after step 8%)" },
  }) do
    it("D10 that disagrees " .. title .. " is told from the others", function()
      local err, status = told(row[1])
      assert.equal(STARTS[row[1]] and 2 or 3, status, err)
      has(unpack(row))
    end)
  end
end)
