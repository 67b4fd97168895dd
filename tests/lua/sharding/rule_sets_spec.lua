-- Rule sets: joined in order, and read from presets, whose file and line decisions name.

local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local ms = require("moonshard")
local program = require("lua.support.program")
local re, message = ms.re, fixture.message
local world = ms.world()

before_each(function() world.describe(0, 2) end)

describe("rule sets", function()
  local function decided(list)
    local model = ms.fully_shard(fixture.gpt2(), { units = { re[[^layers\.\d+$]] }, reshard_after_forward = list })
    return model.sharding.decisions.reshard_after_forward
  end

  it("R1 joined lists decide in their order", function()
    local preset = { { re[[^layers]], true }, { "root", "default" } }
    local decisions = decided(ms.rules.join({ { "layers.1", false } }, preset))
    assert.equal("never", decisions["layers.1"].value)
    assert.equal("always", decisions["layers.0"].value)
    assert.equal(3, decisions.root.rule)
    assert.equal(2, #preset)
    assert.same({}, ms.rules.join())
    has(message(ms.rules.join, {}, { "a", 1 }, 5), "argument 3 | rules")
    has(message(ms.rules.join, re[[a]]), "argument 1 | rules")
  end)

  it("R1 joined sets of several policies decide each in their order", function()
    local first = { units = { re[[^layers\.\d+$]] }, layout = { { "root", "ragged" } }, recompute = { "gelu_tanh" },
      mp_policy = { { "layers.0", { param_dtype = "bf16" } } }, reshard_after_forward = true }
    local second = { layout = "ragged", freeze = { "embed" },
      mp_policy = { param_dtype = "bf16", reduce_dtype = "bf16" }, recompute = { { "layers", true } },
      reshard_after_forward = { { "root", false } }, prefetch = 2 }
    local model = ms.fully_shard(fixture.gpt2(), ms.rules.join(first, {}, second))
    local d = model.sharding.decisions
    assert.same({ "ragged", "ragged" }, { d.layout.root.value, d.layout["layers.1"].value })
    assert.truthy(d.layout["layers.1"].where:find("^tests/lua/sharding/rule_sets_spec.lua:%d+$"))
    assert.same({ 1, 2 }, { d.mp_policy["layers.0"].rule, d.mp_policy["layers.1"].rule })
    assert.same({ "f32", "bf16" }, { d.mp_policy["layers.0"].value.reduce_dtype,
      d.mp_policy["layers.1"].value.reduce_dtype })
    assert.equal("gelu_tanh", d.recompute["layers.0"].value.ops)
    assert.equal("always", d.reshard_after_forward.root.value)
    assert.is_true(d.freeze["embed.weight"].value)
    assert.equal(2, d.prefetch["layers.1"].value.depth)
    has(message(ms.rules.join, { { "a", 1 } }, first), "argument 2 | policy")
  end)

  it("R3 a preset's rules are reported with its file and line", function()
    local path = program.recipe('local re = require("moonshard").re\nreturn {\n  { "layers.0", false },\n'
      .. "  { re[[^layers]], true },\n  'root',\n}\n")
    local list = ms.rules.load(path)
    os.remove(path)
    assert.same({ path .. ":3", path .. ":5" }, { list[1].where, list[3].where })
    assert.equal(path .. ":4", list[2][1].where)
    local decisions = decided({ list[1], list[2] })
    assert.equal(path .. ":3", decisions["layers.0"].where)
    assert.equal(path .. ":4", decisions["layers.1"].where)
  end)

  it("R2 presets that are not there, do not parse or return nothing are refused", function()
    has(message(ms.rules.load, "none.lua"), "none.lua")
    has(message(ms.rules.load, 5), "path")
    local path = program.recipe("return {{ re ")
    has(message(ms.rules.load, path), path .. ":1:")
    os.remove(path)
    path = program.recipe("return 5")
    has(message(ms.rules.load, path), "return | list of rules")
    os.remove(path)
  end)
end)
