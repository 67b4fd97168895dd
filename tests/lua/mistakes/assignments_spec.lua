-- Assigning to what was read once: refused where it is written, with what changes it instead; and what is the user's
-- own to assign, which stays possible.

local ms = require("moonshard")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local message, re = fixture.message, ms.re

local groups
local function trainer(more)
  groups = { { "0.bias", { weight_decay = 0 } } }
  local o = { optimizer = ms.optim.adamw { lr = 0.1, groups = groups } }
  for name, value in pairs(more or {}) do o[name] = value end
  return fixture.small_trainer(o)
end

local function set(object, name, value) object[name] = value end

local function muon()
  return { { re[[weight$]], ms.optim.muon { lr = 0.1 } }, { re".", ms.optim.adamw { lr = 0.1 } } }
end

local function text() return ms.data.text { files = "LICENSE", seq = 8, batch = 2 } end

-- Each has: the object, the field, and what is said.
local REFUSED = {
  { trainer, "clip_grad_norm", "clip_grad_norm | trainer | ms.trainer" },
  { trainer, "micro_batches", "micro_batches | trainer | ms.trainer" },
  { trainer, "loss", "loss | trainer | ms.trainer" },
  { trainer, "forward", "forward | trainer | ms.trainer" },
  { trainer, "lr", "lr | trainer | train:set_rules { lr" },
  { trainer, "learning_rate", "lr? | train:set_rules { lr" },
  { trainer, "max_grad_norm", "clip_grad_norm? | ms.trainer" },
  { trainer, "optimizer", "optimizer | trainer | train:set_rules" },
  { trainer, "verbose", "verbose | trainer | variables" },
  { function() return trainer().optimizer end, "lr", "lr | optimizer | train:set_rules { lr" },
  { function() return trainer().optimizer end, "weight_decay", "weight_decay | optimizer | train:set_rules" },
  { function() return trainer().optimizer end, "param_groups", "param_groups | optimizer | { groups" },
  { function() return trainer().optimizer end, "betas", "betas | optimizer | ms.optim" },
  { function() return ms.nn.linear(2, 3) end, "training", "a Linear | training | mode | train:evaluate" },
  { function() return ms.nn.dropout(0.5) end, "training", "a Dropout | training | mode" },
  { function() return ms.nn.linear(2, 3) end, "requires_grad", "a Linear | requires_grad | freeze" },
  { function() return ms.fully_shard(ms.nn.linear(2, 3)).weight end, "frozen",
    "frozen | parameter | ms.fully_shard | freeze" },
  { function() return ms.nn.linear(2, 3) end, "frozen", "a Linear | frozen | freeze" },
  { function() return ms.nn.linear(2, 3) end, "dtype", "a Linear | dtype | mp_policy" },
  { function() return ms.nn.linear(2, 3).weight end, "frozen", "frozen | parameter | true or false | 3" },
  { function() return ms.nn.linear(2, 3).weight end, "shape", "shape | parameter | ms.parameter" },
  { function() return ms.fully_shard(ms.nn.linear(2, 3)).weight end, "init", "init | parameter | set_parameter" },
  { function() return ms.nn.linear(2, 3).weight end, "requires_grad", "parameter | requires_grad" },
  { function() return ms.fully_shard(ms.nn.linear(2, 3)):parameter("weight") end, "requires_grad",
    "tensor | requires_grad | freeze" },
  { function() return ms.zeros(3) end, "name", "tensor | name" },
  { function() return ms.init_device_mesh("cpu", 1) end, "device", "device | mesh | ms.init_device_mesh" },
  { function() return ms.data.sampler { length = 9 } end, "epoch", "epoch | sampler | sampler:set_epoch" },
  { function() return ms.data.sampler { length = 9 } end, "seed", "seed | sampler | ms.data.sampler" },
  { text, "batch", "batch | data loader | ms.data" },
  { text, "position", "position | data loader | data:load_state" },
  { function() return text().valid end, "shuffle", "shuffle | data loader" },
  { function() return ms.data.mix { { text() }, { text() } } end, "batch", "batch | mix of data | ms.data" },
  { function() return ms.data.masked { text(), mask = 1, vocab = 9 } end, "fraction", "fraction | masked data" },
  { function() return ms.data.random { inputs = 2, targets = 2 } end, "seed", "seed | random data | ms.data" },
  { function() return fixture.gpt2().config end, "dropout", "dropout | model's config | ms.models" },
}

describe("assigning to", function()
  for i, case in ipairs(REFUSED) do
    it(("%s is refused, %d"):format(case[2], i), function()
      local object = case[1]()
      local before = type(object) == "table" and case[2] ~= "requires_grad" and case[2] ~= "name" and object[case[2]]
      local said = message(set, object, case[2], 3)
      has(said, case[3])
      assert.truthy(said:find("tests/lua/mistakes/assignments_spec.lua:%d+: "), said)
      if before then assert.equal(before, object[case[2]]) end
    end)
  end

  it("an optimizer by rules is refused", function()
    local model = ms.fully_shard(ms.nn.linear(3, 2), {})
    local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = muon() }
    has(message(set, train.optimizer, "lr", 3), "lr | rule")
    assert.equal("adamw", train.optimizer.kind)
  end)

  it("tables among the settings is refused at the next step, with both values", function()
    local train = trainer()
    train:step(fixture.small_batch())
    groups[1][2].weight_decay = 0.5
    has(message(train.step, train, fixture.small_batch()),
      "groups[1][2].weight_decay | optimizer | was 0 | is 0.5 | train:set_rules { groups")
    train:set_rules { groups = groups }
    train:step(fixture.small_batch())
    local limits = { { re".", 1 } }
    local clipped = trainer { clip_grad_norm = limits }
    limits[1][2] = 2
    has(message(clipped.step, clipped, fixture.small_batch()), "clip_grad_norm[1][2] | trainer | was 1 | is 2")
  end)

  it("the recipe's own tables is refused, too, where a setting was read into another one", function()
    local frozen, ema, betas = { { "0.bias", true } }, { decay = 0.9 }, { 0.9, 0.99 }
    for _, case in ipairs({
      { { freeze = frozen }, function() frozen[1] = { "2.bias", true } end,
        "freeze[1][1] | a trainer | 0.bias | 2.bias" },
      { { ema = ema }, function() ema.decay = 0.5 end, "ema.decay | a trainer | 0.9 | 0.5" },
      { { optimizer = ms.optim.adamw { lr = 0.1, betas = betas } }, function() betas[1] = 0.5 end,
        "betas[1] | an optimizer | 0.9 | 0.5 | ms.optim" },
    }) do
      local train = trainer(case[1])
      train:step(fixture.small_batch())
      case[2]()
      has(message(train.step, train, fixture.small_batch()), case[3])
    end
    local rules = { { re[[^[02]\.weight$]], ms.optim.muon { lr = 0.1 } }, { re".", ms.optim.adamw { lr = 0.1 } } }
    local train = trainer { optimizer = rules }
    train:step(fixture.small_batch())
    rules[2][2] = ms.optim.sgd { lr = 0.1 }
    has(message(train.step, train, fixture.small_batch()), "rules[2][2] | optimizers by rules | is an optimizer")
  end)

  it("lists among the options of a model is refused at the next step", function()
    local slides, rope_scaling = { true, false }, { type = "linear", factor = 2 }
    local model = ms.fully_shard(ms.models.decoder {
      vocab = 16, layers = 2, dim = 8, heads = 2, ffn = 8, seq = 4, window = 2, slides = slides,
      rope_scaling = rope_scaling,
    })
    local train = ms.trainer { model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.sgd { lr = 0.1 } }
    local tokens = ms.tensor({ { 1, 2, 3, 4 } }, { dtype = "i32" })
    train:step { tokens = tokens, targets = tokens }
    model.config.slides[1] = false
    has(message(train.step, train, { tokens = tokens, targets = tokens }),
      "train:step | slides[1] | a model's config | was true and is false | ms.models")
    slides[1], rope_scaling.factor = true, 4
    has(message(train.step, train, { tokens = tokens, targets = tokens }),
      "rope_scaling.factor | a model's config | was 2 and is 4")
    rope_scaling.factor = 2
    train:step { tokens = tokens, targets = tokens }
  end)
end)

describe("assigning stays possible", function()
  it("to the steps of a trainer that goes on with another's schedule", function()
    local first = fixture.small_trainer { optimizer = ms.optim.sgd { lr = function(step) return step / 100 end } }
    for _ = 1, 3 do first:step(fixture.small_batch()) end
    local second = ms.trainer { model = first.model, optimizer = first.optimizer, loss = ms.loss.mse,
      clip_grad_norm = 1 }
    second.steps_done = first.steps_done
    assert.equal(0.04, second:step(fixture.small_batch()).lr)
    has(message(set, second, "steps_done", 0.5), "steps_done | trainer | whole number | 0.5")
    assert.equal(4, second.steps_done)
  end)

  it("to fields of the user's own on a model and its layers", function()
    local Net = ms.module "Net"
    function Net:init()
      self.fc, self.training = ms.nn.linear(3, 2), true
    end
    function Net:forward(x) return self.training and self.fc(x) or self.fc(x) * 2 end
    local net = Net()
    net.training, net.note, net.fc.note = false, "mine", { 3 }
    ms.fully_shard(net)
    net.note = "mine, too"
    assert.same({ false, "mine, too", 3 }, { net.training, net.note, net.fc.note[1] })
    assert.same({ 1, 2 }, net(ms.ones { 1, 3 }).shape)
  end)

  it("to a parameter before its model is sharded", function()
    local model = ms.nn.linear(3, 2)
    model.bias.frozen = true
    ms.fully_shard(model)
    assert.same({ true, false }, { model.bias.frozen, model.weight.frozen })
  end)

  it("to a parameter as to ms.parameter, with the same values and the same refusals", function()
    for _, case in ipairs({
      { "init", "zeros", 0 }, { "init", "ones", 1 }, { "init", 7, 7 }, { "init", ms.init.constant(3), 3 },
      { "balance", 0.5 }, { "frozen", true }, { "init", "none", "init | zeros | none" },
      { "init", {}, "init | zeros | table" }, { "frozen", 0, "frozen | true or false | 0" },
      { "frozen", "yes", "frozen | true or false | yes" }, { "frozen", {}, "frozen | true or false | table" },
      { "balance", 0, "balance | above 0 | 0" }, { "balance", "x", "balance | above 0 | x" },
    }) do
      local name, value, expected = unpack(case)
      local layer, declared = ms.nn.linear(1, 1, { bias = false }), { 1, 1, [name] = value }
      if type(expected) == "string" then
        has(message(set, layer.weight, name, value), expected)
        has(message(ms.parameter, declared), expected)
      else
        layer.weight[name] = value
        assert.equal(tostring(ms.parameter(declared)[name]), tostring(layer.weight[name]))
        if expected then assert.equal(expected, ms.fully_shard(layer):parameter("weight"):item()) end
      end
    end
  end)

  it("but not to the sizes of a parameter, nor to what it does not have", function()
    has(message(set, ms.nn.linear(2, 3).weight, "dtype", "bf16"), "dtype | a parameter | ms.fully_shard")
    has(message(set, ms.parameter { 2 }, "note", 3), "note | a parameter | init, frozen and balance")
    local layer = ms.nn.linear(2, 3)
    layer.weight.shape[1] = 5
    has(message(ms.fully_shard, layer), "shape[1] | a parameter | was 3 and is 5")
    has(message(ms.parameter, { 2, shape = { 3 } }), "ms.parameter | twice")
    has(message(ms.parameter, { { 2 }, 3 }), "ms.parameter | twice")
  end)

  it("and reading shows every field, also in loops", function()
    local train, seen = trainer { micro_batches = 2 }, {}
    for name, value in pairs(train) do seen[name] = value end
    assert.same({ 2, 0, "every" }, { seen.micro_batches, seen.steps_done, seen.gradient_sync })
    train:step(fixture.small_batch())
    assert.same({ 1, 2 }, { train.steps_done, train.micro_batches })
  end)

  it("but not to entries of a mesh, in ms.fully_shard and in every step", function()
    local mesh = ms.init_device_mesh("cpu", 1)
    mesh.shape[1] = 2
    has(message(ms.fully_shard, ms.nn.linear(2, 3), { mesh = mesh }), "ms.fully_shard | shape[1] | a mesh | 1 and is 2")
    local train = trainer()
    train.model.sharding.mesh.names[1] = "replicate"
    has(message(train.step, train, fixture.small_batch()), "train:step | names[1] | a mesh | is \"replicate\"")
  end)

  it("and a forward that reads a field of a trainer is watched as before", function()
    local train
    train = fixture.small_trainer { loss = function(y, targets)
      return ms.loss.mse(y, targets) * (1 + (train and train.steps_done or 0))
    end }
    local batch = fixture.small_batch()
    train:step(batch)
    has(message(train.step, train, batch), "train.steps_done was 0 and is 1")
  end)
end)
