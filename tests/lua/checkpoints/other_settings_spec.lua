-- A run that goes on under other settings of its optimizer says so; and a recipe's own learning rate is asked by steps
-- alone, whatever saves.

local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local RECIPE = [[
local ms = require "moonshard"
local cfg = ms.args { folder = "", steps = 4, lr = 0.1, decay = 0.1, beta = 0.9, ema = 0.5, rules = false, own = "" }
local model = ms.nn.linear(4, 2)
ms.fully_shard(model, { seed = 1 })
local rate, rates = 1, { 0.4, 0.3, 0.2, 0.1 }
local OWN = {
  halves = function()
    rate = rate / 2
    return rate
  end,
  list = function(step) return rates[step] * 1 end,
}
local train = ms.trainer { model = model, loss = ms.loss.mse, ema = cfg.ema, optimizer = ms.optim.adamw {
  lr = OWN[cfg.own] or ms.schedule.linear { peak = cfg.lr, total = 100 }, betas = { cfg.beta, 0.99 },
  weight_decay = cfg.decay },
  checkpoint = cfg.folder ~= "" and { dir = cfg.folder, every = 1, resume = "auto" } or nil }
for step = train.steps_done + 1, cfg.steps do
  if cfg.rules and step == 3 then ms.set_rules(model, { lr = 0.7, weight_decay = 0.5 }) end
  local m = train:step { inputs = ms.randn { 2, 4, seed = step }, targets = ms.ones { 2, 2 } }
  print(("%d %.6g"):format(step, m.lr))
end
]]

local function run(...)
  local recipe = program.recipe(RECIPE)
  local ended = program.run { "run", recipe, ... }
  os.remove(recipe)
  assert.equal(0, ended.status, ended.err)
  return ended.out
end

describe("a run that goes on", function()
  teardown(scratch.clear)

  it("says which settings of its optimizer are others than before, and no word where none is", function()
    local folder = scratch.path()
    run("folder=" .. folder)
    assert.is_nil(run("folder=" .. folder, "steps=5"):find("other settings", 1, true))
    local out = run("folder=" .. folder, "steps=6", "decay=0.3", "beta=0.8", "lr=0.05", "ema=0.75")
    has(out, "weight_decay was 0.1 | 0.3", "betas was [0.9,0.99] | [0.8,0.99]")
    has(out, "ema.decay was 0.5 | 0.75", "rate | step 6 | 0.095 | 0.0475")
  end)

  it("says which settings are others of optimizers that rules choose", function()
    local recipe, folder = scratch.path() .. ".lua", scratch.path()
    scratch.write(recipe, [[
      local ms = require "moonshard"
      local cfg = ms.args { folder = "", steps = 2, momentum = 0.95, decay = 0.1 }
      local model = ms.nn.sequential { ms.nn.linear(4, 4, { bias = false }), ms.nn.linear(4, 2, { bias = false }) }
      ms.fully_shard(model, { seed = 1 })
      local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = {
        { "0", ms.optim.muon { lr = 0.02, momentum = cfg.momentum } },
        { "1", ms.optim.adamw { lr = 1e-3, weight_decay = cfg.decay } } },
        checkpoint = { dir = cfg.folder, every = 1, resume = "auto" } }
      for step = train.steps_done + 1, cfg.steps do
        train:step { inputs = ms.randn { 2, 4, seed = step }, targets = ms.ones { 2, 2 } }
      end
    ]])
    local function out(...) return program.run({ "run", recipe, "folder=" .. folder, ... }).out end
    out()
    assert.is_nil(out("steps=3"):find("other settings", 1, true))
    has(out("steps=4", "momentum=0.5", "decay=0.2"), "adamw.weight_decay was 0.1 | 0.2", "muon.momentum was 0.95 | 0.5")
  end)

  it("says what ms.set_rules had changed", function()
    local folder = scratch.path()
    run("folder=" .. folder, "rules=true")
    has(run("folder=" .. folder, "steps=5"), "weight_decay was 0.5 | 0.1", "rate | step 5 | 0.7")
  end)

  it("says which options of its trainer, its groups, its local steps and its data are others", function()
    local text, recipe = scratch.path(), scratch.path()
    scratch.write(text, ("some text. "):rep(99))
    scratch.write(recipe, ([[
      local ms = require "moonshard"
      local cfg = ms.args { folder = "", steps = 2, clip = 1, value = 0.5, scale = 1, micro = 1, frozen = "bias",
        pad = 0, total = 100, alpha = 0.25, momentum = 0.5, nesterov = true, outer = 0.7, drop = true,
        stop = "first_exhausted", batch = 4, sync = false }
      local model = ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 1, seq = 8 }
      local sync = cfg.sync and { every = 2, alpha = cfg.alpha,
        outer = ms.optim.sgd { lr = cfg.outer, momentum = cfg.momentum, nesterov = cfg.nesterov } } or nil
      ms.fully_shard(model, { mesh = "2x1", replicate_sync = sync })
      local source = ms.data.text { files = %q, seq = 8, global_batch = 4 }
      local data = ms.data.mix { { source }, { source, weight = 2 }, drop_last = cfg.drop, global_batch = cfg.batch,
        stopping_strategy = cfg.stop }
      local train = ms.trainer { model = model, loss = ms.loss.cross_entropy, clip_grad_norm = cfg.clip,
        clip_grad_value = cfg.value, micro_batches = cfg.micro, freeze = { ms.re(cfg.frozen) },
        pad = { tokens = cfg.pad },
        optimizer = ms.optim.adamw {
          lr = ms.schedule.wsd { peak = 0.01, total = cfg.total, decay = 5 },
          groups = { { ms.re"bias", { lr_scale = cfg.scale } } } },
        checkpoint = { dir = cfg.folder, resume = "auto", data = data } }
      for _, batch in data:batches(cfg.steps) do train:step(batch) end
    ]]):format(text))
    for sync, others in pairs {
      [false] = { clip = "clip_grad_norm was 1 and is 2", value = "clip_grad_value was 0.5 and is 2",
        scale = "groups was | lr x 1 | lr x 2", micro = "micro_batches was 1 and is 2", frozen = "freeze | bias | norm",
        pad = "pad was tokens = 0 and is tokens = 2", total = "schedule was | total 100 | total 200",
        drop = "data.settings was defaults and is drop_last = false", batch = "data.global_batch was 4 and is 2",
        stop = "data.settings | stopping_strategy | all_exhausted" },
      [true] = { alpha = "replicate_sync.alpha was 0.25 and is 0.75", momentum = "momentum was 0.5 and is 0.75",
        nesterov = "nesterov was true and is false", outer = "replicate_sync.lr was | 0.7 | 0.75" },
    } do
      local values = { frozen = "norm", total = 200, drop = false, stop = "all_exhausted", nesterov = false,
        outer = 0.75, alpha = 0.75, momentum = 0.75 }
      local folder = scratch.path()
      local function resume(...)
        local ended = program.run { "run", recipe, "-n", "2", "folder=" .. folder, "sync=" .. tostring(sync), ... }
        assert.equal(0, ended.status, ended.err)
        return ended.out
      end
      resume()
      assert.is_nil(resume():find("other settings", 1, true))
      for name, said in pairs(others) do
        local value = values[name]
        if value == nil then value = 2 end
        has(resume(("%s=%s"):format(name, tostring(value))), "other settings | " .. said)
      end
    end
  end)

  for _, own in ipairs({ "halves", "list" }) do
    it("asks a recipe's own rate once for each step, saves or not: " .. own, function()
      assert.equal(run("own=" .. own), run("own=" .. own, "folder=" .. scratch.path()))
    end)
  end
end)
