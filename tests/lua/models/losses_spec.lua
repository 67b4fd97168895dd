-- Losses beyond the plain cross entropy: by their formulas in double precision, with gradients by central differences,
-- and weighed over ranks.

local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local message = fixture.message
local ms = require("moonshard")
local program = require("lua.support.program")

local ROWS, CLASSES, IGNORED = 6, 5, -100

local function numbers(x) return x:reshape(-1):tolist() end

-- Log-probabilities of row r, from 1, of a flat list.
local function log_softmax(x, r)
  local row, sum = {}, 0
  for c = 1, CLASSES do sum = sum + math.exp(x[(r - 1) * CLASSES + c]) end
  for c = 1, CLASSES do row[c] = x[(r - 1) * CLASSES + c] - math.log(sum) end
  return row, math.log(sum)
end

local function cross_entropy(x, targets, o)
  local total, weights = 0, 0
  for r = 1, ROWS do
    local log_p, log_sum = log_softmax(x, r)
    if targets[r] ~= IGNORED then
      local weight, all = o.weight and o.weight[targets[r] + 1] or 1, 0
      for c = 1, CLASSES do all = all - (o.weight and o.weight[c] or 1) * log_p[c] end
      total = total - (1 - (o.label_smoothing or 0)) * weight * log_p[targets[r] + 1]
        + (o.label_smoothing or 0) / CLASSES * all + (o.z_loss or 0) * weight * log_sum ^ 2
      weights = weights + weight
    end
  end
  return weights > 0 and total / weights or 0
end

local function mean(x, y, of)
  local sum = 0
  for i = 1, #x do sum = sum + of(x[i], y[i]) end
  return sum / #x
end

local function distillation(x, y, t)
  local total, a, b = 0, {}, {}
  for i = 1, #x do a[i], b[i] = x[i] / t, y[i] / t end
  for r = 1, ROWS do
    local log_p, log_q = log_softmax(a, r), log_softmax(b, r)
    for c = 1, CLASSES do total = total + t * t * math.exp(log_q[c]) * (log_q[c] - log_p[c]) end
  end
  return total / ROWS
end

-- The gradient of a loss with respect to its first argument, by the engine.
local function gradient(x, targets, loss)
  local model = ms.module {
    shift = ms.parameter { ROWS, CLASSES, init = "zeros" },
    forward = function(self, given) return given + self.shift end,
  }
  ms.fully_shard(model)
  local train = ms.trainer { model = model, loss = loss, optimizer = ms.optim.sgd { lr = 0 } }
  train:step { inputs = x, targets = targets }
  return numbers(train:gradient("shift"))
end

local function check(loss, x, targets, formula)
  local list = numbers(x)
  fixture.assert_close({ formula(list) }, { loss(x, targets):item() }, 1e-6, "loss")
  local expected = {}
  for i = 1, #list do
    local at = list[i]
    list[i] = at + 1e-4
    local above = formula(list)
    list[i] = at - 1e-4
    expected[i] = (above - formula(list)) / 2e-4
    list[i] = at
  end
  fixture.assert_close(expected, gradient(x, targets, loss), 1e-5, "gradient")
end

describe("a loss", function()
  ms.manual_seed(4)
  local x, y = ms.randn(ROWS, CLASSES), ms.randn(ROWS, CLASSES)
  local other, classes = numbers(y), { 1, 4, IGNORED, 0, 2, IGNORED }
  local targets = ms.tensor(classes, { dtype = "i32" })

  it("G2 of smoothed labels, weights of classes and the z-loss", function()
    for _, o in ipairs({
      { label_smoothing = 0.1 }, { label_smoothing = 1 }, { weight = { 0.5, 1, 2, 0.25, 3 } }, { z_loss = 0.02 },
      { label_smoothing = 0.3, weight = { 0.5, 0, 2, 0.25, 3 }, z_loss = 0.1 },
    }) do
      check(ms.loss.cross_entropy(o), x, targets, function(list) return cross_entropy(list, classes, o) end)
    end
    local none = ms.tensor({ IGNORED, IGNORED, IGNORED, IGNORED, IGNORED, IGNORED }, { dtype = "i32" })
    local of_none = ms.loss.cross_entropy({ z_loss = 1, label_smoothing = 0.5 })(x, none):item()
    assert.not_equal(of_none, of_none) -- NaN, as in PyTorch
  end)

  it("G2 of distances and probabilities", function()
    check(ms.loss.mse, x, y, function(list) return mean(list, other, function(a, b) return (a - b) ^ 2 end) end)
    check(ms.loss.l1, x, y, function(list) return mean(list, other, function(a, b) return math.abs(a - b) end) end)
    for _, delta in ipairs({ 1, 0.3 }) do
      check(ms.loss.huber { delta = delta }, x, y, function(list)
        return mean(list, other, function(a, b)
          local d = math.abs(a - b)
          return d <= delta and d * d / 2 or delta * (d - delta / 2)
        end)
      end)
    end
    local p = numbers(y:sigmoid())
    check(ms.loss.binary_cross_entropy, x, y:sigmoid(), function(list)
      return mean(list, p, function(a, t)
        local q = 1 / (1 + math.exp(-a))
        return -t * math.log(q) - (1 - t) * math.log(1 - q)
      end)
    end)
    local extreme = ms.loss.binary_cross_entropy(ms.tensor { 200, -200 }, ms.tensor { 1, 1 })
    assert.equal(100, extreme:item())
  end)

  it("G2 G8 of a student's distance from a teacher", function()
    check(ms.loss.distillation, x, y, function(list) return distillation(list, other, 1) end)
    check(ms.loss.distillation { temperature = 2 }, x, y, function(list) return distillation(list, other, 2) end)
    assert.is_true(math.abs(ms.loss.distillation(x, x):item()) < 1e-6)
  end)

  it("G2 of a target that is no class fails, with and without weights", function()
    for _, o in ipairs({ {}, { label_smoothing = 0.1 }, { z_loss = 1 }, { weight = { 1, 1, 1, 1, 1 } } }) do
      for _, class in ipairs({ 5, -1 }) do
        local text = message(function()
          return ms.loss.cross_entropy(o)(ms.ones(2, 5), ms.tensor({ 0, class }, { dtype = "i32" })):item()
        end)
        has(text, ("cross_entropy | target %d | row 1 | [0,5)"):format(class))
        assert.is_nil(text:find("embedding", 1, true), text)
      end
    end
  end)

  it("G2 of a target that is no class fails a step, which names the loss", function()
    for _, o in ipairs({ { label_smoothing = 0.1 }, { weight = { 1, 1, 1, 1, 1 } }, { z_loss = 1 },
      { label_smoothing = 0.1, reduction = "mean" } }) do
      for _, class in ipairs({ 9, -7 }) do
        local bad = ms.tensor({ 0, 1, 2, class, 3, 4 }, { dtype = "i32" })
        local text = message(gradient, x, bad, ms.loss.cross_entropy(o))
        has(text, ("ms.loss.cross_entropy | target %d | row 3 | [0,5)"):format(class))
        assert.is_nil(text:find("embedding", 1, true) or text:find("token", 1, true), text)
      end
    end
  end)

  it("G2 refuses what makes no sense", function()
    local function refused(o) return message(ms.loss.cross_entropy, o) end
    has(refused { label_smoothing = 1.1 }, "label_smoothing | 1.1")
    has(refused { label_smoothing = -0.1 }, "label_smoothing | -0.1")
    has(refused { z_loss = -1 }, "z_loss | -1")
    has(refused { weight = { 1, -2 } }, "weight of class 1 | -2")
    has(refused { weight = { 1, "a" } }, 'weight of class 1 | "a"')
    has(refused { z_loss = 1, fused = true }, "fused | z_loss")
    has(message(ms.loss.cross_entropy { weight = { 1, 2 } }, x, targets), "weight | 2 | 5 classes")
    has(message(ms.loss.l1, x, targets), "ms.loss.l1 | [6,5] | [6]")
    has(message(ms.loss.huber, { delta = 0 }), "delta | 0")
    has(message(ms.loss.l1, { reduction = "sum" }), "ms.loss.l1 | tensors | options")
    has(message(ms.loss.distillation, { temperature = 0 }), "temperature | 0")
  end)
end)

describe("weights of targets", function()
  it("G2 are summed over ranks and micro-batches", function()
    local recipe = program.recipe [[
      local ms = require "moonshard"
      local cfg = ms.args { mesh = "1x1", micro = 1 }
      local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" })
      local model = ms.nn.sequential { ms.nn.linear(3, 4) }
      ms.fully_shard(model, { mesh = mesh })
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.5 }, micro_batches = cfg.micro,
        loss = ms.loss.cross_entropy { weight = { 1, 2, 0.5, 3 }, label_smoothing = 0.1, z_loss = 0.01 } }
      local x = ms.randn { 8, 3, seed = 1 }
      local y = ms.tensor({ 0, 3, -100, -100, 1, 2, -100, 3 }, { dtype = "i32" })
      local per, at = 8 / mesh:size(), mesh:get_index()
      for _ = 1, 3 do
        local loss = train:step { inputs = x:slice(0, at * per, (at + 1) * per),
          targets = y:slice(0, at * per, (at + 1) * per) }.loss
        print(("%.5f"):format(loss))
      end
    ]]
    local function losses(...)
      local ended = program.run { "run", recipe, ... }
      assert.equal(0, ended.status, ended.err)
      return ended.out
    end
    local one = losses()
    assert.equal(3, select(2, one:gsub("\n", "")))
    assert.equal(one, losses("-n", "2", "mesh=1x2"))
    assert.equal(one, losses("-n", "4", "mesh=2x2"))
    assert.equal(one, losses("micro=4"))
    os.remove(recipe)
  end)

  -- Class 0 has weight 0: its targets have smoothed labels alone, in parts that have no other targets, too.
  it("G2 of 0 leave the smoothed labels of a rank, a micro-batch or an evaluated batch", function()
    local recipe = program.recipe [[
      local ms = require "moonshard"
      local cfg = ms.args { mesh = "1x1", micro = 1, batches = 1, z = ms.args.real(0) }
      local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" })
      local model = ms.nn.sequential { ms.nn.linear(3, 4) }
      ms.fully_shard(model, { mesh = mesh })
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1 }, micro_batches = cfg.micro,
        loss = ms.loss.cross_entropy { weight = { 0, 1, 2, 3 }, label_smoothing = 0.2, z_loss = cfg.z } }
      local x, y = ms.randn { 8, 3, seed = 1 }, ms.tensor({ 1, 3, 0, -100, 0, 0, -100, -100 }, { dtype = "i32" })
      local per, at = 8 / mesh:size(), mesh:get_index()
      local function batch(first, last)
        return { inputs = x:slice(0, first, last), targets = y:slice(0, first, last) }
      end
      local function batches()
        local each = per / cfg.batches
        return coroutine.wrap(function()
          for i = 0, cfg.batches - 1 do
            coroutine.yield(i + 1, batch(at * per + i * each, at * per + (i + 1) * each))
          end
        end)
      end
      for _ = 1, 2 do
        local evaluated, loss = train:evaluate(batches()), train:step(batch(at * per, (at + 1) * per)).loss
        print(("%.5f %.5f"):format(evaluated, loss), ("%.4f %.4f"):format(
          model:parameter("0.bias"):min():item(), model:parameter("0.bias"):max():item()))
      end
    ]]
    local function losses(...)
      local ended = program.run { "run", recipe, ... }
      assert.equal(0, ended.status, ended.err)
      return ended.out
    end
    for _, z in ipairs({ "z=0", "z=0.1" }) do
      local one = losses(z)
      assert.equal(2, select(2, one:gsub("\n", "")))
      assert.equal(one, losses(z, "-n", "2", "mesh=1x2"))
      assert.equal(one, losses(z, "-n", "4", "mesh=2x2"))
      assert.equal(one, losses(z, "micro=4"))
      assert.equal(one, losses(z, "batches=4"))
    end
    os.remove(recipe)
  end)
end)
