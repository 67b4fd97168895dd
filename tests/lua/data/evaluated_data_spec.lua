-- The position of data that a checkpoint keeps is that of the batches which steps train on, whatever else a recipe does
-- with the data: evaluate with another sampler, look at some batches within its loop, or evaluate before it.

local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

-- Ends after `stop` steps, and prints the loss of each step.
local SAMPLERS = [[
local ms = require "moonshard"
local cfg = ms.args { dir = "", stop = 0, seed = 0, before = false, own = false, batch = 4, more = false,
  by_hand = false }
local model = ms.nn.linear(8, 4)
ms.fully_shard(model, { mesh = ms.world().size })
local data = ms.data.random { inputs = 8, targets = 4, length = 64 }
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.mse,
  checkpoint = { dir = cfg.dir, every = 3, resume = "auto", data = data } }
if cfg.more then ms.data.sampler { length = 65 } end
local sampler, valid = ms.data.sampler { length = 64 }, ms.data.sampler { length = 64, seed = cfg.seed }
if cfg.before then train:evaluate(data:batches(valid, 4)) end
for _, batch in data:batches(sampler, cfg.batch) do
  if train.steps_done % 2 == 1 then train:evaluate(data:batches(valid, 4)) end
  if cfg.by_hand then data:batches(valid, 4)() end
  if cfg.own or cfg.by_hand then batch = { inputs = batch.inputs, targets = batch.targets } end
  print(("%d %.9g"):format(train.steps_done + 1, train:step(batch).loss))
  if train.steps_done == cfg.stop then break end
end
if cfg.own then train:evaluate(data:batches(sampler, 4)) end
]]

-- Trains on TOTAL batches and looks at two more after every fourth step.
local PROBES = [[
local ms = require "moonshard"
local cfg = ms.args { dir = "", text = "", stop = 0, kind = "text", probe = "evaluate", before = false }
local model = ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 2, seq = 8 }
ms.fully_shard(model, { mesh = ms.world().size })
local data = ms.data.text { files = cfg.text, seq = 8, global_batch = 2 }
if cfg.kind == "mix" then data = ms.data.mix { { data }, batch = 2 } end
if cfg.kind == "masked" then data = ms.data.masked { data, mask = 255, vocab = 255 } end
local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1e-3 },
  forward = function(net, b) return ms.loss.cross_entropy(net(b.tokens), b.targets) end,
  checkpoint = { dir = cfg.dir, resume = "auto", data = data } }
if cfg.before then train:evaluate(data:batches { more = 2 }) end
for _, batch in data:batches { total = 12 } do
  print(("%d %.9g"):format(train.steps_done + 1, train:step(batch).loss))
  if train.steps_done % 4 == 0 and cfg.probe == "evaluate" then train:evaluate(data:batches { more = 2 }) end
  if train.steps_done % 4 == 0 and cfg.probe == "taken" then data:batches { more = 2 }() end
  if train.steps_done == cfg.stop then break end
end
]]

-- A sampler for each stage, or for each epoch, made when it begins.
local MADE_LATER = [[
local ms = require "moonshard"
local cfg = ms.args { dir = "", stop = 0, kind = "stage" }
local data = ms.data.random { inputs = 8, targets = 4, length = 16 }
local model = ms.nn.linear(8, 4)
ms.fully_shard(model, { mesh = ms.world().size })
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.mse,
  checkpoint = { dir = cfg.dir, every = 1, resume = cfg.dir ~= "" and "auto" or "", data = data } }
local per_epoch = 16 / 4 / ms.world().size
for epoch = cfg.kind == "epoch" and math.floor(train.steps_done / per_epoch) or 0, 2 do
  local sampler = ms.data.sampler { length = 16, seed = 3, shuffle = true }
  if cfg.kind ~= "stage" then sampler:set_epoch(epoch) end
  for _, batch in data:batches(sampler, 4) do
    print(("%d %.9g"):format(train.steps_done + 1, train:step(batch).loss))
    if train.steps_done == cfg.stop then return end
  end
end
]]

local function runner(recipe)
  local path = program.recipe(recipe)
  return function(...)
    local ended, lines = program.run { "run", path, ... }, {}
    for line in ended.out:gmatch("%d+ %d[^\n]*") do lines[#lines + 1] = line end
    return lines, ended
  end
end

describe("a run that resumes", function()
  teardown(scratch.clear)

  it("goes on with its training samples, whatever sampler evaluates", function()
    local run = runner(SAMPLERS)
    for _, settings in ipairs { {}, { "seed=5" }, { "before=true" }, { "own=true" }, { "before=true", "own=true" },
      { "by_hand=true", "seed=5" } } do
      local whole = run("dir=" .. scratch.path(), unpack(settings))
      assert.equal(16, #whole)
      for _, stop in ipairs { 3, 4 } do
        local dir = "dir=" .. scratch.path()
        run(dir, "stop=" .. stop, unpack(settings))
        local rest, ended = run(dir, unpack(settings))
        assert.equal(0, ended.status, ended.err)
        assert.same({ unpack(whole, stop + 1) }, rest, table.concat(settings, " "))
      end
    end
  end)

  it("gives samplers that the recipe makes later their own positions", function()
    local run = runner(MADE_LATER)
    for _, kind in ipairs({ "stage", "epoch", "every_epoch" }) do
      local whole = run("-n", "1", "kind=" .. kind)
      assert.equal(12, #whole)
      for _, stop in ipairs(breadth.few { 6, 8, 4, 9 }) do
        local dir = scratch.path()
        local first = run("-n", "1", "kind=" .. kind, "dir=" .. dir, "stop=" .. stop)
        local rest, ended = run("-n", "1", "kind=" .. kind, "dir=" .. dir)
        assert.equal("", ended.err)
        for _, line in ipairs(rest) do first[#first + 1] = line end
        assert.same(whole, first, kind .. stop)
      end
    end
  end)

  it("says that batches are others, and refuses samples of a sampler that had none", function()
    local run, dir = runner(SAMPLERS), "dir=" .. scratch.path()
    run(dir, "stop=4")
    has(select(2, run(dir, "batch=2", "stop=5")).out, "other settings | 4 samples | 2 samples")
    dir = "dir=" .. scratch.path()
    run(dir, "stop=4")
    local _, ended = run(dir, "more=true", "seed=5")
    assert.equal(0, ended.status, ended.err) -- the sampler of the same settings, made as another number
    run(dir .. "x", "stop=4", "before=true")
    _, ended = run(dir .. "x", "more=true", "before=true")
    assert.equal(2, ended.status)
    has(ended.err, "sampler 1 | sampler 2 | same order")
  end)

  it("makes the steps that were left of its loop, also after a look at other batches", function()
    local run, text = runner(PROBES), scratch.path()
    scratch.write(text, ("some text. "):rep(99))
    for _, kind in ipairs { "text", "mix", "masked" } do
      for _, probe in ipairs { "evaluate", "taken" } do
        local settings = { "text=" .. text, "kind=" .. kind, "probe=" .. probe }
        local whole, dir = run("dir=" .. scratch.path(), unpack(settings)), "dir=" .. scratch.path()
        assert.equal(12, #whole)
        run(dir, "stop=4", unpack(settings))
        assert.same({ unpack(whole, 5) }, (run(dir, unpack(settings))), kind .. probe)
      end
    end
    local dir = "dir=" .. scratch.path()
    run(dir, "text=" .. text, "stop=5")
    assert.equal(7, #run(dir, "text=" .. text, "before=true"))
  end)
end)
