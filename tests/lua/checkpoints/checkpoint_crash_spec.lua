-- What is left of checkpoints when writing fails at any call, and when ranks are killed at any point of saving.

local crash = require("lua.checkpoints.crash")
local inject_io = require("lua.support.inject_io")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local fixture = require("lua.support.fixture")

local config = os.getenv("MOONSHARD_CONFIG")

local function with_folder(call)
  local folder = os.tmpname()
  os.remove(folder)
  call(folder)
  os.execute("rm -rf " .. folder)
end

local function run_faults(folder, ...)
  local ended = program.run({ "run", "tests/lua/checkpoints/recipes/save_faults.lua", "-n", "2", "dir=" .. folder,
    ... })
  assert.equal("", ended.err)
  assert.equal(0, ended.status)
end

describe("a checkpoint that cannot be written", function()
  it("K2 any call that fails leaves the last good one, and nothing else, and is reported on all ranks", function()
    local calls = config == "release" and "open,write,sync,rename,mkdir" or "write"
    with_folder(function(folder) run_faults(folder, "failures=ENOSPC", "calls=" .. calls) end)
  end)

  it("K2 the same for a save in the background", function()
    with_folder(function(folder) run_faults(folder, "async=true", "failures=EIO", "calls=write,sync,rename") end)
  end)

  it("K2 a call that writes fewer bytes than requested is continued", function()
    with_folder(function(folder)
      for step, number in ipairs({ "1", "4", "1+" }) do
        local ended = program.run({ "run", "tests/lua/recipes/checkpointed.lua", "mesh=1x1", "save_every=0",
          "steps=" .. step, "resume=auto", "checkpoint=" .. folder, "inject=write:" .. number .. ":short" })
        assert.equal("", ended.err)
        require("moonshard").checkpoint.open(("%s/step-%08d"):format(folder, step)):verify()
      end
    end)
  end)

  it("K2 runs killed at random points of saving go on from whole checkpoints, bit for bit", function()
    -- A few of them; make soak goes on with others.
    local points, killed, step = crash.run({ points = config == "release" and 20 or 2, seed = 1, seconds = 2 })
    assert(killed >= points / 2 and step > 1, killed .. " killed, step " .. step)
  end)

  it("K2 a wrong setting for injected errors is refused", function()
    for _, spec in ipairs({ "", "write", "write:0:EIO", "write:1:EPERM", "read:1:EIO", "write:1", "write:x:EIO" }) do
      local message = fixture.message(function() inject_io(spec) end)
      has(message, "CALL:N:WHAT | write:3:ENOSPC")
    end
  end)
end)
