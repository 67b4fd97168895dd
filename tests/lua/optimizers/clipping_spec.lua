-- Clipping by the norm of each of several groups, and by value: what is refused, what it costs, and that every mesh has
-- the numbers of one rank. updates_spec.lua compares them with PyTorch's.

local cjson = require("cjson")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local ms = require("moonshard")
local program = require("lua.support.program")
local re = ms.re

local RECIPE = [[
  local ms = require "moonshard"
  local re = ms.re
  local cfg = ms.args { mesh = "1x1x1", rules = false, value = ms.args.real(0), micro = 1, sync = 0, layout = "rows" }
  local mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard", "tensor" })
  local model = ms.models.gpt2 { vocab = 256, layers = 2, dim = 16, heads = 4, seq = 8 }
  ms.fully_shard(model, { mesh = mesh, units = { re"^layers\\.\\d+$" }, layout = cfg.layout,
    placements = ms.rules.tensor_parallel(model),
    replicate_sync = cfg.sync > 0 and { every = cfg.sync, outer = ms.optim.sgd { lr = 0.7 } } or nil })
  local clip = cfg.rules and { { re"bias|norm", 0.05 }, { "embed", 0 }, { re"weight$", 0.2 } } or 0.3
  local train = ms.trainer { model = model, loss = ms.loss.cross_entropy, optimizer = ms.optim.sgd { lr = 0.1 },
    clip_grad_norm = clip, clip_grad_value = cfg.value, micro_batches = cfg.micro }
  local data = ms.data.text { files = "tests/lua/recipes/text.txt", seq = 8, batch = 2 * cfg.micro, mesh = mesh }
  for step, batch in data:batches(3) do
    local m = train:step(batch)
    if m.grad_norms then
      local squares = 0
      for _, norm in ipairs(m.grad_norms) do squares = squares + norm ^ 2 end
      assert(#m.grad_norms == 3 and math.abs(math.sqrt(squares) / m.grad_norm - 1) < 1e-5, "norms of groups")
    end
  end
]]

local function small(changes)
  return function() return fixture.small_trainer(changes) end
end

local function refused(message, changes) has(fixture.message(small(changes)), message) end

describe("clipping", function()
  local path

  setup(function() path = program.recipe(RECIPE) end)
  teardown(function() os.remove(path) end)
  before_each(function() ms.world().describe(0, 1) end)

  it("S11 refuses limits and rules that mean nothing", function()
    refused("clip_grad_value | 0 | -1", { clip_grad_value = -1 })
    refused("clip_grad_norm | 0 | -0.5", { clip_grad_norm = -0.5 })
    refused("clip_grad_norm | /weight/ | 0 | \"much\"", { clip_grad_norm = { { re"weight", "much" } } })
    refused("clip_grad_norm | /nothing/", { clip_grad_norm = { { re"nothing", 1 } } })
    local many = {}
    for i = 1, 17 do many[i] = { re"weight", i } end
    refused("clip_grad_norm | 17 | 16", { clip_grad_norm = many })
  end)

  it("S11 warns of a rule that never decides", function()
    local shadowed = program.recipe([[
      local ms = require "moonshard"
      local model = ms.nn.linear(2, 2)
      ms.fully_shard(model)
      ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 1 },
        clip_grad_norm = { { ms.re".", 1 }, { "bias", 2 } } }
    ]])
    has(program.run({ "run", shadowed }).err, "clip_grad_norm | bias | never")
    os.remove(shadowed)
  end)

  it("S11 S12 of groups and by value has the numbers of one rank on every mesh", function()
    for _, case in ipairs {
      { 8, "mesh=2x2x2" }, { 4, "mesh=1x2x2", "layout=ragged" }, { 4, "mesh=4x1x1", "micro=2" }, { 3, "mesh=1x3x1" },
    } do
      local ended = program.run { "check", path, "-n", tostring(case[1]), "rules=true", "value=0.02", unpack(case, 2) }
      assert.equal(0, ended.status, ended.err .. ended.out)
    end
  end)

  it("S11 of groups takes the collectives of one norm", function()
    local counts = {}
    for _, rules in ipairs { "true", "false" } do
      local ended = program.run { "plan", path, "-n", "8", "mesh=2x2x2", "rules=" .. rules, "--json" }
      assert.equal(0, ended.status, ended.err)
      for _, phase in ipairs(cjson.decode(ended.out).phases) do
        if phase.name == "norm" then counts[rules] = phase.collectives end
      end
    end
    assert.is_true(counts["true"] > 0)
    assert.equal(counts["false"], counts["true"])
  end)

  it("R3 explain names the rule of each parameter", function()
    local explained = program.run({ "explain", path, "-n", "2", "mesh=1x2x1", "rules=true" }).out
    has(explained, "clip_grad_norm | embed.weight | not clipped | layers.0. | weight | most 0.2")
    assert.is_nil(program.run({ "explain", path, "-n", "2", "mesh=1x2x1" }).out:find("clip_grad_norm", 1, true))
  end)

  it("S11 of groups is refused with local steps", function()
    has(program.run { "run", path, "-n", "2", "mesh=2x1x1", "sync=2", "rules=true" }.err,
      "clip_grad_norm | replicate_sync | one number")
  end)
end)
