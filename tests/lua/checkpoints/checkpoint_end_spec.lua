-- Whatever ends a recipe: a save in the background that has begun is complete then, or the run fails and says so.

local ms = require("moonshard")
local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local RECIPE = "tests/lua/checkpoints/recipes/saved_last.lua"

local function run(how)
  local folder = scratch.path()
  return program.run({ "run", RECIPE, "-n", "2", "dir=" .. folder, "how=" .. how }), folder
end

local function is_complete(folder)
  local path = ms.checkpoint.latest(folder)
  if not path then return false end
  ms.checkpoint.open(path):verify()
  return path == folder .. "/step-00000001"
end

local ENDS = {
  { "its last line", "", 0 }, { "its end, forgotten", "forgotten", 0 },
  { "an error", "error", 3, "mistake" }, { "an error alone", "error alone", 3, "rank 1 | mistake" },
  { "os.exit", "exit", 0 }, { "os.exit with a status", "exit 7", 3, "os.exit(7)" },
  { "Ctrl-C", "Ctrl-C", 130, "interrupted" }, { "SIGTERM", "SIGTERM", 143, "terminated | step-00000001" },
}

describe("a save in the background at the end of a run", function()
  teardown(scratch.clear)

  for _, row in ipairs(breadth.few(ENDS)) do
    it("U2 is complete after " .. row[1], function()
      local ended, folder = run(row[2])
      assert.equal(row[3], ended.status, ended.err)
      if row[4] then has(ended.err, row[4]) end
      assert.is_true(is_complete(folder))
    end)
  end

  it("U2 fails the run by name if its disk is full, also after os.exit(0)", function()
    for _, how in ipairs({ "full", "full exit" }) do
      local ended, folder = run(how)
      assert.equal(3, ended.status)
      has(ended.err, "rank 1 | No space left")
      assert.is_false(is_complete(folder))
    end
  end)

  it("U2 is reported as lost when a rank that had to write was killed", function()
    local ended, folder = run("killed")
    assert.equal(3, ended.status)
    has(ended.err, "rank 1 died")
    if not is_complete(folder) then has(ended.err, folder .. "/step-00000001 | no such checkpoint") end
  end)

  it("U2 is complete after a session at the prompt", function()
    local folder = scratch.path()
    local ended = program.run({ "repl", "-n", "2" }, nil, ([[
model = ms.nn.linear(4, 2)
ms.fully_shard(model, { mesh = "1x2" })
train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
require("lua.support.inject_io")("write:1+:slow")
ms.checkpoint.save(train, "%s", { async = true })
]]):format(folder))
    assert.equal(0, ended.status, ended.err)
    assert.equal(folder .. "/step-00000000", (ms.checkpoint.latest(folder)))
  end)
end)
