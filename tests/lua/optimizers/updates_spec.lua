-- What every step changes of each parameter, compared with PyTorch: the fixtures of tests/fixtures/updates, on several
-- meshes. Norms, parameter groups, clipping, ignored targets, a tied weight, layers that run never or in some steps.
-- Altered recipes show that leaving out one of these is found.

local compare = require("moonshard.check.tolerance")
local breadth = require("lua.support.breadth")
local huggingface = require("lua.support.huggingface")
local json = require("cjson")
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local trained = require("lua.support.trained")

local STEPS = 6
local TOLERANCE = 2e-5 -- of the norm of a parameter's update in a step
local ROUNDING = 2 ^ -23 -- and what a weight of 1 to 2 is rounded by in f32

local function run(ranks, settings, environment)
  local out, words = scratch.path(), {}
  for name, value in pairs(settings) do words[#words + 1] = ("%s=%s"):format(name, tostring(value)) end
  local ended = program.run({
    "run", "tests/lua/optimizers/recipes/updates.lua", "-n", tostring(ranks), "out=" .. out, unpack(words),
  }, environment)
  assert(ended.status == 0, ended.err)
  return json.decode(scratch.read(out))
end

-- The parameters whose updates are not the reference's, by name: in how many steps.
local function differing(optimizer, got)
  local file, found, compared = ms.safetensors.open(("tests/fixtures/updates/%s.safetensors"):format(optimizer)), {}, 0
  for i, updates in ipairs(got.updates) do
    for name, values in pairs(updates) do
      local expected = huggingface.values_of(file, ("update.%d.%s"):format(got.first + i - 1, name))
      assert.equal(#expected, #values, name)
      local options = { count = #expected, tolerance = TOLERANCE, rounding = ROUNDING }
      if compare.changes(expected, values, options).differs then found[name] = (found[name] or 0) + 1 end
      compared = compared + 1
    end
  end
  assert.equal(22 * #got.updates, compared)
  return found, file
end

local function assert_reference(optimizer, ranks, settings, environment)
  local got = run(ranks, trained.with(settings, { optimizer = optimizer }), environment)
  local found, file = differing(optimizer, got)
  assert.same({}, found)
  local losses, norms = huggingface.values_of(file, "losses"), huggingface.values_of(file, "norms")
  trained.assert_close({ unpack(losses, got.first) }, got.losses, 2e-6, "losses")
  trained.assert_close({ unpack(norms, got.first) }, got.norms, 2e-6, "norms")
  if optimizer == "clipped" then
    trained.assert_close({ unpack(huggingface.values_of(file, "group_norms"), 2 * got.first - 1) }, got.group_norms,
      2e-6, "norms of groups")
  end
  return got
end

local MESHES = breadth.few {
  { 1, { mesh = "1x1" } }, { 1, { mesh = "1x1", micro = 3 } }, { 2, { mesh = "1x2", layout = "ragged", micro = 2 } },
  { 3, { mesh = "1x3" } }, { 2, { mesh = "2x1", micro = 3, sync = "last" } },
  { 4, { mesh = "4x1", layout = "ragged" } },
  { 4, { mesh = "2x2", shared_masters = false, reshard = "true" } }, { 4, { mesh = "2x2", micro = 3, sync = "shard" } },
}

describe("updates compared with PyTorch", function()
  teardown(scratch.clear)

  for _, optimizer in ipairs { "adamw", "adam", "lion", "sgd", "muon", "groups", "clipped", "momenta", "adafactor" } do
    it("S11 S13 S18 of " .. optimizer .. " are the same for every parameter in every step, on every mesh", function()
      for _, mesh in ipairs(breadth.few(MESHES)) do
        local got = assert_reference(optimizer, mesh[1], mesh[2])
        for name, count in pairs(got.counts) do
          assert.equal(name:find("^spare") and 0 or name:find("layers.1", 1, true) and STEPS / 2 or STEPS, count, name)
        end
      end
    end)

    it("S20 of " .. optimizer .. " are the same with a fused loss #all", function()
      assert_reference(optimizer, 1, { mesh = "1x1", chunk = 7 })
      assert_reference(optimizer, 2, { mesh = "1x2", micro = 2, chunk = 4 })
    end)

    it("K1 S18 of " .. optimizer .. " go on from a checkpoint on another mesh #all", function()
      local folder = scratch.path()
      run(2, { optimizer = optimizer, mesh = "1x2", save = folder, save_at = 3 })
      local got = assert_reference(optimizer, 4, { mesh = "2x2", load = folder })
      assert.equal(4, got.first)
      assert.equal(STEPS / 2, got.counts["layers.1.fc1.weight"])
      assert.equal(0, got.counts["spare.weight"])
    end)
  end

  if os.getenv("MOONSHARD_CONFIG") ~= "thread" then
    it("S11 S13 A1 are the same with CUDA's kernels, emulated", function()
      local environment = program.emulated_cuda(("MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/%s"):format(
        os.getenv("MOONSHARD_BIN"):match("^(.*)/"), "libmoonshard_cuda_emulated.so"))
      for _, optimizer in ipairs(breadth.few { "adam", "lion", "clipped", "momenta", "adafactor", "groups" }) do
        assert_reference(optimizer, 2, { mesh = "1x2", micro = 2, device = "cuda" }, environment)
      end
    end)
  end

  it("S13 of SGD with a dampened momentum are those of torch.optim.SGD", function()
    local Net = ms.module "Net"
    function Net:init() self.w = ms.parameter { 1, init = "zeros" } end
    function Net:forward(x) return x * self.w end
    local model = Net()
    local train = ms.trainer {
      model = model, optimizer = ms.optim.sgd { lr = 1, momentum = 0.5, dampening = 0.25 },
      forward = function(net, batch) return net(batch.x):mean() end,
    }
    -- The momentum is 1 at first, undampened, and then 0.5 times itself and 0.75 of the gradient, which is always 1.
    for _, expected in ipairs { -1, -2.25, -3.625 } do
      train:step { x = ms.ones { 1, 1 } }
      assert.equal(expected, model:parameter("w"):item())
    end
  end)

  it("S13 an evaluation is the mean over the targets of all ranks", function()
    local alone = run(1, { mesh = "1x1" })
    for _, mesh in ipairs(breadth.few { { 4, "4x1" }, { 4, "2x2" } }) do
      assert.near(alone.evaluated, run(mesh[1], { mesh = mesh[2] }).evaluated, 1e-5)
    end
  end)
end)

describe("an altered recipe is found:", function()
  teardown(scratch.clear)

  -- The parameters among those found that a pattern names, and how many of them there are.
  local function count(found, pattern)
    local n = 0
    for name in pairs(found) do n = n + (name:find(pattern) and 1 or 0) end
    return n
  end

  it("clipping by value or of a group that is left out", function()
    assert(count(differing("clipped", run(1, { optimizer = "clipped", wrong = "value" })), "embed") == 1)
    assert(count(differing("clipped", run(1, { optimizer = "clipped", wrong = "norm" })), "fc") >= 6)
  end)

  it("settings of a group of Lion, SGD and Muon that are left out", function()
    local lion = differing("lion", run(1, { optimizer = "lion", wrong = "betas" }))
    assert(count(lion, "norm") >= 1 and count(lion, "bias") >= 1)
    local momenta = differing("momenta", run(1, { optimizer = "momenta", wrong = "momentum" }))
    for _, name in ipairs { "norm", "fc%d%.bias", "embed", "layers%.2%.fc1%.weight" } do
      assert(count(momenta, name) >= 1, name)
    end
  end)

  it("settings of a group that are left out", function()
    for wrong, names in pairs { betas = { "norm", "bias" }, lr = { "embed" }, eps = { "embed" } } do
      local found = differing("groups", run(1, { optimizer = "groups", wrong = wrong }))
      for _, name in ipairs(names) do assert(count(found, name) >= 1, wrong .. " of " .. name) end
    end
  end)

  for _, optimizer in ipairs(breadth.few { "adam", "sgd", "adamw" }) do
    it("norm weights that stay, with " .. optimizer, function()
      local found = differing(optimizer, run(1, { optimizer = optimizer, wrong = "norms" }))
      assert.equal(7, count(found, "norm"))
    end)

    it("groups that are ignored, with " .. optimizer, function()
      local found = differing(optimizer, run(1, { optimizer = optimizer, wrong = "groups" }))
      assert.equal(3 * 2 + 7, count(found, "norm") + count(found, "fc%d%.bias"))
    end)

    it("clipping that is left out, with " .. optimizer, function()
      local found = differing(optimizer, run(1, { optimizer = optimizer, wrong = "clipping" }))
      assert.equal(20, count(found, "."))
      assert.equal(0, count(found, "^spare"))
    end)

    it("targets that count by rank, with " .. optimizer, function()
      local right = differing(optimizer, run(1, { optimizer = optimizer, wrong = "tokens" }))
      assert.same({}, right)
      local found = differing(optimizer, run(4, { optimizer = optimizer, mesh = "1x4", wrong = "tokens" }))
      assert.equal(20, count(found, "."))
    end)
  end
end)
