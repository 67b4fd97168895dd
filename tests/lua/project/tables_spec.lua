-- The tables of the Lua layer, compared with the engine's: a row that the engine has and Lua lacks, or one without a
-- field, fails here.

local dtypes = require("moonshard.base.dtypes")
local engine = require("moonshard.base.ffi")
local fixture = require("lua.support.fixture")
local float8 = require("moonshard.shard.policies.float8")
local gather = require("moonshard.shard.policies.gather")
local json = require("moonshard.base.text.json")
local ms = require("moonshard")
local optimizers = require("moonshard.engine.optimizers")
local plans = require("moonshard.engine.plan")
local policies = require("moonshard.shard.policies.policies")
local roles = require("moonshard.shard.roles")
local recipe_names = require("moonshard.base.names.recipe_names")
local settings = require("moonshard.base.settings")
local C, ffi = engine.C, engine.ffi

local world = ms.world()

before_each(function() world.describe(0, 1) end)

-- Whether the engine accepts a unit with these settings.
local function accepts_unit(wanted)
  local out, id, config = ffi.new("ms_model *[1]"), ffi.new("int[1]"), ffi.new("ms_unit_config")
  engine.check(C.ms_model_new(0, out))
  engine.check(C.ms_config_default("ms_unit_config", config, ffi.sizeof(config)))
  for name, value in pairs(wanted) do config[name] = value end
  local status = C.ms_model_add_unit(out[0], "unit", config, id)
  C.ms_free(out[0])
  return status == 0
end

local graph

-- The engine's summary of a training plan whose config fill(config) changes; nil if it refuses the config.
local function summary_of(fill)
  graph = graph or fixture.trace(fixture.gpt2(), 2, 4)
  local plan, config, summary = ffi.new("ms_plan *[1]"), ffi.new("ms_plan_config"), ffi.new("ms_plan_summary")
  engine.check(C.ms_config_default("ms_plan_config", config, ffi.sizeof(config)))
  config.train = 1
  fill(config)
  if C.ms_plan_compile(graph.handle, config, plan) ~= 0 then return nil end
  engine.check(C.ms_plan_summarize(plan[0], summary, ffi.sizeof(summary)))
  C.ms_free(plan[0])
  return summary
end

local function accepts_plan(wanted)
  return summary_of(function(config)
    for name, value in pairs(wanted) do
      local group, field = name:match("^(.-)%.(.*)$")
      if group then config[group][field] = value else config[name] = value end
    end
  end) ~= nil
end

-- What the public header does not have: the text of one of the engine's files, and the number of a name in its enums.
local function text_of(path)
  local file = assert(io.open(path))
  local text = file:read("*a")
  file:close()
  return text
end

local function number_in(path, name)
  local number = text_of(path):match("enum {[^}]*%f[%w_]" .. name .. " = (%d+)")
  return tonumber((assert(number, path .. " has no number " .. name)))
end

describe("the table of dtypes", function()
  it("S13 has a complete row for each type that models compute in, with the engine's uses", function()
    for id = 0, tonumber(C.MS_DTYPES) - 1 do
      local name = dtypes.names[id]
      local uses = dtypes.uses[name]
      for use, accepted in pairs({
        param = accepts_unit({ param_dtype = id }), reduce = accepts_unit({ reduce_dtype = id }),
        moment = accepts_plan({ optimizer = C.MS_OPT_ADAMW, ["adamw.moments"] = id }),
      }) do
        assert.equal(accepted, dtypes.may(name, use), name .. " " .. use)
      end
      assert.equal(accepts_unit({ shard_dtype = id }), name == "f32" or dtypes.may(name, "quantised_sum"), name)
      assert.equal(accepts_unit({ replicate_dtype = id }), name == "f32" or dtypes.may(name, "quantised_sum"), name)
      local stored = C.ms_storage_record(id, 0, ffi.new("int64_t[1]"), ffi.new("int64_t[1]")) == C.MS_OK
      assert.equal(stored or name == "f32", dtypes.may(name, "storage"), name)
      if uses and uses.quantised_sum then assert.is_true(uses.norm_tolerance >= uses.tolerance, name) end
      if uses and uses.param then
        assert.is_true(uses.tolerance > 0 and uses.norm_tolerance >= uses.tolerance, name)
        assert.is_true(dtypes.readable_as[name] == name or dtypes.readable_as[name] == "f32", name)
      end
    end
    for name in pairs(dtypes.uses) do assert.is_truthy(dtypes.sizes[name], name .. " is not one of the engine's") end
  end)

  it("S13 names the types of a use in messages", function()
    assert.equal("f32 or bf16", dtypes.list("param"))
    assert.equal("f32, bf16 or i8", dtypes.list("moment"))
    assert.equal('"f32", "bf16", "i8" or "nf4"', dtypes.quoted("storage"))
    assert.same({ "i8", "nf4" }, dtypes.with("coded"))
    assert.same({ "f32", "bf16" }, dtypes.with("saved"))
    assert.equal("f32, bf16, f8e4m3 or f8e5m2", dtypes.list("product"))
    assert.equal("f32, bf16, f8e4m3, f8e5m2 or e8m0", dtypes.list())
    assert.equal("bf16", dtypes.coarser("f32", "bf16"))
    assert.equal("bf16", dtypes.coarser("bf16", "f32"))
  end)
end)

describe("the table of optimizers", function()
  it("S1 has a complete row for each optimizer of the engine", function()
    local ids = {}
    for _, kind in ipairs(optimizers.kinds) do
      local row, made = optimizers.of(kind), ms.optim[kind] { lr = 1 }
      assert.equal(kind, made.kind)
      ids[tonumber(row.id)] = kind
      for _, field in ipairs { "update_tolerance", "training_tolerance" } do
        assert.is_true(row[field] >= 1, kind .. "." .. field)
      end
      for _, state in ipairs(row.states) do
        local low, high = C.MS_TENSOR_GRAD, C.MS_TENSOR_EMA
        if state.shape then low, high = C.MS_TENSOR_STORED, C.MS_TENSOR_KINDS end
        assert.is_true(state.what > low and state.what < high, kind .. " " .. state.kind)
      end
    end
    -- Parameters must say that they take Muon: those of the graph do not (muon_spec.lua).
    assert.is_false(accepts_plan({ optimizer = C.MS_OPT_MUON }))
    assert.equal("muon", ids[C.MS_OPT_MUON])
    ids[C.MS_OPT_MUON] = nil
    for id = 1, 16 do
      assert.equal(accepts_plan({ optimizer = id }), ids[id] ~= nil, "optimizer " .. id .. " of the engine")
    end
  end)

  it("S1 keeps as many states as the engine does", function()
    local function bytes_of(optimizer)
      local summary = summary_of(function(config) optimizer:configure(config) end)
      return tonumber(summary.bytes[C.MS_CAT_OPTIMIZER])
    end
    local one = bytes_of(ms.optim.sgd { lr = 1, momentum = 0.5 })
    assert.is_true(one > 0)
    local made = { ms.optim.sgd { lr = 1, momentum = 0.5 }, ms.optim.adamw { lr = 1, moments = "f32" } }
    for _, kind in ipairs(optimizers.kinds) do
      -- What has a shape of its own is not of the size of a moment (adafactor_spec.lua).
      local has_moments = not optimizers.of(kind).states[1].shape
      if kind ~= "muon" and has_moments then made[#made + 1] = ms.optim[kind] { lr = 1 } end
    end
    for _, optimizer in ipairs(made) do
      assert.equal(one * #optimizers.states(optimizer), bytes_of(optimizer), optimizer.kind)
    end
    assert.same({}, optimizers.states(nil))
  end)

  it("K1 names the settings that a checkpoint records", function()
    local adamw = ms.optim.adamw { lr = 1, moments = "bf16" }
    assert.same({ betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0.01, moments = "bf16" },
      optimizers.settings(adamw))
    assert.is_nil(optimizers.settings(ms.optim.adamw { lr = 1 }).moments)
    assert.same({ momentum = 0, dampening = 0, nesterov = false, weight_decay = 0 },
      optimizers.settings(ms.optim.sgd { lr = 1 }))
  end)
end)

describe("messages of settings", function()
  it("S13 have a recipe's names, but for whose they are", function()
    assert.equal("unit 'fragment': replicate_sync 2 with a.fragment",
      recipe_names.rename("unit 'fragment': fragment 2 with a.fragment", { fragment = "replicate_sync" }))
    assert.equal("betas[1] must be 0", recipe_names.rename("adamw.beta1 must be 0", { ["adamw.beta1"] = "betas[1]" }))
  end)
end)

describe("what optimizers set", function()
  it("S1 by default is the engine's default", function()
    for _, kind in ipairs(optimizers.kinds) do
      local default, config = ffi.new("ms_plan_config"), ffi.new("ms_plan_config")
      engine.check(C.ms_config_default("ms_plan_config", default, ffi.sizeof(default)))
      engine.check(C.ms_config_default("ms_plan_config", config, ffi.sizeof(config)))
      ms.optim[kind] { lr = 1 }:configure(config)
      assert.equal(tonumber(optimizers.of(kind).id), config.optimizer)
      local rows = settings.rows("ms_plan_config", kind)
      assert.is_true(#rows > 0)
      for _, row in ipairs(rows) do
        local field = settings.field(row)
        assert.equal(tonumber(default[kind][field]), tonumber(config[kind][field]), row.name)
      end
      config.optimizer = default.optimizer
      assert.equal(ffi.string(default, ffi.sizeof(default)), ffi.string(config, ffi.sizeof(config)), kind)
    end
  end)
end)

describe("the tables of codes", function()
  it("S13 gather blocks of the engine's size, codes and an f32", function()
    local elements = number_in("kernels/formats/quantised_sum.h", "MS_PIECE_BLOCK")
    assert.equal(elements + 4, gather.bytes("i8", elements))
    assert.equal(2 * (elements + 4), gather.bytes("i8", elements + 1))
  end)

  it("S13 count moments in 8 bits as the engine's records", function()
    local elements = number_in("kernels/formats/moments.h", "MS_MOMENT_BLOCK")
    local bytes = 4 * number_in("kernels/formats/moments.h", "MS_MOMENT_WORDS")
    assert.equal(bytes / elements, dtypes.uses.i8.moment_records.bytes)
  end)

  it("S13 have the recipes of products in 8 bits, with the sizes that they take", function()
    local path, found = "kernels/products/matmul_f8.c", 0
    for constant, name in text_of(path):gmatch('%[(MS_FP8_[%w_]+)%] = {%.name = "([%w_]+)"') do
      if name ~= "none" then
        found = found + 1
        local multiple = name == "mxfp8" and number_in("kernels/formats/quantise.h", "MS_MX_BLOCK")
          or number_in(path, "CODES")
        local function shard(size) return ms.fully_shard(ms.nn.linear(size, 64), { fp8 = { { "weight", name } } }) end
        assert.equal(name, float8.read(name, "rule 1"))
        assert.equal(tonumber(C[constant]), tonumber(float8.id({ fp8 = name })), name)
        assert.equal(name, shard(multiple).sharding.decisions.fp8.weight.value)
        assert.is_truthy(fixture.message(shard, multiple / 2):find("multiple of " .. multiple, 1, true), name)
      end
    end
    assert.equal(6, found)
  end)
end)

describe("the table of policies", function()
  local FIELDS = { text = "function", json = "function", cost = "function" }
  local OPTIONAL = {
    name = "string", of = "string", reader = "function", no_option = "boolean", default = "function",
    absent = "function", bare_value = "boolean", one_value = "string", is_value = "function", store = "function",
    set = "function", key = "function", setting = "table", on_reference = "table", in_turn = "boolean",
    rare = "boolean",
    moves = "boolean", inherited = "boolean", check = "function",
    applies = "function", left_out = "string", by_layer = "boolean",
  }

  it("R3 has complete rows", function()
    local names = {}
    for _, row in ipairs(policies.all) do
      assert.is_nil(names[row.name], row.name)
      names[row.name] = true
      for field, kind in pairs(FIELDS) do assert.equal(kind, type(row[field]), row.name .. "." .. field) end
      for field, value in pairs(row) do
        assert.equal(FIELDS[field] or OPTIONAL[field], type(value), row.name .. "." .. field)
      end
      assert.is_truthy(({ unit = true, module = true, parameter = true })[row.of], row.name)
      assert.equal(row.set ~= nil, row.key ~= nil, row.name .. ": a policy that can change is part of the plan's key")
      assert.is_true(row.reader ~= nil or not (row.store or row.set or row.on_reference), row.name)
    end
    assert.equal(#policies.all, #policies.shown)
  end)

  it("R3 S1 is what ms.fully_shard takes and decides", function()
    for _, row in ipairs(policies.options) do
      local sharding = ms.fully_shard(fixture.gpt2(), { [row.name] = {} }).sharding
      assert.same({}, sharding.unmatched[row.name])
      assert.equal("table", type(sharding.decisions[row.name]), row.name)
    end
    local refused = fixture.message(ms.fully_shard, fixture.gpt2(), { ["optimizer groups"] = {} })
    assert.is_truthy(refused:find("optimizer groups", 1, true))
  end)

  it("R4 is what ms.set_rules takes", function()
    local model = ms.fully_shard(fixture.gpt2())
    for _, row in ipairs(policies.options) do
      local ok, problem = pcall(ms.set_rules, model, { [row.name] = {} })
      assert.equal(row.set ~= nil or row.moves == true, ok, row.name .. ": " .. tostring(problem))
    end
  end)

  it("R4 a change that is refused leaves every policy as it was", function()
    local model = ms.fully_shard(fixture.gpt2(), { units = { "layers" } })
    local before = {}
    for _, row in ipairs(policies.changeable) do before[row.name] = model.sharding.decisions[row.name] end
    for _, row in ipairs(policies.changeable) do
      local given = { [row.name] = { { "layers.0", "nonsense" } } }
      assert.is_truthy(fixture.message(ms.set_rules, model, given):find(row.name, 1, true))
      for name, decisions in pairs(before) do assert.equal(decisions, model.sharding.decisions[name]) end
    end
    assert.is_truthy(fixture.message(ms.set_rules, model, { prefetch = false }):find("prefetch", 1, true))
  end)
end)

-- The plan of a model that gathers what it computes from all ranks of shard.
local function gathering_plan()
  local Gathering = ms.module "Gathering"
  function Gathering:init() self.map = ms.nn.linear(4, 4) end
  function Gathering:forward(x) return self.map(x):all_gather("shard") end
  world.describe(0, 4)
  local model = ms.fully_shard(Gathering(), { mesh = { 2, 2 }, shared_masters = false })
  local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1 },
    loss = function(y) return (y * y):mean() end }
  return train:compile { inputs = ms.zeros { 2, 4 }, targets = ms.zeros { 2, 4 } }
end

-- The plan of a small model on 2 x 2 ranks, or on 2 x 2 x 2 with a dimension of this name.
local function sharded_plan(over_replicate, third, sums)
  local model = fixture.gpt2()
  world.describe(0, third and 8 or 4)
  ms.fully_shard(model, { shared_masters = false, shard_optimizer_over_replicate = over_replicate,
    mesh = third and ms.init_device_mesh("cpu", { 2, 2, 2 }, { "replicate", "shard", third }) or { 2, 2 },
    mp_policy = sums and { reduce_dtype = sums } or nil,
    placements = third == "tensor" and ms.rules.tensor_parallel(model) or nil, sequence_parallel = third == "tensor" })
  local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 1 }, clip_grad_norm = 1,
    loss = ms.loss.cross_entropy }
  local batch = ms.zeros { 2, 4, dtype = "i32" }
  return train:compile { tokens = batch, targets = batch }
end

describe("the tables of memory categories and phases", function()
  it("M1 have the engine's names in its order", function()
    local text, names, phases = sharded_plan():json(), {}, {}
    for name in text:match('"bytes":(%b{})'):gmatch('"([^"]+)":') do names[#names + 1] = name end
    for name in text:gmatch('{"name":"([^"]+)","events"') do phases[name] = true end
    assert.equal(tonumber(C.MS_CATEGORIES), #plans.CATEGORIES)
    assert.same(names, plans.CATEGORIES)
    for _, name in ipairs(names) do assert.is_truthy(plans.SHORT[name], name) end
    assert.equal(tonumber(C.MS_PHASES), #plans.PHASES)
    for _, name in ipairs(plans.PHASES) do phases[name] = nil end
    assert.same({}, phases)
  end)
end)

describe("the table of mesh roles", function()
  it("S2 names every collective of a plan, by stream, and no other", function()
    local expected, found = {}, {}
    for _, role in ipairs(roles.all) do
      assert.equal((role.data or role.model) == true, role.collectives ~= nil, role.name)
      for stream, ops in pairs(role.collectives or {}) do
        for _, op in ipairs(ops) do expected[role.name .. " " .. stream .. " " .. op] = true end
      end
    end
    for _, plan in ipairs({ sharded_plan(false), sharded_plan(true), sharded_plan(false, "tensor"),
      sharded_plan(false, "context"), sharded_plan(false, nil, { replicate = "i8" }),
      sharded_plan(false, nil, { shard = "i4" }), gathering_plan() }) do
      for _, phase in ipairs(json.decode(plan:json()).phases) do
        for _, instruction in ipairs(phase.instructions) do
          if instruction.kind == "collective" then
            found[("%s %s %s"):format(instruction.dim, instruction.stream, instruction.op)] = true
          end
        end
      end
    end
    assert.same(expected, found)
  end)
end)
