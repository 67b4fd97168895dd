-- moonshard explain: who decided what, what it costs, and advice whose figures are those of real plans.

local explain = require("moonshard.explain")
local fixture = require("lua.support.fixture")
local json = require("moonshard.base.text.json")
local ms = require("moonshard")
local plan_costs = require("moonshard.explain.plan_costs")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local re, message = ms.re, fixture.message
local world = ms.world()

before_each(function() world.describe(0, 2) end)

local RECIPE = "tests/lua/plans/recipes/explained.lua"
-- One thread and plain products: the same scratch memory on every machine.
local PLAIN = "OMP_NUM_THREADS=1 MOONSHARD_MATMUL=plain"

local function explained(...)
  local ended = program.run({ "explain", RECIPE, "-n", "2", ... }, PLAIN)
  assert.equal(0, ended.status, ended.err)
  return ended.out
end

local function row_of(rows, name)
  for _, row in ipairs(rows) do
    if row.name == name then return row end
  end
  error("no row " .. name)
end

-- ---- models of this spec ----------------------------------------------------------------------------------------

local Block = ms.module "Block"
function Block:init(dim)
  self.norm = ms.nn.layer_norm { dim }
  self.fc1, self.fc2 = ms.nn.linear(dim, 4 * dim), ms.nn.linear(4 * dim, dim)
end
function Block:forward(x) return x + self.fc2(self.fc1(self.norm(x)):gelu_tanh()) end

local function blocks(count, dim)
  local layers = {}
  for i = 1, count do layers[i] = Block(dim) end
  return ms.nn.sequential(layers)
end

local function array(rows, columns) return { data = 0, dtype = "f32", shape = { rows, columns } } end

-- A trainer of blocks in bf16, its plan and the batch that it was compiled for.
local function compiled(config, options)
  options = options or {}
  local dim = options.dim or 32
  config.units, config.mp_policy = { re[[^\d+$]] }, { param_dtype = "bf16" }
  config.mesh = config.mesh or { 1, world.size }
  local model = ms.fully_shard(blocks(options.count or 5, dim), config)
  local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.adamw { lr = 1e-3 },
    prefetch = options.prefetch, micro_batches = options.micro_batches, gradient_sync = options.gradient_sync }
  local batch = { inputs = array(options.rows or 16, dim), targets = array(options.rows or 16, dim) }
  return train:compile(batch), train, batch
end

-- Bytes that a rank receives in the all_gathers of a phase, counted from the plan's own dump.
local function gathered_in(plan, name)
  local sum = 0
  for _, phase in ipairs(json.decode(plan:json()).phases) do
    for _, instr in ipairs(phase.name == name and phase.instructions or {}) do
      if instr.op == "all_gather" then sum = sum + instr.bytes end
    end
  end
  return sum
end

-- ---- the specs --------------------------------------------------------------------------------------------------

describe("explain", function()
  -- When it has to change: PLAIN moonshard explain RECIPE -n 2 --json >tests/lua/plans/golden/explained.json, and line
  -- breaks wherever they help a reader. The guide's example (recipes/guides/explain.md) changes with it.
  it("R3 --json is the golden file", function()
    local file = assert(io.open("tests/lua/plans/golden/explained.json"))
    local golden = file:read("*a"):gsub("\n", "")
    file:close()
    -- Not assert.equal, which would print both.
    local got = explained("--json"):gsub("\n", "")
    local at = 1
    while at <= #golden and golden:byte(at) == got:byte(at) do at = at + 1 end
    assert.is_true(golden == got, ("byte %d: expected ...%s, got ...%s"):format(at, golden:sub(at - 60, at + 60),
      got:sub(at - 60, at + 60)))
  end)

  it("M5 names the collectives that overlap with no computation", function()
    local told = json.decode(explained("--json", "mesh=2x1"))
    assert.equal(5, told.collectives)
    assert.same({ { phase = "first", op = "all_reduce", unit = "layers.0", backward = true, bytes = 33664 } },
      told.exposed)
    told = json.decode(explained("--json", "micro_batches=2"))
    local names = {}
    for i, coll in ipairs(told.exposed) do names[i] = ("%s %s %s"):format(coll.phase, coll.op, coll.unit) end
    assert.same({
      "first all_gather root", "first reduce_scatter layers.0", "next all_gather root", "next reduce_scatter layers.0",
    }, names)
  end)

  it("R3 the price of prefetching is what lies gathered before it is needed", function()
    -- One layer's weights in bf16, as the layers' units are gathered.
    local layer = 16960
    local function kept(depth)
      local by_unit = {}
      for _, row in ipairs(json.decode(explained("--json", "depth=" .. depth)).decisions.prefetch) do
        by_unit[row.name] = row.kept_bytes.gathered
      end
      return by_unit
    end
    local none, one, two = kept(0), kept(1), kept(2)
    assert.same({ 0, layer, 2 * layer }, { none["layers.0"], one["layers.0"], two["layers.0"] })
    assert.same({ layer, layer, layer }, { none["layers.1"], one["layers.1"], two["layers.1"] })
  end)

  it("R3 the guide shows what comes out", function()
    local file = assert(io.open("recipes/guides/explain.md"))
    local guide = file:read("*a"):match("\n    [^\n]*\n\n(.-)\n\nThe first lines")
    file:close()
    assert.equal(guide, (explained():gsub("([^\n]+)", "    %1"):gsub("\n$", "")))
  end)

  it("R3 --json is the same for an absolute path, in another run, and names no folder of the machine", function()
    local pipe = assert(io.popen("pwd"))
    local root = pipe:read("*l")
    pipe:close()
    local ended = program.run({ "explain", root .. "/" .. RECIPE, "-n", "2", "--json" }, PLAIN)
    assert.is_true(explained("--json"):gsub("tests/lua/plans/recipes/", "") == ended.out)
    assert.is_nil(ended.out:find(root, 1, true))
    assert.equal(explained("--json"), explained("--json"))
  end)

  it("R3 names the deciding rule of every policy for every unit and parameter", function()
    local told = json.decode(explained("--json"))
    local d = told.decisions
    local units = { "root", "layers.0", "layers.1", "layers.2", "layers.3" }
    for _, policy in ipairs({ "units", "reshard_after_forward", "mp_policy", "layout", "prefetch" }) do
      local names = {}
      for i, row in ipairs(d[policy]) do names[i] = row.name end
      assert.same(units, names, policy)
    end
    for _, policy in ipairs({ "freeze", "param_dtype", "optimizer groups" }) do
      assert.equal(27, #d[policy])
      assert.truthy(row_of(d[policy], "layers.2.fc1.bias").rule)
    end
    local preset = "tests/lua/plans/recipes/block_rules.lua:"
    assert.same({ pattern = "root", number = 4, where = preset .. 10 }, row_of(d.reshard_after_forward, "root").rule)
    assert.same({ pattern = "/^layers\\.\\d+$/", number = 2, where = preset .. 8 },
      row_of(d.reshard_after_forward, "layers.1").rule)
    assert.equal("tests/lua/plans/recipes/explained.lua:33", row_of(d.reshard_after_forward, "layers.3").rule.where)
    assert.equal(preset .. 6, row_of(d.units, "layers.0").rule.where)
    assert.same({ pattern = "embed", number = 1, where = preset .. 12 }, row_of(d.freeze, "embed.weight").rule)
    assert.same({ true, "gelu_tanh", false }, { row_of(d.recompute, "layers.0").value,
      row_of(d.recompute, "layers.1").value, row_of(d.recompute, "layers.2").value })
    assert.equal("/norm\\./", row_of(d.param_dtype, "layers.1.norm.bias").rule.pattern)
    assert.equal("default", row_of(d.param_dtype, "head.weight").rule)
    assert.equal(0, row_of(d["optimizer groups"], "layers.1.norm.bias").value.weight_decay)
    assert.equal("default", row_of(d["optimizer groups"], "head.weight").rule)
  end)

  it("R3 begins with rules that never decide and optional ones that match nothing", function()
    local text = explained()
    local first, nodes, second, third = text:match("^([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n")
    assert.equal("2 ranks on 1 node", nodes)
    has(first, "explain | rank 0 of 2 | mesh 1x2")
    has(second, 'warning | block_rules.lua:9: | reshard_after_forward | "layers.1" | never')
    has(third, "matches nothing | block_rules.lua:12: | freeze | head.bias | optional")
  end)

  it("R3 collapses neighbours with the same value and rule, and --all does not", function()
    local text, all = explained(), explained("--all")
    assert.truthy(text:find("\n  layers%.0 %.%. layers%.2 %(3%)  always +24%.8 KiB"))
    assert.is_nil(all:find("layers.0 .. layers.2 (3)  always", 1, true))
    assert.truthy(all:find("\n  layers%.1 +always +8%.3 KiB"))
  end)

  it("R3 prices are the plan's: gathers, and what stays from forward to backward", function()
    for _, options in ipairs({ {}, { micro_batches = 4 }, { micro_batches = 4, gradient_sync = "last" } }) do
      local plan, train, batch = compiled({ reshard_after_forward = { { "2", false }, { re"\\d", true } } }, options)
      local told = explain.plan(plan, train, batch, {})
      local k, last = options.micro_batches or 1, options.gradient_sync == "last" and 1 or 0
      local expected = gathered_in(plan, "first") + (k - 1 - last) * gathered_in(plan, "next")
        + last * gathered_in(plan, "last")
      local sum = 0
      for _, row in ipairs(told.decisions.units) do sum = sum + row.gathered end
      assert.equal(expected, sum)
      assert.equal(expected, told.total.gathered)
      local reshard = told.decisions.reshard_after_forward
      assert.equal(row_of(told.decisions.units, "1").gathered, 2 * row_of(reshard, "1").gathered)
      assert.equal(0, row_of(reshard, "2").gathered)
      assert.equal(0, row_of(reshard, "1").kept.gathered)
      -- A block in bf16: two norms of 32, 128 x 32 and 128, 32 x 128 and 32; two shards, none with padding.
      assert.equal(2 * (64 + 4096 + 128 + 4096 + 32), row_of(reshard, "2").kept.gathered)
    end
  end)

  it("H2 R3 prices name the bytes between nodes, which add up to the plan's", function()
    local function told(...)
      local ended = program.run({ "explain", "recipes/toy_hsdp.lua", "-n", "4", "--ranks-per-node", "2", ... }, PLAIN)
      assert.equal(0, ended.status, ended.err)
      return ended.out
    end
    local found = json.decode(told("mesh=1x4", "--json"))
    local quarter = 4 * (3 * 10 + 3 + 2 * 10 + 2) -- bytes of a rank's part
    local row = row_of(found.decisions.mp_policy, "root")
    assert.same({ 3 * quarter, quarter, quarter }, { row.gathered_bytes, row.gathered_wire_bytes,
      row.reduced_wire_bytes })
    assert.same({ quarter, quarter }, { found.gathered_wire_bytes, found.reduced_wire_bytes })
    local by_param = 0
    for _, param in ipairs(found.decisions.param_dtype) do by_param = by_param + param.gathered_wire_bytes end
    assert.is_true(math.abs(by_param - quarter) <= #found.decisions.param_dtype)
    has(told("mesh=1x4"), "660 B, 220 B between nodes")
    local inside = told("mesh=2x2")
    assert.truthy(inside:find("\n  root +4 parameters +352 B +parameters"))
  end)

  it("S4 R3 reports that the default keeps everything in a pipeline, and its cost", function()
    world.describe(0, 4)
    local mesh = ms.init_device_mesh("cpu", { 2, 1, 2 }, { "pipe", "replicate", "shard" })
    local plan, train, batch = compiled({ mesh = mesh:slice { "replicate", "shard" } })
    local told = explain.plan(plan, train, batch, {})
    for _, row in ipairs(told.decisions.reshard_after_forward) do
      assert.equal("default: never, in a pipeline", row.text)
      assert.equal(0, row.gathered)
      assert(row.kept.gathered > 0)
    end
    local freed = compiled({ mesh = mesh:slice { "replicate", "shard" }, reshard_after_forward = true })
    assert(plan_costs.total(freed, 5, plan_costs.phases(freed, 1)).gathered == 2 * told.total.gathered)
  end)

  it("R3 what is kept adds up to the plan's state, and frozen parameters keep none", function()
    local plan, train, batch = compiled({ freeze = { re[[^1\.fc1]] } })
    local told = explain.plan(plan, train, batch, {})
    local bytes, kept = plan:summary().bytes, { parameters = 0, gradients = 0, optimizer = 0 }
    for _, row in ipairs(told.decisions.units) do
      for category in pairs(kept) do kept[category] = kept[category] + row.kept[category] end
    end
    assert.same({ parameters = bytes.parameters, gradients = bytes.gradients, optimizer = bytes.optimizer }, kept)
    assert.same({ gradients = 0, optimizer = 0 }, row_of(told.decisions.freeze, "1.fc1.weight").kept)
    assert.same({ gradients = 4 * 2048, optimizer = 8 * 2048 }, row_of(told.decisions.freeze, "2.fc1.weight").kept)
    assert.equal("frozen", row_of(told.decisions.freeze, "1.fc1.bias").text)
  end)

  it("R3 activations that a module keeps fall to its input when it is made again", function()
    local plan = compiled({ recompute = { { "2", true } } })
    -- What the block writes last is the next one's input: rows x dim of f32 or less.
    assert.is_true(plan_costs.activations(plan, "2") <= 4 * 16 * 32)
    assert.is_true(plan_costs.activations(plan, "1") > 4 * 16 * 32 * 2)
    local sum = 0
    for _, module in ipairs({ "0", "1", "2", "3", "4" }) do sum = sum + plan_costs.activations(plan, module) end
    assert.is_true(sum <= plan_costs.activations(plan, ""))
    local bytes = plan:summary().bytes -- activations lie in communicated memory too, and where gradients will be
    assert.is_true(plan_costs.activations(plan, "") <= bytes.activations + bytes.communication + bytes.gradients)
  end)

  it("R3 the peak is an instruction of the plan, with the buffers in use there", function()
    local plan, train, batch = compiled({}, { rows = 256 })
    local peak = explain.plan(plan, train, batch, {}).peak
    local summary = plan:summary()
    for _, phase in ipairs(json.decode(plan:json()).phases) do
      if phase.name == peak.phase then
        local instr = phase.instructions[peak.instruction + 1]
        assert.same({ peak.op, peak.scope }, { instr.op, instr.scope })
      end
    end
    assert.equal(peak.scope:match("^%d"), peak.unit)
    local sum, buffers = 0, 0
    for category, bytes in pairs(peak.bytes) do
      sum = sum + bytes
      local lent = category == "activations" and summary.bytes.gradients or 0
      assert.is_true(bytes <= summary.bytes[category] + lent, category)
    end
    for _, buffer in ipairs(peak.buffers) do buffers = buffers + buffer.bytes end
    assert.equal(sum, peak.in_use)
    local state = summary.bytes.parameters + summary.bytes.optimizer
    local counts = 4 * #train.session.sharding.params -- of updates
    assert.is_true(math.abs(state + buffers - sum) < 256 + counts) -- and the step's scalars
    assert.is_true(peak.in_use <= summary.peak_bytes and peak.in_use > 0.8 * summary.peak_bytes)
  end)

  it("R3 refuses units and phases that a plan does not have", function()
    local plan = compiled({})
    has(message(plan_costs.unit, plan, 5, { [0] = 1 }), "unit 5 | 0 to 4")
    has(message(plan_costs.unit, plan, 0, { [1] = 1 }), "phase 1")
    has(message(plan_costs.owned, plan.graph.sharding:handle(), 99), "parameter 99")
  end)
end)

describe("advice", function()
  -- The rules that a candidate asks for, written as a recipe would.
  local function config_of(candidate, given)
    local config, rules = { reshard_after_forward = given.reshard_after_forward, recompute = given.recompute }, {}
    for i, name in ipairs(candidate.names) do
      rules[i] = { name, ({ keep = false, reshard = true, recompute = true, ["keep activations"] = false })[
        candidate.action] }
    end
    if candidate.action == "keep" or candidate.action == "reshard" then
      config.reshard_after_forward = ms.rules.join(rules, given.reshard_after_forward)
    elseif candidate.action ~= "prefetch" then
      config.recompute = ms.rules.join(rules, given.recompute)
    end
    return config
  end

  it("R3 its figures are the differences of real plans", function()
    local function given()
      return { reshard_after_forward = { { "1", false }, { re[[\d]], true } }, recompute = { { "3", true } } }
    end
    local plan, train, batch = compiled(given(), { rows = 64 })
    local told = explain.plan(plan, train, batch, { all = true })
    local seen = {}
    for _, candidate in ipairs(told.advice) do
      local other = compiled(config_of(candidate, given()), { rows = 64, prefetch = candidate.depth })
      local what = candidate.action .. " " .. table.concat(candidate.names, ",")
      assert.is_nil(candidate.refused, what)
      assert.equal(other:summary().peak_bytes - plan:summary().peak_bytes, candidate.peak, what)
      assert.equal(gathered_in(other, "first") - gathered_in(plan, "first"), candidate.gathered, what)
      seen[candidate.action] = (seen[candidate.action] or 0) + 1
    end
    -- One alone, runs of neighbours alone and together.
    assert.same({ keep = 5, reshard = 1, recompute = 5, ["keep activations"] = 1, prefetch = 2 }, seen)
    -- Everything is as it was.
    assert.equal(plan:summary().fingerprint, train:compile(batch):summary().fingerprint)
  end)

  it("R3 the first of each list gives most, and some of a long run represent the others", function()
    local plan, train, batch = compiled({ reshard_after_forward = true }, { count = 9, rows = 64 })
    local told = explain.plan(plan, train, batch, {})
    local names = {}
    for _, candidate in ipairs(told.advice) do
      if candidate.action == "keep" then names[#names + 1] = table.concat(candidate.names, " ") end
    end
    assert.same({ "0", "4", "8", "0 1 2 3 4 5 6 7 8" }, names)
    local traffic, memory = require("moonshard.explain.advice").sorted(told.advice)
    for i = 2, #memory do assert.is_true(memory[i - 1].peak <= memory[i].peak) end
    assert.is_true(#traffic > 0 and #memory > 0)
    for _, candidate in ipairs(traffic) do assert.is_true(candidate.gathered < 0) end
    has(explain.text(told), "recomput | 0 .. 8 (9)")
  end)
end)

describe("speed", function()
  it("R4 100 units compile in under 50 ms, and in under 20 ms for one changed rule", function()
    if os.getenv("MOONSHARD_CONFIG") ~= "release" then return pending("sanitized code says nothing about speed") end
    local plan, train, batch = compiled({ reshard_after_forward = true }, { count = 100, dim = 16, rows = 8 })
    local of_model = require("moonshard.engine.session").of(train.model)
    local traced, changed = math.huge, math.huge
    for i = 1, 10 do
      local begin = os.clock()
      train:compile(batch)
      traced = math.min(traced, 1e3 * (os.clock() - begin))
      begin = os.clock()
      ms.set_rules(train.model, { reshard_after_forward = { { tostring(i), false }, { re".", true } } })
      of_model:compile("train", plan.graph, plan.settings)
      changed = math.min(changed, 1e3 * (os.clock() - begin))
    end
    assert.is_true(traced < 50 and changed < 20, ("%.1f and %.1f ms"):format(traced, changed))
  end)
end)
