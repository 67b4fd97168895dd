-- SIGTERM to a run that saves: all ranks make the same last step, it is saved, and the run goes on from it later as if
-- nothing had happened. What the signal comes to, and when, is up to recipes/terminated.lua.

local breadth = require("lua.support.breadth")
local launched = require("lua.support.launched")
local has = require("lua.support.message").has
local line_has = require("lua.support.message").line_has
local program = require("lua.support.program")

local RECIPE = "tests/lua/checkpoints/recipes/terminated.lua"
local COPIES = "tests/lua/checkpoints/recipes/terminated_copies.lua"
local BIN = assert(os.getenv("MOONSHARD_BIN"), "MOONSHARD_BIN names the executable under test")
local FOR_EVER = "steps=1000000000"
local TERMINATED = 143
local thread = os.getenv("MOONSHARD_CONFIG") == "thread"

local folders = {}

local function new_folder()
  local path = os.tmpname()
  os.remove(path)
  folders[#folders + 1] = path
  return path
end

local function run(...) return program.run({ "run", RECIPE, "-n", "2", ... }) end

local function checkpoints(folder)
  local pipe = assert(io.popen("ls " .. folder .. " 2>&1"))
  local text = pipe:read("*a")
  pipe:close()
  return text
end

local function name_of(step) return ("step-%08d"):format(step) end

-- A run into `folder` that ends as it should; gives the step that it says it ended after.
local function terminate(folder, ...)
  local ended = run("dir=" .. folder, FOR_EVER, ...)
  assert.equal(TERMINATED, ended.status, ended.err)
  local step, path = ended.err:match("^moonshard: terminated after step (%d+), saved as (%S+)\n$")
  assert.truthy(step, ended.err)
  assert.equal(("%s/%s"):format(folder, name_of(step)), path)
  assert.equal(name_of(step) .. "\n", checkpoints(folder):sub(-#name_of(step) - 1))
  return tonumber(step)
end

-- Steps by number, each with what training computed in it.
local function read_metrics(path, into)
  for line in io.lines(path) do
    local step, numbers = line:match('^{"step":(%d+),("loss":.*),"tokens":')
    assert.is_nil(into[tonumber(step)], "step " .. step .. " twice")
    into[tonumber(step)] = numbers
  end
  os.remove(path)
  return into
end

-- A run that is ended and goes on, against one that is not ended: the same in every bit, with every step logged once.
local function assert_goes_on(...)
  local folder, first, second, other = new_folder(), os.tmpname(), os.tmpname(), os.tmpname()
  local step = terminate(folder, "--metrics", first, ...)
  local steps = ("steps=%d"):format(step + 3)
  local ended = run("dir=" .. folder, steps, "--metrics", second)
  assert.equal(0, ended.status, ended.err)
  local whole = run(steps, "--metrics", other)
  assert.equal(0, whole.status, whole.err)
  assert.same(read_metrics(other, {}), read_metrics(second, read_metrics(first, {})))
  return step
end

describe("SIGTERM", function()
  teardown(function()
    for _, path in ipairs(folders) do os.execute("rm -rf " .. path) end
  end)

  it("L7 to the launcher saves after a step that all ranks end with, and the run goes on bit for bit", function()
    assert.truthy(assert_goes_on("to=launcher", "when=step") > 3)
  end)

  it("L7 to one rank alone does the same, with the step after the one that it came in", function()
    local settings = { "to=rank 1", "when=step" }
    assert.equal(4, thread and terminate(new_folder(), unpack(settings)) or assert_goes_on(unpack(settings)))
  end)

  it("L7 while a save is under way waits for that one, and saves no step twice", function()
    for _, settings in ipairs(breadth.few {
      { "to=rank 0", "when=save", "async=false" }, { "to=rank 1", "when=step" }, { "to=rank 0", "when=save" },
    }) do
      local folder = new_folder()
      assert.equal(3, terminate(folder, "every=3", unpack(settings)))
      assert.equal(name_of(3) .. "\n", checkpoints(folder))
    end
  end)

  it("L7 in an evaluation ends that, with the averages as with the weights", function()
    for _, averages in ipairs(breadth.few { "ema=false", "ema=true" }) do
      local folder, metrics = new_folder(), os.tmpname()
      assert.equal(3, terminate(folder, "to=rank 1", "when=evaluate", averages, "--metrics", metrics))
      assert.equal(3, #read_metrics(metrics, {}))
      local ended = run("dir=" .. folder, "steps=5", averages)
      assert.equal(0, ended.status, ended.err)
    end
  end)

  it("L7 while the first step is compiled leaves nothing to save", function()
    local folder = new_folder()
    local ended = run("dir=" .. folder, FOR_EVER, "when=trace", "to=rank 1")
    assert.equal(TERMINATED, ended.status)
    line_has(ended.err, "moonshard: | terminated before")
    assert.falsy(checkpoints(folder):find("step-", 1, true))
  end)

  it("L6 L7 names the rank that holds up a save, when the time for it is over", function()
    local folder = new_folder()
    local ended = run("dir=" .. folder, FOR_EVER, "when=stuck", "every=2", "async=false", "--grace", "0.7")
    assert.equal(TERMINATED, ended.status)
    has(ended.err:match("^[^\n]*"), "moonshard: | terminated | ranks 0, 1 | 0.7 s | killed")
    has(ended.err:match("\n([^\n]*)"), "moonshard: | rank 1 | Lua after step 3 | learning rate")
    assert.equal(name_of(2) .. "\n", checkpoints(folder))
  end)

  it("L7 without checkpoints ends a run at once", function()
    local ended = run(FOR_EVER, "when=step")
    assert.equal(TERMINATED, ended.status)
    assert.equal("moonshard: terminated\n", ended.err)
    ended = run(FOR_EVER, "when=step", "to=rank 1")
    assert.equal(3, ended.status)
    has(ended.err, "moonshard: | rank 1 | signal 15 | Terminated")
  end)

  it("L1 L7 ranks of another launcher save, whichever of them receives it", function()
    local folder = new_folder()
    local variables = ("RANK=%%d WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d")
      :format(launched.find_port())
    local command = ("%s run %s dir=%s %s when=step 'to=rank 1'"):format(BIN, RECIPE, folder, FOR_EVER)
    local ended = launched.together(launched.ranks(2, variables, command))
    line_has(ended[1].err, ("moonshard: | terminated | step 4 | %s/%s"):format(folder, name_of(4)))
    assert.equal("", ended[2].err)
    for _, one in ipairs(ended) do assert.equal(TERMINATED, one.status) end
  end)

  it("L7 ends copies of a slice together when only one of them saves, without anything being killed", function()
    for _, settings in ipairs(breadth.few {
      { "to=rank 3", "saves=0", "when=evaluate" }, { "to=launcher", "saves=0" }, { "to=rank 0", "saves=0" },
      { "to=rank 0", "saves=1" }, { "to=launcher", "saves=1" }, { "to=rank 1", "saves=0", "when=idle" },
      { "to=launcher", "saves=1", "when=idle" },
    }) do
      local folder = new_folder()
      local ended = program.run({ "run", COPIES, "-n", "4", "--grace", "60", "dir=" .. folder, unpack(settings) })
      local told = table.concat(settings, " ") .. ": " .. ended.err
      assert.equal(TERMINATED, ended.status, told)
      local step = ended.err:match("^moonshard: terminated after step (%d+), saved as %S+\n$")
      assert.truthy(step, told) -- and no line about ranks that were killed after the 60 seconds
      has(checkpoints(folder), name_of(step))
      folders[#folders + 1] = folder .. ".begun"
    end
  end)

  it("L7 ends a copy after those that save have ended", function()
    local folder = new_folder()
    folders[#folders + 1] = folder .. ".begun"
    local ended = program.run({ "run", COPIES, "-n", "4", "dir=" .. folder, "to=rank 3", "saves=0", "when=evaluate",
      "epochs=1", ("after=%s/%s/manifest.json"):format(folder, name_of(128)) })
    assert.equal("moonshard: terminated\n", ended.err)
    assert.equal(TERMINATED, ended.status)
  end)

  it("K2 L7 a save that fails is reported as a failure", function()
    local folder = new_folder()
    local ended = run("dir=" .. folder, FOR_EVER, "when=step", "inject=write:1:ENOSPC")
    assert.equal(3, ended.status, ended.err)
    has(ended.err, "No space left")
  end)

  it("refuses a wrong --grace, and one in another launcher's rank", function()
    local ended = run("--grace", "0")
    assert.equal(2, ended.status)
    line_has(ended.err, "moonshard: --grace 0: | seconds | above 0")
    ended = program.run({ "run", RECIPE, "--grace", "9" }, "RANK=0 WORLD_SIZE=2")
    assert.equal(2, ended.status)
    has(ended.err, "--grace")
  end)
end)
