-- Ways to say the same: PyTorch's strategies by name, and meshes that are one another's special cases. Real ranks train
-- tests/lua/recipes/parity.lua.

local breadth = require("lua.support.breadth")
local trained = require("lua.support.trained")
local assert_same, assert_parity = trained.assert_same, trained.assert_parity

local function run(ranks, settings) return trained.run(ranks, trained.with(settings, { steps = 3 })) end

-- Ranks, and the mesh that a strategy is given; the mesh and resharding that it stands for; a layout.
local STRATEGIES = {
  FULL_SHARD = { 2, { mesh = "2", build = "fsdp" }, { mesh = "1x2", reshard = "default" }, "rows" },
  SHARD_GRAD_OP = { 3, { mesh = "3", build = "fsdp" }, { mesh = "1x3", reshard = "false" }, "ragged" },
  NO_SHARD = { 4, { mesh = "2x2" }, { mesh = "4x1" }, "rows" },
  HYBRID_SHARD = { 4, { mesh = "2x2" }, { mesh = "2x2", reshard = "default" }, "ragged" },
  HYBRID_SHARD_ZERO2 = { 4, { mesh = "2x2" }, { mesh = "2x2", reshard = "false" }, "rows" },
}

local function assert_same_run(expected, got)
  assert_same(expected, got)
  assert.same(expected.collectives, got.collectives)
end

describe("strategies", function()
  for name, case in pairs(STRATEGIES) do
    it("S2 " .. name .. " by name: parity, and bit for bit the mesh and resharding that it abbreviates", function()
      local layout = case[4]
      local named = run(case[1], trained.with(case[2], { strategy = name, layout = layout }))
      assert_parity(run(1, { mesh = "1x1", layout = layout }), named, 1e-5)
      assert_same_run(run(case[1], trained.with(case[3], { layout = layout })), named)
    end)
  end
end)

describe("replicas of a host", function()
  it("S2 M1 keep one copy of the state, whose update they share, or one each: parity", function()
    local function bytes(mesh, more) return run(4, trained.with({ mesh = mesh, layout = "ragged" }, more)) end
    local sharded, replicated = bytes("1x4"), bytes("4x1")
    for _, more in ipairs(breadth.few { { dtype = "bf16" }, { optimizer = "sgd", momentum = 0.9 }, { micro = 3 } }) do
      local one, each = bytes("2x2", more), bytes("2x2", trained.with(more, { shared_masters = false }))
      assert_parity(each, one, 1e-5)
      assert(one.plan.bytes.optimizer <= each.plan.bytes.optimizer / 2 + 1024)
      assert(one.plan.bytes.parameters <= each.plan.bytes.parameters / 2 + 1024)
      assert(one.plan.bytes.gradients <= each.plan.bytes.gradients / 2 + 1024)
      assert.same(each.plan.comm_bytes, one.plan.comm_bytes)
      assert.equal(each.collectives.first, one.collectives.first)
      assert.equal(0, each.plan.collectives.update)
      assert.equal(1, one.plan.collectives.update) -- they meet after it
    end
    -- Slices begin on cache lines, and each unit's state does.
    assert(math.abs(sharded.plan.bytes.optimizer - replicated.plan.bytes.optimizer) < 1024)
  end)
end)

describe("identities", function()
  it("S12 (k,1) is DDP over k, and (1,k) is FSDP over k, also where meshes have one dimension", function()
    assert_same_run(run(2, { mesh = "2", build = "ddp" }), run(2, { mesh = "2x1" }))
    assert_same_run(run(3, { mesh = "3", build = "fsdp" }), run(3, { mesh = "1x3" }))
    assert_same_run(run(2, { mesh = "2x1" }), run(2, { mesh = "1x2", strategy = "NO_SHARD" }))
  end)

  it("S12 groups of 1 are false and groups of all shards are true, bit for bit", function()
    for _, dtype in ipairs({ "bf16", "f32" }) do
      local function with(reshard) return run(2, { mesh = "1x2", dtype = dtype, reshard = reshard }) end
      assert_same_run(with("false"), with("1"))
      assert_same_run(with("true"), with("2"))
      assert.equal(with("true").plan.fingerprint, with("2").plan.fingerprint)
      assert_same(with("true"), with("false"))
    end
  end)

  it("S12 one rank makes no collective, with any of the rules", function()
    for _, settings in ipairs { { reshard = "true" }, { layout = "ragged", dtype = "bf16" }, { micro = 3 } } do
      local got = run(1, trained.with(settings, { mesh = "1x1" }))
      for phase, count in pairs(got.collectives) do assert.equal(0, count, phase) end
      assert.same({ replicate = 0, shard = 0 }, got.comm_bytes)
    end
  end)
end)
