-- moonshard tune: its guarantees as a user meets them, for a small Llama on described clusters.

local clusters = require("moonshard.price.cluster")
local decode = require("moonshard.base.text.json").decode
local fixture = require("lua.support.fixture")
local launched = require("lua.support.launched")
local meshes = require("moonshard.tune.meshes")
local moves = require("moonshard.tune.moves")
local ms = require("moonshard")
local pattern_of = require("moonshard.tune.pattern_of")
local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local point = require("moonshard.tune.point")
local policies = require("moonshard.tune.policies")
local program = require("lua.support.program")
local re = require("moonshard.base.re")
local memory_limit_of = require("moonshard.tune.memory_limit")
local rules = require("moonshard.shard.rules")
local rules_text = require("moonshard.tune.rules_text")
local scratch = require("lua.support.scratch")
local search = require("moonshard.tune.search")
local trial = require("moonshard.tune.trial")
local world = require("moonshard.distributed.world")

local LLAMA = "recipes/llama.lua"
local SETTINGS = { "seq=64", "files=recipes", "dtype=bf16" } -- as the clusters have it, whatever this CPU has
local SLICES = "shard_optimizer_over_replicate"
local PLAIN = { "recipe", "default", "always", "never", SLICES } -- the last one where there are replicas

local tuned = {}

-- What a search reports; one with equal arguments runs once.
local function tune(...)
  local arguments = { "tune", LLAMA, "--json", ... }
  for _, setting in ipairs(SETTINGS) do arguments[#arguments + 1] = setting end
  local key = table.concat(arguments, " ")
  local ended = tuned[key] or program.run(arguments)
  assert.equal(0, ended.status, ended.err)
  tuned[key] = ended
  return decode(ended.out)
end

-- The recipe with the rules of a report pasted into ms.fully_shard, in place of its own.
local function pasted(found)
  local before, source = scratch.read(LLAMA):match("^(.*)(\nms%.fully_shard.*)$")
  local kept = { before }
  for line in source:gmatch("[^\n]*\n") do
    local name = line:match("^  ([%a_]+) = ")
    if not (name and found.rules.options:find("^" .. name .. " = ")) and
      not (name and found.rules.options:find("\n" .. name .. " = ")) then
      kept[#kept + 1] = line
    end
  end
  local text, count = table.concat(kept):gsub("\nms%.fully_shard%(model, {\n", function(head)
    return "\n" .. found.rules.before .. head .. found.rules.options
  end)
  assert.equal(1, count)
  return text
end

describe("moonshard tune", function()
  it("E7 never exceeds the memory limit, nor what the description reserves", function()
    local tightest
    for _, memory in ipairs(breadth.few { "64MiB", "36MiB", "31MiB", "28MiB" }) do
      local found = tune("-n", "2", "--cluster", "cpu-example", "--memory", memory)
      assert.is_true(found.peak_bytes <= found.limit_bytes, memory)
      assert.is_true(found.fits)
      tightest = found
    end
    assert.equal(28 * 2 ^ 20, tightest.limit_bytes)
    local on_gpu = tune("-n", "8", "--cluster", "h100x8", "--memory", "5.45GiB")
    assert.equal(5.8e9, on_gpu.reserved_bytes)
    assert.is_true(on_gpu.peak_bytes + on_gpu.reserved_bytes <= 5.45 * 2 ^ 30)
  end)

  it("E7 says that a trainer's memory_limit is what counts, where it is less than the device has", function()
    local path = scratch.path() .. ".lua"
    local function limited(limit, ...)
      local option = ("%%0 memory_limit = %q,"):format(limit)
      scratch.write(path, (scratch.read(LLAMA):gsub("clip_grad_norm = 1%.0,", option)))
      return program.run({ "tune", path, "-n", "2", "--cluster", "cpu-example", "--mesh", "1x2", "seq=64",
        "files=recipes", ... })
    end
    local found = decode(limited("30MiB", "--json").out)
    assert.equal(30 * 2 ^ 20, found.limit_bytes)
    assert.is_true(found.peak_bytes <= found.limit_bytes)
    assert.is_true(not found.more_memory or found.more_memory.bytes > 0)
    has(limited("30MiB").out, "30.0 MiB | memory_limit | does not fit")
    has(limited("2MiB").err, "no plan | 2.0 MiB")
  end)

  it("E7 is never slower than plain rules that fit, on any mesh", function()
    local runs = {
      { "-n", "16", "--cluster", "h100x8-100gbe" },
      { "-n", "16", "--cluster", "h100x8-100gbe", "--memory", "5.423GiB" },
      { "-n", "2", "--cluster", "cpu-example", "--memory", "30MiB" },
      breadth.all and { "-n", "4", "--cluster", "h100x8" } or nil,
    }
    for _, run in ipairs(runs) do
      local found, compared = tune(unpack(run)), 0
      for _, mesh in ipairs(found.meshes) do
        for _, name in ipairs(mesh.refused and {} or PLAIN) do
          local plain = mesh[name]
          assert.is_true(plain ~= nil or name == SLICES, name)
          if plain and plain.fits then
            compared = compared + 1
            assert.is_true(mesh.best.step_ms <= plain.step_ms, mesh.mesh .. " " .. name)
            assert.is_true(found.tokens_per_s >= plain.tokens_per_s, mesh.mesh .. " " .. name)
          end
        end
      end
      assert.is_true(compared > 0)
    end
  end)

  it("E7 prints rules that give the same plan when they are pasted into the recipe", function()
    local runs = {
      { "-n", "16", "--cluster", "h100x8-100gbe", "--memory", "5.423GiB" }, { "-n", "8", "--cluster", "h100x8" },
      { "-n", "2", "--cluster", "cpu-example", "--memory", "30MiB" },
      { "-n", "16", "--cluster", "h100x8-100gbe", "--mesh", "2x8" },
    }
    local printed = {}
    for _, run in ipairs(runs) do
      local found = tune(unpack(run))
      assert.are_not.equal("", found.rules.options)
      for name in ("\n" .. found.rules.options):gmatch("\n([%a_]+) = ") do printed[name] = true end
      launched.with_recipe(pasted(found), function(path)
        local ended = program.run({ "price", path, "-n", run[2], "--cluster", run[4], "--json", "mesh=" .. found.mesh,
          unpack(SETTINGS) })
        assert.equal(0, ended.status, ended.err)
        local priced = decode(ended.out)
        assert.equal(found.fingerprint, priced.fingerprint)
        assert.equal(found.peak_bytes, priced.peak_bytes)
        assert.equal(found.step_ms, priced.step_ms)
      end)
    end
    for _, row in ipairs(policies.all) do assert.is_true(printed[row.name], row.name) end
  end)

  it("E7 shards the optimizer over replicas where that is faster, on meshes that are slower without", function()
    local found = tune("-n", "16", "--cluster", "h100x8-100gbe")
    has(found.rules.options, "shard_optimizer_over_replicate = true")
    assert.is_true(found.prices[SLICES].ms < 0)
    local chosen = found.meshes[1]
    assert.is_true(chosen[SLICES].step_ms < chosen.recipe.step_ms)
    has(program.run({ "tune", LLAMA, "-n", "16", "--cluster", "h100x8-100gbe", "--mesh", "2x8", unpack(SETTINGS) }).out,
      "optimizer over replicas | shard_optimizer_over_replicate = true")
  end)

  it("E7 leaves the optimizer as it is where replicas take local steps, and finds what fits", function()
    local path = scratch.path() .. ".lua"
    scratch.write(path, (scratch.read(LLAMA):gsub("\nms%.fully_shard%(model, {\n", function(head)
      return head .. "  replicate_sync = { every = 8, outer = ms.optim.sgd { lr = 0.7 } },\n"
    end)))
    local ended = program.run({ "tune", path, "-n", "16", "--cluster", "h100x8-100gbe", "--mesh", "2x8", "--memory",
      "5.43GiB", "--json", unpack(SETTINGS) })
    assert.equal(0, ended.status, ended.err)
    local found = decode(ended.out)
    assert.is_false(found.meshes[1].recipe.fits)
    assert.is_true(found.fits)
    assert.is_nil(found.meshes[1][SLICES])
    assert.is_nil(found.rules.options:find(SLICES, 1, true))
  end)

  it("E7 says what is smallest and what would make it smaller, if nothing fits", function()
    program.refused(3, { "tune", LLAMA, "-n", "2", "--cluster", "cpu-example", "--memory", "8MiB", unpack(SETTINGS) },
      "8.0 MiB | smallest | mesh | parameters | optimizer | more ranks")
  end)

  it("E7 finds the same every time", function()
    local run = { "tune", LLAMA, "-n", "8", "--cluster", "h100x8", "--memory", "5.43GiB", "--json", unpack(SETTINGS) }
    if not breadth.all then run[#run + 1] = "mesh=2x4" end
    local ended = program.run_all({ a = run, b = run })
    assert.equal(0, ended.a.status, ended.a.err)
    assert.equal(ended.a.out, ended.b.out)
  end)

  it("shows once what the recipe prints, and says where its mesh gets the cluster's device", function()
    local path = scratch.path() .. ".lua"
    local source = scratch.read(LLAMA)
    local function tune_of(with)
      scratch.write(path, with)
      return program.run { "tune", path, "-n", "2", "--cluster", "h100x8", unpack(SETTINGS) }
    end
    local ended = tune_of(source:gsub("local dtype", 'print("a new mesh", { 1, 2 })\nio.write("written\\n")\n%0', 1))
    assert.equal(0, ended.status, ended.err)
    assert.equal("a new mesh\t{ 1, 2 }\nwritten\n", ended.err)
    local on_cpu = source:gsub("init_device_mesh%(cfg.device", 'init_device_mesh("cpu"')
    has(tune_of(on_cpu).err, "on cpu | h100x8 | cfg.device")
  end)

  it("takes the mesh of --mesh or of the settings alone, and refuses both", function()
    for _, given in ipairs({ { "--mesh", "2x4" }, { "mesh=2x4" } }) do
      local found = tune("-n", "8", "--cluster", "h100x8", unpack(given))
      assert.equal("2x4", found.mesh)
      assert.equal(1, #found.meshes)
    end
    program.refused(2, { "tune", LLAMA, "-n", "8", "--cluster", "h100x8", "--mesh", "2x4", "mesh=1x8" },
      "mesh=1x8 | --mesh")
  end)

  it("refuses a line without a cluster, and memory that is none or more than there is", function()
    program.refused(2, { "tune", LLAMA, "-n", "2" }, "--cluster | cpu-example")
    local line = { "tune", LLAMA, "-n", "2", "--cluster", "h100x8", "--memory" }
    for memory, facts in pairs({ plenty = "--memory plenty | 72GiB", ["90GiB"] = "90.0 GiB | 74.5 GiB | h100x8",
      ["4GiB"] = "4.0 GiB | 5.4 GiB", ["20Gb"] = "20Gb | 20GiB | 20GB" }) do
      local arguments = { unpack(line) }
      arguments[#arguments + 1] = memory
      program.refused(2, arguments, facts)
    end
  end)

  it("names -n where nothing fits on the one rank that it did not give", function()
    local alone = { "tune", LLAMA, "--cluster", "h100x8", "--memory", "5.41GiB", unpack(SETTINGS) }
    has(program.run(alone).err, "1 rank | -n")
    table.insert(alone, "-n")
    table.insert(alone, "1")
    assert.is_nil(program.run(alone).err:find("-n", 1, true))
  end)

  it("reports for people", function()
    local ended = program.run({ "tune", LLAMA, "-n", "8", "--cluster", "h100x8", "--memory", "5.415GiB",
      unpack(SETTINGS) })
    assert.equal(0, ended.status, ended.err)
    for _, part in ipairs({ "tune: 8 ranks on h100x8: mesh ", "reshard never", "options of ms.fully_shard",
      "more memory: ", "other meshes", "optimizer over replicas\n", "  -- saves " }) do
      assert.is_truthy(ended.out:find(part, 1, true), part)
    end
    for line in ended.out:gmatch("[^\n]+") do assert.is_true(#line <= 120, line) end
  end)
end)

-- ---- parts ------------------------------------------------------------------------------------------------------

-- Options with patterns as text: a pattern remembers its line.
local function plain(value)
  if re.is(value) then return tostring(value) end
  if type(value) ~= "table" then return value end
  local copy = {}
  for key, part in pairs(value) do copy[key] = plain(part) end
  return copy
end

describe("the text of tuned rules", function()
  it("reads back as what was written", function()
    local units = { "embed", { "norm", "head" } }
    for i = 0, 31 do
      units[#units + 1] = { "layers." .. i .. ".norm", "layers." .. i .. ".attn" }
      units[#units + 1] = "layers." .. i .. ".mlp"
    end
    units[#units + 1] = { re[[^rest\.]], true, optional = true }
    local options = { units = units, prefetch = 2, recompute = false,
      reshard_after_forward = { { re[[^layers\.\d$]], false }, { re"", 8 } } }
    local text = rules_text.of(options)
    assert.is_true(#text.before < 300, text.before)
    assert.same(plain(options), plain(rules_text.read(text)))
  end)

  it("writes units of any form", function()
    local lists = {
      { "a", "b", "c" }, { re[[^\d+$]] }, { "0", "1", "2", "3" }, { { "0", "1" }, { "2", "3" }, { "4", "5" } },
      { { "x.0", "x.1" }, { "x.2", "x.3" }, { "x.4" } }, { "l.0", "l.2", "l.4", "l.6", "l.7" },
    }
    for _, units in ipairs(lists) do
      for _ = 1, 6 do units[#units + 1] = ("another.unit.with.a.long.name.%d.so.that.lines.fill"):format(#units) end
      local text = rules_text.of({ units = units })
      assert.same(plain(units), plain(rules_text.read(text).units))
    end
  end)

  it("matches the modules of a list and no others", function()
    local all = {}
    for i = 0, 125 do
      all[#all + 1] = "layers." .. i
      all[#all + 1] = "layers." .. i .. ".attn"
    end
    local lists = { { "layers.0" }, { "layers.9", "layers.10" }, { "layers.3", "layers.7.attn" }, { "head", "embed" } }
    lists[5], lists[6] = {}, {}
    for i = 0, 125 do
      if i % 3 == 0 then table.insert(lists[5], "layers." .. i) end
      if i < 117 then table.insert(lists[6], "layers." .. i) end
    end
    for _, names in ipairs({ "head", "embed" }) do all[#all + 1] = names end
    for _, list in ipairs(lists) do
      local chosen, matched = {}, {}
      for _, name in ipairs(list) do chosen[name] = true end
      local policy = rules.policy("test", { { re(pattern_of(list)), true } })
      for i, decision in ipairs((policy:resolve(all, false))) do
        if decision.value then matched[all[i]] = true end
      end
      assert.same(chosen, matched)
    end
  end)
end)

describe("the table of searched policies", function()
  it("has every policy once in each of its orders", function()
    for _, order in ipairs({ "moved", "saved", "frugal" }) do
      local count = {}
      for _, row in ipairs(policies[order]) do count[row.name] = (count[row.name] or 0) + 1 end
      for _, row in ipairs(policies.all) do assert.equal(1, count[row.name], order .. " " .. row.name) end
      assert.equal(#policies.all, #policies[order])
    end
  end)

  it("says which points share a graph: those whose policies ms.set_rules can change", function()
    local recipe = point.recipe()
    assert.equal("the recipe's rules", point.describe(recipe))
    local fields = { reshard = true, keep = true, first = true, prefetch = true, group = false, apart = false,
      recompute = false, spread = false, over_replicate = false }
    for name, shares in pairs(fields) do
      local other = point.with(recipe, { [name] = "another" })
      assert.are_not.equal(point.key(recipe), point.key(other), name)
      assert.equal(shares, point.key(recipe, true) == point.key(other, true), name)
    end
  end)

  it("takes the moves of free policies alone, each of which changes the point", function()
    local blocks = { of = {}, apart = { { "embed" } } }
    for i = 1, 8 do
      blocks.of[i] = { names = { "layers." .. i }, list = "layers.", bytes = 1, parts = {}, direct = true }
    end
    local context = { blocks = blocks, bucket = 1, modes = { "always", "never" }, recomputes = false, ahead = 1,
      sliced = false }
    local now = point.with(point.recipe(), { group = 2, reshard = "always", keep = 2, prefetch = 2, recompute = 4 })
    for _, row in ipairs(policies.all) do
      context.free = { [row.name] = true }
      local own = { keep = true } -- of units, which other sizes of units count again
      for _, field in ipairs(row.fields) do own[field[1]] = true end
      local list = moves.of(now, context, 0.25)
      for _, other in ipairs(moves.saving(now, context)) do list[#list + 1] = other end
      assert.is_true(#list > 1, row.name)
      for _, other in ipairs(list) do
        assert.are_not.equal(point.key(now), point.key(other), row.name)
        for name, value in pairs(other) do assert.is_true(value == now[name] or own[name] or false, name) end
      end
    end
  end)
end)

-- A search of all policies of a model that is sharded so, whose points `try` prices.
local function search_of(config, try)
  world.describe(0, 4)
  config.units = { re[[^\d+$]] }
  local model = ms.fully_shard(ms.nn.sequential { ms.nn.linear(8, 8), ms.nn.linear(8, 8) }, config)
  local of = trial.new({ session = { sharding = model.sharding } }, {}, clusters.load("h100x8"), 0)
  of.try = try
  local free = {}
  for _, row in ipairs(policies.all) do free[row.name] = true end
  return search.new(of, free)
end

describe("a search", function()
  it("shards the optimizer over replicas only where the recipe's rules allow it", function()
    local sync = { every = 2, outer = ms.optim.sgd { lr = 0.7 } }
    local cases = {
      [true] = { { mesh = { 2, 2 } }, { mesh = { 4, 1 } }, { mesh = { 2, 2 }, layout = "ragged" },
        { mesh = { 2, 2 }, shard_optimizer_over_replicate = true } },
      [false] = { { mesh = { 1, 4 } }, { mesh = 4 }, { mesh = { 2, 2 }, replicate_sync = sync },
        { mesh = { 2, 2 }, mp_policy = { reduce_dtype = { replicate = "i8" } } },
        { mesh = { 2, 2 }, mp_policy = { { "0", { reduce_dtype = { shard = "i8" } } } } } },
    }
    for expected, configs in pairs(cases) do
      for i, config in ipairs(configs) do
        local case = ("%s %d"):format(expected, i)
        local context = search_of(config).context
        assert.equal(expected, context.free[SLICES], case)
        assert.equal(expected and config[SLICES] == true or nil, context.sliced or nil, case)
        local advice = policies.by_name[SLICES].advice(point.recipe(), "optimizer", context)
        assert.equal(expected and not config[SLICES] and SLICES or nil, advice, case)
      end
    end
  end)

  it("goes back to the recipe's own slices, and tries to do without them", function()
    local function moved(config, p)
      local found = search_of(config)
      local values = {}
      found.context.free = { [SLICES] = true }
      for i, other in ipairs(moves.of(p, found.context, 0.25)) do values[i] = other.over_replicate end
      return values
    end
    local recipe = point.recipe()
    local with = { mesh = { 2, 2 }, shard_optimizer_over_replicate = true }
    assert.same({ true }, moved({ mesh = { 2, 2 } }, recipe))
    assert.same({ "recipe" }, moved({ mesh = { 2, 2 } }, point.with(recipe, { over_replicate = true })))
    assert.same({ false }, moved(with, recipe))
    assert.same({ "recipe" }, moved(with, point.with(recipe, { over_replicate = false })))
    assert.same({ true }, moved({ mesh = { 2, 2 }, shard_optimizer_over_replicate = { { "0", true } } }, recipe))
  end)

  it("leaves out what is refused on its way to little memory", function()
    local tried = {}
    local found = search_of({ mesh = { 2, 2 } }, function(_, p)
      tried[#tried + 1] = p
      local refused = (p.over_replicate == true or p.reshard == "always") and "refused" or nil
      return { point = p, seconds = 1, bytes = 100 - #tried, fits = false, refused = refused }
    end)
    found:try_frugal()
    local last = tried[#tried]
    assert.is_true(tried[1].over_replicate)
    assert.same({ "recipe", "recipe" }, { last.over_replicate, last.reshard })
    assert.equal(0, last.prefetch)
    assert.equal(last, found.smallest.point)
  end)
end)

describe("meshes to tune", function()
  it("have all ranks, and groups that fill nodes or divide them", function()
    local texts = {}
    for _, sizes in ipairs(meshes.of(16, 8)) do
      assert.equal(16, sizes.replicate * sizes.shard * (sizes.tensor or 1))
      texts[#texts + 1] = meshes.text(sizes)
    end
    assert.same({ "16x1", "8x2", "4x4", "2x8", "1x16", "8x1x2", "4x2x2", "2x4x2", "1x8x2", "4x1x4", "2x2x4", "1x4x4",
      "2x1x8", "1x2x8" }, texts)
    assert.same({ "3x1", "1x3", "1x1x3" }, (function()
      local list = {}
      for i, sizes in ipairs(meshes.of(3, 3)) do list[i] = meshes.text(sizes) end
      return list
    end)())
  end)

  it("divide a node's memory on the CPU", function()
    local cluster = { name = "c", device = "cpu", memory = 400, reserved = 40, sharing = function() return 4 end }
    assert.same({ bytes = 90, device = 100, allowed = 100, reserved = 10 }, memory_limit_of(cluster, nil, "memory"))
    assert.equal(40, memory_limit_of(cluster, 50, "memory").bytes)
    assert.is_truthy(fixture.message(memory_limit_of, cluster, 101, "memory"):find("100 B", 1, true))
  end)
end)
