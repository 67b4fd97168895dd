-- A bit of a weight that flips on one replica is found within some steps, and the replicas, their hosts and the
-- parameter are named; what replicas may have of their own is left alone.

local has = require("lua.support.message").has
local program = require("lua.support.program")

-- A bit of `parameter` flips on rank `on` before step 11; 0: none.
local RECIPE = [[
local ms = require "moonshard"
local cfg = ms.args { mesh = "2x1", on = 1, parameter = "0.weight", bit = 3, steps = 40, slices = false, every = 0,
  whole = false }
local model = ms.nn.sequential { ms.nn.linear(8, 40), ms.ops.relu, ms.nn.linear(40, 4) }
ms.fully_shard(model, {
  mesh = ms.init_device_mesh("cpu", cfg.mesh, { "replicate", "shard" }), units = { ms.re"^\\d$" },
  shard_optimizer_over_replicate = cfg.slices or nil, shard = cfg.whole and { { "0", false } } or nil,
  replicate_sync = cfg.every > 0 and { every = cfg.every, outer = ms.optim.sgd { lr = 1 } } or nil,
})
local train = ms.trainer { model = model, optimizer = ms.optim.adamw { lr = 0.01 }, loss = ms.loss.mse }
local engine = require("moonshard.base.ffi")
local C, ffi = engine.C, engine.ffi
local function flip()
  local info, state = ffi.new("ms_tensor_info"), train.session.state
  for i, param in ipairs(train.session.sharding.params) do
    if param.fqn == cfg.parameter then
      assert(C.ms_state_describe(state, i - 1, C.MS_TENSOR_PARAM, info, ffi.sizeof(info)) == 0)
      if info.count > 0 then
        local value = ffi.new("float[1]")
        assert(C.ms_state_read(state, i - 1, C.MS_TENSOR_PARAM, info.first, 1, value) == 0)
        local words = ffi.cast("uint32_t *", value)
        words[0] = require("bit").bxor(words[0], 2 ^ cfg.bit)
        assert(C.ms_state_write(state, i - 1, C.MS_TENSOR_PARAM, info.first, 1, value) == 0)
      end
    end
  end
end
for step = 1, cfg.steps do
  if step == 11 and ms.world().rank == cfg.on then flip() end
  train:step { inputs = ms.randn { 4, 8, seed = step }, targets = ms.randn { 4, 4, seed = step + 99 } }
end
if ms.world().rank == 0 then print("trained") end
]]

describe("replicas", function()
  local path, ended

  local function run(ranks, ...) return { "run", path, "-n", ranks, "--timeout", "60", ... } end

  local function hosts(names, ...)
    return { "run", path, "--hosts", names, "--agent", "tests/fuzz/agent.sh", "--rendezvous", "tcp://127.0.0.1",
      "--timeout", "60", ... }
  end

  setup(function()
    path = program.recipe(RECIPE)
    ended = program.run_all {
      none = hosts("a:2,b:2", "mesh=4x1", "on=-1"),
      ["two hosts"] = hosts("a:1,b:1", "on=1"),
      ["of three, the second"] = hosts("a:1,b:1,c:1", "mesh=3x1", "on=1", "parameter=2.bias", "bit=22"),
      ["with shards"] = hosts("a:2,b:2", "mesh=2x2", "on=3", "parameter=2.weight", "bit=0"),
      ["without replicas"] = run("2", "mesh=1x2", "on=1"),
      ["whole on each"] = run("2", "mesh=1x2", "on=1", "whole=true"),
      ["whole on each, and replicas"] = hosts("a:2,b:2", "mesh=2x2", "on=3", "whole=true"),
      ["with slices"] = hosts("a:1,b:1", "on=1", "slices=true"),
      ["with local steps"] = hosts("a:1,b:1", "on=1", "every=4"),
    }
  end)
  teardown(function() os.remove(path) end)

  it("U1 train on while their weights are the same", function()
    for _, name in ipairs { "none", "without replicas", "with slices", "with local steps" } do
      assert.equal(0, ended[name].status, name .. ": " .. ended[name].err)
      has(ended[name].out, "trained")
    end
  end)

  for name, facts in pairs {
    ["two hosts"] = "replicas | before step 16 | parameter 0.weight | rank 0 on a and rank 1 on b | checkpoint",
    ["of three, the second"] = "before step 16 | parameter 2.bias | rank 0 on a, rank 2 on c and rank 1 on b",
    ["with shards"] = "before step 16 | parameter 2.weight | rank 1 on a and rank 3 on b",
    ["whole on each"] = "before step 16 | parameter 0.weight | rank 0 and rank 1",
    ["whole on each, and replicas"] = "parameter 0.weight | rank 0 on a | rank 2 on b and rank 3 on b",
  } do
    it("U1 whose weights differ are stopped and named: " .. name, function()
      assert.equal(3, ended[name].status)
      has(ended[name].err, facts)
      assert.equal("", ended[name].out)
    end)
  end
end)
