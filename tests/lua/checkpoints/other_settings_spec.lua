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

  it("says what ms.set_rules had changed", function()
    local folder = scratch.path()
    run("folder=" .. folder, "rules=true")
    has(run("folder=" .. folder, "steps=5"), "weight_decay was 0.5 | 0.1", "rate | step 5 | 0.7")
  end)

  for _, own in ipairs({ "halves", "list" }) do
    it("asks a recipe's own rate once for each step, saves or not: " .. own, function()
      assert.equal(run("own=" .. own), run("own=" .. own, "folder=" .. scratch.path()))
    end)
  end
end)
