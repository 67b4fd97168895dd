-- A load that fails over damaged bytes has replaced a part of the weights: nothing trains, evaluates or saves them
-- until a checkpoint that is whole has been loaded.

local ms = require("moonshard")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
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

  it("K4 changes nothing where it is refused before anything is read", function()
    local train, root = fixture.small_trainer(), scratch.folder()
    local first = train:step(fixture.small_batch()).loss
    ms.checkpoint.save(train, root)
    os.remove(root .. "/step-00000001/rank-00000.safetensors")
    has(message(ms.checkpoint.load, train, root), "rank-00000.safetensors")
    assert.is_true(train:step(fixture.small_batch()).loss < first)
  end)
end)
