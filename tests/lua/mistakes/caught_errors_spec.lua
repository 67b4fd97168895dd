-- Errors that a recipe catches with pcall on all ranks: training goes on with the bits of a run without them where the
-- step had not begun or only its result was refused, and says why it cannot where a phase failed part-way.

local has = require("lua.support.message").has
local program = require("lua.support.program")

local RECIPE = "tests/lua/mistakes/recipes/caught_errors.lua"

-- A rank that waits for one whose step failed is told so, or sees that both wait for each other; where streams are
-- threads, as under the thread sanitizer, that cannot be seen, and the deadline can be what ends the wait.
local function run(bad, ranks, mesh)
  return { "run", RECIPE, "-n", ranks, "bad=" .. bad, "mesh=" .. mesh, "--timeout", "30" }
end

describe("an error that all ranks catch", function()
  local ended = program.run_all {
    none = run("none", "2", "1x2"), shape = run("shape", "2", "1x2"), loss = run("loss", "2", "1x2"),
    replicas = run("loss", "2", "2x1"), token = run("token", "2", "1x2"),
    tokens = run("tokens", "2", "1x2"),
  }
  local function weights(name)
    assert.equal(0, ended[name].status, ended[name].err)
    return (assert(ended[name].out:match("weights\t([^\n]+)"), ended[name].out))
  end

  it("leaves training as it was before a step whose shapes or loss are refused #release", function()
    has(ended.shape.out, "caught\tfalse", "targets")
    assert.equal(weights("none"), weights("shape"))
    has(ended.loss.out, "caught\tfalse", "finite | nan")
    assert.equal(weights("none"), weights("loss"))
    has(ended.replicas.out, "caught\tfalse")
    weights("replicas")
  end)

  it("is the end where a phase failed part-way, with what to do", function()
    assert.equal(3, ended.token.status)
    has(ended.token.err, "token 7", "embed")
    assert.equal(3, ended.tokens.status)
    has(ended.tokens.err, "part-way", "checkpoint")
  end)
end)
