-- Averages of the weights: numbers against a plain calculation on several meshes, their bytes, that they are saved
-- and resumed, and what evaluates, exports and samples with them.

local ffi = require("ffi")
local breadth = require("lua.support.breadth")
local fixture = require("lua.support.fixture")
local ms = require("moonshard")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local trained = require("lua.support.trained")

local message = fixture.message

local CASES = {
  { 1, { mesh = "1x1", optimizer = "sgd", momentum = 0 } },
  { 4, { mesh = "2x2", ema_warmup = true, shared_masters = false, freeze = "fc1", groups = true } },
  { 4, { mesh = "4x1", layout = "ragged", dtype = "bf16" } },
  { 4, { mesh = "2x2", dtype = "bf16", groups = true } },
  { 3, { mesh = "1x3", ema_warmup = true, spare = true, micro = 2, groups = true } },
}

local function moonshard(...)
  local ended = program.run({ ... })
  assert(ended.status == 0, ended.err)
  return ended.out
end

-- A model with what it was trained on, for one rank.
local function small(settings)
  local model = ms.nn.sequential { ms.nn.linear(5, 7), ms.ops.relu, ms.nn.linear(7, 3) }
  ms.fully_shard(model, { freeze = { { "2.bias", true } } })
  settings = trained.with({ model = model, loss = ms.loss.mse, optimizer = ms.optim.adamw { lr = 0.1 } }, settings)
  local batch = { inputs = ms.randn { 6, 5, seed = 1 }, targets = ms.randn { 6, 3, seed = 2 } }
  return ms.trainer(settings), batch
end

local function batches(batch) return coroutine.wrap(function() coroutine.yield(1, batch) end) end

describe("averages of the weights", function()
  teardown(function()
    trained.forget()
    scratch.clear()
  end)

  for _, case in ipairs(breadth.few(CASES)) do
    local ranks, settings = case[1], trained.with(case[2], { ema = 0.8, steps = 6 })
    it("S13 are those of a plain calculation on mesh " .. settings.mesh, function()
      local averages = trained.run(ranks, settings).averages
      for name, values in pairs(averages.plain) do trained.assert_close(values, averages.kept[name], 1e-6, name) end
    end)

    it("S16 are evaluated as weights of their values are, and training stays as it is, on mesh " .. settings.mesh,
      function()
        local with, without = trained.run(ranks, settings), trained.run(ranks, trained.with(settings, { ema = 0 }))
        assert.equal(with.averages.as_weights, with.averages.evaluated)
        assert.equal(with.evaluated, with.averages.weights)
        assert.not_equal(with.evaluated, with.averages.evaluated)
        trained.assert_same(without, with)
      end)

    it("M1 cost their bytes and no communication on mesh " .. settings.mesh, function()
      local with, without = trained.run(ranks, settings), trained.run(ranks, trained.with(settings, { ema = 0 }))
      local arrays = settings.optimizer == "sgd" and 0 or 2 -- that the optimizer keeps
      if arrays > 0 then
        assert.equal(without.plan.bytes.optimizer * (arrays + 1) / arrays, with.plan.bytes.optimizer)
      else
        assert.equal(without.plan.bytes.gradients, with.plan.bytes.optimizer)
      end
      assert.equal(with.plan.peak_bytes, with.peak_bytes)
      assert.same(without.collectives, with.collectives)
      assert.same(without.comm_bytes, with.comm_bytes)
      assert.equal(0, with.allocations)
    end)
  end

  it("S16 are back in their place on all replicas when an evaluation with them has failed", function()
    for _, mesh in ipairs { "2x2", "4x1" } do
      assert.equal("the same\n", moonshard("run", "tests/lua/optimizers/recipes/averages_failed.lua", "-n", "4",
        "mesh=" .. mesh))
    end
  end)

  it("M1 add nothing to a plan without them #release", function()
    local plain, batch = small {}
    local averaged = small { ema = 0.9 }
    plain:step(batch)
    averaged:step(batch)
    assert.is_nil(plain:plan():text():find(" ema ", 1, true))
    local units = select(2, averaged:plan():text():gsub("compute +ema ", ""))
    assert.equal(1, units)
    assert.equal(plain:plan():summary().instructions + units, averaged:plan():summary().instructions)
  end)

  it("K1 go on bit for bit on the same mesh, and with parity on another", function()
    local folder = scratch.path()
    local settings = { ema = 0.8, ema_warmup = true, steps = 8, layout = "ragged" }
    local saving = trained.with(settings, { mesh = "2x2", save = folder, save_at = 5, async = true })
    local whole = trained.run(4, saving).averages
    local same = trained.run(4, trained.with(settings, { mesh = "2x2", load = folder })).averages
    for name, values in pairs(whole.kept) do trained.assert_close(values, same.kept[name], 0, name) end
    assert.equal(whole.evaluated, same.evaluated)
    local other = trained.run(3, trained.with(settings, { mesh = "1x3", load = folder })).averages
    for name, values in pairs(whole.kept) do trained.assert_close(values, other.kept[name], 1e-4, name) end
  end)

  it("K1 begin from the weights of a checkpoint that holds none, and are left out by a trainer without", function()
    local folder, settings = scratch.path(), {}
    local plain, batch = small {}
    plain:step(batch)
    ms.checkpoint.save(plain, folder)
    local train = small { ema = 0.9 }
    local loaded = ms.checkpoint.load(train, folder)
    has(loaded.ema, "; | averages | weights")
    local before = train:parameter("0.weight")
    assert.same(before:tolist(), train:optimizer_state("0.weight", "ema"):tolist())
    train:step(batch)
    local after, kept = train:parameter("0.weight"):tolist(), train:optimizer_state("0.weight", "ema"):tolist()
    for row, values in ipairs(before:tolist()) do
      for i, value in ipairs(values) do
        assert.is_true(math.abs(0.9 * value + 0.1 * after[row][i] - kept[row][i]) < 1e-6)
      end
    end
    settings.other = scratch.path()
    ms.checkpoint.save(train, settings.other)
    has(ms.checkpoint.load((small {}), settings.other).ema, "; | averages | no ema")
  end)

  it("K1 are loaded as a model's weights, and exported", function()
    local folder, out = scratch.path(), scratch.path()
    local train, batch = small { ema = { decay = 0.5, warmup = false } }
    for _ = 1, 3 do train:step(batch) end
    local wanted = train:with_ema(function() return train:evaluate(batches(batch)) end)
    ms.checkpoint.save(train, folder)
    local other = small {}
    ms.checkpoint.load(other.model, folder, { ema = true })
    assert.equal(wanted, other:evaluate(batches(batch)))
    local said = moonshard("export", folder, out, "--ema")
    local source = folder .. "/step-00000003"
    has(said, "4 tensors | 264 B | averages | " .. source .. " | step 3")
    local file = ms.safetensors.open(out .. "/model.safetensors")
    local first = ffi.cast("const float *", file:data("0.weight"))
    local last = ffi.cast("const float *", file:data("2.bias"))
    train:with_ema(function()
      assert.equal(train:parameter("0.weight"):tolist()[1][1], tonumber(first[0]))
    end)
    assert.not_equal(train:parameter("0.weight"):tolist()[1][1], tonumber(first[0]))
    assert.equal(train:parameter("2.bias"):tolist()[3], tonumber(last[2])) -- which is frozen
    assert.truthy(moonshard("inspect", folder):find("ema +decay 0.5, warmup false"))
  end)

  it("K6 are saved as a Hugging Face folder, on a mesh too", function()
    local folder = scratch.path()
    local recipe = program.recipe([[
      local ms = require "moonshard"
      local cfg = ms.args { out = "" }
      local model = ms.models.gpt2 { vocab = 16, layers = 1, dim = 8, heads = 2, seq = 4 }
      ms.fully_shard(model, { mesh = "1x2" })
      local train = ms.trainer {
        model = model, optimizer = ms.optim.adamw { lr = 1e-2 }, loss = ms.loss.cross_entropy, ema = 0.5,
      }
      local tokens = ms.tensor { { 1, 2, 3, 4 }, dtype = "i32" }
      for _ = 1, 3 do train:step { tokens = tokens, targets = tokens } end
      ms.huggingface.save(train, cfg.out, { ema = true })
      local averages = train:with_ema(function() return train:parameter("layers.0.mlp.fc2.bias"):tolist() end)
      local weights = train:parameter("layers.0.mlp.fc2.bias"):tolist()
      if ms.world().rank == 0 then print(("%.9g %.9g"):format(averages[3], weights[3])) end
    ]])
    local ended = program.run({ "run", recipe, "-n", "2", "out=" .. folder })
    os.remove(recipe)
    assert.equal(0, ended.status, ended.err)
    local average, weight = ended.out:match("(%S+) (%S+)")
    local file = ms.safetensors.open(folder)
    local saved = ffi.cast("const float *", file:data("transformer.h.0.mlp.c_proj.bias"))
    assert.equal(average, ("%.9g"):format(saved[2]))
    assert.not_equal(average, weight)
  end)

  it("replace the weights during a function, which returns its results and may fail", function()
    local train, batch = small { ema = 0.5 }
    local first = train:parameter("0.weight"):tolist()
    assert.same(first, train:with_ema(function() return train:parameter("0.weight"):tolist() end)) -- no step yet
    for _ = 1, 2 do train:step(batch) end
    local weights = train:parameter("0.weight"):tolist()
    local a, b = train:with_ema(function(x) return x, train:with_ema(function() return 2 end) end, 1)
    assert.same({ 1, 2 }, { a, b })
    assert.truthy(message(train.with_ema, train, function() error("only here") end):find("only here"))
    assert.same(weights, train:parameter("0.weight"):tolist())
    has(message(train.with_ema, train, function() train:step(batch) end)
      , "train:with_ema | averages")
    local folder = scratch.path()
    has(message(train.with_ema, train, function() ms.checkpoint.save(train, folder) end)
      , "saved | train:with_ema")
    train:step(batch)
    ms.checkpoint.save(train, folder)
    has(message(train.with_ema, train, function() ms.checkpoint.load(train, folder) end)
      , "train:with_ema | averages | load")
    local model, kept, averages = train.model, train:parameter("0.weight"), train:optimizer_state("0.weight", "ema")
    local dict = model:state_dict()
    for name, write in pairs {
      set_parameter = function() train:set_parameter("0.weight", kept * 2) end,
      ["load_state_dict"] = function() model:load_state_dict(dict) end,
      ["load_state_dict in full"] = function()
        model:load_state_dict(model:state_dict { full = true }, { full = true })
      end,
      with_full_params = function()
        ms.with_full_params(model, function(full) full["0.weight"] = full["0.weight"] * 2 end)
      end,
      optimizer_state = function() train:optimizer_state("0.weight", "ema") end,
    } do
      has(message(train.with_ema, train, write), name:match("^%S+") .. " | train:with_ema | averages")
    end
    assert.same(kept:tolist(), train:parameter("0.weight"):tolist())
    assert.same(averages:tolist(), train:optimizer_state("0.weight", "ema"):tolist())
    train:with_ema(function() -- what only reads goes on
      assert.same(averages:tolist(), train:parameter("0.weight"):tolist())
      ms.with_full_params(model, function(full) assert.truthy(full) end)
    end)
  end)

  it("are refused with what would be right #release", function()
    has(message(small, { ema = 1 }), "ema | decay | 0 | 1")
    has(message(small, { ema = { rate = 0.9 } }), "option rate")
    has(message(small, { ema = true }), "0.999")
    local train, batch = small {}
    has(message(train.with_ema, train, print), "ms.trainer | ema = 0.999")
    has(message(train.evaluate, train, batches(batch), { ema = true })
      , "train:evaluate | averages")
    local averaged = small { ema = 0.9 }
    has(message(ms.trainer, { model = averaged.model, optimizer = averaged.optimizer, loss = ms.loss.mse })
      , "ema")
    local folder = scratch.path()
    train:step(batch)
    ms.checkpoint.save(train, folder)
    has(message(ms.checkpoint.load, train.model, folder, { ema = true })
      , "averages | ema")
    has(message(ms.checkpoint.load, train, folder, { ema = true })
      , "model | ema")
    local ended = program.run({ "export", folder, scratch.path(), "--ema" })
    assert.equal(2, ended.status)
    has(ended.err, "averages")
  end)
end)
