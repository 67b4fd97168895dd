-- Ranks along a tensor or context dimension that are given other samples: they are named, with the input, in whichever
-- step it happens.

local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local RECIPE = "tests/lua/agreement/recipes/same_rows.lua"

local function run(ranks, ...) return { "run", RECIPE, "-n", ranks, "--timeout", "60", ... } end

local FOUR = { "mesh=1x1x2x2", "names=replicate shard context tensor" }
local LOCAL = { "mesh=2x1x2", "every=3", "steps=6" }

local function mixed(list, ...)
  local words = { ... }
  for _, word in ipairs(list) do words[#words + 1] = word end
  return words
end

describe("ranks that compute the same samples", function()
  local ended

  setup(function()
    local one, other = scratch.path(), scratch.path()
    scratch.write(one, ("one text\n"):rep(100))
    scratch.write(other, ("another one\n"):rep(100))
    ended = program.run_all({
      same = run("4", "evaluate=true", "call=true"),
      ["same on four dimensions"] = run("4", unpack(mixed(FOUR, "evaluate=true"))),
      ["own rows"] = run("4", "mesh=2x2", "names=replicate shard", "own=tokens"),
      first = run("4", "own=tokens", "on=3"),
      later = run("4", "own=targets", "on=2", "at=3"),
      ["first row"] = run("4", "own=first_row", "on=1", "at=2"),
      ["step of rows"] = run("4", unpack(mixed(FOUR, "own=row_step", "on=2"))),
      context = run("4", unpack(mixed(FOUR, "own=targets", "on=2", "at=2"))),
      both = run("4", unpack(mixed(FOUR, "own=targets", "on=3", "at=2"))),
      evaluation = run("4", "own=evaluated", "on=1", "at=2", "evaluate=true"),
      counted = run("4", "own=counted_rows", "on=1", "at=2", "evaluate=true"),
      factor = run("4", "own=factor", "on=1"),
      call = run("4", "own=called", "on=1", "call=true"),
      ["between syncs"] = run("4", unpack(mixed(LOCAL, "own=tokens", "on=3", "at=4"))),
      ["same between syncs"] = run("4", unpack(LOCAL)),
      files = run("4", ("files=%s,%s,%s,%s"):format(one, one, one, other)),
      ["files of hosts"] = { "run", RECIPE, "--hosts", "a:1,b:1", "--agent", "tests/fuzz/agent.sh", "--rendezvous",
        "tcp://127.0.0.1", "--timeout", "60", "mesh=1x1x2", ("files=%s,%s"):format(one, other) },
    })
  end)
  teardown(scratch.clear)

  local function passes(name)
    assert.equal(0, ended[name].status, ended[name].err)
  end

  local function refused(name, facts, none)
    assert.not_equal(0, ended[name].status)
    has(ended[name].err, facts)
    if none then assert.is_nil(ended[name].err:find(none, 1, true)) end
  end

  it("T14 train, evaluate and compute with the same inputs, made by hand", function()
    passes("same")
    passes("same on four dimensions")
    passes("same between syncs")
    has(ended["same"].out, "evaluated")
  end)

  it("T14 are none without such a dimension, so each has rows of its own", function() passes("own rows") end)

  it("T14 that are given other inputs are named, with the input, in the first step and in later ones", function()
    refused("first", "tokens | step 1 | rank 2 | rank 3 | dimension tensor | mesh = mesh", "targets")
    refused("later", "targets | step 3 | rank 2 | rank 3 | tensor", "tokens")
    refused("context", "targets | step 2 | rank 0 | rank 2 | dimension context")
    refused("both", "targets | step 2 | rank 0 | rank 3 | dimension context and tensor")
  end)

  it("T14 that have other places of their rows, of which dropout's masks are, are named", function()
    refused("first row", "first_row | step 2 | rank 0 | rank 1 | dimension tensor")
    refused("step of rows", "row_step | step 1 | rank 0 | rank 2 | dimension context")
  end)

  it("T14 whose forward or loss uses other eager tensors are named, with the tensor", function()
    refused("factor", "train:step: factor, an upvalue | f32 [] | mul | rank 0 | rank 1 | all ranks", "mesh = mesh")
  end)

  it("T14 are compared in evaluations and in calls", function()
    refused("evaluation", "train:evaluate | tokens | 2 batches | rank 0 | rank 1 | tensor")
    refused("counted", "train:evaluate | counted_rows | 2 batches | rank 0 | rank 1 | tensor", "tokens")
    refused("call", "GPT2 | argument 1 | rank 0 | rank 1 | tensor")
  end)

  it("T14 with local steps are compared at the next sync, for all steps since the last one", function()
    refused("between syncs", "tokens | steps 4 to 6 | rank 2 | rank 3 | tensor")
  end)

  it("T14 that read other files are named with what the files contain", function()
    refused("files", "data differs | rank 0 | rank 3 | contents")
    refused("files of hosts", "data differs | rank 0 on a | rank 1 on b | contents")
  end)
end)
