-- How often weights are gathered, and gradients summed: counted where real ranks train tests/lua/recipes/parity.lua,
-- and equal to what `moonshard plan` says of the same recipe without launching it.

local json = require("cjson")
local ms = require("moonshard")
local breadth = require("lua.support.breadth")
local program = require("lua.support.program")

local re, world = ms.re, ms.world()
local STEPS = 2

-- What ran in one step, by phase, and the plan made without launching.
local function counts(ranks, settings)
  local words, out = { "steps=" .. STEPS }, os.tmpname()
  for name, value in pairs(settings) do words[#words + 1] = ("%s=%s"):format(name, tostring(value)) end
  local ended = program.run_all {
    ran = { "run", "tests/lua/recipes/parity.lua", "-n", tostring(ranks), "out=" .. out, unpack(words) },
    planned = { "plan", "tests/lua/recipes/parity.lua", "-n", tostring(ranks), "--json", unpack(words) },
  }
  assert(ended.ran.status == 0, ended.ran.err)
  assert(ended.planned.status == 0, ended.planned.err)
  local file = assert(io.open(out))
  local ran = json.decode(file:read("*a"))
  file:close()
  os.remove(out)
  local plan = json.decode(ended.planned.out)
  assert.equal(plan.fingerprint, ran.plan.fingerprint)
  for _, phase in ipairs(plan.phases) do
    if phase.name == "first" or phase.name == "update" then
      assert.equal(STEPS * phase.collectives, ran.collectives[phase.name], phase.name)
    end
  end
  local by_kind = { all_gather = 0, reduce_scatter = 0, all_reduce = 0 }
  for _, instr in ipairs(plan.phases[1].instructions) do
    if by_kind[instr.op] then by_kind[instr.op] = by_kind[instr.op] + 1 end
    if instr.replicas then by_kind.all_reduce = by_kind.all_reduce + 1 end -- a host sums over both at once
  end
  return ran.collectives.first / STEPS, by_kind
end

-- The recipe's model has two blocks and the root.
local BLOCKS = 2

-- All-gathers in forward and backward, reduce-scatters, and all-reduces over replicas.
local function expect(ranks, settings, backward, replicas)
  local got, by_kind = counts(ranks, settings)
  local reductions = BLOCKS + 1
  assert.same({ all_gather = BLOCKS + 1 + backward, reduce_scatter = reductions,
    all_reduce = replicas and reductions or 0 }, by_kind)
  assert.equal(by_kind.all_gather + by_kind.reduce_scatter + by_kind.all_reduce, got)
end

describe("collectives of a step", function()
  it("S3 are n + 1 gathers in forward, n + 1, n - 1 or 0 in backward, and n + 1 reductions", function()
    for _, layout in ipairs(breadth.few { "ragged", "rows" }) do
      expect(2, { mesh = "1x2", layout = layout, reshard = "true" }, BLOCKS + 1)
      expect(2, { mesh = "1x2", layout = layout, reshard = "false" }, 0)
    end
    -- "default" keeps the root and the block that runs last.
    expect(2, { mesh = "1x2", reshard = "default" }, BLOCKS - 1)
    expect(2, { mesh = "1x2", reshard = "blocks" }, BLOCKS) -- blocks true, root false
    expect(2, { mesh = "1x2", dtype = "bf16", reshard = "true" }, BLOCKS + 1)
  end)

  it("S3 are one all-reduce a unit with gradients more where there are replicas", function()
    expect(4, { mesh = "2x2", reshard = "true" }, BLOCKS + 1, true)
    -- No unit is gathered or scattered where nothing shards.
    assert.equal(BLOCKS + 1, (counts(2, { mesh = "2x1", reshard = "true" })))
    assert.equal(2 * (BLOCKS + 1) + 2 * BLOCKS, (counts(4, { mesh = "2x2", reshard = "true", freeze = "^layers.0" })))
  end)

  it("S4 are without a gather in backward by default in a stage of a pipeline, whatever was sliced", function()
    local default = { mesh = "1x2", reshard = "default" }
    local function build(how, more)
      local settings = { build = how }
      for name, value in pairs(default) do settings[name] = value end
      for name, value in pairs(more or {}) do settings[name] = value end
      return settings
    end
    expect(4, build("slice"), 0)
    expect(8, build("slice", { mesh = "2x2" }), 0, true)
    expect(4, build("slice", { micro = 3 }), 0)
    expect(4, build("slice", { reshard = "true" }), BLOCKS + 1)
    expect(4, build("interleaved"), BLOCKS - 1) -- sliced out of (replicate, shard, tensor)
  end)

  it("S4 are none in backward by default of the unit that runs last before the root, wherever it began", function()
    -- How often each of three layers and the head, which is the root, are gathered, when layers run in this order.
    local function gathers(order, rule)
      world.describe(0, 4)
      local Net = ms.module "Net"
      function Net:init()
        self.layers, self.head = { ms.nn.linear(8, 8), ms.nn.linear(8, 8), ms.nn.linear(8, 8) }, ms.nn.linear(8, 4)
      end
      function Net:forward(x)
        for _, i in ipairs(order) do x = self.layers[i](x):relu() end
        return self.head(x)
      end
      local units = { re[[^layers\.\d$]] }
      local model = ms.fully_shard(Net(), { mesh = { 1, 4 }, units = units, reshard_after_forward = rule })
      local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.sgd { lr = 1 } }
      local function array(columns) return { data = 0, dtype = "f32", shape = { 2, columns } } end
      local plan, found = json.decode(train:compile({ inputs = array(8), targets = array(4) }):json()), {}
      for _, instr in ipairs(plan.phases[1].instructions) do
        if instr.op == "all_gather" then found[instr.scope] = (found[instr.scope] or 0) + 1 end
      end
      return { found["layers.0"], found["layers.1"], found["layers.2"], found.root }
    end
    assert.same({ 1, 2, 1, 1 }, gathers { 1, 2, 3 }) -- what runs first has no input that learns
    assert.same({ 2, 1, 1, 1 }, gathers { 3, 1, 2 })
    assert.same({ 1, 2, 2, 1 }, gathers({ 1, 2, 3, 1 }, "default"))
    assert.same({ 1, 1, 2, 1 }, gathers({ 1, 2, 3, 2 }, { { "layers.0", "always" }, { re".", "default" } }))
    assert.same({ 2, 2, 1, 1 }, gathers({ 1, 2, 3, 1 },
      { { "layers.0", "always" }, { "layers.2", "never" }, { re".", "default" } }))
  end)
end)
