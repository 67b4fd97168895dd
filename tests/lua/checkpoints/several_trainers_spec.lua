-- Several trainers in one recipe that save and resume: of one model, each with a folder of its own; of two models; and
-- one whose adapters are merged before the recipe ends.

local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

-- Two stages, or with `other` a second trainer that saves nothing. Ends after `stop` steps as if it had crashed.
local STAGES = [[
local ms = require "moonshard"
local cfg = ms.args { folder = "", order = "12", stop = 0, other = false, by_hand = false,
  steps = 4 }
local model = ms.nn.sequential { ms.nn.linear(4, 8), ms.ops.relu, ms.nn.linear(8, 4) }
ms.fully_shard(model, { seed = 1 })
local optimizer = ms.optim.adamw { lr = 1e-2 }
local trainers, losses = {}, { ms.loss.mse, ms.loss.l1 }
for number in cfg.order:gmatch("%d") do
  local n = tonumber(number)
  local saves = n == 1 or not cfg.other
  trainers[n] = ms.trainer { model = model, optimizer = optimizer, loss = losses[n],
    checkpoint = saves and { dir = cfg.folder .. "/" .. n, every = 2, resume = "auto" } or nil }
end
local made = 0
for n, train in ipairs(trainers) do
  for step = train.steps_done + 1, cfg.steps do
    local seed = 100 * n + step
    local m = train:step { inputs = ms.randn { 4, 4, seed = seed }, targets = ms.randn { 4, 4, seed = seed + 50 } }
    print(("%d.%d %.9g"):format(n, step, m.loss))
    made = made + 1
    if cfg.by_hand and n == 2 then ms.checkpoint.save(trainers[1], cfg.folder .. "/1") end
    if made == cfg.stop then ms.checkpoint.finish(train) os.exit(0) end
  end
end
]]

local function run(recipe, folder, ...)
  local path = program.recipe(recipe)
  local ended = program.run({ "run", path, "-n", "1", "folder=" .. folder, ... })
  os.remove(path)
  return ended
end

local function lines(text)
  local list = {}
  for line in text:gmatch("%d%.%d [^\n]*") do list[#list + 1] = line end
  return list
end

describe("two trainers of a model", function()
  teardown(scratch.clear)

  it("U2 go on as without a crash, made in the order of their stages", function()
    local whole = lines(run(STAGES, scratch.path()).out)
    assert.equal(8, #whole)
    local folder = scratch.path()
    assert.equal(0, run(STAGES, folder, "stop=6").status)
    local ended = run(STAGES, folder)
    assert.equal(0, ended.status, ended.err)
    assert.same({ whole[7], whole[8] }, lines(ended.out))
  end)

  it("U2 leave the end of the first stage as it is, however often the second one goes on", function()
    local folder = scratch.path()
    assert.equal(0, run(STAGES, folder, "stop=6").status)
    local function first_stage()
      local pipe = assert(io.popen("cd " .. folder .. "/1 && ls -d step-* && cat step-00000004/*.safetensors | md5sum"))
      local text = pipe:read("*a")
      pipe:close()
      return text
    end
    local before = first_stage()
    for steps = 4, 6, 2 do
      local ended = run(STAGES:gsub("cfg.steps do", "(n == 1 and 4 or cfg.steps) do"), folder, "steps=" .. steps)
      assert.equal(0, ended.status, ended.err)
      assert.equal(before, first_stage())
    end
  end)

  it("U2 do not go back to the weights of the first stage, made in another order", function()
    local folder = scratch.path()
    assert.equal(0, run(STAGES, folder, "stop=6", "order=21").status)
    local ended = run(STAGES, folder, "order=21")
    assert.equal(2, ended.status)
    has(ended.err, "/1/step-00000004 | 4 updates | /2/step-00000002 | 6 | in the order")
  end)

  it("U2 leave each other's checkpoints as they are", function()
    local folder = scratch.path()
    local whole = lines(run(STAGES, folder).out)
    os.execute("rm -r " .. folder .. "/2")
    local ended = run(STAGES, folder) -- the second stage again, from the end of the first
    assert.same({ whole[5], whole[6], whole[7], whole[8] }, lines(ended.out))
  end)

  it("U2 say what one that saves nothing has done to what resumes", function()
    local folder = scratch.path()
    assert.equal(0, run(STAGES, folder, "other=true").status)
    has(run(STAGES, folder, "other=true").out, "after step 4 | 4 updates | other trainers")
  end)

  it("U2 leave no copy of a step that was saved before one that saves nothing trained on", function()
    local folder
    local function trained(...)
      local out = run(STAGES, folder, "other=true", ...).out
      assert.falsy(out:find("aside"), out)
      local pipe = assert(io.popen("cd " .. folder .. "/1 && ls -d step-*"))
      local names = pipe:read("*a")
      pipe:close()
      return names, require("moonshard").checkpoint.open(folder .. "/1").manifest
    end
    for _, by_hand in ipairs { "true", "false" } do
      folder = scratch.path()
      for steps = 4, 8, 4 do
        local names, read = trained("steps=" .. steps, "by_hand=" .. by_hand)
        assert.equal(("step-%08d\nstep-%08d\n"):format(steps - 2, steps), names)
        assert.equal(steps == 4 and 8 or 20, read.updates)
      end
    end
  end)

  it("U2 need a folder each, also before anything is in it", function()
    local ended = run((STAGES:gsub('"/" %.%. n', '(n == 1 and "/1" or "/./1/")')), scratch.path())
    assert.equal(2, ended.status)
    has(ended.err, "another trainer | folder")
  end)
end)

-- Two trainers take turns. A rank ends itself by `signal` after the step `at` of one of them.
local TURNS = [[
local ms = require "moonshard"
local ffi = require "ffi"
ffi.cdef "int getpid(void); int kill(int, int);"
local cfg = ms.args { folder = "", at = "", signal = 15, every = 3, rounds = 6 }
local Net = ms.module "Net"
function Net:init() self.first, self.second = ms.nn.linear(4, 8), ms.nn.linear(8, 4) end
function Net:forward(x) return self.second(self.first(x):relu()) end
local model = Net()
ms.fully_shard(model, { mesh = ms.world().size })
local optimizer = ms.optim.adamw { lr = 1e-2 }
local function trainer(name, frozen)
  return ms.trainer { model = model, optimizer = optimizer, freeze = { frozen }, ema = 0.9,
    forward = function(net, b) return ms.loss.mse(net(b.inputs), b.targets) end,
    checkpoint = { dir = cfg.folder .. "/" .. name, every = cfg.every, resume = "auto" } }
end
local trainers = { trainer("1", "second"), trainer("2", "first") }
for round = math.min(trainers[1].steps_done, trainers[2].steps_done) + 1, cfg.rounds do
  for n, train in ipairs(trainers) do
    if train.steps_done < round then
      local m = train:step { inputs = ms.randn { 4, 4 }, targets = ms.randn { 4, 4 } }
      print(("%d.%d %.9g"):format(n, round, m.loss))
      local here = ("%d.%d"):format(n, round) == cfg.at
      if here and cfg.signal == 0 then
        for _, one in ipairs(trainers) do ms.checkpoint.finish(one) end
        os.exit(0)
      end
      if here and ms.world().rank == ms.world().size - 1 then ffi.C.kill(ffi.C.getpid(), cfg.signal) end
    end
  end
end
]]

describe("two trainers that take turns", function()
  teardown(scratch.clear)

  local function take_turns(...)
    local path = program.recipe(TURNS)
    local ended = program.run { "run", path, "-n", "2", ... }
    os.remove(path)
    return ended
  end

  it("U2 go on after SIGTERM and after their end, whichever of them was next", function()
    local whole = lines(take_turns("folder=" .. scratch.path()).out)
    assert.equal(12, #whole)
    for _, settings in ipairs { { "at=1.4" }, { "at=2.4" }, { "at=1.3" }, { "at=1.4", "every=2" }, { "rounds=3" } } do
      local folder = "folder=" .. scratch.path()
      local before = take_turns(folder, unpack(settings))
      assert.equal(settings[1] == "rounds=3" and 0 or 143, before.status, before.err)
      local after = take_turns(folder)
      assert.equal(0, after.status, after.err)
      local made = {}
      for _, from in ipairs { before, after } do
        for _, line in ipairs(lines(from.out)) do made[#made + 1] = line end
      end
      assert.same(whole, made, settings[1])
    end
  end)

  it("U2 that were killed between their saves say where both can go on", function()
    local folder = scratch.path()
    assert.equal(0, take_turns("folder=" .. folder, "at=1.6", "signal=0").status)
    local ended = take_turns("folder=" .. folder)
    assert.equal(2, ended.status)
    has(ended.err, "/2/step-00000003 | 6 updates | /1/step-00000006 | 11 | take turns | killed | /1/step-00000003")
    os.execute(("rm -r %s/1/step-00000006"):format(folder))
    ended = take_turns("folder=" .. folder)
    assert.equal(0, ended.status, ended.err)
    assert.equal(6, #lines(ended.out))
  end)
end)

describe("trainers of two models", function()
  teardown(scratch.clear)

  it("U3 go on with the random numbers of the later save, made in any order", function()
    local recipe = [[
local ms = require "moonshard"
local cfg = ms.args { folder = "", order = "AB", stop = 0 }
local trainers = {}
ms.manual_seed(5)
for name in cfg.order:gmatch(".") do
  local model = ms.nn.linear(4, 4)
  ms.fully_shard(model, { seed = name:byte() })
  trainers[name] = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.mse,
    checkpoint = { dir = cfg.folder .. "/" .. name, every = 2, resume = "auto" } }
end
for step = trainers.A.steps_done + 1, 6 do
  for _, name in ipairs { "A", "B" } do
    local m = trainers[name]:step { inputs = ms.rand { 2, 4 }, targets = ms.zeros { 2, 4 } }
    print(("%d.%d %.9g"):format(name:byte() - 64, step, m.loss))
  end
  if step == cfg.stop then
    for _, train in pairs(trainers) do ms.checkpoint.finish(train) end
    os.exit(0)
  end
end
]]
    for _, order in ipairs { "AB", "BA" } do
      local whole, folder = lines(run(recipe, scratch.path(), "order=" .. order).out), scratch.path()
      assert.equal(0, run(recipe, folder, "order=" .. order, "stop=4").status)
      local ended = run(recipe, folder, "order=" .. order)
      assert.same({ whole[9], whole[10], whole[11], whole[12] }, lines(ended.out), ended.err)
    end
  end)
end)

describe("a run that merges its adapters", function()
  teardown(scratch.clear)

  it("U2 keeps its last step with the adapters, and another trainer can save", function()
    local recipe = [[
local ms = require "moonshard"
local cfg = ms.args { folder = "", more = false }
local model = ms.models.gpt2 { vocab = 32, layers = 1, dim = 8, heads = 2, seq = 4 }
ms.lora(model, { { ms.re[=[attn\.]=], { rank = 2 } } })
ms.fully_shard(model, {})
local function trainer(name)
  return ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.cross_entropy,
    checkpoint = { dir = cfg.folder .. "/" .. name, every = 2 } }
end
local function train(with, steps)
  for step = 1, steps do
    local tokens = ms.tensor { { 1, 2, 3, step }, dtype = "i32" }
    with:step { tokens = tokens, targets = tokens }
  end
end
train(trainer("with"), 3)
ms.lora.merge(model)
if cfg.more then train(trainer("without"), 3) end
]]
    local folder = scratch.path()
    local ended = run(recipe, folder, "more=true")
    assert.equal(0, ended.status, ended.err)
    for _, name in ipairs { "with", "without" } do
      assert.is_not_nil(io.open(("%s/%s/step-00000003/manifest.json"):format(folder, name)), name)
    end
    has(scratch.read(folder .. "/with/step-00000003/manifest.json"), "lora_A")
    assert.is_nil(scratch.read(folder .. "/without/step-00000003/manifest.json"):find("lora_A", 1, true))
    assert.equal(0, run(recipe, scratch.path()).status)
  end)
end)
