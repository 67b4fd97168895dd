-- The cross entropy of targets of which some are ignored: what counts as the mean. updates_spec.lua compares ranks.

local fixture = require("lua.support.fixture")
local ms = require("moonshard")
local has = require("lua.support.message").has
local message = fixture.message

local LOGITS = { { 0.5, -1, 2 }, { 1, 0, 0 }, { 0, 3, 0 }, { 2, 2, 1 } }

local function nll(row, target)
  local sum = 0
  for _, x in ipairs(LOGITS[row]) do sum = sum + math.exp(x) end
  return math.log(sum) - LOGITS[row][target + 1]
end

-- A trainer whose logits are a parameter, for batches of two micro-batches of two rows.
local function trainer(loss, lr)
  local Net = ms.module "Net"
  function Net:init() self.w = ms.parameter { 4, 3 } end
  function Net:forward(rows) return ms.ops.embedding(self.w, rows) end
  local train = ms.trainer {
    model = ms.fully_shard(Net(), {}), loss = loss, optimizer = ms.optim.sgd { lr = lr or 0 }, micro_batches = 2,
  }
  train:set_parameter("w", LOGITS)
  return train
end

local function batch(targets)
  return { tokens = ms.tensor { 0, 1, 2, 3, dtype = "i32" }, targets = ms.tensor { dtype = "i32", unpack(targets) } }
end

local function once(given) return coroutine.wrap(function() coroutine.yield(1, given) end) end

describe("ignored targets", function()
  it("S6 count for nothing in the mean over all micro-batches", function()
    local train = trainer(ms.loss.cross_entropy)
    local given = batch { 2, -100, 1, 0 }
    local expected = (nll(1, 2) + nll(3, 1) + nll(4, 0)) / 3
    assert.near(expected, train:step(given).loss, 1e-6)
    assert.near((math.exp(LOGITS[1][1]) / (math.exp(0.5) + math.exp(-1) + math.exp(2))) / 3,
      train:gradient("w")[0]:tolist()[1], 1e-6)
    assert.same({ 0, 0, 0 }, train:gradient("w")[1]:tolist())
    assert.near(expected, train:evaluate(once(given)), 1e-6)
  end)

  it("S6 count by micro-batch where each is to have its own mean", function()
    for _, loss in ipairs { ms.loss.cross_entropy { reduction = "mean" },
      function(logits, targets) return ms.loss.cross_entropy(logits, targets) * 1 end } do
      local m = trainer(loss):step(batch { 2, -100, 1, 0 })
      assert.near((nll(1, 2) + (nll(3, 1) + nll(4, 0)) / 2) / 2, m.loss, 1e-6)
    end
  end)

  it("S6 may be any number", function()
    local train = trainer(ms.loss.cross_entropy { ignore_index = 1 })
    assert.near((nll(1, 2) + nll(4, 0)) / 2, train:step(batch { 2, 1, 1, 0 }).loss, 1e-6)
  end)

  it("S6 may be all of a micro-batch, or of a step, without a NaN", function()
    local train = trainer(ms.loss.cross_entropy, 1)
    assert.near(nll(1, 2), train:step(batch { 2, -100, -100, -100 }).loss, 1e-6)
    local before = train:parameter("w"):tolist()
    local m = train:step(batch { -100, -100, -100, -100 })
    assert.same({ 0, 0 }, { m.loss, m.grad_norm })
    assert.same(before, train:parameter("w"):tolist())
    assert.same({ 0, 0, 0 }, train:gradient("w")[0]:tolist())
    local text = message(function() train:evaluate(once(batch { -100, -100, -100, -100 })) end)
    has(text, "1 batch | target | ignored")
  end)

  it("S6 leave a micro-batch without a target out of the mean of means", function()
    for _, options in ipairs { {}, { label_smoothing = 0.1 }, { weight = { 1, 1, 1 } } } do
      options.reduction = "mean"
      local train = trainer(ms.loss.cross_entropy(options))
      local of_first = trainer(ms.loss.cross_entropy { label_smoothing = options.label_smoothing })
      local alone = of_first:step(batch { 2, 1, -100, -100 }).loss
      assert.near(alone, train:step(batch { 2, 1, -100, -100 }).loss, 1e-6)
      for i, value in ipairs(of_first:gradient("w"):reshape(-1):tolist()) do
        assert.near(value, train:gradient("w"):reshape(-1):tolist()[i], 1e-6)
      end
      local m = train:step(batch { -100, -100, -100, -100 })
      assert.same({ 0, 0 }, { m.loss, m.grad_norm })
    end
  end)

  it("S16 leave batches without a target out of an evaluation's mean of means", function()
    local train, i = trainer(ms.loss.cross_entropy { reduction = "mean" }), 0
    local batches = { batch { 2, -100, -100, -100 }, batch { -100, -100, -100, -100 }, batch { -100, -100, 1, 0 } }
    local got = train:evaluate(function()
      i = i + 1
      if batches[i] then return i, batches[i] end
    end)
    assert.near((nll(1, 2) + (nll(3, 1) + nll(4, 0)) / 2) / 2, got, 1e-6)
  end)

  it("S6 are refused where a loss of your own has a mean of none, as NaN in PyTorch, with the micro-batch", function()
    for _, cross_entropy in ipairs { ms.loss.cross_entropy, ms.loss.cross_entropy { label_smoothing = 0.1 } } do
      local train = trainer(function(logits, targets)
        return cross_entropy(logits, targets) + (logits * logits):mean() * 0.5
      end, 1)
      local before = train:parameter("w"):tolist()
      has(message(function() train:step(batch { 2, 1, -100, -100 }) end),
        "step 1 | nan | micro-batch 2 | of 2 | ignored | rank 0 | ms.loss.cross_entropy(logits, targets)")
      has(message(function() train:step(batch { -100, -100, 2, 1 }) end), "micro-batch 1 of 2")
      assert.same(before, train:parameter("w"):tolist())
      has(message(function() train:evaluate(once(batch { -100, -100, -100, -100 })) end),
        "train:evaluate | ignored | rank 0")
      assert.truthy(train:step(batch { 2, 1, -100, 1 }).loss > 0)
      assert.truthy(train:evaluate(once(batch { 2, -100, -100, -100 })) > 0)
    end
  end)

  it("S6 are NaN in a call, and for eager tensors", function()
    local x, none = ms.tensor(LOGITS), ms.tensor { -100, -100, -100, -100, dtype = "i32" }
    for _, cross_entropy in ipairs { ms.loss.cross_entropy, ms.loss.cross_entropy { z_loss = 1e-4 } } do
      local Net = ms.module "Net"
      function Net:init() self.w = ms.parameter { 3 } end
      function Net:forward(logits, targets) return cross_entropy(logits + self.w, targets) end
      for _, value in ipairs { cross_entropy(x, none):item(), Net()(x, none):item() } do
        assert.not_equal(value, value)
      end
      assert.truthy(cross_entropy(x, ms.tensor { 1, -100, 2, 0, dtype = "i32" }):item() > 0)
    end
  end)

  it("S16 an evaluation weighs batches by their targets", function()
    local train, i = trainer(ms.loss.cross_entropy), 0
    local batches = { batch { 2, -100, -100, -100 }, batch { 2, 0, 1, 0 } }
    local got = train:evaluate(function()
      i = i + 1
      if batches[i] then return i, batches[i] end
    end)
    assert.near((2 * nll(1, 2) + nll(2, 0) + nll(3, 1) + nll(4, 0)) / 5, got, 1e-6)
  end)

  it("S13 a reduction that is none is refused", function()
    local text = message(function() ms.loss.cross_entropy { reduction = "sum" } end)
    has(text, 'reduction | "tokens" | "mean"')
  end)
end)
