-- Recipes that make no sense are refused where they say so, not later and not in silence; and what looks odd but makes
-- sense is taken.

local ms = require("moonshard")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local message = require("lua.support.fixture").message
local re = ms.re

local NAN = 0 / 0

local function layers()
  return ms.nn.sequential { ms.nn.linear(3, 4), ms.ops.gelu, ms.nn.linear(4, 2) }
end

local function shard(config)
  config.units = config.units or { re[[^\d$]] }
  return ms.fully_shard(layers(), config)
end

local function trainer(options)
  local settings = { model = shard {}, loss = ms.loss.mse, optimizer = ms.optim.adamw { lr = 0.1 } }
  for name, value in pairs(options or {}) do settings[name] = value end
  return ms.trainer(settings)
end

local batch = { inputs = ms.randn { 6, 3, seed = 1 }, targets = ms.randn { 6, 2, seed = 2 } }

local function named(name)
  local model = layers()
  model[name] = ms.nn.linear(3, 3)
  return ms.fully_shard(model, {})
end

-- A step of a trainer whose loss also calls something; what that raises is raised by the step.
local function in_loss(call)
  local train
  train = trainer { loss = function(result, targets)
    call(train)
    return ms.loss.mse(result, targets)
  end }
  train:step(batch)
end

describe("refused are", function()
  for title, case in pairs({
    ["R2 an optional that is neither true nor false"] = { function()
      shard { reshard_after_forward = { { "0", true, optional = "yes" } } }
    end, "optional | true or false | yes" },
    ["R2 a name where rules are meant"] = { function() shard { freeze = "0" } end, 'list | { "embed" }' },
    ["R2 a field without a name"] = { function() named("") end, '""' },
    ["R2 a name with a NUL"] = { function() named("a\0b") end, "dots | spaces" },
    ["R2 a name that is not UTF-8"] = { function() named("\xc3(") end, "must be UTF-8" },
    ["R2 a learning-rate factor that is no number"] = { function()
      trainer { optimizer = ms.optim.adamw { lr = 1, groups = { { "0", { lr_scale = NAN } } } } }
    end, "optimizer | rule 1 (0) | lr_scale | nan" },
    ["R2 a group's rate of an optimizer whose rate is 0"] = { function()
      trainer { optimizer = ms.optim.adamw { lr = 0, groups = { { "0", { lr = 0.1 } } } } }
    end, "lr | which is 0 | lr_scale = 0" },
    ["U10 what a forward returns after the loss"] = { function()
      local function forward(net, b)
        local y = net(b.inputs)
        return ms.loss.mse(y, b.targets), y
      end
      ms.trainer { model = shard {}, optimizer = ms.optim.sgd { lr = 1 }, forward = forward }:step(batch)
    end, "after the loss | alone" },
    ["R2 a negative weight decay of a group"] = { function()
      trainer { optimizer = ms.optim.sgd { lr = 1, groups = { { "2", { weight_decay = -1 } } } } }
    end, "optimizer | rule 1 (2) | weight_decay | 0" },
    ["Q5 one recipe of fp8 for all parameters"] = { function() shard { fp8 = "rowwise" } end,
      "list of rules | rowwise" },
    ["Q5 an unknown recipe of fp8"] = { function() shard { fp8 = { { re[[^0]], "row-wise" } } } end,
      "fp8 | rule 1 (/^0/) | row-wise | rowwise?" },
    ["Q5 a rule of fp8 without a recipe"] = { function() shard { fp8 = { { re[[^0]] } } } end,
      "fp8: rule 1 (/^0/) has no value: write { re[[^0]], value }" },
    ["Nesterov's momentum that is dampened"] = { function()
      trainer { optimizer = ms.optim.sgd { lr = 1, momentum = 0.9, dampening = 0.5, nesterov = true } }
    end, "nesterov | dampen" },
    ["two dtypes in place of mp_policy's fields"] = { function() shard { mp_policy = { "bf16", "f32" } } end,
      "rule 1 (bf16) has no value | mp_policy = { param_dtype | reduce_dtype" },
    ["Q5 fp8 where kernels read"] = { function() shard { mp_policy = { param_dtype = "fp8" } } end,
      "mp_policy.param_dtype | rules of fp8" },
    ["Q1 few bits where kernels read"] = { function() shard { param_dtype = { { "0", "nf4" } } } end,
      'param_dtype: rule 1 (0) must be "f32", "bf16" or "auto" | storage' },
    ["Q6 a field of mp_policy next to it"] = { function() shard { reduce_dtype = "bf16" } end, "a field of mp_policy" },
    ["Q10 moments of a model"] = { function() shard { moments = "i8" } end, "an option of ms.optim.adamw" },
    ["Q8 adapters as an option"] = { function() shard { lora = { rank = 4 } } end, "call ms.lora(model, rules)" },
    ["a learning rate that is no number"] = { function() ms.optim.adamw { lr = NAN } end, "not nan" },
    ["an infinite floor"] = { function() ms.schedule.linear { peak = 1, total = 5, floor = math.huge } end, "finite" },
    ["an eps that is no number"] = { function() ms.optim.adamw { lr = 1, eps = NAN } end,
      "eps | nan" },
    ["a negative seed"] = { function() shard { seed = -1 } end, "seed | 0 to 2^53 - 1" },
    ["a seed of a sampler"] = { function() ms.data.sampler { length = 5, seed = 0.5 } end, "seed | integer" },
    ["clipping to no number"] = { function() trainer { clip_grad_norm = NAN } end,
      "clip_grad_norm | nan" },
    ["a memory limit of nothing"] = { function() trainer { memory_limit = 0 } end, "bytes above 0" },
    ["a memory limit that is no number"] = { function() trainer { memory_limit = NAN } end, "nan" },
    ["less than no prefetch"] = { function() trainer { prefetch = -1 } end, "prefetch | 0" },
    ["a model that is none"] = { function() trainer { model = {} } end, "model | module" },
    ["R4 rules of what is no model"] = { function() ms.set_rules(nil, {}) end, "module | nil" },
    ["R4 a new weight decay that is no number"] = { function()
      trainer():set_rules { weight_decay = NAN }
    end, "ms.set_rules | weight_decay | nan" },
    ["R4 rules that change in a loss"] = { function()
      in_loss(function(train) train:set_rules { prefetch = 2 } end)
    end, "between steps" },
    ["a step in a loss"] = { function() in_loss(function(train) train:step(batch) end) end, "between steps" },
    ["unsharding in a loss"] = { function()
      in_loss(function(train) train.model:unshard() end)
    end, "between steps" },
  }) do
    it(title, function()
      local text = message(case[1])
      has(text, case[2])
      assert.truthy(text:find("tests/lua/mistakes/refusals_spec.lua:%d+: "), text)
    end)
  end

  it("S4 sizes of groups that are no sizes", function()
    for _, size in ipairs({ 0, -1, 1.5, NAN, math.huge, 3 }) do
      has(message(shard, { reshard_after_forward = size }), "groups of")
    end
  end)
end)

describe("taken are", function()
  it("R1 lists without a rule, by every policy", function()
    local model = shard { reshard_after_forward = {}, mp_policy = {}, layout = {}, freeze = {}, prefetch = {},
      recompute = {}, param_dtype = {} }
    assert.equal("default", model.sharding.units[1].reshard)
    assert.equal("f32", model.sharding.units[1].param_dtype)
    local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 1, groups = {} } }
    train:step(batch)
    train:set_rules { reshard_after_forward = {}, prefetch = {}, groups = {} }
  end)

  it("S10 a list of ops for all units at once", function()
    local model = shard { recompute = { "gelu", "matmul" } }
    assert.equal("gelu matmul", model.sharding.decisions.recompute["0"].value.ops)
    has(message(shard, { recompute = { "gelu", "nope" } }), "op nope")
  end)

  it("R1 names of letters that are not ASCII", function()
    local model = layers()
    model["größe"] = ms.nn.linear(3, 3)
    ms.fully_shard(model, { units = { re[[^gr..e$]] }, freeze = { "größe.bias" } })
    assert.equal("größe", model.sharding.units[2].name)
    assert.is_true(model.sharding.decisions.freeze["größe.bias"].value)
  end)

  it("M1 memory that no machine has, before it is filled", function()
    local path = program.recipe([==[
      local ms = require "moonshard"
      local model = ms.fully_shard(ms.nn.linear(2 ^ 21, 2 ^ 21))
      local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 1 } }
      train:step { inputs = ms.ones { 1, 2 ^ 21 }, targets = ms.ones { 1, 2 ^ 21 } }
    ]==])
    for ranks = 1, 2 do
      local ended = program.run({ "run", path, "-n", tostring(ranks) })
      assert.equal(3, ended.status, ended.err)
      assert.truthy(ended.err:find("arena.* [%d.]+ GiB.* [%d.]+ GiB.* [%d.]+ GiB"), ended.err)
    end
    os.remove(path)
  end)

  it("R2 groups of an optimizer that never decide, with a warning", function()
    local path = program.recipe([==[
      local ms = require "moonshard"
      local model = ms.fully_shard(ms.nn.linear(3, 4))
      local groups = { { "bias", { weight_decay = 0 } }, { ms.re"^bi", { weight_decay = 1 } } }
      local sgd = ms.optim.sgd { lr = 1, groups = groups }
      local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = sgd }
      train:step { inputs = ms.ones { 2, 3 }, targets = ms.ones { 2, 4 } }
      train:set_rules { groups = { groups[2], groups[1] } }
      train:set_rules { lr = 0.5 }
    ]==])
    local ended = program.run({ "run", path, "-n", "2" })
    os.remove(path)
    assert.equal(0, ended.status, ended.err)
    local first, second, third = ended.err:match("^([^\n]*)\n([^\n]*)\n(.*)$")
    has(first, "warning | " .. path .. ":3: | optimizer | /^bi/ | never")
    has(second, 'optimizer | "bias" | never')
    assert.equal("", third)
  end)
end)
