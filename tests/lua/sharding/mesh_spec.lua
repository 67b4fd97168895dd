-- Meshes: layout of ranks, groups, what fully_shard takes for one, and what a dimension of size 1 costs.

local ms = require("moonshard")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local roles = require("moonshard.shard.roles")
local message = fixture.message
local world = ms.world()

before_each(function() world.describe(0, 8) end)

local function list(group)
  local ranks = {}
  for i, rank in ipairs(group) do ranks[i] = rank end
  return ranks
end

-- What four launched ranks print, sorted: one line a rank.
local function on_four_ranks(source)
  local path = program.recipe("local ms = require \"moonshard\"\n" .. source)
  local ended = program.run({ "run", path, "-n", "4", "--log-ranks", "all" })
  os.remove(path)
  local lines = {}
  for line in (ended.out .. ended.err):gmatch("[^\n]+") do lines[#lines + 1] = line end
  table.sort(lines)
  return lines, ended.status
end

describe("D1", function()
  it("gives launched ranks their own places", function()
    local lines, status = on_four_ranks([[
      local mesh = ms.init_device_mesh("cpu", "2x-1", { "replicate", "shard" })
      print(mesh:get_local_rank("replicate"), mesh:get_local_rank("shard"), tostring(mesh:get_group("shard")))]])
    assert.equal(0, status)
    assert.same({
      "[rank 0] 0\t0\t{0, 1}", "[rank 1] 0\t1\t{0, 1}", "[rank 2] 1\t0\t{2, 3}", "[rank 3] 1\t1\t{2, 3}",
    }, lines)
  end)

  it("refuses a mesh that does not fit the launched ranks, with the recipe's line and status 2", function()
    local lines, status = on_four_ranks([[ms.init_device_mesh("cpu", "2x3", { "replicate", "shard" })]])
    assert.equal(2, status)
    local text = table.concat(lines, "\n")
    has(text, ":2: | mesh 2x3 (replicate, shard) | 6 ranks | 4")
  end)

  it("lays ranks out row-major", function()
    world.describe(6, 8)
    local mesh = ms.init_device_mesh("cpu", { 2, 4 }, { "replicate", "shard" })
    assert.same({ 1, 2 }, mesh:get_coordinate())
    assert.same({ 4, 5, 6, 7 }, list(mesh:get_group("shard")))
    assert.same({ 2, 6 }, list(mesh:get_group("replicate")))
    assert.equal(2, mesh:get_local_rank("shard"))
    assert.equal(2, mesh:get_group(1).rank)
  end)

  for title, shape in pairs({ ["a list"] = { 2, 4 }, ["text"] = "2x4", ["an inferred size"] = { 2, -1 },
    ["an inferred size in text"] = "-1x4" }) do
    it("takes a shape given as " .. title, function()
      local mesh = ms.init_device_mesh("cpu", shape, { "a", "b" })
      assert.same({ 2, 4 }, mesh.shape)
      assert.same({ "a", "b" }, mesh.names)
      assert.equal(2, mesh.ndim)
      assert.equal(8, mesh:size())
      assert.equal(4, mesh:size("b"))
      assert.equal(2, mesh:size(0))
    end)
  end

  it("needs no name in one dimension", function()
    local mesh = ms.init_device_mesh("cpu", 8)
    assert.is_nil(mesh.names)
    assert.equal(8, mesh:size(0))
    assert.same({ 0, 1, 2, 3, 4, 5, 6, 7 }, list(mesh:get_group()))
  end)

  it("trains on a mesh without names, and counts its bytes by number", function()
    local lines, status = on_four_ranks([[
      local model = ms.fully_shard(ms.nn.linear(4, 2), { mesh = ms.init_device_mesh("cpu", 4) })
      local data = ms.data.random { inputs = 4, targets = 2 }
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
      local m = train:step(data:read { 1, 2 })
      print(m.comm_bytes["dim 0"] > 0, train:plan():summary().comm_bytes["dim 0"] == m.comm_bytes["dim 0"])]])
    assert.equal(0, status)
    assert.equal("[rank 0] true\ttrue", lines[1])
  end)

  it("prints the ranks as a table", function()
    world.describe(1, 4)
    local text = tostring(ms.init_device_mesh("cpu", "2x2", { "replicate", "shard" }))
    assert.equal("mesh 2x2 (replicate, shard) on cpu, rank 1 at (0, 1)\n  replicate=0  0  1\n  replicate=1  2  3", text)
  end)

  for title, case in pairs({
    ["a product that is not the world"] = { { "cpu", { 2, 3 }, { "a", "b" } }, "6 ranks | 8" },
    ["two inferred sizes"] = { { "cpu", { -1, -1 }, { "a", "b" } }, "both -1" },
    ["an inferred size that does not divide"] = { { "cpu", { 3, -1 }, { "a", "b" } }, "does not divide" },
    ["too few names"] = { { "cpu", { 2, 4 }, { "a" } }, "2 dimensions | 1 name" },
    ["too many names"] = { { "cpu", 8, { "a", "b" } }, "1 dimension | 2 names" },
    ["names left out in two dimensions"] = { { "cpu", { 2, 4 } }, "name" },
    ["equal names"] = { { "cpu", { 2, 4 }, { "a", "a" } }, "both" },
    ["text that is no shape"] = { { "cpu", "2by4", { "a", "b" } }, "sizes | x" },
    ["a size that is no integer"] = { { "cpu", { 2, 4.5 }, { "a", "b" } }, "size 4.5 | dimension 1" },
    ["an unknown device"] = { { "tpu", 8 }, "tpu | cpu" },
  }) do
    it("refuses " .. title, function()
      local text = message(function() local _ = ms.init_device_mesh(unpack(case[1])) end)
      has(text, case[2])
      assert.truthy(text:find("^%S*mesh_spec.lua:%d+: "), text)
    end)
  end

  it("names the valid dimensions when one is unknown", function()
    local mesh = ms.init_device_mesh("cpu", "2x4", { "replicate", "shard" })
    has(message(mesh.size, mesh, "shrad"), "replicate, shard")
    has(message(mesh.get_group, mesh), "which")
    has(message(mesh.size, mesh, 2), "0 to 1")
  end)
end)

describe("D8", function()
  local function summary_over(mesh)
    local model = ms.fully_shard(fixture.gpt2(), { mesh = mesh, units = { ms.re[[^layers\.\d+$]] } })
    return fixture.summary(fixture.trace(model, 2, 4))
  end

  local function total(summary)
    local count = 0
    for phase = 0, 4 do count = count + summary.collectives[phase] end
    return count
  end

  it("gives a dimension of size 1 no collective and no bytes", function()
    world.describe(0, 4)
    local flat, with_one = summary_over({ 4 }), summary_over({ 1, 4 })
    assert.equal(total(flat), total(with_one))
    assert.equal(0, with_one.comm_bytes[0])
    assert.is_true(with_one.comm_bytes[1] > 0)
    assert.equal(flat.comm_bytes[0], with_one.comm_bytes[1])
  end)

  it("gives one rank no collective at all", function()
    world.describe(0, 1)
    assert.equal(0, total(summary_over({ 1, 1 })))
    assert.equal(0, total(summary_over({ 1 })))
  end)

  it("makes a dimension that spans the world the world's group", function()
    world.describe(3, 8)
    local mesh = ms.init_device_mesh("cpu", { 1, 8 }, { "replicate", "shard" })
    assert.same({ 0, 1, 2, 3, 4, 5, 6, 7 }, list(mesh:get_group("shard")))
    assert.same({ 3 }, list(mesh:get_group("replicate")))
  end)
end)

describe("D11", function()
  it("trains launched ranks on a mesh given as sizes", function()
    local lines, status = on_four_ranks([[
      local model = ms.fully_shard(ms.nn.linear(4, 2), { mesh = { 2, 2 } })
      local data = ms.data.random { inputs = 4, targets = 2 }
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
      for step, batch in data:batches(ms.data.sampler { length = data.length }, 8) do
        local m = train:step(batch)
        if step == 3 then
          print(("%s %.9g"):format(model.sharding.mesh:label(), m.loss))
          break
        end
      end]])
    assert.equal(0, status)
    assert.equal(4, #lines)
    for rank, line in ipairs(lines) do
      assert.equal(("[rank %d] 2x2 (replicate, shard)"):format(rank - 1), line:match("^(.*%)) "))
      assert.equal(lines[1]:match("%S+$"), line:match("%S+$"))
    end
  end)

  local function mesh_of(given)
    return ms.fully_shard(fixture.gpt2(), { mesh = given }).sharding
  end

  for title, case in pairs({
    ["{2,4} is (replicate, shard)"] = { { 2, 4 }, { 2, 4 }, { "replicate", "shard" }, 0, 1 },
    ["{8} is FSDP"] = { { 8 }, { 8 }, { "shard" }, -1, 0 },
    ["8 is FSDP"] = { 8, { 8 }, { "shard" }, -1, 0 },
    ["\"2x4\" is (replicate, shard)"] = { "2x4", { 2, 4 }, { "replicate", "shard" }, 0, 1 },
  }) do
    it(title, function()
      local sharding = mesh_of(case[1])
      assert.same(case[2], sharding.mesh.shape)
      assert.same(case[3], sharding.mesh.names)
      assert.same({ case[4], case[5] }, { sharding.replicate_dim, sharding.shard_dim })
    end)
  end

  it("shards over all ranks without a mesh, and replicates without fully_shard", function()
    local sharding = mesh_of(nil)
    assert.same({ -1, 0, 8 }, { sharding.replicate_dim, sharding.shard_dim, sharding.mesh:size("shard") })
    local default = require("moonshard.shard.sharding").of(fixture.gpt2())
    assert.same({ 0, -1 }, { default.replicate_dim, default.shard_dim })
  end)

  -- A dimension's name decides, wherever it stands.
  for names, expected in pairs({
    ["replicate shard"] = { 4, 2 }, ["shard replicate"] = { 2, 4 },
    ["dp_replicate dp_shard"] = { 4, 2 }, ["dp_shard dp_replicate"] = { 2, 4 }, ["ddp fsdp"] = { 4, 2 },
    ["fsdp ddp"] = { 2, 4 }, ["ddp"] = { 8, 1 }, ["fsdp"] = { 1, 8 }, ["fsdp tp"] = { 1, 4, tensor = 2 },
    ["cp tensor"] = { 1, 1, context = 4, tensor = 2 }, ["tp dp_replicate"] = { 2, 1, tensor = 4 },
  }) do
    it("U6 roles of " .. names, function()
      local parts = {}
      for name in names:gmatch("%S+") do parts[#parts + 1] = name end
      local sharding = mesh_of(ms.init_device_mesh("cpu", #parts == 1 and { 8 } or { 4, 2 }, parts))
      assert.same({ expected[1], expected[2], expected.context or 1, expected.tensor or 1 }, {
        roles.ranks(sharding, "replicate"), sharding.shard_dim < 0 and 1 or sharding.mesh:size(sharding.shard_dim),
        roles.ranks(sharding, "context"), roles.ranks(sharding, "tensor") })
    end)
  end

  for names, facts in pairs({
    ["outer inner"] = "outer | role | replicate (also dp_replicate | shard (also", ["dp fsdp"] = "dp | DDP | FSDP",
    ["replicate shrad"] = "shrad | mean shard",
    ["ep shard"] = "ep | expert", ["sp shard"] = "sp | context",
    ["dp_shard_cp tp"] = "dp_shard_cp | apart",
    ["fsdp shard"] = "fsdp | both shard | flatten", ["pp shard"] = "pp | stages | slice",
  }) do
    it("U6 refuses " .. names, function()
      local first, second = names:match("(%S+) (%S+)")
      for _, shape in ipairs({ "4x2", first ~= "pp" and "1x8" or nil, first ~= "pp" and "8x1" or nil }) do
        has(message(mesh_of, ms.init_device_mesh("cpu", shape, { first, second })), facts)
      end
    end)
  end

  it("U6 a mesh of one dimension without a name shards, and one of more needs names", function()
    assert.equal(8, mesh_of(ms.init_device_mesh("cpu", 8)).mesh:size(0))
    has(message(mesh_of, ms.init_device_mesh("cpu", "2x2x2", { "a", "b", "c" })), "dimension a")
    assert.same({ 1, 2 }, (function(sharding) return { sharding.replicate_dim, sharding.shard_dim } end)(
      mesh_of(ms.init_device_mesh("cpu", "1x2x4", { "pipe", "replicate", "shard" }))))
  end)
end)
