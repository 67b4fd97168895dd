-- Slices of meshes, flattened and unflattened dimensions, groups by hand and the meshes made from them.

local ms = require("moonshard")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local message = fixture.message
local world = ms.world()

before_each(function() world.describe(11, 16) end)

local function list(group)
  return { unpack(group, 1, group.size) }
end

local function three()
  return ms.init_device_mesh("cpu", "2x2x4", { "pipe", "replicate", "shard" })
end

local function g(...)
  return ms.new_group { ... }
end

local function assert_message(text, call, ...)
  local arguments = { ... }
  local got = message(function() local _ = call(unpack(arguments)) end)
  has(got, text)
  assert.truthy(got:find("^%S*mesh_slice_spec.lua:%d+: "), got)
end

describe("D2", function()
  it("gives a 2x4 mesh the groups that are made by hand", function()
    for rank = 0, 7 do
      world.describe(rank, 8)
      local mesh = ms.init_device_mesh("cpu", { 2, 4 }, { "replicate", "shard" })
      local shard = { g(0, 1, 2, 3), g(4, 5, 6, 7) }
      local replicate = { g(0, 4), g(1, 5), g(2, 6), g(3, 7) }
      assert.same({ shard, replicate }, { mesh:get_all_groups("shard"), mesh:get_all_groups("replicate") })
      assert.equal(shard[rank < 4 and 1 or 2], mesh:get_group("shard"))
      assert.equal(replicate[rank % 4 + 1], mesh:get_group("replicate"))
      assert.equal(rank % 4, mesh:get_group("shard").rank)
      assert.is_nil(shard[rank < 4 and 2 or 1].rank)
    end
  end)

  it("refuses ranks that are no group", function()
    assert_message("ms.new_group | rank 16 | 16 | 0 to 15", ms.new_group, { 1, 16 })
    assert_message("ms.new_group | rank 1 | twice", ms.new_group, { 1, 2, 1 })
    assert_message("rank 1.5", ms.new_group, { 1.5 })
    assert_message("list | ranks | empty", ms.new_group, {})
    assert_message("list | ranks", ms.new_group, 3)
  end)
end)

describe("D3", function()
  it("prints three dimensions and slices as tables", function()
    local mesh = three()
    assert.equal([[
mesh 2x2x4 (pipe, replicate, shard) on cpu, rank 11 at (1, 0, 3)
  pipe=0  replicate=0   0   1   2   3
  pipe=0  replicate=1   4   5   6   7
  pipe=1  replicate=0   8   9  10  11
  pipe=1  replicate=1  12  13  14  15]], tostring(mesh))
    assert.equal("mesh 2 (replicate) on cpu, rank 11 at (0)\n  11  15", tostring(mesh["replicate"]))
    assert.equal("mesh 2 (shard) on cpu, without rank 11", tostring(ms.mesh_from_groups(g(3, 4), "shard")))
  end)

  it("leaves out the middle of large meshes", function()
    world.describe(0, 4096)
    local text = tostring(ms.init_device_mesh("cpu", "64x64", { "replicate", "shard" }))
    local _, lines = text:gsub("\n", "")
    assert.equal(16, lines)
    has(text, "replicate=13   832")
    has(text, "\n  ...\n  replicate=63  4032  4033 ")
    assert.truthy(text:find("  4061  ...  4095$"), text)
  end)

  it("gives size, ranks, coordinate and groups of a slice", function()
    local mesh = three():slice { "replicate", "shard" }
    assert.same({ 8, 2, { 2, 4 }, { "replicate", "shard" } }, { mesh:size(), mesh.ndim, mesh.shape, mesh.names })
    assert.same({ 8, 9, 10, 11, 12, 13, 14, 15 }, mesh:ranks())
    assert.same({ 0, 3 }, mesh:get_coordinate())
    assert.equal(11, mesh:get_rank())
    assert.same({ { 11, 15 }, { 8, 9, 10, 11 } }, { list(mesh:get_all_groups()[1]), list(mesh:get_all_groups()[2]) })
    assert.equal(4, #mesh:get_all_groups("shard"))
  end)
end)

describe("D4", function()
  it("shares groups between a mesh, its slices and hand-made groups", function()
    local mesh = three()
    assert.equal(mesh:get_group("shard"), mesh["shard"]:get_group())
    assert.equal(mesh:get_group("shard"), mesh:slice { "pipe", "shard" }:get_group("shard"))
    assert.equal(mesh:get_group("shard"), ms.new_group { 8, 9, 10, 11 })
    assert.equal(mesh["shard"], mesh:slice { "shard" })
  end)

  it("keeps the order of dimensions", function()
    assert_message('mesh 2x2x4 (pipe, replicate, shard) | "replicate" before "shard"',
      function() return three():slice { "shard", "replicate" } end)
  end)

  it("reads a field that is no method as a dimension", function()
    assert.same({ 4 }, three().shard.shape)
    assert_message('mesh 2x2x4 (pipe, replicate, shard) | "shrad"',
      function() return three()["shrad"] end)
    assert_message("1 | name", function() return three():slice { 1 } end)
    assert_message("list | names", function() return three():slice {} end)
  end)
end)

describe("D5", function()
  it("flattens dimensions to one that every mesh around them can slice", function()
    local mesh = three()
    local data = mesh:slice { "replicate", "shard" }:flatten("data")
    assert.same({ 8 }, data.shape)
    assert.equal(3, data:get_local_rank())
    assert.equal(data:get_group(), mesh["data"]:get_group())
    assert.same({ 2, 8 }, mesh:slice { "pipe", "data" }.shape)
    assert.same({ 0, 1, 2, 3, 8, 9, 10, 11 }, list(mesh:slice { "pipe", "shard" }:flatten("outer"):get_group()))
    assert_message('flatten | "data" | size 8',
      function() return mesh:slice { "pipe", "shard" }:flatten("data") end)
    assert_message('"pipe" | dimension 0 | size 2',
      function() return mesh["shard"]:flatten("pipe") end)
  end)

  it("unflattens a dimension in its place", function()
    local mesh = ms.init_device_mesh("cpu", "2x8", { "pipe", "data" })
    local made = mesh:unflatten("data", "2x-1", { "replicate", "shard" })
    assert.same({ 2, 2, 4 }, made.shape)
    assert.same({ "pipe", "replicate", "shard" }, made.names)
    assert.equal(three():get_group("shard"), made:get_group("shard"))
    assert.equal(made:get_group("replicate"), mesh["replicate"]:get_group())
    assert_message("mesh 3x2 (a, b) | 6 | unflatten | 8",
      mesh.unflatten, mesh, "data", { 3, 2 }, { "a", "b" })
    assert_message("2 dimensions | 1 name", mesh.unflatten, mesh, "data", { 4, 2 }, { "a" })
    assert_message('"pipe" | two', mesh.unflatten, mesh, 1, { 4, 2 }, { "a", "pipe" })
    assert_message('unflatten | "pipe" | dimension 0', mesh["data"].unflatten, mesh["data"], 0,
      { 4, 2 }, { "a", "pipe" })
  end)
end)

-- Every mesh of four dimensions of 1 or 2 ranks, of which two neighbours are flattened, and one is unflattened.
describe("D5 D8 dimensions of size 1", function()
  local NAMES = { "dp_replicate", "dp_shard", "cp", "tp" }

  local function each_mesh(call)
    for number = 0, 15 do
      local sizes, ranks = {}, 1
      for d = 1, 4 do
        sizes[d] = 1 + math.floor(number / 2 ^ (d - 1)) % 2
        ranks = ranks * sizes[d]
      end
      world.describe(ranks - 1, ranks)
      call(ms.init_device_mesh("cpu", sizes, NAMES), sizes)
    end
  end

  it("are sliced together with flattened neighbours, and the order is kept where there is one", function()
    each_mesh(function(mesh, sizes)
      for first = 1, 3 do
        mesh:slice { NAMES[first], NAMES[first + 1] }:flatten("flat")
        local names, shape = { unpack(NAMES) }, { unpack(sizes) }
        names[first] = "flat"
        shape[first] = sizes[first] * table.remove(shape, first + 1)
        table.remove(names, first + 1)
        local slice = mesh:slice(names)
        assert.same(shape, slice.shape)
        assert.same(mesh:ranks(), slice:ranks())
        local rest = {}
        for _, name in ipairs(names) do
          if name ~= "flat" then table.insert(rest, 1, name) end
        end
        assert_message("order", function() return mesh:slice { rest[1], "flat", rest[2] } end)
        mesh = ms.init_device_mesh("cpu", sizes, NAMES)
      end
    end)
  end)

  it("come from unflattening, in every place", function()
    each_mesh(function(mesh, sizes)
      for d = 1, 4 do
        for _, parts in ipairs({ { 1, sizes[d] }, { sizes[d], 1 }, { 1, sizes[d], 1 } }) do
          local own = ms.init_device_mesh("cpu", sizes, NAMES)
          local names = { "a", "b", parts[3] and "c" }
          local made = own:unflatten(NAMES[d], parts, names)
          assert.same(mesh:ranks(), made:ranks())
          assert.same(parts, own:slice(names).shape)
          assert.same(own[NAMES[d]]:ranks(), own:slice(names):ranks())
          assert.same(own[NAMES[d]]:ranks(), made:slice(names):flatten("whole"):ranks())
        end
      end
    end)
  end)
end)

describe("D6", function()
  it("makes the native mesh of the native groups", function()
    for rank = 0, 7 do
      world.describe(rank, 8)
      local native = ms.init_device_mesh("cpu", { 2, 4 }, { "replicate", "shard" })
      local made = ms.mesh_from_groups({ native:get_all_groups("replicate"), native:get_all_groups("shard") },
        { "replicate", "shard" })
      assert.equal(tostring(native), tostring(made))
      assert.equal(native:get_group("shard"), made["shard"]:get_group())
    end
  end)

  it("takes a group alone, and several meshes side by side", function()
    local alone = ms.mesh_from_groups(g(11, 3), "shard")
    assert.same({ { 2 }, { 11, 3 }, 0 }, { alone.shape, alone:ranks(), alone:get_local_rank() })
    assert.same({ 2, 1 }, ms.mesh_from_groups({ g(3, 11), { g(3), g(11) } }, { "replicate", "shard" }).shape)
    local halves = ms.mesh_from_groups({ { g(0, 1, 2, 3, 4, 5, 6, 7), g(15, 14, 13, 12, 11, 10, 9, 8) } }, { "shard" })
    assert.same({ { 8 }, { 15, 14, 13, 12, 11, 10, 9, 8 } }, { halves.shape, halves:ranks() })
  end)

  for title, case in pairs({
    ["groups that leave a rank out"] = { { { g(0, 2), g(1, 3) }, { g(0, 1) } },
      "rank 2 | dimension a | b" },
    ["groups in another order"] = { { { g(0, 2), g(3, 1) }, { g(0, 1), g(2, 3) } },
      "{3, 1} | dimension a" },
    ["groups that cross"] = { { { g(0, 4), g(1, 5), g(2, 7), g(3, 6) }, { g(0, 1, 2, 3), g(4, 5, 6, 7) } },
      "{2, 7} | dimension a | rank 6" },
    ["groups of different sizes"] = { { { g(0, 2), g(1) }, { g(0, 1) } }, "group {0, 2} has 2 ranks but {1} has 1" },
    ["a rank in two groups"] = { { { g(0, 2), g(2, 1) }, { g(0, 1) } }, "rank 2 is in both {0, 2} and {2, 1}" },
    ["sizes that make no grid"] = { { { g(0, 1) }, { g(0, 1) } }, "2 and 2 | 2 ranks" },
    ["lists of ranks"] = { { { { 0, 1 } }, { { 0, 1 } } }, "entry 1 | ms.new_group" },
    ["one dimension for two names"] = { { { g(0, 1) } }, "1 dimension | 2 names | (a, b)" },
    ["no groups"] = { {}, "dimension | groups" },
    ["numbers"] = { { 1, 2 }, "dimension a | list" },
  }) do
    it("refuses " .. title, function() assert_message(case[2], ms.mesh_from_groups, case[1], { "a", "b" }) end)
  end
end)

describe("D7", function()
  it("slices 4,096 ranks in four dimensions as loops over coordinates do", function()
    local sizes, names = { 8, 4, 16, 8 }, { "pipe", "replicate", "shard", "tensor" }
    local strides = { 512, 128, 8, 1 }
    for _, rank in ipairs({ 0, 1234, 4095 }) do
      world.describe(rank, 4096)
      local mesh = ms.init_device_mesh("cpu", sizes, names)
      for a = 1, 4 do
        for b = a + 1, 4 do
          local at_a, at_b = math.floor(rank / strides[a]) % sizes[a], math.floor(rank / strides[b]) % sizes[b]
          local expected = {}
          for i = 0, sizes[a] - 1 do
            for k = 0, sizes[b] - 1 do
              expected[#expected + 1] = rank + (i - at_a) * strides[a] + (k - at_b) * strides[b]
            end
          end
          local slice = mesh:slice { names[a], names[b] }
          assert.same(expected, slice:ranks())
          assert.same({ at_a, at_b }, slice:get_coordinate())
          assert.same(expected, list(slice:flatten(names[a] .. names[b]):get_group()))
        end
      end
    end
  end)
end)

describe("D8", function()
  it("makes a dimension that spans the world the world's group", function()
    local mesh = ms.init_device_mesh("cpu", { 1, 16 }, { "replicate", "shard" })
    assert.equal(ms.new_group(), mesh:get_group("shard"))
    assert.equal(ms.new_group(), three():flatten("all"):get_group())
    assert.same({ 11 }, list(mesh:get_group("replicate")))
  end)
end)

describe("D9", function()
  it("names a rank that is outside of the mesh, and the ranks inside", function()
    local mesh = ms.mesh_from_groups(g(3, 4), "shard")
    for _, method in ipairs({ "get_coordinate", "get_local_rank", "get_group", "ranks" }) do
      assert_message("rank 11 | mesh 2 (shard) | 3, 4", mesh[method], mesh)
    end
    assert_message("rank 16 | mesh 2x2x4 (pipe, replicate, shard) | 0 to 15",
      three().coordinate_of, three(), 16)
  end)

  it("asks for the dimension where there are several", function()
    for _, method in ipairs({ "get_group", "get_local_rank" }) do
      assert_message("mesh 2x2x4 (pipe, replicate, shard) | 3 dimensions", three()[method], three())
    end
  end)
end)

describe("D12", function()
  local kept = { nodes = world.nodes, node_of = world.node_of, node_name = world.node_name }
  after_each(function() for name, value in pairs(kept) do world[name] = value end end)

  local function hosts(...)
    local node_of, count = {}, select("#", ...)
    for node = 1, count do
      for _ = 1, (select(node, ...)) do node_of[#node_of + 1] = node - 1 end
    end
    world.nodes = function() return count end
    world.node_of = function(rank) return node_of[rank + 1] end
    world.node_name = function(node) return "host" .. node end
  end

  it("refuses a shard dimension over nodes with different numbers of ranks, and names them", function()
    hosts(6, 10)
    local told = "dimension shard of size 4 spans nodes with different numbers of ranks (node 0 (host0) has 6 "
      .. "ranks, node 1 (host1) has 10 ranks)"
    assert_message(told, ms.init_device_mesh, "cpu", "4x4", { "replicate", "shard" })
    assert_message("dimension fsdp | size 4 | nodes", function()
      return ms.fully_shard(fixture.gpt2(), { mesh = ms.init_device_mesh("cpu", "4x4", { "ddp", "fsdp" }) })
    end)
  end)

  it("takes groups inside of nodes, one group over all, and equal nodes", function()
    hosts(6, 10)
    assert.same({ 8, 2 }, ms.init_device_mesh("cpu", "8x2", { "replicate", "shard" }).shape)
    assert.same({ 1, 16 }, ms.init_device_mesh("cpu", "1x16", { "replicate", "shard" }).shape)
    hosts(8, 8)
    assert.same({ 1, 16 }, ms.init_device_mesh("cpu", "1x16", { "replicate", "shard" }).shape)
    assert.same({ 4, 4 }, ms.init_device_mesh("cpu", "4x4", { "replicate", "shard" }).shape)
  end)
end)

describe("a model over a slice", function()
  local function sharding_over(mesh, strategy)
    return ms.fully_shard(fixture.gpt2(), { mesh = mesh, strategy = strategy }).sharding
  end

  it("D4 is sharded over the slice's dimensions, or replicated over its ranks", function()
    local hsdp = sharding_over(three():slice { "replicate", "shard" })
    assert.same({ 0, 1, 8 }, { hsdp.replicate_dim, hsdp.shard_dim, hsdp.mesh:size() })
    local fsdp = sharding_over(three()["shard"], "FULL_SHARD")
    assert.same({ -1, 0, { 8, 9, 10, 11 } }, { fsdp.replicate_dim, fsdp.shard_dim, fsdp.mesh:ranks() })
    local ddp = sharding_over(three():slice { "replicate", "shard" }, "NO_SHARD")
    assert.same({ 0, -1, { 8, 9, 10, 11, 12, 13, 14, 15 } }, { ddp.replicate_dim, ddp.shard_dim, ddp.mesh:ranks() })
  end)

  it("D4 is refused over a mesh with dimensions that do neither, with what to write", function()
    assert_message('ms.fully_shard | mesh 2x2x4 (pipe, replicate, shard) | pipe | mesh:slice { "replicate", "shard" }',
      sharding_over, three())
  end)

  -- The warnings that name a dimension of the mesh.
  local function warned_of(mesh, strategy)
    local found = {}
    for _, warning in ipairs(sharding_over(mesh, strategy).warnings) do
      if warning:find("leaves out", 1, true) then found[#found + 1] = warning end
    end
    return found
  end

  it("D4 warns of a data dimension that the slice leaves out, and says what to write", function()
    local named = ms.init_device_mesh("cpu", "2x2x4", { "pp", "ddp", "fsdp" })
    for title, case in pairs({
      shard = { three()["shard"], "mesh 4 (shard) | replicate of 2 | not averaged | 2 copies | "
        .. '"replicate", "shard" }' },
      replicate = { three()["replicate"], 'mesh 2 (replicate) | shard of 4 | 4 copies | "replicate", "shard" }' },
      aliases = { named["fsdp"], 'dimension ddp of 2 | mesh:slice { "ddp", "fsdp" }' },
      ["without shards"] = { three()["shard"], "dimension replicate of 2", "NO_SHARD" },
    }) do
      local warnings = warned_of(case[1], case[3])
      assert.equal(1, #warnings, title)
      has(warnings[1], case[2])
    end
  end)

  it("D4 does not warn of what it covers, of stages, nor of dimensions of one rank", function()
    local alone = ms.init_device_mesh("cpu", "1x16", { "replicate", "shard" })
    for _, mesh in ipairs({ three():slice { "replicate", "shard" }, alone, alone["shard"],
      three():slice({ "replicate", "shard" }):flatten("fsdp") }) do
      assert.same({}, warned_of(mesh))
    end
    assert.same({}, warned_of(three():slice { "replicate", "shard" }, "NO_SHARD"))
  end)

  it("D9 is refused on a rank that has no place in the mesh", function()
    assert_message("rank 11 | mesh 2 (shard) | 3, 4", sharding_over,
      ms.mesh_from_groups(g(3, 4), "shard"))
  end)

  it("D4 takes its samples among the slice's ranks", function()
    local slice = three():slice { "replicate", "shard" }
    local sampler = ms.data.sampler { length = 16, shuffle = false, mesh = slice }
    local samples = {}
    for _, sample in sampler:samples() do samples[#samples + 1] = sample end
    assert.same({ 3, 11 }, samples)
    assert_message("ms.data.sampler | mesh", ms.data.sampler, { length = 16, mesh = { 2, 2 } })
    assert.equal(8, ms.data.text { files = "README.md", seq = 4, global_batch = 64, mesh = slice }.batch)
  end)
end)
