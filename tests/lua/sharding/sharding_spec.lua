-- Sharding: which parameters a unit has, what every policy decided and why, and what is refused.

local ms = require("moonshard")
local fixture = require("lua.support.fixture")
local precision = require("moonshard.shard.policies.precision")
local has = require("lua.support.message").has
local re, message = ms.re, fixture.message
local world = ms.world()

before_each(function() world.describe(0, 4) end)

local function shard(config, changes)
  return ms.fully_shard(fixture.gpt2(changes), config).sharding
end

local function unit_names(sharding)
  local names = {}
  for i, unit in ipairs(sharding.units) do names[i] = unit.name end
  return names
end

local function unit_of(sharding, fqn)
  for _, param in ipairs(sharding.params) do
    if param.fqn == fqn then return param.unit.name end
  end
end

local function by_unit(sharding, field)
  local values = {}
  for _, unit in ipairs(sharding.units) do values[unit.name] = unit[field] end
  return values
end

describe("units", function()
  it("are the modules that a pattern finds, and the root unit for the rest", function()
    local sharding = shard({ units = { re[[^layers\.\d+$]] } })
    assert.same({ "root", "layers.0", "layers.1" }, unit_names(sharding))
    assert.equal("root", unit_of(sharding, "embed.weight"))
    assert.equal("layers.1", unit_of(sharding, "layers.1.attn.wq.weight"))
    assert.equal(16, #sharding.units[2].params)
    assert.equal("/^layers\\.\\d+$/", sharding.decisions.units["layers.0"].pattern)
  end)

  it("are one without a list", function()
    assert.same({ "root" }, unit_names(shard({})))
  end)

  it("take the innermost module around a parameter", function()
    local sharding = shard({ units = { re[[^layers\.\d+$]], re[[\.mlp$]] } })
    assert.same({ "root", "layers.0", "layers.0.mlp", "layers.1", "layers.1.mlp" }, unit_names(sharding))
    assert.equal("layers.0.mlp", unit_of(sharding, "layers.0.mlp.fc1.weight"))
    assert.equal("layers.0", unit_of(sharding, "layers.0.norm2.weight"))
  end)

  it("take the outermost modules below a plain string", function()
    assert.same({ "root", "layers.0", "layers.1" }, unit_names(shard({ units = { "layers" } })))
    assert.same({ "root", "layers.1.attn", "head" }, unit_names(shard({ units = { "layers.1.attn", "head" } })))
  end)

  it("leave out parameters that a rule excludes", function()
    local sharding = shard({ units = { { "layers.0", false }, { re[[^layers\.\d+$]], true } } })
    assert.same({ "root", "layers.1" }, unit_names(sharding))
  end)

  it("leave out the root unit and modules without parameters", function()
    local model = ms.nn.sequential { ms.nn.linear(2, 2), ms.nn.dropout(0.1), ms.nn.linear(2, 2) }
    ms.fully_shard(model, { units = { re[[.]] } })
    assert.same({ "0", "2" }, unit_names(model.sharding))
  end)

  it("can be groups of modules", function()
    local sharding = shard({ units = { { "embed", "pos" }, re[[^layers\.\d+$]] } })
    assert.same({ "root", "embed", "layers.0", "layers.1" }, unit_names(sharding))
    assert.equal("embed", unit_of(sharding, "pos.weight"))
    assert.equal(2, #sharding.units[2].modules)
  end)
end)

describe("S9: tied parameters", function()
  it("are one, under the first name", function()
    local sharding = shard({ units = { re[[^layers\.\d+$]] } }, { tied = true })
    assert.equal("root", unit_of(sharding, "embed.weight"))
    assert.is_nil(unit_of(sharding, "head.weight"))
  end)

  it("belong to the unit that claims them", function()
    assert.equal("head", unit_of(shard({ units = { "head" } }, { tied = true }), "embed.weight"))
  end)

  it("may not be claimed by two units; the error says how to group them", function()
    local text = message(shard, { units = { "embed", "head" } }, { tied = true })
    has(text, "embed.weight | also | head.weight")
    has(text, "two units | embed and head")
    has(text, '{ "embed", "head" }')
    local sharding = shard({ units = { { "embed", "head" } } }, { tied = true })
    assert.equal("embed", unit_of(sharding, "embed.weight"))
    fixture.trace(sharding.model, 2, 4)
  end)
end)

describe("S9: rules that match a second name of a tied parameter", function()
  local function tied(more)
    local net = ms.module { embed = ms.nn.embedding(16, 8), mid = ms.nn.linear(8, 8), head = ms.nn.linear(8, 16),
      forward = function(self, x) return self.head(self.mid(self.embed(x))) end }
    net.head.weight = net.embed.weight
    if more then
      net.second = ms.nn.linear(8, 16)
      net.second.weight = net.embed.weight
    end
    return net
  end

  it("are refused with both names, whether they match others or not", function()
    for _, pattern in ipairs({ "head", re[[^head]], re[[head\.weight]] }) do
      for option, list in pairs({ freeze = { pattern }, param_dtype = { { pattern, "bf16" } } }) do
        has(message(ms.fully_shard, tied(), { [option] = list }), option .. " | head | head.weight | embed.weight")
      end
      local model = tied()
      ms.fully_shard(model, {})
      has(message(ms.trainer, { model = model, loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 0.1 },
        freeze = { pattern } }), "freeze | head.weight | embed.weight")
      local optimizer, names = ms.optim.sgd { lr = 0.1, groups = { { pattern, { lr = 0 } } } }, {}
      for name in model:named_parameters() do names[#names + 1] = name end
      has(message(optimizer.param_groups, optimizer, names, model.sharding.tied), "head.weight | embed.weight")
      has(message(ms.lora, tied(), { { "mid", { rank = 2 } } }, { train = { pattern } }), "head.weight | embed.weight")
    end
    -- A field that is assigned later comes before those of the constructor.
    has(message(ms.fully_shard, tied(true), { freeze = { "head" } }), "head.weight | second.weight")
  end)

  it("are taken where the parameter has their value, or they are meant for others", function()
    local function frozen(list)
      local model, found = tied(), {}
      ms.fully_shard(model, { freeze = list })
      for name, param in model:named_parameters() do found[name] = param.frozen or nil end
      return found
    end
    local both = { ["embed.weight"] = true, ["head.bias"] = true }
    assert.same(both, frozen { "head", "embed" })
    assert.same(both, frozen { re[[embed|head]] })
    assert.same({ ["head.bias"] = true }, frozen { "head.bias" })
    assert.same({ ["mid.weight"] = true, ["mid.bias"] = true, ["head.bias"] = true },
      frozen { { "embed", false }, re[[.]] })
    assert.same({}, frozen { { "head", false } })
  end)
end)

describe("S2: strategies", function()
  for name, case in pairs({
    FULL_SHARD = { nil, -1, 0, "default" },
    SHARD_GRAD_OP = { { 4 }, -1, 0, "never" },
    NO_SHARD = { { 2, 2 }, 0, -1, "never" },
    HYBRID_SHARD = { { 2, 2 }, 0, 1, "default" },
    HYBRID_SHARD_ZERO2 = { { 2, 2 }, 0, 1, "never" },
  }) do
    it(name .. " chooses dimensions and resharding", function()
      local sharding = shard({ strategy = name, mesh = case[1], units = { re[[^layers\.\d+$]] } })
      assert.same({ case[2], case[3] }, { sharding.replicate_dim, sharding.shard_dim })
      for _, reshard in pairs(by_unit(sharding, "reshard")) do assert.equal(case[4], reshard) end
      if name == "NO_SHARD" then assert.equal(4, sharding.mesh:size(0)) end
    end)
  end

  for title, case in pairs({
    ["an unknown name"] = { { strategy = "FULL" }, "FULL_SHARD?" },
    ["a hybrid without two dimensions"] = { { strategy = "HYBRID_SHARD", mesh = 4 }, "mesh | (replicate" },
    ["full sharding over replicas"] = { { strategy = "FULL_SHARD", mesh = { 2, 2 } }, "use HYBRID_SHARD" },
    ["a strategy and a rule for the same"] = { { strategy = "NO_SHARD", reshard_after_forward = true }, "or" },
  }) do
    it("refuse " .. title, function() has(message(shard, case[1]), case[2]) end)
  end
end)

describe("S4: reshard_after_forward", function()
  for title, case in pairs({
    ["true"] = { true, "always" }, ["false"] = { false, "never" }, ["the default"] = { "default", "default" },
    ["always"] = { "always", "always" }, ["never"] = { "never", "never" }, ["left out"] = { nil, "default" },
    ["1, which is false"] = { 1, "never" }, ["the size of the group, which is true"] = { 4, "always" },
  }) do
    it("takes " .. title, function()
      assert.equal(case[2], shard({ reshard_after_forward = case[1] }).units[1].reshard)
    end)
  end

  it("is decided by rule, with the reason kept", function()
    local sharding = shard({
      units = { re[[^layers\.\d+$]] },
      reshard_after_forward = { { re[[^layers\.0$]], false }, { "root", true } },
    })
    assert.same({ root = "always", ["layers.0"] = "never", ["layers.1"] = "default" }, by_unit(sharding, "reshard"))
    local decisions = sharding.decisions.reshard_after_forward
    assert.equal(1, decisions["layers.0"].rule)
    assert.truthy(decisions["layers.0"].where:find("sharding_spec.lua:%d+$"))
    assert.is_nil(decisions["layers.1"].rule)
  end)

  it("takes the size of a group, which must divide the shards", function()
    local sharding = shard({ reshard_after_forward = 2 })
    assert.equal(2, sharding.units[1].reshard)
    local text = message(shard, { reshard_after_forward = 3 })
    has(text, "groups of 3 | 4 ranks")
    text = message(shard, { reshard_after_forward = "sometimes" })
    has(text, 'true, false | "default" | number')
  end)
end)

describe("S7: mp_policy", function()
  it("is one for all, f32 where nothing is said", function()
    local sharding = shard({ units = { "layers" }, mp_policy = { param_dtype = "bf16", reduce_dtype = "bfloat16" } })
    assert.same({ root = "bf16", ["layers.0"] = "bf16", ["layers.1"] = "bf16" }, by_unit(sharding, "param_dtype"))
    assert.equal("bf16", sharding.units[1].reduce_dtype)
    sharding = shard({ mp_policy = { param_dtype = "bf16" } })
    assert.equal("f32", sharding.units[1].reduce_dtype)
    assert.equal("f32", shard({}).units[1].param_dtype)
  end)

  it("is decided by rule", function()
    local sharding = shard({ units = { "layers" }, mp_policy = { { "layers.1", { param_dtype = "bf16" } } } })
    assert.same({ root = "f32", ["layers.0"] = "f32", ["layers.1"] = "bf16" }, by_unit(sharding, "param_dtype"))
    local graph = fixture.trace(sharding.model, 2, 4)
    assert.equal("f32", graph.outputs.logits.dtype)
  end)

  it("can follow the CPU", function()
    local expected = precision.cpu_has_bf16() and "bf16" or "f32"
    assert.equal(expected, shard({ mp_policy = "auto" }).units[1].param_dtype)
    assert.equal(expected, shard({ mp_policy = { param_dtype = "auto" } }).units[1].param_dtype)
  end)

  it("casts logits to output_dtype", function()
    local sharding = shard({ mp_policy = { param_dtype = "bf16", output_dtype = "f32" } })
    assert.equal("f32", fixture.trace(sharding.model, 2, 4).outputs.logits.dtype)
  end)

  for title, case in pairs({
    ["a type that is none"] = { { param_dtype = "fp8" }, 'mp_policy.param_dtype | "f32" | "bf16" | "auto"' },
    ["an integer type"] = { { param_dtype = "i32" }, "mp_policy.param_dtype" },
    ["an unknown option"] = { { param_dtpye = "f32" }, "param_dtype?" },
    ["no table"] = { 16, "mp_policy | table" },
  }) do
    it("refuses " .. title, function()
      has(message(shard, { mp_policy = case[1] }), case[2])
    end)
  end
end)

describe("S8: freeze", function()
  it("takes bare patterns and rules over parameters", function()
    local sharding = shard({ freeze = { { "embed.weight", false }, re[[^embed|^pos]], re[[\.bias$]] } })
    local frozen = {}
    for _, param in ipairs(sharding.params) do frozen[param.fqn] = param.frozen end
    assert.is_false(frozen["embed.weight"])
    assert.is_true(frozen["pos.weight"])
    assert.is_true(frozen["layers.0.attn.wq.bias"])
    assert.is_false(frozen["head.weight"])
  end)

  it("keeps a parameter's own settings", function()
    local model = ms.nn.sequential { ms.nn.layer_norm(4) }
    model[1].bias = ms.parameter { 4, init = "zeros", frozen = true }
    ms.fully_shard(model, {})
    assert.is_false(model.sharding.params[1].frozen)
    assert.is_true(model.sharding.params[2].frozen)
  end)

  it("shows frozen parameters in named_parameters", function()
    local model = ms.nn.sequential { ms.nn.linear(4, 3), ms.nn.linear(3, 2) }
    model[2].weight.frozen = true
    ms.fully_shard(model, { freeze = { { "1.weight", false }, "0.bias" } })
    local frozen = {}
    for name, parameter in model:named_parameters() do frozen[name] = parameter.frozen end
    assert.same({ ["0.weight"] = false, ["0.bias"] = true, ["1.weight"] = false, ["1.bias"] = false }, frozen)
  end)

  it("refuses a loss that depends on nothing that is trained", function()
    for _, freeze in ipairs({ { "0" }, { "1" } }) do
      local model = ms.nn.sequential { ms.nn.linear(4, 3), ms.nn.linear(3, 2) }
      ms.fully_shard(model, { freeze = freeze })
      local train = ms.trainer {
        model = model, optimizer = ms.optim.sgd { lr = 0.1 },
        forward = function(net, batch) return net[1](batch.inputs):mean() end,
      }
      local ok, raised = pcall(function() return train:compile { inputs = ms.ones(2, 4) } end)
      assert.equal(freeze[1] == "1", ok, tostring(raised))
      if not ok then
        has(tostring(raised), "loss | parameter | trainable")
      end
    end
  end)

  it("refuses a rule that freezes nothing", function()
    has(message(shard, { freeze = { "embd" } }), "nearest: embed")
  end)
end)

describe("fully_shard", function()
  it("takes layouts by rule", function()
    local sharding = shard({ units = { "layers" }, layout = { { "layers", "ragged" } } })
    assert.same({ root = "rows", ["layers.0"] = "ragged", ["layers.1"] = "ragged" }, by_unit(sharding, "layout"))
  end)

  it("creates the engine's model once, and again when the optimizer comes later", function()
    local sharding = shard({ units = { "layers" } })
    local first = sharding:handle()
    assert.equal(first, sharding:handle())
    local asked
    local optimizer = { moments_of = function() end, part_of = function(self) return self end,
      chosen_as = function() return 0 end }
    function optimizer.param_groups(_, fqns)
      asked = fqns
      return { ["head.weight"] = { lr_scale = 0.5, weight_decay = 0.1 } }
    end
    local second = sharding:handle(optimizer)
    assert.not_equal(first, second)
    assert.equal(second, sharding:handle(optimizer))
    assert.equal(second, sharding:handle())
    assert.equal(#sharding.params, #asked)
    -- What a trainer that could not be made asked for is no one's: the next one's optimizer counts.
    local other = {}
    for name, method in pairs(optimizer) do other[name] = method end
    local third = sharding:handle(other)
    assert.not_equal(second, third)
    assert.equal(third, sharding:handle())
  end)

  it("gives the engine every parameter and unit, in one order", function()
    local sharding = shard({ units = { "layers" } })
    local engine = require("moonshard.base.ffi")
    local info = engine.ffi.new("ms_tensor_info")
    local size = engine.ffi.sizeof(info)
    assert.equal(0, engine.C.ms_model_describe(sharding:handle(), #sharding.params - 1, info, size))
    assert.equal(engine.C.MS_EINVAL, engine.C.ms_model_describe(sharding:handle(), #sharding.params, info, size))
    engine.C.ms_error_clear()
    for i, param in ipairs(sharding.params) do assert.equal(i - 1, sharding.index[param.parameter]) end
  end)

  for title, case in pairs({
    ["an unknown option"] = { function() shard({ unit = {} }) end, "units?" },
    ["something that is no module"] = { function() ms.fully_shard({}, {}) end, "module" },
    ["a call after the trainer"] = { function()
      local model = fixture.gpt2()
      ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1 }, loss = ms.loss.mse }
      ms.fully_shard(model, {})
    end, "already | (tests/lua/sharding/sharding_spec.lua:" },
    ["a second call"] = { function() ms.fully_shard(ms.fully_shard(fixture.gpt2()), {}) end, "already" },
    ["a model without parameters"] = { function() ms.fully_shard(ms.nn.dropout(0.1)) end, "no parameters" },
    ["units that match nothing"] = { function() shard({ units = { re[[^block]] } }) end, "29 names" },
    ["units that are no list"] = { function() shard({ units = re[[^layers]] }) end, "list" },
    ["a layout that is none"] = { function() shard({ layout = "columns" }) end, '"rows" or "ragged"' },
    ["a mesh of three sizes without names"] = { function() shard({ mesh = { 1, 2, 2 } }) end, "sizes" },
    ["a mesh that is not the world"] = { function() shard({ mesh = { 2, 3 } }) end, "holds 6 ranks" },
    ["an extra dimension in use"] = { function()
      world.describe(0, 8)
      local mesh = ms.init_device_mesh("cpu", "2x2x2", { "pipe", "replicate", "shard" })
      shard({ mesh = mesh }):handle()
    end, "pipe | stages" },
  }) do
    it("refuses " .. title, function()
      local text = message(case[1])
      has(text, case[2])
      assert.truthy(text:find("tests/lua/sharding/sharding_spec.lua:%d+: "), text)
    end)
  end
end)
