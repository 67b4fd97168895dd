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
local cfg = ms.args { dir = "", resume = "", steps = 3 }
local train = ms.trainer {
  model = ms.nn.linear(4, 2), optimizer = ms.optim.sgd { lr = 1e-3 }, loss = ms.loss.mse,
  checkpoint = { dir = cfg.dir, resume = cfg.resume },
}
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
    local refused = program.run_all {
      plain = { "run", recipe, "-n", "2", "dir=" .. folder },
      resuming = { "run", recipe, "dir=" .. folder, "resume=auto" },
    }
    os.execute("kill -9 " .. scratch.read(pid_file))
    for name, ended in pairs(refused) do
      assert.equal(2, ended.status, name .. ": " .. ended.err)
      has(ended.err, "another run | " .. folder)
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
