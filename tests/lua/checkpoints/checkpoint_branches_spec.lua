-- One folder, several branches: a run that goes back to an older checkpoint sets later ones aside, so that resuming and
-- the number to keep never mix them. What has a checkpoint's name and is none is reported at the start.

local ms = require("moonshard")
local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local RECIPE = "tests/lua/checkpoints/recipes/saved_states.lua"

local function arguments(folder, ...)
  return { "run", RECIPE, "-n", "1", "mesh=1x1", "dir=" .. folder, ... }
end

local function run(folder, ...)
  local ended = program.run(arguments(folder, ...))
  assert.equal(0, ended.status, ended.err)
  return ended.out
end

local function names(folder)
  local pipe, list = assert(io.popen("ls " .. folder)), {}
  for name in pipe:lines() do list[#list + 1] = name:gsub("^step%-0*", "") end
  pipe:close()
  return table.concat(list, " ")
end

local function at(folder, step) return ("%s/step-%08d"):format(folder, step) end

describe("branches of a folder", function()
  teardown(scratch.clear)

  it("U5 a run that goes back leaves later checkpoints under other names, and auto follows it", function()
    local folder = scratch.path()
    run(folder, "every=2", "upto=6")
    assert.equal("4 6", names(folder))
    local said = run(folder, "every=3", "upto=5", "resume=" .. at(folder, 4))
    has(said, at(folder, 6) .. " | step-00000006.aside-1 | after step 4")
    assert.equal("4 5 6.aside-1", names(folder))
    -- Step 6 is free again, and auto goes on from 5, not from the newest number.
    has(run(folder, "every=1", "upto=7", "resume=auto"), "after step 5")
    assert.equal("6 6.aside-1 7", names(folder))
  end)

  it("U5 a branch that was left is gone back to by its path, and gets its name again", function()
    local folder = scratch.path()
    run(folder, "every=2", "upto=6")
    run(folder, "every=1", "upto=5", "resume=" .. at(folder, 4))
    local said = run(folder, "every=0", "upto=7", "resume=" .. at(folder, 6) .. ".aside-1")
    has(said, at(folder, 5) .. " | step-00000005.aside-2 | step-00000006 | after step 6")
    assert.equal("5.aside-2 6 7", names(folder))
  end)

  it("U5 the same path a second time does not set aside what the first run saved", function()
    local folder = scratch.path()
    run(folder, "every=2", "upto=4")
    run(folder, "every=1", "upto=3", "resume=" .. at(folder, 2))
    program.refused(2, arguments(folder, "resume=" .. at(folder, 2)), at(folder, 3) .. " | " .. at(folder, 2)
      .. " | resume=auto")
    local other = scratch.path()
    run(other, "upto=2", "resume=" .. at(folder, 2))
    run(other, "upto=3", "resume=auto")
    program.refused(2, arguments(other, "upto=5", "resume=" .. at(folder, 3)), other .. " | resume=auto")
  end)

  it("U5 saves by hand set aside what they do not go on from", function()
    local folder = scratch.path()
    local function trainer()
      local train = ms.trainer { model = ms.nn.linear(4, 2), loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 1 } }
      return train, function(steps, keep)
        for _ = 1, steps do train:step { inputs = ms.ones(2, 4), targets = ms.ones(2, 2) } end
        return ms.checkpoint.save(train, folder, { keep_last = keep })
      end
    end
    local first, save = trainer()
    for _ = 1, 3 do save(2) end
    assert.equal("2 4 6", names(folder))
    ms.checkpoint.load(first, at(folder, 4))
    save(1, 2)
    assert.equal("4 5 6.aside-1", names(folder))
    assert.equal(at(folder, 5), (ms.checkpoint.latest(folder)))
    ms.checkpoint.load(first, at(folder, 6) .. ".aside-1")
    save(2)
    assert.equal("4 5.aside-2 6 8", names(folder))
    -- Two trainers of one run into one folder are a mistake.
    local _, save_other = trainer()
    local ok, raised = pcall(save_other, 1)
    assert.is_false(ok)
    has(tostring(raised), folder .. " | another trainer")
    assert.equal("4 5.aside-2 6 8", names(folder))
  end)

  it("U5 what is no checkpoint is reported when a run begins, and when a folder is loaded", function()
    for i, make in ipairs(breadth.few {
      function(path) os.execute("mkdir " .. path) end, function(path) scratch.write(path, "") end,
      function(path) os.execute("ln -s nowhere " .. path) end,
    }) do
      local folder = scratch.path()
      run(folder, "upto=2")
      make(at(folder, 4))
      program.refused(2, arguments(folder, "resume=auto"), at(folder, 4) .. " | manifest.json")
      if i == 1 then
        program.refused(2, arguments(folder, "resume=" .. at(folder, 2)), at(folder, 4) .. " | manifest.json")
        program.refused(2, { "inspect", folder }, at(folder, 4) .. " | manifest.json")
        local fresh = scratch.folder()
        os.execute("mkdir " .. at(fresh, 3))
        program.refused(2, arguments(fresh, "upto=2"), at(fresh, 3) .. " | manifest.json")
      end
    end
  end)

  it("K2 of a checkpoint that was moved away and linked back, the link alone is removed", function()
    local folder, elsewhere = scratch.path(), scratch.folder()
    run(folder, "upto=1")
    os.execute(("mv %s %s/moved && ln -s %s/moved %s"):format(at(folder, 1), elsewhere, elsewhere, at(folder, 1)))
    scratch.write(elsewhere .. "/kept", "kept")
    os.execute(("ln -s %s %s/.step-00000001.5.tmp"):format(elsewhere, folder))
    local said = run(folder, "every=1", "upto=4", "resume=auto")
    has(said, at(folder, 1) .. " | link")
    assert.equal("3 4", names(folder))
    assert.equal("kept", scratch.read(elsewhere .. "/kept"))
    assert.equal(1, ms.checkpoint.open(elsewhere .. "/moved").manifest.step)
  end)
end)
