-- The world as Lua sees it: ranks, nodes, local ranks, what they send to other nodes.

local program = require("lua.support.program")

describe("moonshard.distributed.world", function()
  it("L1 knows nodes and local ranks", function()
    local path = program.recipe([==[
      local world = require "moonshard.distributed.world"
      print(world.nodes(), world.node_ranks(0), world.node_ranks(1), world.node_of(2), world.node_of(3))
      print(world.local_rank() == world.rank)
    ]==])
    local ended = program.run({ "run", path, "-n", "3" })
    os.remove(path)
    assert.equal("1\t3\t0\t0\t-1\ntrue\n", ended.out, ended.err)
  end)

  it("H3 sends nothing to other nodes where there is one", function()
    local path = program.recipe([==[
      local ms = require "moonshard"
      local model = ms.nn.linear(4, 2)
      ms.fully_shard(model)
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
      local m = train:step(ms.data.random({ inputs = 4, targets = 2 }):read { 0, 1 })
      local sent, received = require("moonshard.distributed.world").transport_bytes()
      local moved = model.session:counters("train").traffic.shard
      print(sent, received, m.wire_bytes, moved.sent, moved.received, moved.inside == m.comm_bytes.shard)
    ]==])
    local ended = program.run({ "run", path, "-n", "2" })
    os.remove(path)
    assert.equal("0\t0\tnil\t0\t0\ttrue\n", ended.out, ended.err)
  end)

  it("L1 describes one node where nothing was launched", function()
    local world = require("moonshard.distributed.world")
    world.describe(2, 4)
    assert.same({ 1, 4, 0, 0, -1, 2 }, { world.nodes(), world.node_ranks(0), world.node_ranks(1), world.node_of(3),
      world.node_of(4), world.local_rank() })
  end)
end)
