-- The same numbers from any mesh: real ranks train tests/lua/recipes/parity.lua, and what each step did is compared
-- with one rank on the same global batches. Tolerances: f32 1e-5, bf16 2e-2 of losses; of each parameter's update in
-- every step ten times as much of that update's norm, with SGD twice as much. power_spec.lua shows what this finds.

local json = require("cjson")
local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local trained = require("lua.support.trained")

local thin = breadth.few
local run, with, MESHES, KINDS, STEPS = trained.run, trained.with, trained.MESHES, trained.KINDS, trained.STEPS
local assert_close, assert_same, parity_on_all = trained.assert_close, trained.assert_same, trained.parity_on_all
local assert_parity = trained.assert_parity
local SOME = breadth.all and MESHES or KINDS

describe("parity with one rank", function()
  it("S1 rows, a unit a block, sizes that do not divide #release", function()
    parity_on_all({ layout = "rows" }, 1e-5)
  end)
  it("S1 rows, one unit #release", function() parity_on_all({ layout = "rows", units = false }, 1e-5, SOME) end)
  it("S1 ragged, a unit a block", function() parity_on_all({ layout = "ragged" }, 1e-5) end)
  it("S1 ragged, one unit #release", function() parity_on_all({ layout = "ragged", units = false }, 1e-5, SOME) end)

  it("S1 weights in f32 that are copied together instead of read in place #release", function()
    for _, mesh in ipairs(thin({ { 3, "1x3" }, { 4, "2x2" } })) do
      for _, layout in ipairs(thin({ "rows", "ragged" })) do
        local settings = { mesh = mesh[2], layout = layout }
        local in_place, copied = run(mesh[1], settings), run(mesh[1], with(settings, { shared_masters = false }))
        -- Replicas that keep one copy sum gradients in another order.
        if mesh[2] == "2x2" then assert_parity(copied, in_place, 1e-5) else assert_same(copied, in_place) end
        local meetings = mesh[2] == "2x2" and 1 or 0 -- after each update
        assert.equal(copied.plan.collectives.update + meetings, in_place.plan.collectives.update)
        for phase, count in pairs(copied.collectives) do
          if phase ~= "update" then assert.equal(count, in_place.collectives[phase], phase) end
        end
        assert.same(copied.comm_bytes, in_place.comm_bytes)
        assert.equal(0, in_place.plan.bytes.gathered)
        assert(in_place.plan.peak_bytes < copied.plan.peak_bytes - copied.plan.bytes.gathered / 2)
      end
    end
  end)

  it("S2 full shard, shard grad op, no shard, and both hybrids #release", function()
    for _, reshard in ipairs({ "true", "false", "default" }) do parity_on_all({ reshard = reshard }, 1e-5, SOME) end
  end)

  it("S6 three micro-batches equal one batch three times the size #release", function()
    local alone = run(1, { mesh = "1x1" })
    assert_parity(alone, run(1, { mesh = "1x1", micro = 3 }), 1e-5)
    assert_parity(alone, run(2, { mesh = "1x2", micro = 3 }), 1e-5)
    assert_parity(alone, run(4, { mesh = "2x2", micro = 3 }), 1e-5)
    assert_parity(alone, run(2, { mesh = "2x1", micro = 3, layout = "ragged" }), 1e-5)
  end)

  it("S4 a smaller group gathers for backward: the same bits, fewer bytes", function()
    for _, layout in ipairs(thin({ "rows", "ragged" })) do
      for _, dtype in ipairs(thin({ "f32", "bf16" })) do
        local settings = { mesh = "1x4", layout = layout, dtype = dtype }
        local all = run(4, with(settings, { reshard = "true" }))
        local two, one = run(4, with(settings, { reshard = 2 })), run(4, with(settings, { reshard = 1 }))
        assert_same(all, two)
        assert.same(all.collectives, two.collectives)
        assert.equal(run(4, with(settings, { reshard = "false" })).plan.fingerprint, one.plan.fingerprint)
        assert(one.plan.comm_bytes.shard < two.plan.comm_bytes.shard)
        assert(two.plan.comm_bytes.shard < all.plan.comm_bytes.shard)
        if dtype == "bf16" then assert(two.plan.bytes.gathered > all.plan.bytes.gathered) end
      end
    end
    local settings = { mesh = "1x4", dtype = "bf16", micro = 3 }
    assert_same(run(4, with(settings, { reshard = "true" })), run(4, with(settings, { reshard = 2 })))
  end)

  -- In a micro-batch of the recipe's three units: the default gathers one of them again, the sums over shards and over
  -- replicas are one a unit each, where gradients do not wait for them.
  local function collectives(mesh, sync)
    local replicated, sharded = tonumber(mesh:match("^%d")) > 1, tonumber(mesh:match("%d$")) > 1
    return (sharded and 4 or 0) + (sharded and sync ~= "last" and 3 or 0) + (replicated and sync == "every" and 3 or 0)
  end

  it("S5 gradients that wait for the last micro-batch: parity, and fewer collectives", function()
    local alone = run(1, { mesh = "1x1", micro = 3 })
    for _, mesh in ipairs(thin({ { 1, "1x1" }, { 2, "1x2" }, { 2, "2x1" }, { 4, "2x2" } })) do
      local every, all = run(mesh[1], { mesh = mesh[2], micro = 3 }), collectives(mesh[2], "every")
      assert.same({ STEPS * all, 2 * STEPS * all }, { every.collectives.first, every.collectives.next })
      for _, sync in ipairs(thin({ "shard", "last" })) do
        for _, layout in ipairs(thin({ "rows", "ragged" })) do
          local got = run(mesh[1], { mesh = mesh[2], micro = 3, sync = sync, layout = layout })
          assert_parity(alone, got, 1e-5)
          -- Of three micro-batches one is first, one next and one last.
          local waiting = collectives(mesh[2], sync)
          for phase, count in pairs({ first = waiting, next = waiting, last = all }) do
            assert.equal(STEPS * count, got.collectives[phase], ("%s, sync %s on %s"):format(phase, sync, mesh[2]))
          end
        end
      end
    end
    local reduced = run(4, { mesh = "2x2", micro = 3, sync = "last", dtype = "bf16", reduce = "bf16" })
    assert_close(alone.losses, reduced.losses, 2e-2, "losses in bf16")
  end)

  it("S5 weights that stay from one micro-batch to the next", function()
    for _, mesh in ipairs(thin({ { 2, "1x2" }, { 1, "1x1" }, { 4, "2x2" } })) do
      for _, dtype in ipairs(thin({ "f32", "bf16" })) do
        local settings = { mesh = mesh[2], micro = 3, dtype = dtype, shared_masters = false }
        local freed = run(mesh[1], settings)
        local kept = run(mesh[1], with(settings, { reshard_backward = false }))
        assert_same(freed, kept)
        local both = run(mesh[1], with(settings, { reshard_backward = false, sync = "last" }))
        assert_close(freed.losses, both.losses, dtype == "f32" and 1e-5 or 2e-2, "losses with sync last")
        if mesh[1] > 1 then
          local reductions = mesh[2] == "2x2" and 6 or 3
          assert.equal(STEPS * (3 + reductions), kept.collectives.first)
          assert.equal(2 * STEPS * reductions, kept.collectives.next)
          assert.equal(2 * STEPS * (4 + reductions), freed.collectives.next)
          assert.equal(0, both.collectives.next)
          assert.equal(STEPS * reductions, both.collectives.last)
          assert(kept.plan.bytes.gathered > freed.plan.bytes.gathered)
        end
      end
    end
  end)

  it("S7 bf16 weights with f32 masters, reduced in f32 or bf16 #release", function()
    local full = run(1, { mesh = "1x1" })
    for _, reduce in ipairs(thin({ "f32", "bf16" })) do
      local settings = { dtype = "bf16", reduce = reduce }
      local alone = run(1, with(settings, { mesh = "1x1" }))
      assert_close(full.losses, alone.losses, 2e-2, "losses against f32")
      for _, mesh in ipairs(thin({ { 2, "1x2" }, { 2, "2x1" }, { 4, "2x2" } })) do
        local got = run(mesh[1], with(settings, { mesh = mesh[2] }))
        assert_close(full.losses, got.losses, 2e-2, "losses of " .. mesh[2])
        assert_close(full.norms, got.norms, 5e-2, "norms of " .. mesh[2])
        trained.assert_updates(alone, got, 2e-2)
      end
    end
  end)

  it("S7 f32 and bf16 parameters in one unit", function()
    local full = run(1, { mesh = "1x1" })
    for _, layout in ipairs(thin({ "rows", "ragged" })) do
      local settings = { dtype = "bf16", mixed = true, layout = layout }
      local alone = run(1, with(settings, { mesh = "1x1" }))
      assert_close(full.losses, alone.losses, 2e-2, "losses against f32")
      for _, mesh in ipairs(thin({ { 2, "1x2" }, { 4, "2x2" } })) do
        local got = run(mesh[1], with(settings, { mesh = mesh[2] }))
        assert_close(alone.losses, got.losses, 2e-2, "losses of " .. mesh[2])
        trained.assert_updates(alone, got, 2e-2)
      end
    end
  end)

  it("S8 frozen parameters stay as they were drawn #release", function()
    local settings = { freeze = [[^layers\.0|fc1\.bias]] }
    parity_on_all(settings, 1e-5, KINDS)
    local before = run(1, with(settings, { mesh = "1x1", steps = 1 }))
    local after = run(1, with(settings, { mesh = "1x1" }))
    assert.same(before.params["layers.0.fc1.weight"], after.params["layers.0.fc1.weight"])
    assert.same(before.params["layers.1.fc1.bias"], after.params["layers.1.fc1.bias"])
    assert.not_same(before.params["layers.1.fc1.weight"], after.params["layers.1.fc1.weight"])
  end)

  it("S10 recomputed activations: the same bits, and less memory", function()
    for _, mesh in ipairs(thin({ { 1, "1x1" }, { 2, "1x2" }, { 4, "2x2" } })) do
      for _, dtype in ipairs(thin({ "f32", "bf16" })) do
        local settings = { mesh = mesh[2], dtype = dtype, dropout = true, rows = 256 }
        local kept, less = run(mesh[1], settings), {}
        for _, what in ipairs({ "blocks", "first", "ops" }) do
          local got = run(mesh[1], with(settings, { recompute = what }))
          assert_same(kept, got)
          less[what] = kept.plan.bytes.activations - got.plan.bytes.activations
          assert.equal(kept.plan.flops, got.plan.flops)
        end
        assert(less.blocks > 0 and less.first > 0 and less.ops > 0,
          ("blocks %g, first %g, ops %g bytes less"):format(less.blocks, less.first, less.ops))
      end
    end
  end)

  it("S11 the clipped norm is that of one rank #release", function() parity_on_all({ clip = 0.05 }, 1e-5, KINDS) end)

  it("S13 SGD with momentum, Nesterov and weight decay, and groups by rule #release", function()
    parity_on_all({ optimizer = "sgd", groups = true }, 1e-5, KINDS)
    parity_on_all({ optimizer = "sgd", nesterov = true }, 1e-5, KINDS)
    if not breadth.all then return end -- updates_spec compares these with PyTorch
    parity_on_all({ optimizer = "sgd", momentum = 0, decay = 0 }, 1e-5, KINDS)
    parity_on_all({ optimizer = "adamw", groups = true }, 1e-5, KINDS)
  end)

  it("S18 a layer that is not used in the step gets zero gradients #release", function()
    parity_on_all({ spare = true, decay = 0 }, 1e-5, KINDS)
    local value = run(2, { mesh = "1x2", spare = true, decay = 0 })
    local first = run(2, { mesh = "1x2", spare = true, decay = 0, steps = 1 })
    assert.same(first.params["layers.0.spare.weight"], value.params["layers.0.spare.weight"])
  end)
end)

describe("bit for bit", function()
  it("S12 a run repeats itself, on any mesh #release", function()
    for _, mesh in ipairs({ { 3, "1x3" }, { 4, "2x2" } }) do
      local first = run(mesh[1], { mesh = mesh[2] })
      trained.forget()
      assert_same(first, run(mesh[1], { mesh = mesh[2] }))
    end
  end)

  it("S12 (k,1) is DDP and (1,k) is FSDP: the same sums in the same order #release", function()
    -- Without clipping: the norm is summed over chunks, in another order.
    local ddp, fsdp = run(2, { mesh = "2x1", clip = 0 }), run(2, { mesh = "1x2", clip = 0 })
    assert_close(ddp.losses, fsdp.losses, 0, "losses")
    for name, values in pairs(ddp.params) do assert_close(values, fsdp.params[name], 0, name) end
  end)

  it("S12 rows and ragged differ in layout alone #release", function()
    local rows, ragged = run(3, { mesh = "1x3", layout = "rows" }), run(3, { mesh = "1x3", layout = "ragged" })
    assert.equal(rows.losses[1], ragged.losses[1])
  end)

  it("S15 the first step sees the same loss on every mesh #release", function()
    local settings = { steps = 1, optimizer = "sgd", momentum = 0, decay = 0, clip = 0 }
    local alone = run(1, with(settings, { mesh = "1x1" }))
    for _, mesh in ipairs(MESHES) do
      local got = run(mesh[1], with(settings, { mesh = mesh[2] }))
      assert_close({ alone.losses[1] }, { got.losses[1] }, 1e-6, "first loss on " .. mesh[2])
    end
  end)

  it("S17 neither do depths by rule, nor explicit orders #release", function()
    local seen = {}
    for _, dtype in ipairs(thin({ "f32", "bf16" })) do
      local expected = run(2, { mesh = "1x2", reshard = "true", dtype = dtype })
      seen[expected.plan.fingerprint] = true
      for _, ahead in ipairs(thin({ "depths", "names" })) do
        local got = run(2, { mesh = "1x2", reshard = "true", dtype = dtype, ahead = ahead })
        assert_same(expected, got)
        assert.same(expected.collectives, got.collectives)
        assert.is_nil(seen[got.plan.fingerprint])
        seen[got.plan.fingerprint] = true
      end
    end
  end)

  it("S17 prefetch depth changes no bit", function()
    local expected = run(2, { mesh = "1x2" })
    local seen = {}
    for depth = 0, 2 do
      local got = run(2, { mesh = "1x2", prefetch = depth })
      assert_same(expected, got)
      assert.same(expected.collectives, got.collectives)
      assert.is_nil(seen[got.plan.fingerprint])
      seen[got.plan.fingerprint] = true
    end
  end)
end)

describe("delays", function()
  it("M3 before gathers, reductions and the update, and after forward, change nothing but time", function()
    for _, settings in ipairs(thin({
      { mesh = "2x2", dtype = "bf16", reshard = "true", steps = 2 }, { mesh = "2x2", micro = 3, steps = 1, clip = 0 },
    })) do
      local expected = run(4, settings)
      for _, delay in ipairs(thin({
        "gather:5ms", "gather:25ms@1", "reduce:5ms", "reduce:25ms@2", "replicate:25ms@3", "forward:25ms@0",
        "update:25ms@1", "gather:5ms@0,reduce:7ms@1,replicate:11ms@2,forward:13ms@3,update:17ms@0",
      })) do
        assert_same(expected, run(4, settings, { "--inject-delay", delay }))
      end
    end
  end)

  it("M3 take as long as they say #release", function()
    for _, case in ipairs(thin({
      { "gather", "1x2" }, { "reduce", "1x2" }, { "replicate", "2x1" }, { "forward", "1x2" }, { "update", "1x2" },
    })) do
      -- At least one of each is never hidden behind what is computed.
      local got = run(2, { mesh = case[2], steps = 1 }, { "--inject-delay", case[1] .. ":50ms" })
      assert(got.step_ms >= 50, ("%s: a step took %.1f ms"):format(case[1], got.step_ms))
    end
  end)

  it("M3 are refused when they make no sense #release", function()
    for text, why in pairs({
      ["gathr:1s"] = "point", ["gather:1"] = "time | unit",
      ["gather:-1s"] = "time | negative", ["gather:1s@x"] = "rank | number",
      ["gather:1s,"] = false, ["gather:1s;update:1s"] = "delay",
    }) do
      local ended = program.run({
        "run", "tests/lua/recipes/parity.lua", "out=/dev/null", "steps=1", "--inject-delay", text,
      })
      assert.equal(why and 2 or 0, ended.status, text .. ended.err)
      if why then has(ended.err, why) end
    end
    local ended = program.run({ "run", "tests/lua/recipes/parity.lua", "-n", "2", "--inject-delay", "gather:1s@2" })
    assert.equal(2, ended.status)
    has(ended.err, "--inject-delay gather:1s@2 | -n 2 | 0 to 1")
  end)
end)

describe("counts and bytes", function()
  it("S3 M7 what ran equals what the plan says #release", function()
    for _, mesh in ipairs(MESHES) do
      local got = run(mesh[1], { mesh = mesh[2] })
      for _, phase in ipairs({ "first", "norm", "update" }) do
        assert.equal(STEPS * got.plan.collectives[phase], got.collectives[phase], phase .. " on " .. mesh[2])
      end
      for name, bytes in pairs(got.plan.comm_bytes) do
        -- Shares of a ring are fractions: their sums round.
        assert_close({ bytes }, { got.comm_bytes[name] }, 1e-12, "bytes over " .. name .. " of " .. mesh[2])
      end
    end
  end)

  it("M1 the arenas hold what the plan says, and nothing is allocated after compile #release", function()
    for _, mesh in ipairs(MESHES) do
      local got = run(mesh[1], { mesh = mesh[2] })
      assert.equal(got.plan.peak_bytes, got.peak_bytes)
      local sum = 0
      for _, bytes in pairs(got.plan.bytes) do sum = sum + bytes end
      assert.equal(got.plan.peak_bytes, sum)
      assert.equal(0, got.allocations)
    end
  end)

  it("M1 nothing is allocated while a rank waits for a late one", function()
    -- Longer than a rank waits before it looks for a deadlock.
    local got = run(2, { mesh = "1x2", steps = 1 }, { "--inject-delay", "reduce:700ms@1" })
    assert.is_true(got.step_ms > 700)
    assert.equal(0, got.allocations)
  end)

  it("M1 resident memory is at most 48 MiB over the plan #release", function()
    if os.getenv("MOONSHARD_CONFIG") ~= "release" then return pending("sanitizers keep shadows of all memory") end
    for _, mesh in ipairs(MESHES) do
      local got = run(mesh[1], { mesh = mesh[2] })
      local over = got.resident_bytes - got.plan.peak_bytes
      assert(over <= 48 * 2 ^ 20, ("%.1f MiB over the plan on %s"):format(over / 2 ^ 20, mesh[2]))
    end
  end)

  it("M6 a plan made without launching is the one that a launched rank compiles #release", function()
    for _, mesh in ipairs({ { 4, "2x2" }, { 3, "1x3" } }) do
      local got = run(mesh[1], { mesh = mesh[2] })
      for rank = 0, mesh[1] - 1 do
        local ended = program.run({
          "plan", "tests/lua/recipes/parity.lua", "-n", tostring(mesh[1]), "--rank", tostring(rank), "--json",
          "mesh=" .. mesh[2],
        })
        assert.equal(0, ended.status, ended.err)
        local plan = json.decode(ended.out)
        assert.equal(rank, plan.rank)
        assert.equal(got.plan.fingerprint, plan.fingerprint)
        assert.equal(got.plan.peak_bytes, plan.peak_bytes)
        for category, ranks in pairs(got.bytes_by_rank) do
          assert.equal(ranks[rank + 1], plan.bytes[category], category)
        end
      end
    end
  end)

  it("S16 evaluation gives the loss of the weights", function()
    local alone = run(1, { mesh = "1x1" })
    for _, mesh in ipairs(MESHES) do
      local got = run(mesh[1], { mesh = mesh[2] })
      assert_close({ alone.evaluated }, { got.evaluated }, 1e-5, "evaluation on " .. mesh[2])
    end
  end)
end)
