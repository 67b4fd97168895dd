-- What a rank keeps for training: f32 masters and optimizer state of what it owns and of nothing else, whatever kernels
-- read; and nothing at all for what is frozen.

local json = require("cjson")
local ms = require("moonshard")
local breadth = require("lua.support.breadth")
local program = require("lua.support.program")
local trained = require("lua.support.trained")
local assert_close, assert_same = trained.assert_close, trained.assert_same
local re, world = ms.re, ms.world()

local function run(ranks, settings) return trained.run(ranks, trained.with({ steps = 3 }, settings)) end

local function plan_of(mesh, ranks, settings)
  local words = { "plan", "tests/lua/recipes/parity.lua", "-n", tostring(ranks), "--json", "mesh=" .. mesh }
  for name, value in pairs(settings or {}) do words[#words + 1] = ("%s=%s"):format(name, tostring(value)) end
  local ended = program.run(words)
  assert(ended.status == 0, ended.err)
  return json.decode(ended.out)
end

-- Elements of the gradients of this rank's chunks, as the layout rows places them: chunks of rows, at multiples of 32.
local function chunk_elements(model, shards, counts)
  local sum = 0
  for name, parameter in model:named_parameters() do
    if counts(name) then
      local rows = math.ceil(parameter.shape[1] / shards) * parameter.numel / parameter.shape[1]
      sum = sum + 32 * math.ceil(rows / 32)
    end
  end
  return sum
end

-- The plan of a model with one unit of three layers and the root, frozen by rule.
local function planned(shards, config, optimizer)
  world.describe(0, shards)
  local model = ms.nn.sequential { ms.nn.linear(5, 17), ms.nn.linear(17, 13), ms.nn.linear(13, 3) }
  config.mesh, config.units = { 1, shards }, { { "0", "1", "2" } }
  ms.fully_shard(model, config)
  local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = optimizer or ms.optim.adamw { lr = 1 } }
  local function array(columns) return { data = 0, dtype = "f32", shape = { 4, columns } } end
  return train:compile { inputs = array(5), targets = array(3) }:summary(), model
end

describe("mixed precision", function()
  it("S7 keeps masters, gradients of chunks and optimizer state in f32, whatever kernels read", function()
    for _, layout in ipairs { "rows", "ragged" } do
      local full = plan_of("1x3", 3, { layout = layout })
      local half = plan_of("1x3", 3, { layout = layout, dtype = "bf16", reduce = "bf16" })
      for _, category in ipairs { "gradients", "optimizer" } do
        assert.equal(full.bytes[category], half.bytes[category], category)
      end
      -- Every parameter trains, so its chunk of masters is as large as that of gradients.
      assert.equal(half.bytes.gradients, half.bytes.parameters)
    end
  end)

  it("S7 differs by layer by rule, with an output type of its own: close to f32, and the same on every mesh", function()
    local full = run(1, { mesh = "1x1" })
    for _, settings in ipairs(breadth.few { { dtype = "bf16", output = "f32" }, { by_layer = true } }) do
      local alone = run(1, trained.with(settings, { mesh = "1x1" }))
      assert_close(full.losses, alone.losses, 2e-2, "losses against f32")
      assert.not_same(full.losses, alone.losses)
      for _, mesh in ipairs(breadth.few { { 4, "2x2" }, { 3, "1x3" } }) do
        local got = run(mesh[1], trained.with(settings, { mesh = mesh[2] }))
        assert_close(alone.losses, got.losses, 2e-2, "losses of " .. mesh[2])
        trained.forget()
        assert_same(got, run(mesh[1], trained.with(settings, { mesh = mesh[2] })))
      end
    end
  end)
end)

describe("frozen parameters", function()
  it("S8 in a unit with others have no gradient memory and no optimizer state, to the byte", function()
    for _, shards in ipairs { 1, 2, 3, 4 } do
      local rule = re[[^1\.|bias$]]
      local function trains(name) return not name:find("^1%.") and not name:find("bias$") end
      local summary, model = planned(shards, { freeze = { rule } })
      assert.equal(4 * chunk_elements(model, shards, trains), summary.bytes.gradients)
      assert.equal(8 * chunk_elements(model, shards, trains), summary.bytes.optimizer)
      local all = planned(shards, {})
      assert.equal(4 * chunk_elements(model, shards, function() return true end), all.bytes.gradients)
      -- Chunks of masters are there, frozen or not; of one rank and more, each lies where its owner has it.
      assert.equal(all.bytes.parameters, summary.bytes.parameters)
    end
  end)

  it("S8 are not reduced: not their unit when all of it is frozen, nor their bytes when part of it is", function()
    for _, layout in ipairs(breadth.few { "ragged", "rows" }) do
      local settings = { mesh = "1x2", layout = layout, steps = 1 }
      local all, part = run(2, settings), run(2, trained.with(settings, { freeze = "fc1.weight" }))
      assert.same(all.collectives, part.collectives)
      local saved = all.comm_bytes.shard - part.comm_bytes.shard
      -- Half of two weights, 16x17 and 7x17; rows are whole, so there are 8 for 7, and ragged segments pad elsewhere.
      if layout == "rows" then assert.equal(4 * (16 + 8) * 17 / 2, saved) end
      assert(saved >= 4 * (16 + 7) * 17 / 2)
    end
    local settings = { mesh = "1x2", steps = 1 }
    local all, part = run(2, settings), run(2, trained.with(settings, { freeze = "^layers.0" }))
    assert.equal(all.collectives.first - 1, part.collectives.first)
    settings.mesh = "2x2"
    all, part = run(4, settings), run(4, trained.with(settings, { freeze = "^layers.0" }))
    assert.equal(all.collectives.first - 2, part.collectives.first) -- nor is there an all-reduce
  end)
end)

describe("optimizer state", function()
  it("S13 is two numbers for AdamW, one for momentum and none without, of owned elements alone", function()
    for _, shards in ipairs { 1, 3 } do
      local all = function() return true end
      local numbers = { { 2, ms.optim.adamw { lr = 1 } }, { 1, ms.optim.sgd { lr = 1, momentum = 0.9 } },
        { 0, ms.optim.sgd { lr = 1 } } }
      for _, case in ipairs(numbers) do
        local summary, model = planned(shards, {}, case[2])
        assert.equal(4 * case[1] * chunk_elements(model, shards, all), summary.bytes.optimizer)
      end
      local halves, model = planned(shards, {}, ms.optim.adamw { lr = 1, moments = "bf16" })
      assert.equal(2 * 2 * chunk_elements(model, shards, all), halves.bytes.optimizer)
    end
  end)

  it("S13 of a rank covers what the rank owns, and of all ranks everything once", function()
    local path = program.recipe([==[
      local ms = require "moonshard"
      for _, layout in ipairs { "rows", "ragged" } do
        local model = ms.nn.sequential { ms.nn.linear(5, 7), ms.nn.linear(7, 2) }
        ms.fully_shard(model, { mesh = { 1, 3 }, layout = layout })
        local train = ms.trainer { model = model, loss = ms.loss.mse, optimizer = ms.optim.adamw { lr = 0.1 } }
        train:step { inputs = ms.randn { 2, 5 }, targets = ms.randn { 2, 2 } }
        for name, parameter in model:named_parameters() do
          local mine, state = train:local_parameter(name):numel(), train:local_optimizer_state(name, "exp_avg"):numel()
          assert(mine == state)
          local sum = 0
          for _, owned in ipairs(train.session:gather_numbers(state)) do sum = sum + owned end
          assert(sum == parameter.numel, name)
        end
      end
      if ms.world().rank == 0 then print("fine") end
    ]==])
    local ended = program.run({ "run", path, "-n", "3" })
    os.remove(path)
    assert.equal("fine\n", ended.out, ended.err)
  end)
end)
