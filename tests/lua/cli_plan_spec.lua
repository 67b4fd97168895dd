-- moonshard plan as a user meets it: every recipe, any rank of any world, as text and as JSON.

local decode = require("moonshard.base.json").decode
local has = require("lua.message").has
local launched = require("lua.launched")
local program = require("lua.program")
local scratch = require("lua.scratch")

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
    has(head_of("4", "2x2", "--ranks-per-node", "2"), "4 ranks on 2 nodes: | each of 2 replicas | own copy | planned")
    has(head_of("8", "4x2", "--ranks-per-node=4"), "8 ranks on 2 nodes: | groups of 2 | one copy | 2 copies | planned")
    has(head_of("65", "65x1"), "65 ranks on 5 nodes: | groups of 13 | one copy | 5 copies | planned")
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
end)
