-- A load that is refused changes nothing on any rank: neither the weights, nor the optimizer's state, nor the step, nor
-- the position of data. One that fails over damaged bytes has replaced a part of the weights: nothing trains, evaluates
-- or saves them until a checkpoint that is whole has been loaded. Where data cannot go back, it is the same.

local ms = require("moonshard")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local message = fixture.message

local function damage(path)
  local text = scratch.read(path)
  scratch.write(path, text:sub(1, -2) .. string.char((text:byte(-1) + 1) % 256))
end

describe("a load that failed part-way", function()
  after_each(scratch.clear)

  it("K4 leaves weights that nothing uses until another load has replaced them", function()
    local train, root = fixture.small_trainer(), scratch.folder()
    local function step() return train:step(fixture.small_batch()).loss end
    step()
    ms.checkpoint.save(train, root)
    local second = step()
    ms.checkpoint.save(train, root)
    local third = step()
    local whole, damaged = root .. "/step-00000001", root .. "/step-00000002"
    damage(damaged .. "/rank-00000.safetensors")
    has(message(ms.checkpoint.load, train, damaged), "checksum")
    local batch = fixture.small_batch()
    for _, call in ipairs {
      step, function() ms.checkpoint.save(train, root) end, function() train.model(batch.inputs) end,
      function() train:evaluate(coroutine.wrap(function() coroutine.yield(1, batch) end)) end,
    } do
      has(message(call), damaged .. " | failed | whole")
    end
    ms.checkpoint.load(train, whole)
    assert.equal(second, step())
    assert.equal(third, step())
  end)

  it("K4 takes data back, and needs a trainer's load to go on, as the optimizer's state is half another's", function()
    local train, root = fixture.small_trainer(), scratch.folder()
    local data = { at = 1 }
    function data:state() return { at = self.at } end
    function data:load_state(state) self.at = state.at end
    train:step(fixture.small_batch())
    local whole = ms.checkpoint.save(train, root, { data = data })
    train:step(fixture.small_batch())
    data.at = 2
    local damaged = ms.checkpoint.save(train, root, { data = data })
    damage(damaged .. "/rank-00000.safetensors")
    data.at = 3
    has(message(ms.checkpoint.load, train, damaged, { data = data }), "checksum")
    assert.same({ 3, 2 }, { data.at, train.steps_done })
    ms.checkpoint.load(train.model, whole)
    has(message(train.step, train, fixture.small_batch()), damaged .. " | optimizer | trainer")
    ms.checkpoint.load(train, whole)
    train:step(fixture.small_batch())
    assert.equal(2, train.steps_done)
  end)

  it("K4 changes nothing where it is refused before anything is read", function()
    local train, root = fixture.small_trainer(), scratch.folder()
    local first = train:step(fixture.small_batch()).loss
    ms.checkpoint.save(train, root)
    os.remove(root .. "/step-00000001/rank-00000.safetensors")
    has(message(ms.checkpoint.load, train, root), "rank-00000.safetensors")
    assert.is_true(train:step(fixture.small_batch()).loss < first)
  end)
end)

-- What each of the two ranks wrote of a case, in order.
local function of_ranks(folder, case)
  local list = { {}, {} }
  for rank, texts in ipairs(list) do
    for line in io.lines(("%s/said.%d"):format(folder, rank - 1)) do
      local name, text = line:match("^([^:]*): (.*)")
      if name == case then texts[#texts + 1] = text end
    end
  end
  return list
end

describe("a load that is refused", function()
  local folder
  setup(function()
    folder = scratch.folder()
    local ended = program.run { "run", "tests/lua/checkpoints/recipes/refused_loads.lua", "-n", "2",
      "folder=" .. folder }
    assert.equal(0, ended.status, ended.err)
  end)
  teardown(scratch.clear)

  local function each(case, facts, count)
    for _, list in ipairs(of_ranks(folder, case)) do
      assert.equal(count or #facts, #list, case)
      for i, text in ipairs(list) do
        for _, fact in ipairs(facts[i] or facts[1]) do has(text, fact) end
      end
    end
  end

  it("K4 over its data leaves the trainer as it was, on all ranks", function()
    each("seed", { { "seed=1 | seed=2", "kept", "steps" } })
    each("none", { { "step 3 | position", "kept", "steps" } })
  end)

  it("K4 by a data object of the recipe's on one rank fails on all, and moves none", function()
    each("one rank", { { "no such shard", "kept", "steps" } }, 2)
  end)

  it("K4 by a data object that cannot go back is followed by no step until a load with data succeeds", function()
    each("lost", { { "no such shard", "kept", "data | step-00000003 | failed | whole" },
      { "without data | data | failed | whole" } })
    each("found", { { "nothing", "kept", "steps" } })
  end)

  it("K4 of a resume leaves the model as it was to another trainer", function()
    each("other data", { { "seed=1 | seed=2", "kept", "step 0" }, { "updates 1" } })
    each("another run", { { "goes on from | data/step-00000003", "kept", "step 0" }, { "updates 1" } })
  end)
end)

describe("a load of a model", function()
  after_each(scratch.clear)

  it("K4 takes no data, whose position only a trainer restores", function()
    local train = fixture.small_trainer()
    has(message(ms.checkpoint.load, train.model, "nowhere", { data = ms.data.sampler { length = 4 } }), "model | data")
  end)
end)
