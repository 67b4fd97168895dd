-- moonshard plan as a user meets it: every recipe, any rank of any world, as text and as JSON.

local decode = require("moonshard.base.text.json").decode
local has = require("lua.support.message").has
local launched = require("lua.support.launched")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local refused, with_recipe = program.refused, launched.with_recipe

local TOY = "recipes/toy_hsdp.lua"

describe("moonshard plan", function()
  it("prints only the plan, and its recipe's output on standard error", function()
    local source = scratch.read(TOY)
    with_recipe('print("one", 1) io.write("two\\n") io.stdout:write("three\\n")\n' .. source, function(path)
      for _, command in ipairs({ "plan", "explain" }) do
        local ended = program.run({ command, path, "-n", "4", "--json" })
        assert.equal(0, ended.status, ended.err)
        assert.equal("one\t1\ntwo\nthree\n", ended.err)
        assert.equal("table", type(decode(ended.out)))
        assert.truthy(program.run({ command, path, "-n", "4" }).out:find("^" .. command .. ": rank 0 of 4"))
      end
    end)
  end)

  it("runs every recipe, and plans it", function()
    local runs = {
      { "recipes/random_linear.lua", "2", "epochs=1" },
      { "recipes/llama.lua", "2", "steps=2", "seq=32", "batch=1", "mesh=1x2", "files=recipes" },
      { "recipes/gpt2.lua", "2", "steps=2", "seq=32", "batch=1", "mesh=1x2", "files=recipes" },
      { "recipes/quickstart.lua", "4", "steps=2", "layers=2", "dim=32", "seq=16", "sample=5", "files=recipes", "svg=" },
    }
    for _, run in ipairs(runs) do
      local arguments = { "run", run[1], "-n", unpack(run, 2) }
      local ended = program.run(arguments)
      assert.equal(0, ended.status, ended.err)
      arguments[1] = "plan"
      local planned = program.run(arguments)
      assert.equal(0, planned.status, planned.err)
      assert.truthy(planned.out:find("^plan: rank 0 of " .. run[2]))
    end
  end)

  it("plans recipes that catch errors of a step", function()
    local head = [==[
      local ms = require "moonshard"
      local train = ms.trainer { model = ms.nn.linear(4, 2), optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
      local data = ms.data.random { inputs = 4, targets = 2 }
    ]==]
    local endings = {
      "while true do pcall(train.step, train, data:read { 0, 1 }) end",
      "pcall(function() pcall(train.step, train, data:read { 0, 1 }); error('retried') end)",
      "coroutine.wrap(function() pcall(train.step, train, data:read { 0, 1 }); train:step(data:read { 0, 1 }) end)()",
      "table.sort({ 1, 2 }, function() train:step(data:read { 0, 1 }) end)",
    }
    for _, ending in ipairs(endings) do
      with_recipe(head .. ending, function(path)
        local ended = program.run({ "plan", path })
        assert.equal(0, ended.status, ended.err)
        local _, plans = ended.out:gsub("plan: rank 0 of 1", "")
        assert.equal(1, plans)
      end)
    end
    with_recipe(head .. "pcall(train.step, train, { inputs = data:read({ 0 }).inputs })", function(path)
      refused(2, { "plan", path }, path .. ":4:", "tokens | inputs | targets")
    end)
  end)

  it("plans any rank of any world, as text and as JSON alone", function()
    local text = program.run({ "plan", TOY, "-n", "4", "--rank", "3" })
    assert.equal(0, text.status, text.err)
    assert.truthy(text.out:find("^plan: rank 3 of 4, mesh 2x2"))
    local json = program.run({ "plan", TOY, "-n", "4", "--json" })
    assert.equal(0, json.status)
    assert.truthy(json.out:find("^{.*}\n$"))
    assert.equal("", json.err)
    local wide = program.run({ "plan", TOY, "-n", "4096", "mesh=64x64", "batch=1" })
    assert.equal(0, wide.status, wide.err)
  end)

  it("M6 prints the nodes of ranks and what they share, and takes --ranks-per-node", function()
    local function head_of(ranks, mesh, ...)
      local ended = program.run({ "plan", TOY, "-n", ranks, "mesh=" .. mesh, ... })
      assert.equal(0, ended.status, ended.err)
      return (ended.out:match("^[^\n]*\n  ([^\n]*)\n"))
    end
    has(head_of("4", "2x2"), "4 ranks on 1 node: | 2 replicas | one copy")
    has(head_of("4", "2x2", "--ranks-per-node", "2"), "4 ranks on 2 nodes: | each of 2 replicas | own copy")
    has(head_of("8", "4x2", "--ranks-per-node=4"), "8 ranks on 2 nodes: | groups of 2 | one copy | 2 copies")
    has(head_of("65", "65x1"), "65 ranks on 5 nodes: | groups of 13 | one copy | 5 copies")
    local told = program.run({ "plan", TOY, "-n", "8", "mesh=4x2", "--ranks-per-node", "4", "--json" })
    local found = assert(decode(told.out))
    assert.same({ 4, 2 }, { found.ranks_per_node, found.replicas_together })
    has(found.nodes, "8 ranks | 2 nodes")
    assert.is_true(found.fullest.activations >= found.bytes.activations)
    local explained = program.run({ "explain", TOY, "-n", "4", "mesh=4x1", "--ranks-per-node", "2" })
    has(explained.out, "\n4 ranks | 2 nodes | groups of 2")
    refused(2, { "plan", TOY, "-n", "10", "--ranks-per-node", "4", "mesh=10x1" }, "10 ranks | 4")
    refused(2, { "plan", TOY, "-n", "128", "--ranks-per-node", "128", "mesh=128x1" }, "node | 64")
  end)

  -- toy_hsdp: 10x10 and 10 numbers, 5x10 and 5, of f32. Of four shards, each has 3 and 2 rows; of two, 5 and 3.
  local function planned(ranks, mesh, ...)
    local ended = program.run({ "plan", TOY, "-n", ranks, "mesh=" .. mesh, "--ranks-per-node", "2", "--json", ... })
    assert.equal(0, ended.status, ended.err)
    local found, traffic = assert(decode(ended.out)), {}
    for _, entry in ipairs(found.traffic) do traffic[entry.dim] = entry end
    return traffic, found
  end

  it("refuses samples of more tokens than a batch can have", function()
    program.refused(2, { "plan", "recipes/llama.lua", "-n", "2", "seq=1000000000" }, "seq=1000000000 | tokens")
  end)

  it("H2 --json has the bytes of a step inside a node and between nodes, as the closed forms say", function()
    local totals = 2 * 4 -- bytes: the sum of squares and the loss
    local padded = 4 * (4 * (3 * 10 + 3) + 4 * (2 * 10 + 2))
    local fsdp = planned("4", "1x4").shard
    -- One gather (the weights stay), one reduce-scatter, the totals: (H - 1) / H S each, and twice that.
    assert.equal(padded / 2 + padded / 2 + 2 * totals / 2, fsdp.node.sent_bytes)
    assert.equal(fsdp.node.sent_bytes, fsdp.node.received_bytes)
    assert.equal(fsdp.sent_bytes, padded / 4 + padded / 4 + totals)
    assert.same({ 4, 2 }, { fsdp.ranks, fsdp.node.ranks })

    local hsdp = planned("4", "2x2")
    assert.same({ 0, 0 }, { hsdp.shard.node.sent_bytes, hsdp.shard.node.received_bytes })
    local chunks = 4 * (2 * (5 * 10 + 5) + 2 * (3 * 10 + 3))
    assert.equal(2 * (chunks + 2 * totals) / 2, hsdp.replicate.node.sent_bytes)
    assert.equal(chunks / 2 + totals, hsdp.replicate.received_bytes)

    local ddp = planned("4", "4x1") -- the ranks of a node add up first, and send slices
    assert.is_nil(ddp.shard)
    assert.equal(4 * (110 + 55) + totals, ddp.replicate.node.sent_bytes)
  end)

  it("H2 prints memory and bytes of a node for every mesh of 64 ranks, and one note where another mesh is better",
    function()
      for _, mesh in ipairs({ "64x1", "32x2", "16x4", "8x8", "4x16", "2x32", "1x64" }) do
        local ended = program.run({ "plan", TOY, "-n", "64", "--ranks-per-node", "8", "mesh=" .. mesh, "batch=1",
          "--summary" })
        assert.equal(0, ended.status, ended.err)
        local replicas, shards = mesh:match("(%d+)x(%d+)")
        assert.equal(replicas ~= "1", ended.out:find(" over replicate: ", 1, true) ~= nil)
        assert.equal(shards ~= "1", ended.out:find(" over shard: ", 1, true) ~= nil)
        has(ended.out, "each node | its 8 ranks | other nodes; its 8 ranks")
        assert.is_nil(ended.out:find("note:", 1, true))
      end
    end)

  it("H2 counts weights that a shard group gathers once for each node", function()
    local _, one = planned("4", "1x4")
    assert.is_true(one.arenas.gathered > 0)
    local each = 2 * one.peak_bytes - one.arenas.gathered
    assert.same({ each, each }, one.node_bytes)
    local _, copies = planned("4", "4x1") -- one copy of the state: each rank of a node counts a half
    assert.is_true(math.abs(copies.node_bytes[1] - 2 * copies.peak_bytes) < 256)
  end)

  local ORDER = [[
    local ms = require "moonshard"
    local cfg = ms.args { mesh = "4x2", names = "shard,replicate" }
    local model, names = ms.nn.linear(64, 16), {}
    for name in cfg.names:gmatch("%a+") do names[#names + 1] = name end
    ms.fully_shard(model, { mesh = ms.init_device_mesh(nil, cfg.mesh, names) })
    local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
    train:step(ms.data.random({ inputs = 64, targets = 16 }):read { 0, 1 })
  ]]

  it("H2 a note names the better mesh and the bytes of both, which are those of its plan", function()
    with_recipe(ORDER, function(path)
      local function run(command, ...)
        local ended = program.run({ command, path, "-n", "8", "--ranks-per-node", "4", ... })
        assert.equal(0, ended.status, ended.err)
        return ended.out
      end
      local found = assert(decode(run("plan", "--json", "--summary")))
      local better = found.better_mesh
      assert.same({ "2x4", "replicate, shard" }, { better.mesh, better.over })
      local function between(plan)
        local sum = 0
        for _, entry in ipairs(plan.traffic) do sum = sum + entry.node.sent_bytes end
        return sum
      end
      assert.equal(between(found), better.now)
      local other = decode(run("plan", "--json", "--summary", "mesh=2x4", "names=replicate,shard"))
      assert.is_nil(other.better_mesh)
      assert.equal(between(other), better.bytes)
      assert.is_true(better.bytes < better.now)
      for _, out in ipairs({ run("plan"), run("plan", "--summary"), run("explain") }) do
        local _, notes = out:gsub("note: [^\n]* [%d.]+ KiB [^\n]* 2x4 over replicate, shard: [%d.]+ KiB\n", "")
        assert.equal(1, notes)
      end
      -- Nothing crosses, or nothing else would send less.
      assert.is_nil(run("plan", "mesh=2x4", "names=replicate,shard"):find("note:", 1, true))
      local alone = program.run({ "plan", path, "-n", "8", "--summary" })
      assert.is_nil(alone.out:find("note:", 1, true))
      assert.is_nil(run("plan", "mesh=1x8", "names=replicate,shard"):find("note:", 1, true))
      -- Groups of 4 do not fit into nodes of 6.
      local uneven = program.run({ "plan", path, "-n", "12", "--ranks-per-node", "6", "mesh=3x4",
        "names=replicate,shard", "--summary" })
      has(uneven.out, "note: | 2x6 over replicate, shard")
      -- Other dimensions keep their sizes.
      local many = program.run({ "plan", path, "-n", "16", "--ranks-per-node", "8", "mesh=4x2x2",
        "names=shard,replicate,tensor", "--summary" })
      has(many.out, "note: | 2x4x2 over replicate, shard, tensor")
      many = program.run({ "plan", path, "-n", "16", "--ranks-per-node", "8", "mesh=2x2x2x2",
        "names=shard,context,replicate,tensor", "--summary" })
      has(many.out, "note: | 2x2x2x2 over replicate, shard, context, tensor")
    end)
  end)

  it("H2 a note tells that groups of tensor cross nodes, and the size that does not", function()
    local function plan(ranks_per_node, ...)
      local ended = program.run({ "plan", "tests/lua/recipes/tensor_parallel.lua", "-n", "8", "--summary",
        "--ranks-per-node", ranks_per_node, "mesh=2x1x4", ... })
      assert.equal(0, ended.status, ended.err)
      return ended.out
    end
    has(plan("2"), "note: | groups of 4 ranks | size of 2")
    local found = decode(plan("2", "--json"))
    assert.equal(2, found.tensor_across_nodes.most)
    for _, entry in ipairs(found.traffic) do
      if entry.dim == "tensor" then assert.equal(entry.node.sent_bytes, found.tensor_across_nodes.bytes) end
    end
    assert.is_nil(plan("4"):find("note:", 1, true))
  end)
end)
