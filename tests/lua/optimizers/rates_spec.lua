-- Learning rates that are no numbers: of every optimizer of a step, refused before anything of the step runs; and rates
-- of the outer SGD that a recipe's function gives only once.

local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

-- From step 4 on one of the rates is bad; then the step is taken again with good ones.
local RECIPE = [[
local ms = require "moonshard"
local re = ms.re
local cfg = ms.args { which = "adamw", value = "nil", delay = 0 }
local bad = cfg.value ~= "good"
local VALUES = { ["nil"] = function() end, ["false"] = function() return false end, nan = function() return 0 / 0 end,
  text = function() return "0.1" end, minus = function() return -1 end, good = function() return 0.05 end }
local function rate_of(which)
  return function(step)
    if which == cfg.which and bad and step >= 4 + cfg.delay then return VALUES[cfg.value]() end
    return 0.05
  end
end
local model = ms.nn.sequential { ms.nn.linear(4, 4), ms.nn.linear(4, 2) }
local outer = cfg.which == "outer" and { every = 2, delay = cfg.delay > 0 and cfg.delay or nil,
  outer = ms.optim.sgd { lr = rate_of("outer"), momentum = 0.9, nesterov = true } } or nil
ms.fully_shard(model, { mesh = "2x1", seed = 1, replicate_sync = outer })
local adamw = ms.optim.adamw { lr = rate_of("adamw") }
local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = cfg.which == "muon"
  and { { re"weight", ms.optim.muon { lr = rate_of("muon") } }, { re".", adamw } } or adamw }
local function step(number)
  return pcall(train.step, train, { inputs = ms.randn { 2, 4, seed = number * 10 + ms.world().rank },
    targets = ms.ones { 2, 2 } })
end
local function weights() return ("%.9g %d"):format(model:parameter("0.weight"):abs():sum():item(), train.steps_done) end
local message, failed
for number = 1, 8 do
  local before = weights()
  local ok, raised = step(number)
  if not ok then
    failed, message = number, tostring(raised)
    assert(weights() == before, "the step that failed changed weights")
    bad = false
    assert(step(number))
  end
end
ms.log.print(("%s | failed %s | %s"):format(weights(), tostring(failed), tostring(message)))
]]

-- A function with a state: what it says for a step when ranks agree on it is what counts.
local ONCE = [[
local ms = require "moonshard"
local cfg = ms.args { once = true }
local asked = {}
local function rate(step)
  asked[step] = (asked[step] or 0) + 1
  return (cfg.once and asked[step] > 1) and 100 or 0.7
end
local model = ms.nn.linear(4, 2)
ms.fully_shard(model, { mesh = "2x1", seed = 1, replicate_sync = { every = 2, outer = ms.optim.sgd { lr = rate } } })
local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 0.05 } }
for number = 1, 6 do
  train:step { inputs = ms.randn { 2, 4, seed = number * 10 + ms.world().rank }, targets = ms.ones { 2, 2 } }
end
ms.log.print(("%.9g"):format(model:parameter("weight"):abs():sum():item()))
]]

local TWO = [[
local ms = require "moonshard"
local cfg = ms.args { delay = 0 }
local model = ms.nn.sequential { ms.nn.linear(4, 4), ms.nn.linear(4, 2) }
local function rate(step) return step == 8 + cfg.delay and 0.1 * ms.world().rank or 0.7 end
ms.fully_shard(model, { mesh = "2x1", seed = 1, replicate_sync = { every = 4,
  delay = cfg.delay > 0 and cfg.delay or nil, outer = ms.optim.sgd { lr = rate } } })
local sgd = ms.optim.sgd { lr = 0.05 }
local trainers = { ms.trainer { model = model, loss = ms.loss.mse, optimizer = sgd },
  ms.trainer { model = model, loss = ms.loss.mse, optimizer = sgd, freeze = { "1.bias" } } }
for number = 1, 16 do
  local ok, message = pcall(trainers[number % 2 + 1].step, trainers[number % 2 + 1],
    { inputs = ms.randn { 2, 4, seed = number * 10 + ms.world().rank }, targets = ms.ones { 2, 2 } })
  if not ok then
    ms.log.print(number, tostring(message))
    break
  end
end
]]

local AGAIN = [[
local ms = require "moonshard"
local cfg = ms.args { first = 0.7, folder = "" }
local current = cfg.first
local model = ms.nn.linear(4, 2)
ms.fully_shard(model, { mesh = "2x1", seed = 1, replicate_sync = { every = 2,
  outer = ms.optim.sgd { lr = function(step) return step > 4 and current or 0.7 end } } })
local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 0.05 } }
local function step(number)
  train:step { inputs = ms.randn { 2, 4, seed = number * 10 + ms.world().rank }, targets = ms.ones { 2, 2 } }
end
for number = 1, 4 do step(number) end
ms.checkpoint.save(train, cfg.folder)
for number = 5, 6 do step(number) end
ms.checkpoint.load(train, cfg.folder)
current = 0.1
for number = 5, 6 do step(number) end
ms.log.print(("%.9g"):format(model:parameter("weight"):abs():sum():item()))
]]

local function run(source, ...)
  local recipe = program.recipe(source)
  local ended = program.run { "run", recipe, "-n", "2", ... }
  os.remove(recipe)
  assert.equal(0, ended.status, ended.err .. ended.out)
  return ended.out
end

describe("a learning rate that is no number", function()
  local NAMES = { adamw = "learning rate of step 4", muon = "Muon's | step 4", outer = "outer | step %d" }
  for which, text in pairs(NAMES) do
    for _, delay in ipairs(which == "outer" and { 0, 1 } or { 0 }) do
      it(("is refused before the step, of %s with delay %d"):format(which, delay), function()
        local function weights(out) return out:match("^%S+ %d+ ") end
        local good = weights(run(RECIPE, "which=" .. which, "value=good", "delay=" .. delay))
        for _, value in ipairs(breadth.few { "minus", "text", "nan", "false", "nil" }) do
          local out = run(RECIPE, "which=" .. which, "value=" .. value, "delay=" .. delay)
          has(out, text:format(4 + delay) .. " | finite number")
          assert.equal(good, weights(out))
        end
      end)
    end
  end
end)

describe("the rate of the outer SGD", function()
  teardown(scratch.clear)

  it("is asked once for a step", function()
    assert.equal(run(ONCE, "once=false"), run(ONCE, "once=true"))
  end)

  it("is asked again for steps that run again after a load", function()
    local function after(first)
      return assert(run(AGAIN, "folder=" .. scratch.path(), "first=" .. first):match("(%S+)\n$"))
    end
    assert.equal(after(0.1), after(0.7))
  end)

  -- Trainers in turn: the model's steps count, in which the one that applies is not the one that sent.
  it("of two trainers that differs between ranks is refused by the step that would apply it", function()
    for _, delay in ipairs(breadth.few { 0, 1, 2 }) do
      local out = run(TWO, "delay=" .. delay)
      has(out, ("outer SGD | step %d | rank 0 | rank 1"):format(8 + delay))
    end
  end)
end)
