-- moonshard plan --passes: what each pass of the compiler took, and what it changed; and where one of them, which rules
-- decide, puts the gathers of units.

local program = require("lua.support.program")
local json = require("moonshard.base.text.json")

local RECIPE = "tests/lua/plans/recipes/two_blocks.lua"

local function plan(...)
  local ended = program.run({ "plan", RECIPE, "-n", "2", "--passes", ... })
  assert.equal(0, ended.status, ended.err)
  return ended.out
end

describe("moonshard plan --passes", function()
  it("prints every pass in order, with its time and what it changed", function()
    local out, names = plan(), {}
    assert.truthy(out:find("^plan: rank 0 of 2, "))
    assert.is_nil(out:find("\nphase first:", 1, true))
    local total = tonumber(out:match("\npasses: ([%d.]+) ms\n"))
    for name, ms, what in out:gmatch("\n  (%l[%l ]-) +(%d+%.%d+) ms   ([^\n]+)") do
      names[#names + 1] = name
      assert.is_true(tonumber(ms) <= total + 0.01)
      assert.is_true(what == "no change" or what:find("%S+ %S+ ?%a* %-> ") ~= nil, what)
    end
    assert.same({ "trace", "divide", "rewrite", "differentiate", "rewrite backward", "regather", "rematerialize",
      "prune", "fuse epilogues", "lower", "lay out", "synchronize", "verify", "fingerprint" }, names)
    assert.truthy(out:find("\n  differentiate +[%d.]+ ms   nodes %d+ %-> %d+\n"))
    assert.truthy(out:find("\n  lower +[%d.]+ ms   instructions 0 %-> %d+, buffers 0 %-> %d+, bytes 0 B %-> "))
    assert.truthy(out:find("\n  lay out +[%d.]+ ms   bytes [%d.]+ %aiB %-> [%d.]+ %aiB\n"))
    assert.truthy(out:find("\n  synchronize +[%d.]+ ms   instructions %d+ %-> %d+, events 0 %-> %d+\n"))
    assert.truthy(out:find("\n  verify +[%d.]+ ms   no change\n"))
  end)

  it("prints the same as JSON", function()
    local found = assert(json.decode(plan("--json")))
    assert.equal(14, #found.passes)
    local lower, last = found.passes[10], found.passes[14]
    assert.same({ "lower", false, 0 }, { lower.name, lower.cached, lower.before.instructions })
    assert.is_true(lower.ms > 0 and lower.after.instructions > 0)
    assert.equal(found.peak_bytes, last.after.bytes)
    assert.is_nil(found.phases)
  end)
end)

describe("gathers of units", function()
  -- Where they stand among the instructions of forward and backward.
  local function places(...)
    local ended = program.run({ "plan", "tests/lua/recipes/parity.lua", "-n", "2", "--json", "mesh=1x2", "dtype=bf16",
      "reshard=true", "prefetch=0", ... })
    assert.equal(0, ended.status, ended.err)
    local list = {}
    for i, instruction in ipairs(json.decode(ended.out).phases[1].instructions) do
      if instruction.op == "all_gather" then list[#list + 1] = i end
    end
    return list
  end

  it("S17 begin as far ahead as a rule of the unit before says, and otherwise where they are needed", function()
    local needed, ahead = places(), places("ahead=depths")
    assert.is_true(#needed > 3)
    assert.equal(#needed, #ahead)
    assert.same({ needed[1], needed[2] }, { ahead[1], ahead[2] })
    assert.is_true(needed[3] > needed[2] + 4, "the next unit is needed after the first block")
    assert.equal(ahead[2] + 2, ahead[3], "the first block has the next ones gathered when it begins")
  end)
end)
