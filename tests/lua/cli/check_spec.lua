-- moonshard check: recipes on many ranks compared with the same on one, and the code that compares them.

local check_certainty = require("moonshard.check.root_sensitivity")
local lion_certainty = require("moonshard.check.sign_sensitivity")
local compare = require("moonshard.check.tolerance")
local files = require("moonshard.check.files")
local json = require("cjson")
local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local verdict = require("moonshard.check.report")
local ffi = require("ffi")

local RECIPE = "tests/lua/cli/recipes/mesh_dependent.lua"

local function check(...)
  return program.run({ "check", ... })
end

describe("check", function()
  it("finds recipes of the tree equal to themselves on one rank", function()
    for _, arguments in ipairs({
      { "recipes/toy_hsdp.lua", "-n", "4" }, { "recipes/random_linear.lua", "-n", "3" },
      { "recipes/quickstart.lua", "-n", "4", "--steps", "2", "layers=2", "dim=32", "seq=16" },
    }) do
      local ended = check(unpack(arguments))
      assert.equal(0, ended.status, ended.err .. ended.out)
      has(ended.out, "tolerance")
    end
  end)

  it("compares on every mesh, with dropout, micro-batches, and batches made by hand or by a loader", function()
    for _, feed in ipairs(breadth.few({ "hand", "random" })) do
      for _, mesh in ipairs(breadth.few({ { 1, "1x1" }, { 3, "1x3" }, { 2, "2x1" }, { 4, "2x2" } })) do
        local ended = check(RECIPE, "-n", tostring(mesh[1]), "mesh=" .. mesh[2], "dropout=0.25", "micro=2",
          "feed=" .. feed)
        assert.equal(0, ended.status, ended.err .. ended.out)
      end
    end
  end)

  it("reports the first difference, and exits with 3", function()
    local ended = check(RECIPE, "-n", "3", "scale=0.1")
    assert.equal(3, ended.status)
    assert.equal("", ended.err)
    assert.truthy(ended.out:find("step 1[^\n]*loss[^\n]*1.4144%d+[^\n]*1.2858%d+"), ended.out)
    has(ended.out, "step 1 | grad_norm")
    has(ended.out, "step 1 | 0.weight[")
    has(ended.out, "3 parameters")
    assert.falsy(ended.out:find("step\t1", 1, true)) -- what the recipe prints
  end)

  it("finds the step after which a parameter differs first, though it compares the last", function()
    for _, from in ipairs(breadth.few({ 2, 6, 4 })) do
      local ended = check(RECIPE, "-n", "2", "--steps", "6", "--json", "scale=0.5", "from=" .. from)
      assert.equal(3, ended.status, ended.err)
      local told = json.decode(ended.out)
      assert.is_false(told.same)
      assert.equal(from, told.first_parameter.step)
      assert.equal(6, told.steps)
      for _, finding in ipairs(told.findings) do
        assert.equal(finding.what == "parameter" and 6 or from, finding.step)
      end
    end
  end)

  it("says in JSON that all is equal", function()
    local told = json.decode(check(RECIPE, "-n", "2", "--json").out)
    assert.is_true(told.same)
    assert.equal(5, told.steps)
    assert.equal("1x2 (replicate, shard)", told.mesh)
    assert.same({}, told.findings)
  end)

  it("takes a tolerance, and as many steps as there are", function()
    assert.equal(0, check(RECIPE, "-n", "2", "scale=0.1", "--rtol", "10").status)
    local ended = check(RECIPE, "-n", "2", "--steps", "50", "steps=3")
    assert.equal(0, ended.status, ended.err)
    has(ended.out, "3 steps")
  end)

  it("refuses bad input with 2, and leaves no folder behind", function()
    local folder = files.temporary_folder()
    for text, arguments in pairs({
      ["training step"] = { RECIPE, "-n", "2", "train=false" },
      ["--rtol 0 | above 0"] = { RECIPE, "--rtol", "0" },
      ["stpes | steps"] = { RECIPE, "-n", "2", "stpes=3" },
      ["mesh 2x2"] = { RECIPE, "-n", "3", "mesh=2x2" },
      ["recipe"] = { "-n", "2" },
    }) do
      local ended = program.run({ "check", unpack(arguments) }, "TMPDIR=" .. folder)
      assert.equal(2, ended.status, text .. ": " .. ended.err)
      has(ended.err, text)
    end
    assert.equal(0, program.run({ "check", RECIPE, "-n", "2" }, "TMPDIR=" .. folder).status)
    assert.equal(3, program.run({ "check", RECIPE, "-n", "2", "scale=0.1" }, "TMPDIR=" .. folder).status)
    assert.is_true(os.remove(folder)) -- only an empty one can be
  end)

  it("Q6 refuses sums in few bits that are clipped by value, which it has no bound for", function()
    local recipe = program.recipe([[
      local ms = require "moonshard"
      local model = ms.nn.linear(8, 8)
      ms.fully_shard(model, { mesh = ms.init_device_mesh("cpu", { 1, 2 }, { "replicate", "shard" }),
        mp_policy = { reduce_dtype = { shard = "i8" } } })
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse,
        clip_grad_value = 0.001 }
      train:step { inputs = ms.ones { 2, 8 }, targets = ms.zeros { 2, 8 } }
    ]])
    local ended = check(recipe, "-n", "2")
    os.remove(recipe)
    assert.is_true(ended.status ~= 0)
    has(ended.err, "clipped by value | without clip_grad_value")
  end)

  it("counts AdamW's rounding where a gradient is zero but for rounding", function()
    -- The bias of attention's keys has no gradient: softmax takes what is added to all scores away again.
    local ended = check("recipes/llama.lua", "-n", "2", "--steps", "3", "seq=8", "batch=1")
    assert.equal(0, ended.status, ended.out)
  end)
end)

describe("check of a recipe that trains otherwise on its ranks", function()
  local RECIPE_WRONG = "tests/lua/recipes/parity.lua"

  -- The parameters that differ.
  local function differing(dtype, ...)
    local ended = check(RECIPE_WRONG, "-n", "2", "--steps", "10", "--json", "mesh=1x2", "dtype=" .. dtype, "alone=true",
      "optimizer=sgd", ...)
    assert.equal("", ended.err)
    local names = {}
    for _, finding in ipairs(json.decode(ended.out).findings) do
      if finding.name then names[finding.name] = true end
    end
    return names, ended.status
  end

  for _, dtype in ipairs(breadth.few { "f32", "bf16" }) do
    it("S13 finds a norm that is not updated, one step without clipping, half of a gradient in " .. dtype, function()
      local names, status = differing(dtype, "wrong=norm", "wrong_at=0")
      assert.equal(3, status)
      assert.is_truthy(names["norm.weight"] and names["norm.bias"])
      names, status = differing(dtype, "wrong=clip", "wrong_at=2")
      assert.equal(3, status)
      assert.is_truthy(next(names))
      names, status = differing(dtype, "wrong=half")
      assert.equal(3, status)
      assert.is_truthy(names["layers.1.fc2.bias"])
      names, status = differing(dtype)
      assert.equal(0, status)
      assert.same({}, names)
    end)
  end
end)

describe("compare", function()
  local function lists(expected, got, tolerance)
    return compare.arrays(expected, got, { count = #expected, tolerance = tolerance or 1e-5 })
  end

  it("measures against the largest value, and gives the element that is off the most", function()
    local worst = lists({ 100, 1, 2 }, { 100, 1.0005, 2.002 })
    assert.equal(2, worst.at)
    assert.is_true(worst.differs)
    assert.equal(2, worst.first)
    assert.is_false(lists({ 100, 1, 2 }, { 100, 1.0005, 2.0008 }).differs)
    assert.equal(1, lists({ 1, 1, 1 }, { 1, 2, 4 }).first)
  end)

  it("takes no NaN for equal, nor an infinity, and no elements for nothing", function()
    assert.is_true(lists({ 1, 2 }, { 0 / 0, 2 }).differs)
    assert.is_true(lists({ 1, 2 }, { 1, 0 / 0 }).differs)
    assert.is_true(lists({ 1, 2 }, { math.huge, 2 }).differs)
    assert.equal(0, lists({ 1, 2 }, { 0 / 0, 5 }).at)
    assert.is_nil(lists({}, {}))
  end)

  it("with a tolerance of 0 asks for the same bits", function()
    assert.is_false(lists({ 1, 2 }, { 1, 2 }, 0).differs)
    assert.is_true(lists({ 1, 2 }, { 1, 2 + 2 ^ -51 }, 0).differs)
  end)
end)

describe("certainty", function()
  local steps

  -- exp_avg_sq of three elements after a step of one rank.
  local function step(squares)
    local trainer = {
      session = { sharding = { params = { { fqn = "w", numel = 3 }, { fqn = "b", numel = 3, frozen = true } } } },
      optimizer = { kind = "adamw", betas = { 0.9, 0.999 }, eps = 1e-8, part_of = function(self) return self end,
        param_groups = function() return { w = {}, b = {} } end },
    }
    function trainer:optimizer_state(name, what)
      assert.same({ "w", "exp_avg_sq" }, { name, what })
      return { data = ffi.new("float[3]", squares) }
    end
    steps:note(trainer)
    local bytes, values = steps:of(trainer.session.sharding.params[1]), ffi.new("float[3]")
    ffi.copy(values, bytes, #bytes)
    return { values[0], values[1], values[2] }
  end

  local function assert_near(expected, got)
    for i, value in ipairs(expected) do
      assert.is_true(math.abs(got[i] / value - 1) < 1e-3, ("%d: %g"):format(i, got[i]))
    end
  end

  before_each(function() steps = check_certainty.new() end)

  it("is that of the step with the smallest gradients next to the largest, and eps", function()
    -- Gradients 1, 1e-7 and 0, then all of them 1: the second element went the first time where rounding sent it.
    assert_near({ 1, 1.1e-7, 1e-8 }, step { 1e-3, 1e-17, 0 })
    assert_near({ 1, 1.1e-7, 0.7073 }, step { 1.999e-3, 1e-3, 1e-3 })
  end)

  it("is whole before anything has a gradient", function()
    assert_near({ 1, 1, 1 }, step { 0, 0, 0 })
  end)
end)

describe("certainty of Lion", function()
  -- Of gradients of two elements, by step: exp_avg by beta2, as the trainer has it.
  local function after(gradients)
    local steps, moment, param = lion_certainty.new(), ffi.new("float[2]"), { fqn = "w", numel = 2 }
    local trainer = { session = { sharding = { params = { param } } }, optimizer = {
      kind = "lion", betas = { 0.5, 0.75 }, part_of = function(self) return self end,
      param_groups = function() return { w = {} } end,
    } }
    function trainer.optimizer_state() return { data = moment } end
    for _, g in ipairs(gradients) do
      for e = 0, 1 do moment[e] = 0.75 * moment[e] + 0.25 * g[e + 1] end
      steps:note(trainer)
    end
    local values = ffi.new("float[2]")
    ffi.copy(values, steps:of(param), 8)
    return { values[0], values[1] }
  end

  it("is that of the smallest sum of momentum and gradient, next to the largest", function()
    assert.same({ 1, 0.25 }, after { { 1, -0.25 } })
    -- The second element's momentum is then 0.25, and 0.5 0.25 + 0.5 -0.1875 = 0.03125.
    assert.same({ 1, 0.03125 }, after { { 3, 1 }, { 1.25, -0.1875 } })
  end)

  it("is 0 for an element that never had a gradient", function()
    assert.same({ 1, 0 }, after { { 1, 0 } })
  end)
end)

describe("verdict", function()
  local function run(o)
    local values = ffi.new("float[?]", #o.values, o.values)
    return {
      steps = o.steps or { { trainer = 1, loss = 1, grad_norm = 1, lr = 0.01 } }, values = values,
      value_count = #o.values,
      trainers = { { optimizer = o.optimizer or "sgd", dtype = "f32",
        params = { { name = "w", shape = { 2 }, numel = 2, frozen = false, lr_scale = 1,
          optimizer = o.optimizer or "sgd" } } } },
    }
  end

  it("lets AdamW move an element whose gradients are rounding by the learning rate, and no other", function()
    local certain = { 1, 1e-9 }
    local one = run { values = { 1, 1, 0.99, 1, unpack(certain) }, optimizer = "adamw" }
    local function verdict_of(values)
      return verdict.of(run { values = values, optimizer = "adamw" }, one, { wrong = {} })
    end
    assert.is_true(verdict_of({ 1, 1.019 }).same)
    assert.is_false(verdict_of({ 1, 1.021 }).same)
    local found = verdict_of({ 1.019, 1 })
    assert.is_false(found.same)
    assert.same({ 0 }, found.findings[1].element)
  end)

  it("measures differences against what training changed, not against the values", function()
    local one = run { values = { 100, 50, 99.5, 50 } } -- an update of 0.5; 1e-5 of it, 6 times, and rounding
    assert.is_true(verdict.of(run { values = { 100.00003, 50 } }, one, { wrong = {} }).same)
    assert.is_false(verdict.of(run { values = { 100.0002, 50 } }, one, { wrong = {} }).same)
  end)

  it("reports another number of steps, and settings that a plan lacks, as differences", function()
    local one = run { values = { 1, 1, 0.5, 0.5 } }
    assert.equal("steps", verdict.of(run { values = { 1, 1 }, steps = {} }, one, { wrong = {} }).findings[1].what)
    local found = verdict.of(run { values = { 1, 1 } }, one, { wrong = { "rank 1: collectives" } })
    assert.is_false(found.same)
    assert.equal("rank 1: collectives", verdict.text(found.findings[1]))
  end)

  it("H9 compares ranks of several hosts with one rank of the first", function()
    local function check_hosts(...)
      return program.run { "check", "recipes/toy_hsdp.lua", "--agent", "tests/fuzz/agent.sh", "--rendezvous",
        "tcp://127.0.0.1", "--hosts", ... }
    end
    for hosts, mesh in pairs({ ["a:2,b:2"] = "2x2", ["a:1,b:1,c:1"] = "1x3" }) do
      local ended = check_hosts(hosts, "mesh=" .. mesh)
      assert.equal(0, ended.status, ended.err)
      has(ended.out, "mesh " .. mesh)
      has(ended.out, "5 steps | 4 parameters")
    end
    local ended = check_hosts("a:2,b:2", "--rtol", "1e-12", "--json")
    assert.equal(3, ended.status)
    assert.equal("", ended.err)
    local found = json.decode(ended.out)
    assert.is_false(found.same)
    assert.equal("loss", found.findings[1].what)
    has(check_hosts("a:1,b:1", "mesh=3x3").err, "mesh | 9")
    has(program.run({ "check", "recipes/toy_hsdp.lua" }, "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1").err,
      "moonshard check | --hosts")
  end)
end)
