-- AdamW whose moments are kept in bf16, rounded at random: half of their bytes, near to f32, the same bits wherever the
-- same gradients are summed, and after going on from a checkpoint.

local compare = require("moonshard.check.tolerance")
local ms = require("moonshard")
local breadth = require("lua.support.breadth")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local trained = require("lua.support.trained")

local run, with, few = trained.run, trained.with, breadth.few
local assert_close, assert_same, assert_parity = trained.assert_close, trained.assert_same, trained.assert_parity

local BF16, NEAR = { moments = "bf16" }, 2e-2

describe("moments in bf16", function()
  teardown(scratch.clear)

  it("S13 take half the bytes, in the plan and in the arenas", function()
    for _, layout in ipairs(few { "rows", "ragged" }) do
      local settings = { mesh = "1x2", layout = layout }
      local whole, half = run(2, settings), run(2, with(settings, BF16))
      local saved = whole.plan.bytes.optimizer - half.plan.bytes.optimizer
      assert.is_true(math.abs(saved - whole.plan.bytes.optimizer / 2) < 64 * 10)
      assert.equal(half.plan.peak_bytes, half.peak_bytes)
      assert.equal(whole.peak_bytes - half.peak_bytes, saved)
      assert.not_equal(whole.plan.fingerprint, half.plan.fingerprint)
    end
  end)

  it("S13 train nearly as those in f32 do, on every mesh", function()
    local whole, alone = run(1, { mesh = "1x1" }), run(1, with(BF16, { mesh = "1x1" }))
    assert_close(whole.losses, alone.losses, NEAR, "losses against f32")
    assert.not_same(whole.losses, alone.losses)
    for _, mesh in ipairs(few { { 3, "1x3" }, { 4, "2x2" } }) do
      assert_parity(alone, run(mesh[1], with(BF16, { mesh = mesh[2], groups = false })), NEAR)
    end
    assert_parity(alone, run(2, with(BF16, { mesh = "1x2", layout = "ragged", shared_masters = false })), NEAR)
  end)

  it("S12 are the same bits in every run, and wherever gradients have the same", function()
    -- Without clipping: the norm is summed over chunks, in another order.
    local settings = with(BF16, { mesh = "1x2", clip = 0 })
    local sharded = run(2, settings)
    local others = { { mesh = "2x1" }, { shared_masters = false }, { units = false }, { layout = "ragged" } }
    for _, other in ipairs(few(others)) do
      local got = run(2, with(settings, other))
      assert_close(sharded.losses, got.losses, 0, "losses")
      for name, values in pairs(sharded.params) do assert_close(values, got.params[name], 0, name) end
    end
    trained.forget()
    assert_same(sharded, run(2, settings))
  end)

  it("A1 are those of the CPU on the device cuda", function()
    local cpu = run(1, with(BF16, { mesh = "1x1", steps = 4, groups = true }))
    local out, kernels = scratch.path(), os.getenv("MOONSHARD_CONFIG") == "thread" and "host" or "emulated"
    local ended = program.run({ "run", "tests/lua/recipes/parity.lua", "moments=bf16", "steps=4", "groups=true",
      "device=cuda", "out=" .. out }, program.emulated_cuda(
        ("MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/libmoonshard_cuda_%s.so"):format(
          os.getenv("MOONSHARD_BIN"):match("^(.*)/"), kernels)))
    assert(ended.status == 0, ended.err)
    local cuda = require("cjson").decode(scratch.read(out))
    assert_close(cpu.losses, cuda.losses, 1e-4, "losses")
    -- Where f32 differs in its last bit, a moment may be rounded the other way: few are.
    local other, all = 0, 0
    for name, values in pairs(cpu.params) do
      assert_close(values, cuda.params[name], NEAR * compare.PARAMETERS, name)
      for i, value in ipairs(values) do
        all = all + 1
        if math.abs(value - cuda.params[name][i]) > 1e-5 then other = other + 1 end
      end
    end
    assert.is_true(other < all / 50, ("%d of %d differ"):format(other, all))
  end)

  it("K1 go on bit for bit on the same mesh, and near on another", function()
    local folder = scratch.path()
    local settings = with(BF16, { steps = 8 })
    local whole = run(2, with(settings, { mesh = "1x2", save = folder, save_at = 5 }))
    local function rest_on(ranks, mesh, tolerance)
      local rest = run(ranks, with(settings, { mesh = mesh, load = folder }))
      assert_close({ unpack(whole.losses, 6) }, rest.losses, tolerance, "losses on " .. mesh)
      for name, values in pairs(whole.params) do assert_close(values, rest.params[name], tolerance, name) end
    end
    rest_on(2, "1x2", 0)
    if breadth.all then rest_on(4, "2x2", NEAR) end
    local told = program.run({ "inspect", folder })
    has(told.out, "moments bf16")
    scratch.clear()
  end)

  it("are read as f32, of which each is one of bf16", function()
    local path = program.recipe([==[
      local ms = require "moonshard"
      local model = ms.nn.sequential { ms.nn.linear(5, 7), ms.nn.linear(7, 2) }
      ms.fully_shard(model, { mesh = { 1, 2 }, layout = "ragged" })
      local train = ms.trainer {
        model = model, loss = ms.loss.mse, optimizer = ms.optim.adamw { lr = 0.1, moments = "bf16" },
      }
      train:step { inputs = ms.randn { 2, 5 }, targets = ms.randn { 2, 2 } }
      local ffi, bits = require "ffi", require "bit"
      local word = ffi.new("union { float f; uint32_t u; }")
      local zeros, count = 0, 0
      for name in model:named_parameters() do
        for _, kind in ipairs { "exp_avg", "exp_avg_sq" } do
          local all = train:optimizer_state(name, kind):reshape(-1):tolist()
          local own = train:local_optimizer_state(name, kind)
          local mine = own:numel() > 0 and own:reshape(-1):tolist() or {}
          for _, value in ipairs(all) do
            word.f = value
            assert(bits.band(word.u, 0xffff) == 0, name)
            zeros, count = zeros + (value == 0 and 1 or 0), count + 1
          end
          local found = {}
          for _, value in ipairs(all) do found[value] = true end
          for _, value in ipairs(mine) do assert(found[value], name) end
        end
      end
      assert(zeros < count / 2)
    ]==])
    local ended = program.run({ "run", path, "-n", "2" })
    os.remove(path)
    assert.equal(0, ended.status, ended.err)
  end)

  it("T9 of a parameter that a tensor dimension divides are rounded apart, by rows as on one rank", function()
    -- All elements of a row of the gradient are equal, and in the second layer all of a column: exact numbers.
    local path = program.recipe([==[
      local ms = require "moonshard"
      local cfg = ms.args { mesh = "1x1x2" }
      local mesh = ms.init_device_mesh("cpu", cfg.mesh, { "replicate", "shard", "tensor" })
      local function linear(inputs, outputs) return ms.nn.linear(inputs, outputs, { bias = false, init = 0.125 }) end
      local model = ms.nn.sequential { linear(8, 64), linear(64, 8) }
      ms.fully_shard(model, {
        mesh = mesh, placements = { { "0", { tensor = "colwise" } }, { "1", { tensor = "rowwise" } } },
      })
      local train = ms.trainer {
        model = model, loss = ms.loss.mse, optimizer = ms.optim.adamw { lr = 0.1, moments = "bf16" },
      }
      local x = ms.tensor { { 1, 0.5, 0.25, 0.75, -0.5, 0.625, 2, 1.5 } }
      train:step { inputs = x, targets = ms.tensor { { 0.375, 1.875, 3.5, 0.6875, 2.5625, 7, 0.3125, 3 } } }
      for _, name in ipairs { "0.weight", "1.weight" } do
        ms.log.print(table.concat(train:optimizer_state(name, "exp_avg"):reshape(-1):tolist(), " "))
      end
    ]==])
    local function moments(mesh, ranks)
      local ended = program.run({ "run", path, "-n", ranks, "mesh=" .. mesh })
      assert.equal(0, ended.status, ended.err)
      local by_layer = {}
      for line in ended.out:gmatch("[^\n]+") do
        local values = {}
        for value in line:gmatch("%S+") do values[#values + 1] = tonumber(value) end
        by_layer[#by_layer + 1] = values
      end
      return by_layer
    end
    local one, two = moments("1x1x1", "1"), moments("1x1x2", "2")
    os.remove(path)
    assert.equal(512, #two[1])
    assert.same(one[1], two[1])
    local apart = 0
    for row = 0, 7 do
      for column = 1, 32 do
        apart = apart + (two[2][64 * row + column] ~= two[2][64 * row + column + 32] and 1 or 0)
      end
    end
    assert.is_true(apart > 32, apart .. " of 256 differ")
  end)

  it("L2 have ranks without an element of their own agree with the others", function()
    -- Two rows at the most over four ranks: the last two own nothing of any parameter.
    local path = program.recipe([==[
      local ms = require("moonshard")
      local model = ms.nn.sequential { ms.nn.linear(2, 1), ms.nn.linear(1, 2) }
      ms.fully_shard(model, { mesh = "1x4" })
      local adamw = ms.optim.adamw { lr = 1e-2, moments = "bf16" }
      local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = adamw }
      local function batch(step)
        return { inputs = ms.randn { 2, 2, seed = step }, targets = ms.randn { 2, 2, seed = step + 9 } }
      end
      for step = 1, 2 do train:step(batch(step)) end
    ]==])
    local ended = program.run({ "check", path, "-n", "4" })
    os.remove(path)
    assert.equal(0, ended.status, ended.err)
  end)

  it("are refused with what would be right", function()
    for _, case in ipairs {
      { { moments = "f16" }, 'ms.optim.adamw: moments must be "f32", "bf16" or "i8", not "f16"' },
      { { moments = 2 }, "moments must be a string" },
    } do
      local ok, why = pcall(ms.optim.adamw, with(case[1], { lr = 1 }))
      assert.is_false(ok)
      has(tostring(why), case[2])
    end
    local ok, why = pcall(ms.optim.sgd, { lr = 1, moments = "bf16" })
    assert.is_false(ok)
    has(tostring(why), "option moments")
  end)
end)
