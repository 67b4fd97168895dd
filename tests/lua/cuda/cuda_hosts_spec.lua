-- GPUs of several hosts: communicators of NCCL across nodes, whose ids the store carries. The hosts are network
-- namespaces, or this machine under other names; the libraries of CUDA and NCCL are the emulated ones.

local has = require("lua.support.message").has
local launched = require("lua.support.launched")
local program = require("lua.support.program")

local NAMES = { "--hosts", "a:2,b:2", "--agent", "tests/fuzz/agent.sh", "--rendezvous", "tcp://127.0.0.1" }
local TOY = "recipes/toy_hsdp.lua"

local function train(where, environment, ...)
  local words = { "run", TOY, "--device", "cuda", "--timeout", "20", "steps=4" }
  for _, word in ipairs(where) do words[#words + 1] = word end
  for _, word in ipairs({ ... }) do words[#words + 1] = word end
  return program.run(words, program.emulated_cuda(environment))
end

local function losses(ended)
  assert.equal(0, ended.status, ended.err)
  local list = {}
  for loss, norm in ended.out:gmatch("loss (%S+)%s+grad norm (%S+)") do list[#list + 1] = loss .. " " .. norm end
  assert.equal(4, #list)
  return list
end

describe("GPUs of several hosts", function()
  local a, b = ("cu%da"):format(os.time() % 10000), ("cu%db"):format(os.time() % 10000)
  local why_not

  setup(function() why_not = launched.make_two_hosts(a, b) end)
  teardown(function() launched.remove_hosts(a, b) end)

  it("H1 train as those of one host do", function()
    for _, settings in ipairs({ "mesh=2x2", "mesh=1x4", "mesh=4x1" }) do
      assert.same(losses(train({ "-n", "4" }, nil, settings)), losses(train(NAMES, nil, settings)))
    end
  end)

  it("H1 train over network namespaces", function()
    if why_not then return pending(why_not) end
    local where = { "--hosts", ("%s:2,%s:2"):format(a, b), "--agent", "ip netns exec" }
    assert.same(losses(train({ "-n", "4" })), losses(train(where, "MOONSHARD_INTERFACE=veth0")))
  end)

  it("H4 name the rank that dies, on every host", function()
    local recipe = program.recipe([==[
      local ms = require "moonshard"
      local ffi = require "ffi"
      ffi.cdef "int raise(int);"
      local model = ms.nn.linear(8, 8)
      ms.fully_shard(model, { mesh = { 2, 2 } })
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
      for step = 1, 1000 do
        if step == 3 and ms.world().rank == 3 then ffi.C.raise(9) end
        train:step { inputs = ms.randn { 2, 8, seed = step }, targets = ms.randn { 2, 8, seed = step } }
      end
    ]==])
    local words = { "run", recipe, "--device", "cuda", "--timeout", "10" }
    for _, word in ipairs(NAMES) do words[#words + 1] = word end
    local ended = program.run(words, program.emulated_cuda())
    os.remove(recipe)
    assert.equal(3, ended.status, ended.err)
    has(ended.err, "rank 3 on b died | signal 9")
  end)
end)
