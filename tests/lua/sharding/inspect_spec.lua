-- Looking into a sharded model and changing its rules while it trains: on real ranks by
-- tests/lua/sharding/recipes/inspect.lua, and the rest in this process, a world of one.

local ms = require("moonshard")
local json = require("cjson")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local fixture = require("lua.support.fixture")
local message = fixture.message

local function run(ranks, settings)
  local out = os.tmpname()
  local words = { "run", "tests/lua/sharding/recipes/inspect.lua", "-n", tostring(ranks), "out=" .. out }
  for name, value in pairs(settings) do words[#words + 1] = ("%s=%s"):format(name, tostring(value)) end
  local ended = program.run(words)
  assert(ended.status == 0, ended.err)
  local file = assert(io.open(out))
  local text = file:read("*a")
  file:close()
  os.remove(out)
  return json.decode(text)
end

local function assert_fails(text, call)
  local got = message(call)
  has(got, text)
end

local function each_number(value, visit)
  if type(value) ~= "table" then return visit(value) end
  for _, item in ipairs(value) do each_number(item, visit) end
end

local function norm_of(values)
  local sum = 0
  for _, value in pairs(values) do each_number(value, function(x) sum = sum + x * x end) end
  return math.sqrt(sum)
end

local function assert_near(expected, got, tolerance, what)
  if type(expected) ~= "table" then return assert.near(expected, got, tolerance, what) end
  for key, item in pairs(expected) do assert_near(item, got[key], tolerance, what) end
end

local NUMBERS = { "before", "losses", "parameters", "gradients", "states" }

local function assert_same_run(expected, got)
  for _, what in ipairs(NUMBERS) do assert.same(expected[what], got[what], what) end
end

describe("a run whose rules change", function()
  it("S4 I3 equals one that had the second rule from the start", function()
    local changes = {
      { "never", "always", "2x2" }, { "always", "mixed", "2x2" }, { "default", "never", "1x4" },
      { "never", "pairs", "1x4" }, { "pairs", "always", "1x4" },
    }
    for _, change in ipairs(changes) do
      local changed = run(4, { first = change[1], second = change[2], mesh = change[3] })
      local fixed = run(4, { first = change[2], mesh = change[3] })
      assert_same_run(fixed, changed)
      assert.equal(fixed.tree, changed.tree)
      assert.same(fixed.collectives, changed.collectives)
      assert.not_equal(changed.plans[1], changed.plans[2])
      assert.equal(fixed.plans[2], changed.plans[2])
      assert.equal(changed.changed.fingerprint, changed.plans[2])
    end
  end)

  it("I3 with the layout ragged, micro-batches and SGD", function()
    local settings = { layout = "ragged", micro = 3, optimizer = "sgd" }
    local function with(first, second)
      local all = { first = first, second = second, change_at = 2 }
      for name, value in pairs(settings) do all[name] = value end
      return run(2, all)
    end
    settings.mesh = "1x2"
    assert_same_run(with("always", ""), with("never", "always"))
  end)
end)

describe("inspection", function()
  it("I3 gives gradients as the step used them, on any mesh", function()
    local alone = run(1, { mesh = "1x1" })
    assert.near(alone.norm, norm_of(alone.gradients), 1e-5)
    for _, settings in ipairs({ { mesh = "1x4" }, { mesh = "2x2", micro = 3 }, { mesh = "4x1", layout = "ragged" } }) do
      local ranks = run(4, settings)
      assert.near(ranks.norm, norm_of(ranks.gradients), 1e-5)
      assert_near(alone.before, ranks.before, 0, "initial parameters")
      assert_near(alone.gradients, ranks.gradients, 1e-5, "gradients")
      assert_near(alone.states, ranks.states, 1e-5, "states")
      for name, gradient in pairs(ranks.gradients) do -- each element is one rank's own
        local count, total = 0, 0
        each_number(gradient, function(x) count, total = count + 1, total + x end)
        assert.equal(count, ranks.parts[name].count)
        assert.near(total, ranks.parts[name].total, 1e-5)
      end
    end
  end)

  it("I3 gives the optimizer's state: after one step of AdamW a tenth of the gradient", function()
    local ended = run(2, { mesh = "1x2", steps = 1 })
    local clip = math.min(1, 0.5 / ended.norm)
    for name, gradient in pairs(ended.gradients) do
      local flat = {}
      each_number(gradient, function(x) flat[#flat + 1] = x end)
      local i = 0
      each_number(ended.states[name].exp_avg, function(x)
        i = i + 1
        assert.near(0.1 * clip * flat[i], x, 1e-6)
      end)
    end
  end)
end)

-- ---- a world of one -----------------------------------------------------------------------------------------------

local small, batch = fixture.small_trainer, fixture.small_batch()

describe("parameters", function()
  it("I3 can be set", function()
    local train = small()
    train:set_parameter("0.weight", ms.full({ 4, 3 }, 0.5))
    assert.equal(6, train:parameter("0.weight"):sum():item())
    train:set_parameter("0.bias", { 1, 2, 3, 4 })
    assert.same({ 1, 2, 3, 4 }, train:local_parameter("0.bias"):tolist())
    assert_fails("[4] | [3]", function() train:set_parameter("0.bias", { 1, 2, 3 }) end)
    assert_fails("0.wieght | 0.weight", function() train:parameter("0.wieght") end)
  end)

  it("I3 have gradients and optimizer state once a step was run", function()
    local train = small()
    assert_fails("gradient | step", function() train:gradient("0.weight") end)
    train:step(batch)
    assert.same(train:gradient("0.weight"):tolist(), train:local_gradient("0.weight"):tolist())
    assert.same(train:optimizer_state("0.bias", "exp_avg_sq"):tolist(),
      train:local_optimizer_state("0.bias", "exp_avg_sq"):tolist())
    assert_fails("adamw | momentum | exp_avg | exp_avg_sq",
      function() train:optimizer_state("0.weight", "momentum") end)
  end)

  it("S7 updates masters by less than bf16 can represent", function()
    local model = ms.fully_shard(ms.nn.linear(8, 8), { mp_policy = { param_dtype = "bf16", reduce_dtype = "bf16" } })
    local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.adamw { lr = 1e-6 } }
    local before = train:parameter("weight")
    train:step { inputs = ms.randn { 4, 8, seed = 1 }, targets = ms.zeros { 4, 8 } }
    local after = train:parameter("weight")
    assert(((after - before) ^ 2):sum():item() > 0)
    assert.equal("f32", after.dtype)
    local moment = train:optimizer_state("weight", "exp_avg_sq")
    assert(((moment - moment:cast("bf16"):cast("f32")) ^ 2):sum():item() > 0)
  end)

  it("S8 that are frozen have no gradient and no optimizer state", function()
    local model = ms.fully_shard(ms.nn.linear(3, 2), { freeze = { "bias" } })
    local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.adamw { lr = 1 } }
    train:step(batch)
    assert_fails("frozen", function() train:gradient("bias") end)
    assert_fails("frozen", function() train:optimizer_state("bias", "exp_avg") end)
  end)

  it("I3 are the same for all ranks, or refused", function()
    local recipe = program.recipe([==[
      local ms = require "moonshard"
      local model = ms.fully_shard(ms.nn.linear(3, 4))
      local rank = ms.world().rank
      local ok, raised = pcall(model.set_parameter, model, "bias", ms.full({ 4 }, rank))
      assert(not ok and tostring(raised):find("values", 1, true), tostring(raised))
      ok, raised = pcall(model.parameter, model, rank == 0 and "weight" or "bias")
      assert(not ok and tostring(raised):find("'bias'", 1, true), tostring(raised))
      assert(tostring(raised):find("'weight'", 1, true), tostring(raised))
      local name = rank == 0 and "weight" or "bias"
      local shape = rank == 0 and { 4, 3 } or { 4 }
      ok, raised = pcall(model.set_parameter, model, name, ms.zeros(shape))
      assert(not ok and tostring(raised):find("parameter", 1, true), tostring(raised))
      model:set_parameter("bias", ms.ones(4))
      assert(model:parameter("bias"):sum():item() == 4)
      if rank == 0 then print("fine") end
    ]==])
    local ended = program.run({ "run", recipe, "-n", "2" })
    os.remove(recipe)
    assert.equal("fine\n", ended.out, ended.err)
  end)
end)
