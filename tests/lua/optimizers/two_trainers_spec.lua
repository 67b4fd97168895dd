-- Two trainers of one model, each for parameters of its own, as in a GAN: gradients pass through what a trainer leaves
-- alone. The expected numbers are PyTorch's, in f64, with two optimizers and `detach`.

local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local RECIPE = "tests/lua/optimizers/recipes/adversarial.lua"

-- Loss and gradient norm of the discriminator's and of the generator's step, in three rounds.
local ADAMW = { { 2.508838, 5.403486, 0.6760612, 1.241985 }, { 1.930799, 3.759316, 0.3614781, 0.6086686 },
  { 1.444581, 3.975571, 0.3775832, 0.3402375 } }
local SGD = { { 2.508838, 5.403486, 0.5382404, 1.095443 }, { 1.622698, 3.355711, 0.479706, 0.8564656 },
  { 1.150132, 3.006774, 0.5670903, 0.7034266 } }
local CLIPPED = { { 2.508838, 5.403486, 0.6760627, 1.241985 }, { 1.930798, 3.759316, 0.3669162, 0.6111902 },
  { 1.433034, 3.948482, 0.3961928, 0.3489548 } }

local function run(ranks, ...) return { "run", RECIPE, "-n", ranks, "--timeout", "120", ... } end

-- Sizes of replicate, shard and tensor.
local cases = {
  ["one rank"] = { ADAMW, run("1") },
  ["sgd"] = { SGD, run("2", "mesh=2x1x1", "optimizer=sgd") },
  ["clipped"] = { CLIPPED, run("4", "mesh=1x4x1", "clip=0.1", "layout=ragged") },
  ["every dimension"] = { ADAMW, run("8", "mesh=2x2x2", "recompute=true", "micro_batches=2") },
}

local function rounds_of(out)
  local rounds = {}
  for numbers in out:gmatch("round %d: ([^\n]*)") do
    local list = {}
    for number in numbers:gmatch("%S+") do list[#list + 1] = tonumber(number) end
    rounds[#rounds + 1] = list
  end
  return rounds
end

local function assert_close(expected, got, what)
  assert.equal(#expected, #got, what)
  for i, number in ipairs(expected) do assert.near(number, got[i], 5e-6 * math.max(1, number), what) end
end

describe("two trainers of one model", function()
  teardown(scratch.clear)

  it("S18 train their own parameters as PyTorch's two optimizers do, and leave the others bit for bit", function()
    local runs = {}
    for name, case in pairs(cases) do runs[name] = case[2] end
    for name, ended in pairs(program.run_all(runs)) do
      assert.equal(0, ended.status, name .. ": " .. ended.err)
      local got, expected = rounds_of(ended.out), cases[name][1]
      assert.equal(3, #got, name)
      for i = 1, 3 do assert_close(expected[i], got[i], name) end
    end
  end)

  it("S18 go on from a checkpoint of one of them, on another mesh", function()
    local folder = scratch.path()
    local saved = program.run(run("4", "mesh=2x1x2", "rounds=2", "saves=" .. folder))
    assert.equal(0, saved.status, saved.err)
    local resumed = program.run(run("2", "mesh=1x2x1", "rounds=1", "loads=" .. folder))
    assert.equal(0, resumed.status, resumed.err)
    assert_close(ADAMW[3], rounds_of(resumed.out)[1], "resumed")
  end)
end)

describe("a trainer's freeze", function()
  local ms = require("moonshard")
  local message = require("lua.support.fixture").message

  local function pair()
    local Pair = ms.module "Pair"
    function Pair:init() self.g, self.d = ms.nn.linear(2, 4), ms.nn.linear(4, 1) end
    function Pair:forward(x) return self.d(self.g(x)) end
    return ms.fully_shard(Pair(), {})
  end

  local function trainer(model, optimizer, frozen, more)
    local o = { model = model, optimizer = optimizer, loss = ms.loss.mse, freeze = frozen }
    for key, value in pairs(more or {}) do o[key] = value end
    return ms.trainer(o)
  end

  it("S18 is refused by name where nothing trains, where it matches nothing, and for another model", function()
    local sgd = ms.optim.sgd { lr = 0.5 }
    has(message(function() trainer(pair(), sgd, { ms.re"." }) end), "freeze | every parameter")
    has(message(function() trainer(pair(), sgd, { "discriminator" }) end), "freeze | discriminator | matches none")
    has(message(function() trainer(pair(), sgd, { { "d", 1 } }) end), "freeze | true or false")
    local judge = pair()
    has(message(function()
      ms.trainer { model = pair(), optimizer = sgd, forward = function(net, b)
        return ms.loss.mse(judge.d(net.g(b.inputs)), b.targets)
      end }:step { inputs = ms.ones(4, 2), targets = ms.ones(4, 1) }
    end), "[1,4] | one model | freeze")
  end)

  it("S18 share optimizers by rules: those of one list, or of equal lists with the same optimizers", function()
    local model, muon, sgd = pair(), ms.optim.muon { lr = 0.5 }, ms.optim.sgd { lr = 0.5, momentum = 0.9 }
    local batch = { inputs = ms.randn { 4, 2, seed = 1 }, targets = ms.ones(4, 1) }
    local rules = { { ms.re"weight", muon }, { ms.re".", sgd } }
    local judge, forge = trainer(model, rules, { "g" }), trainer(model, rules, { "d" })
    assert.equal(judge.optimizer, forge.optimizer) -- a change of rules by one is for both
    local third = trainer(model, { { ms.re"weight", muon }, { ms.re".", sgd } }, { "d" })
    for _, train in ipairs({ judge, forge, third }) do train:step(batch) end
    for name, updates in pairs({ ["d.weight"] = 1, ["d.bias"] = 1, ["g.weight"] = 2, ["g.bias"] = 2 }) do
      assert.equal(updates, forge:optimizer_state(name, "step"):item(), name)
    end
    for _, others in ipairs({ { { ms.re"bias", sgd }, { ms.re".", muon } }, { { ms.re".", sgd } },
      { { ms.re"weight", ms.optim.muon { lr = 0.5 } }, { ms.re".", sgd } }, sgd }) do
      has(message(function() trainer(model, others, { "d" }) end), "different optimizer | rules")
    end
    has(message(function() trainer(model, rules, { "d" }, { ema = 0.5 }) end), "different ema")
  end)

  it("S18 lets averages follow every step of both trainers", function()
    local model, sgd = pair(), ms.optim.sgd { lr = 0.5 }
    local batch = { inputs = ms.randn { 4, 2, seed = 1 }, targets = ms.ones(4, 1) }
    local judge, forge = trainer(model, sgd, { "g" }, { ema = 0.5 }), trainer(model, sgd, { "d" }, { ema = 0.5 })
    local function first() return model:parameter("g.weight"):reshape(-1):tolist()[1] end
    local expected
    for step, train in ipairs({ forge, forge, judge, forge, judge }) do
      train:step(batch)
      local p, average = first(), nil
      judge:with_ema(function() average = first() end)
      expected = step == 1 and p or 0.5 * expected + 0.5 * p
      assert.near(expected, average, 1e-6)
    end
  end)
end)
