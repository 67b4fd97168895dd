-- The world as Lua sees it: ranks, nodes, local ranks.

local program = require("lua.program")

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

  it("L1 describes one node where nothing was launched", function()
    local world = require("moonshard.distributed.world")
    world.describe(2, 4)
    assert.same({ 1, 4, 0, 0, -1, 2 }, { world.nodes(), world.node_ranks(0), world.node_ranks(1), world.node_of(3),
      world.node_of(4), world.local_rank() })
  end)
end)
