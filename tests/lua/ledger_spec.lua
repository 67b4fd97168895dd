-- What is told when a rank stalls, dies or does something else than the others, in every part of a run. All runs are
-- started at once, because most of their time is a deadline's.

local program = require("lua.program")

local RECIPE = "tests/lua/recipes/trouble.lua"
local SLOWER = os.getenv("MOONSHARD_CONFIG") == "release" and 1 or 4
local DEADLINE = 1.5 * SLOWER
-- Steps of which nearly all is spent in the engine; the thread sanitizer has slow matrix products.
local WIDTH = os.getenv("MOONSHARD_CONFIG") == "thread" and 96 or 512
local BIG = { "dim=" .. WIDTH, "rows=" .. WIDTH, "blocks=4", "steps=100000" }

local cases = {}

local function case(name, arguments, more)
  local words = { "run", RECIPE, "--timeout", tostring(DEADLINE), unpack(arguments) }
  for _, word in ipairs(more or {}) do words[#words + 1] = word end
  cases[name] = words
end

case("none", { "-n", "2" })
for _, where in ipairs({ "start", "first", "middle", "data", "end" }) do
  for _, how in ipairs({ "sleep", "kill" }) do
    case(how .. " " .. where, { "-n", "4", "mesh=2x2", "rank=1", "how=" .. how, "where=" .. where })
  end
end
for i = 1, 2 do case("stop inside " .. i, { "-n", "2", "how=stop", "where=inside" }, BIG) end
case("kill inside", { "-n", "2", "how=kill", "where=inside" }, BIG)
case("stop inside a group", { "-n", "4", "mesh=2x2", "rank=3", "how=stop", "where=inside" }, BIG)
case("shape", { "-n", "2", "how=shape", "where=first" })
case("rate", { "-n", "2", "how=rate" })
case("quit", { "-n", "3", "mesh=1x3", "rows=6", "rank=2", "how=quit" })
case("evaluate", { "-n", "2", "how=evaluate" })
case("evaluate bound", { "-n", "2", "how=evaluate", "evaluated=true" })

local ended

local function told(name)
  ended = ended or program.run_all(cases)
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

describe("the ledger", function()
  it("L6 says nothing about ranks that agree", function()
    local err, status = told("none")
    assert.equal(0, status, err)
    assert.equal("", err)
  end)

  it("L6 names a rank that sleeps before it joins", function()
    stalled("sleep start", "rank 1 is outside the engine for .* %(Lua before the first step%)",
      "did not come to mesh 2x2 %(replicate, shard%) %(making the state before the first step%)",
      "\n  ranks 0, 2%-3: waiting .* for rank 1; before that outside the engine for ")
  end)

  it("L6 names a rank that sleeps before its first step", function()
    stalled("sleep first", "rank 1 is outside the engine for .* %(Lua before the first step%)",
      "did not come to mesh 2x2")
  end)

  it("L6 names a rank that sleeps between steps, and the collective and unit that it did not enter", function()
    stalled("sleep middle", "rank 1 is outside the engine for .* %(Lua after step 3%)",
      "did not come to exchange of the learning rate %(after step 3%), nor to all_gather root",
      "\n  ranks 0, 2%-3: waiting .* in exchange of the learning rate")
  end)

  it("L6 tells a rank that makes data from one that runs the program", function()
    stalled("sleep data", "rank 1 is outside the engine for .* %(data after step 3%)", "nor to all_gather root")
  end)

  it("L6 names a rank that sleeps when the others are through", function()
    stalled("sleep end", "rank 1 is outside the engine for .* %(Lua after step 8%)",
      "did not come to barrier at the end of the run %(after step 8%)")
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
    -- Where streams are threads, one that sleeps says nothing of the others: then it takes the deadline.
    assert.equal(os.getenv("MOONSHARD_STREAMS") == "threads" and 3 or 2, status, err)
    has("evaluate bound", "ranks 0%-1 wait for each other: they disagree about what comes next",
      "\n  rank 0: waiting .* in exchange of the learning rate %(after step 3%) for rank 1",
      "\n  rank 1: waiting .* in all_gather root %(phase evaluate of step 3%) for rank 0")
  end)

  it("D10 tells what ranks entered that disagree, at once", function()
    local err, status = told("evaluate")
    assert.equal(2, status, err)
    has("evaluate", "ranks disagree: ", "rank 1 entered exchange of memory needs %(after step 3%)",
      "rank 0 entered exchange of the learning rate %(after step 3%)")
    has("quit", "ranks disagree: ", "rank 2 entered barrier at the end of the run %(after step 3%)",
      "rank [01] entered exchange of the learning rate %(after step 3%)")
    has("rate", "the learning rate of step 4 is ", "0.01 on rank 0", "0.5 on rank 1")
    has("shape", "rank 1 ", "rank 0 ")
    for _, name in ipairs({ "quit", "rate", "shape" }) do assert.equal(2, select(2, told(name))) end
  end)

  it("L5 tells where a rank was that is killed, what it did not enter, and what the others waited for", function()
    local was = {
      start = "was outside the engine %(Lua before the first step%)",
      first = "was outside the engine %(Lua before the first step%)",
      middle = "was outside the engine %(Lua after step 3%)", data = "was outside the engine %(data after step 3%)",
      ["end"] = "was outside the engine %(Lua after step 8%)", inside = "",
    }
    for where, place in pairs(was) do
      local name = "kill " .. where
      local _, status = told(name)
      assert.equal(3, status)
      has(name, "^moonshard: rank 1 died: killed by signal 9 %(Killed%)", "\nmoonshard: rank 1 " .. place)
    end
    has("kill middle", "nor to all_gather root, with which its plan begins",
      "\n  ranks 0, 2%-3: waited in exchange of the learning rate")
    has("kill inside", "of step %d+", "\n  rank 0: ")
  end)
end)
