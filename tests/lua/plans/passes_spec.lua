-- moonshard plan --passes: what each pass of the compiler took, and what it changed.

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
