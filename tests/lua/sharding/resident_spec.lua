-- Frozen weights that stay gathered for the whole run (reshard_after_forward = "run"): real ranks train, write, load,
-- and change rules in tests/lua/sharding/recipes/resident.lua, with them and without them, and must compute the same
-- bits; what a step moves is what the plan says.

local json = require("cjson")
local ms = require("moonshard")
local breadth = require("lua.support.breadth")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local message = fixture.message
local re = ms.re

local RECIPE = "tests/lua/sharding/recipes/resident.lua"

local CASES = {
  { 2, "mesh=1x2" },
  { 1, "mesh=1x1", "dtype=bf16" },
  { 2, "mesh=2x1", "gather=i8" },
  { 3, "mesh=1x3", "layout=ragged", "dtype=bf16" },
  { 4, "mesh=2x2", "gather=i8", "adapters=true", "dtype=bf16" },
  { 4, "mesh=2x2", "over=true", "adapters=true" },
  { 2, "mesh=1x2", "storage=nf4", "adapters=true" },
  { 2, "mesh=1x2", "storage=i8", "dtype=bf16", "layout=ragged" },
}

-- All frozen: called, written and called again.
local FROZEN = [==[
local ms = require "moonshard"
local cfg = ms.args { dtype = "f32", reshard = "run" }
local model = ms.nn.sequential { ms.nn.linear(3, 4), ms.nn.linear(4, 2) }
ms.fully_shard(model, { units = { ms.re[[^\d$]] }, freeze = { ms.re"." }, mp_policy = { param_dtype = cfg.dtype },
  reshard_after_forward = { { ms.re"^[01]$", cfg.reshard == "run" and "run" or true }, { ms.re"", true } } })
local x = ms.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
ms.show(model(x))
model:set_parameter("0.bias", { 1, 2, 3, 4 })
ms.show(model(x))
]==]

local function run_all(cases, environment)
  local runs = {}
  for i, case in ipairs(cases) do
    for _, reshard in ipairs { "always", "run" } do
      runs[i .. reshard] = { "run", RECIPE, "-n", tostring(case[1]), "reshard=" .. reshard,
        "folder=" .. scratch.folder() .. "/saved", unpack(case, 2) }
      runs[i .. reshard].environment = environment
    end
  end
  return program.run_all(runs)
end

local function assert_same(cases, ended)
  for i, case in ipairs(cases) do
    local expected, got = ended[i .. "always"], ended[i .. "run"]
    local what = table.concat(case, " ")
    assert.equal(0, expected.status, what .. expected.err)
    assert.equal(0, got.status, what .. got.err)
    assert.equal(20, select(2, expected.out:gsub("\n", "")), expected.out)
    assert.equal(expected.out, got.out, what)
    local moved, gathers = got.err:match("rank 0: (%d+) collectives in forward and backward, (%d+) gathers")
    local moved_always = expected.err:match("rank 0: (%d+) collectives")
    local shards = tonumber(case[2]:match("%d+x(%d+)"))
    assert.equal(shards > 1, tonumber(moved) < tonumber(moved_always), what)
    assert.equal(shards > 1, tonumber(gathers) > 0, what)
  end
end

-- Bytes of the all_gathers of frozen units' weights, in a phase of a plan.
local function gathered(phase, scope)
  local bytes = 0
  for _, instr in ipairs(phase.instructions) do
    if instr.op == "all_gather" and instr.scope == scope then bytes = bytes + instr.bytes end
  end
  return bytes
end

describe("weights that stay gathered", function()
  after_each(scratch.clear)

  it("S4 compute the bits of weights that are gathered in every step, whatever writes or moves them", function()
    local cases = breadth.few(CASES)
    assert_same(cases, run_all(cases))
  end)

  it("S4 do so on CUDA", function()
    local cases = { { 2, "mesh=1x2", "device=cuda", "dtype=bf16" },
      { 4, "mesh=2x2", "device=cuda", "storage=nf4", "adapters=true", "dtype=bf16" },
      { 2, "mesh=1x2", "device=cuda", "storage=nf4", "adapters=true", "dtype=bf16" } }
    cases = breadth.few(cases)
    assert_same(cases, run_all(cases, program.emulated_cuda()))
  end)

  it("S4 can be all that a model has, which then needs no collective to be called", function()
    local path, runs = program.recipe(FROZEN), {}
    for _, dtype in ipairs { "f32", "bf16" } do
      for _, reshard in ipairs { "run", "always" } do
        runs[dtype .. reshard] = { "run", path, "-n", "2", "dtype=" .. dtype, "reshard=" .. reshard }
      end
    end
    local ended = program.run_all(runs)
    os.remove(path)
    for _, dtype in ipairs { "f32", "bf16" } do
      assert.equal(0, ended[dtype .. "run"].status, ended[dtype .. "run"].err)
      assert.equal(ended[dtype .. "always"].out, ended[dtype .. "run"].out)
      has(ended[dtype .. "run"].out, "[")
    end
  end)

  it("S4 are in no phase of a step, and take their bytes in the plan #release", function()
    local plans = {}
    for _, reshard in ipairs { "always", "run" } do
      local ended = program.run { "plan", RECIPE, "-n", "2", "--json", "mesh=1x2", "dtype=bf16", "reshard=" .. reshard }
      assert.equal(0, ended.status, ended.err)
      plans[reshard] = json.decode(ended.out)
    end
    local kept, phases = plans.run, {}
    for _, phase in ipairs(kept.phases) do phases[phase.name] = phase end
    for _, unit in ipairs { "layers.0", "layers.1" } do
      assert.equal(0, gathered(phases.first, unit))
      assert.equal(0, gathered(phases.evaluate, unit))
      assert.is_true(gathered(phases.gather, unit) > 0)
    end
    assert.is_true(gathered(phases.first, "layers.2") > 0)
    assert.is_true(kept.peak_bytes > plans.always.peak_bytes)
    assert.equal("first", plans.always.phases[1].name)
    for _, phase in ipairs(plans.always.phases) do assert.not_equal("gather", phase.name) end
  end)

  it("S4 are refused where everything trains, by ms.fully_shard and ms.set_rules, and named by their rule", function()
    local function build() return ms.nn.sequential { ms.nn.linear(3, 4), ms.nn.linear(4, 2) } end
    local units = { re"^0$", re"^1$" }
    has(message(ms.fully_shard, build(), { units = { re"^0$" }, reshard_after_forward = "run" }),
      "reshard_after_forward | run | unit root | train")
    has(message(ms.fully_shard, build(), { units = units, freeze = { re"^0" },
      reshard_after_forward = { { re"^[01]$", "run" } } }), "rule /^[01]$/ | unit 1 | train")
    local model = build()
    ms.fully_shard(model, { units = units, freeze = { re"^0" }, reshard_after_forward = { { "0", "run" } } })
    local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
    local batch = { inputs = ms.ones { 2, 3 }, targets = ms.ones { 2, 2 } }
    local first = train:step(batch).loss
    has(message(ms.set_rules, model, { reshard_after_forward = "run" }), "run | unit 1 | train")
    assert.is_true(train:step(batch).loss < first)
    has(message(ms.fully_shard, build(), { reshard_after_forward = "always" .. "s" }), '"run"')
  end)

  it("S4 are refused with 8-bit codes, whose scales belong to a step #release", function()
    local model = ms.nn.sequential { ms.nn.linear(16, 16), ms.nn.linear(16, 16) }
    ms.fully_shard(model, { units = { re"^0$" }, freeze = { re"^0" }, reshard_after_forward = { { "0", "run" } },
      fp8 = { { "0.weight", "tensorwise" } }, mp_policy = { param_dtype = "bf16" } })
    local optimizer = ms.optim.sgd { lr = 0.1 }
    has(message(function()
      local train = ms.trainer { model = model, optimizer = optimizer, loss = ms.loss.mse }
      train:step { inputs = ms.ones { 2, 16 }, targets = ms.ones { 2, 16 } }
    end), "unit '0' | 0.weight | tensorwise")
  end)
end)
