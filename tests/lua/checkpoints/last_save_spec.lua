-- What a run's last checkpoint has: the trainer as it is at the end, with all that was trained, also by a trainer that
-- saves nothing itself; with what the recipe drew or read after its last step; and at the step to which it went back.

local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

-- Two trainers take turns; the second one has the last step, after the first one has saved.
local TWO = [[
local ms = require "moonshard"
local cfg = ms.args { dir = "", resume = "", mesh = "1x1", turns = 2 }
local model = ms.nn.sequential { ms.nn.linear(4, 4), ms.nn.linear(4, 2) }
ms.fully_shard(model, { mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }) })
local optimizer = ms.optim.adamw { lr = 0.1 }
local function trainer(checkpoint)
  return ms.trainer { model = model, optimizer = optimizer, loss = ms.loss.mse, checkpoint = checkpoint }
end
local first, second = trainer { dir = cfg.dir, every = 2, resume = cfg.resume }, trainer()
for step = first.steps_done + 1, cfg.turns do
  for turn, train in ipairs({ first, second }) do
    train:step { inputs = ms.randn { 4, 4, seed = 2 * step + turn }, targets = ms.zeros { 4, 2 } }
  end
end
print("weights", table.concat(model:parameter("0.weight"):reshape(-1):tolist(), " "))
]]

-- Steps with inputs that are drawn or read, and something more of both after every fourth step.
local MOVED = [[
local ms = require "moonshard"
local cfg = ms.args { dir = "", text = "", steps = 8, every = 4, how = "draw", hand = false }
local model = ms.nn.linear(8, 4)
ms.fully_shard(model, { mesh = ms.world().size })
local data = ms.data.text { files = cfg.text, seq = 8, global_batch = 4 }
local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1e-2 }, loss = ms.loss.mse,
  checkpoint = { dir = cfg.dir, every = cfg.every, resume = "auto", data = data } }
local next_batch = data:batches(1000)
local function read()
  local _, batch = next_batch()
  return ms.tensor(batch.tokens):cast("f32") * (1 / 64)
end
for step = train.steps_done + 1, cfg.steps do
  local inputs = read() + ms.randn { 4 / ms.world().size, 8 }
  print(("%d %.9g"):format(step, train:step({ inputs = inputs, targets = ms.zeros { 4 / ms.world().size, 4 } }).loss))
  if step % 4 == 0 and cfg.how == "draw" then ms.randn { 3 } end
  if step % 4 == 0 and cfg.how == "own" and ms.world().rank == 0 then ms.randn { 3 } end
  if step % 4 == 0 and cfg.how == "read" then read() end
  if step == 4 and cfg.hand then
    ms.checkpoint.save(train, cfg.dir)
    os.exit(0)
  end
end
]]

-- Saves by hand with other data, and then with its own if it is told so.
local OTHER_DATA = [[
local ms = require "moonshard"
local cfg = ms.args { dir = "", text = "", steps = 2, own = false }
local model = ms.nn.linear(8, 4)
ms.fully_shard(model, { mesh = ms.world().size })
local data = ms.data.text { files = cfg.text, seq = 8, global_batch = 4 }
local other = ms.data.text { files = cfg.text, seq = 8, global_batch = 4, seed = 7 }
local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1e-2 }, loss = ms.loss.mse,
  checkpoint = { dir = cfg.dir, resume = "auto", data = data } }
for step, batch in data:batches { more = cfg.steps } do
  train:step { inputs = ms.tensor(batch.tokens):cast("f32"), targets = ms.zeros { 4, 4 } }
end
ms.checkpoint.save(train, cfg.dir, { data = other })
if cfg.own then ms.checkpoint.save(train, cfg.dir, { data = data }) os.exit(0) end
print("steps", train.steps_done)
]]

-- Makes STEPS, and then what LAST says; prints the step and weights.
local LAST = [[
local ms = require "moonshard"
local cfg = ms.args { dir = "", steps = 5, last = "" }
local model = ms.nn.linear(8, 4)
ms.fully_shard(model, { mesh = ms.world().size, seed = cfg.steps })
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.mse,
  checkpoint = { dir = cfg.dir, every = 2, keep_last = 9, resume = "auto" } }
while train.steps_done < cfg.steps do
  train:step { inputs = ms.randn { 4, 8, seed = train.steps_done }, targets = ms.zeros { 4, 4 } }
end
if cfg.last ~= "" then
  local from, to = cfg.last:match("^load (.*)"), cfg.last:match("^steps (%d+)")
  if from then ms.checkpoint.load(train, from) end
  if to then train.steps_done = tonumber(to) end
end
print("ends", train.steps_done, train:parameter("weight"):reshape(-1):values())
]]

local function runner(recipe)
  local path = program.recipe(recipe)
  return function(...)
    local ended = program.run { "run", path, ... }
    assert.equal(0, ended.status, ended.err)
    return ended.out
  end
end

local function lines(text)
  local list = {}
  for line in text:gmatch("%d+ %d%.%d[^\n]*") do list[#list + 1] = line end
  return list
end

local function names(dir)
  local pipe = assert(io.popen("ls " .. dir))
  local text = pipe:read("*a"):gsub("%s+", " ")
  pipe:close()
  return text
end

describe("the last checkpoint of a run", function()
  teardown(scratch.clear)

  it("U2 has what another trainer of the model did after it was due", function()
    local recipe, found = program.recipe(TWO), {}
    for _, ranks in ipairs({ "1", "2" }) do
      local folder = scratch.path()
      for _, resume in ipairs({ "", "auto" }) do
        local ended = program.run { "run", recipe, "-n", ranks, "dir=" .. folder, "resume=" .. resume,
          "mesh=1x" .. ranks }
        assert.equal(0, ended.status, ended.err)
        found[resume] = assert(ended.out:match("weights\t([^\n]+)"), ended.out)
      end
      assert.equal(found[""], found.auto)
    end
    os.remove(recipe)
  end)

  it("keeps what was drawn or read after the last step, whether that was saved or not", function()
    local run, text = runner(MOVED), scratch.path()
    scratch.write(text, ("some text. "):rep(99))
    for _, how in ipairs { "draw", "read", "own" } do
      local function run_all(...) return lines(run("-n", "2", "text=" .. text, "how=" .. how, ...)) end
      local whole = run_all("dir=" .. scratch.path(), "steps=8")
      for _, settings in ipairs { { "every=4", "steps=4" }, { "every=3", "steps=4" }, { "every=4", "hand=true" } } do
        local dir = scratch.path()
        run_all("dir=" .. dir, unpack(settings))
        assert.equal(settings[1] == "every=3" and "step-00000003 step-00000004 " or "step-00000004 ", names(dir))
        local rest = run_all("dir=" .. dir, "steps=8")
        assert.same({ unpack(whole, #whole - #rest + 1) }, rest)
        assert.is_true(#rest >= 4, how)
      end
    end
  end)

  it("has the trainer's data, whatever data a save by hand gave it", function()
    local recipe, text = program.recipe(OTHER_DATA), scratch.path()
    scratch.write(text, ("some text. "):rep(99))
    for _, own in ipairs { "own=true", "own=false" } do
      local dir = scratch.path()
      assert.equal(0, program.run({ "run", recipe, "text=" .. text, "dir=" .. dir, own }).status)
      local ended = program.run { "run", recipe, "text=" .. text, "dir=" .. dir, "steps=1" }
      assert.equal("steps\t3\n", ended.out:match("steps.*"), ended.err)
    end
    os.remove(recipe)
  end)

  it("has every update, and the step to which the run went back", function()
    local run, other = runner(LAST), scratch.path()
    run("dir=" .. other, "steps=4")
    for _, case in ipairs {
      { "steps 4", 4 }, { "steps 2", 2 }, { "steps 0", 0 }, { "load DIR/step-00000002", 2 },
      { "load DIR/../" .. other:match("[^/]*$") .. "/step-00000004", 4 } } do
      local dir = scratch.path()
      local out = run("-n", "2", "dir=" .. dir, "last=" .. case[1]:gsub("DIR", dir))
      local weights = assert(out:match("ends\t" .. case[2] .. "\t([^\n]*)"), out)
      out = run("-n", "2", "dir=" .. dir, "steps=" .. case[2])
      assert.equal(weights, out:match("ends\t" .. case[2] .. "\t([^\n]*)"), case[1])
    end
  end)
end)
