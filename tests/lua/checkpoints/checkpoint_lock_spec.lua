-- Two runs that save into one folder would each remove the other's checkpoints: the second is refused while the first
-- lives, however it began, and goes on once the first was killed.

local clock = require("moonshard.base.clock")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local BIN = assert(os.getenv("MOONSHARD_BIN"), "MOONSHARD_BIN names the executable under test")
local PATIENCE = 60

local RECIPE = [[
local ms = require "moonshard"
local cfg = ms.args { dir = "", resume = "", steps = 3, other = "" }
local model = ms.nn.linear(4, 2)
local function trainer(dir, resume)
  return ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1e-3 }, loss = ms.loss.mse,
    checkpoint = { dir = dir, resume = resume } }
end
local ok, train = pcall(trainer, cfg.dir, cfg.resume)
if not ok and cfg.other == "" then error(train, 0) end
if not ok then train = trainer(cfg.other, "") end
local data = ms.data.random { inputs = 4, targets = 2 }
for _, batch in data:batches(ms.data.sampler { length = data.length }, 4) do
  train:step(batch)
  if train.steps_done == cfg.steps then break end
end
while cfg.steps > 3 do end -- until it is killed
]]

local function wait_for(path)
  local until_ = clock.now() + PATIENCE
  while not io.open(path) do
    assert(clock.now() < until_, path .. " did not appear")
    os.execute("sleep 0.05")
  end
end

describe("a folder of checkpoints", function()
  teardown(scratch.clear)

  it("K2 a second run into a folder that a live run saves into is refused at start", function()
    local folder, recipe = scratch.path(), program.recipe(RECIPE)
    local pid_file = scratch.path()
    os.execute(("%s run %s -n 2 dir=%s steps=5 >/dev/null 2>&1 & echo $! >%s"):format(BIN, recipe, folder, pid_file))
    wait_for(folder .. "/.lock")
    local link = scratch.path()
    assert(os.execute(("ln -s %s %s"):format(folder, link)) == 0)
    local refused = program.run_all {
      plain = { "run", recipe, "-n", "2", "dir=" .. folder },
      resuming = { "run", recipe, "dir=" .. folder, "resume=auto" },
      elsewhere = { "run", recipe, "-n", "2", "dir=" .. folder, "resume=auto", "other=" .. scratch.path() },
      linked = { "run", recipe, "-n", "2", "dir=" .. link, "resume=auto" },
    }
    os.execute("kill -9 " .. scratch.read(pid_file))
    assert.equal(0, refused.elsewhere.status, refused.elsewhere.err) -- all ranks caught it
    refused.elsewhere = nil
    for name, ended in pairs(refused) do
      assert.equal(2, ended.status, name .. ": " .. ended.err)
      has(ended.err, "another run | " .. (name == "linked" and link or folder))
    end
    local ended
    for _ = 1, 50 do -- ranks end some time after their launcher
      ended = program.run { "run", recipe, "-n", "2", "dir=" .. folder, "resume=auto" }
      if ended.status == 0 then break end
      os.execute("sleep 0.1")
    end
    assert.equal(0, ended.status, ended.err)
    os.remove(recipe)
  end)
end)
